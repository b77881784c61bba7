"""The report at the end: what was learned and what was not, in words that hold."""

import io
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

import pytest
from rich.console import Console

from tests.schemas.examples import EVENT_EXAMPLES, RECORD_EXAMPLES
from tocsin.diagnostics.clock import Cost
from tocsin.diagnostics.history import ABSENT, Curve, History
from tocsin.diagnostics.monitor import MonitorCost
from tocsin.diagnostics.panel import share
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import At, Coverage, Diagnostic, NotEvaluated, Relation
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, RolloutFailed, RunEnded, RunResumed
from tocsin.schemas.generation import SamplerSampled
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.summary import summarise

E = TypeVar("E", bound=BaseEvent)


def example(kind: type[E], **changes: Any) -> E:
    """The published example of an event, unstamped, with other values."""
    found = next(event for event in EVENT_EXAMPLES if type(event) is kind)
    return kind(**{**dict(found), "step": 0, **changes})


def diagnostic(code: str, fired: int, **changes: Any) -> Diagnostic:
    at = At(step=fired, policy_version=0, ts="")
    base = {"fingerprint": code, "code": code, "relations": [], "started": at, "fired": at, "last": at}
    return Diagnostic(**{**dict(RECORD_EXAMPLES[0]), **base, **changes})


def resolved(code: str, fired: int, end: int, **changes: Any) -> Diagnostic:
    at = At(step=end, policy_version=0, ts="")
    return diagnostic(code, fired, state="resolved", reason="resolved", resolved=at, **changes)


def coverage(*codes: str, **missing: NotEvaluated) -> Coverage:
    at = At(step=1, policy_version=0, ts="")
    return Coverage(event_seq=1, at=at, evaluated=list(codes), not_evaluated=missing, health="ok")


def evaluated(version: int, pass_rate: float | None, error: float | None = 0.03, **changes: Any) -> EvaluationCompleted:
    values = {"version": version, "n": 256, "failed": 0, "pass_rate": pass_rate, "pass_rate_se": error}
    return example(EvaluationCompleted, **{**values, **changes})


def step(reward: float, outcome: str = "updated", seconds: float = 0.125) -> list[BaseEvent]:
    return [
        example(SamplerSampled, tokens=1000),
        example(BatchConsumed, reward_mean=reward, pass_rate=None),
        example(StepCompleted, outcome=outcome, tokens_trained=800, seconds={"total": seconds}),
    ]


def history_of(*events: BaseEvent, steps: int = 400) -> History:
    history = History(steps)
    for event in events:
        history.observe(event)
    return history


def text_of(history: History, folder: Path, outcome: str = "completed", cost: MonitorCost | None = None) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, record=True)
    console.print(summarise(history, folder, outcome, cost, 61.7))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def test_a_finished_run_reads_from_what_was_learned_to_what_to_do_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "demo-1"
    (folder / "rollouts").mkdir(parents=True)
    (folder / "checkpoints" / "step-000400").mkdir(parents=True)
    (folder / "checkpoints" / "step-000400" / "state.json").touch()
    for name in ("events.jsonl", "feed.jsonl"):
        (folder / name).touch()
    steps = [event for i in range(400) for event in step(0.5 if i < 200 else 1.0)]
    history = history_of(evaluated(0, 0.44), *steps, evaluated(400, 0.97, 0.01))
    history.record(coverage("POL015", "RWD001", SYS001=NotEvaluated(reason="not_applicable", detail="no accelerator")))
    spent = Cost(1200, 0.1, 70.0, 120.0, 210.0, 400.0)
    assert text_of(history, folder, cost=MonitorCost(spent, spent, spent)).splitlines()[1:] == [
        "learned      held-out pass rate 0.44 ± 0.03 → 0.97 ± 0.01 (step 0 → 400, n 256)",
        "             training reward 0.50 → 1.00 (20-step means)",
        "took         62 s for 400 steps, 0.125 s a step (median)",
        "tokens       400,000 generated, 8,000 a second of training; 320,000 trained on",
        "diagnostics  none fired; 2 of 3 rules evaluated",
        "             not SYS001: not applicable: no accelerator",
        "cost a step  rules 210 µs (0.17 %), events 210 µs (0.17 %), emit 210 µs (0.17 %)",
        "files        runs/demo-1/",
        "               events.jsonl  every event",
        "               feed.jsonl    diagnostics and actions, for agents",
        "               rollouts/     completions with their rewards",
        "               checkpoints/  newest: step-000400",
        "next         tocsin status demo-1",
        "             tocsin feed demo-1",
    ]


def test_the_heading_says_how_the_run_ended_and_where(tmp_path):
    history = history_of(*step(1.0), *step(1.0))
    heading = text_of(history, tmp_path / "demo-1", "interrupted").splitlines()[0]
    assert heading.startswith("interrupted at step 2 of 400  demo-1 ─")
    assert len(heading) == 80


def test_a_run_that_can_be_resumed_says_how_and_others_do_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "elsewhere" / "a run"
    assert "--resume" not in text_of(history_of(), folder, "failed")
    (folder / "checkpoints" / "step-000100").mkdir(parents=True)
    (folder / "checkpoints" / "step-000100" / "state.json").touch()
    assert "next         tocsin train --resume 'elsewhere/a run'\n" in text_of(history_of(), folder, "failed")
    assert "--resume" in text_of(history_of(), folder, "interrupted")
    assert "--resume" not in text_of(history_of(), folder, "completed")


def test_the_error_of_a_failed_run_is_shown_without_what_a_terminal_would_obey(tmp_path):
    history = history_of(example(RunEnded, outcome="failed", error="RuntimeError: died\x1b[2J\nhere"))
    assert text_of(history, tmp_path, "failed").splitlines()[1] == "RuntimeError: died?[2J here"


def test_diagnostics_are_listed_with_severity_steps_and_fate(tmp_path):
    history = history_of(*step(1.0))
    root = Relation(kind="explained_by", id="nan-inf/learner#1")
    history.record(diagnostic("RWD001", 40))
    history.record(resolved("RWD001", 40, 90))
    history.record(diagnostic("POL015", 120, severity="critical", name="nan-inf"))
    history.record(diagnostic("POL015", 120, severity="critical", name="nan-inf", reason="run_ended"))
    history.record(diagnostic("OFF001", 60, episode=3, relations=[root], name="staleness-high"))
    lines = text_of(history, tmp_path).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("diagnostics"))
    assert lines[start : start + 5] == [
        "diagnostics  CRITICAL POL015 nan-inf, since step 120, open at the end",
        "             WARNING OFF001 staleness-high, since step 60, open at the end, 3",
        "             episodes, explained by nan-inf/learner#1",
        "             WARNING RWD001 zero-std-groups, steps 40 to 90, resolved",
        "             no rule was evaluated: silence proves nothing",
    ]


def test_later_episodes_keep_the_first_step_and_the_gravest_severity(tmp_path):
    history = history_of(*step(1.0))
    history.record(resolved("RWD001", 40, 50, severity="critical"))
    history.record(resolved("RWD001", 200, 230, episode=2))
    history.record(coverage("RWD001"))
    text = " ".join(text_of(history, tmp_path).split())
    assert "CRITICAL RWD001 zero-std-groups, steps 40 to 230, resolved, 2 episodes" in text
    assert "1 of 1 rule evaluated" in text
    assert "none fired" not in text


def test_silence_of_rules_that_never_ran_is_not_called_health(tmp_path):
    history = history_of(*step(1.0))
    history.record(coverage(RWD001=NotEvaluated(reason="warm_up", detail="fewer than 64 groups")))
    text = text_of(history, tmp_path)
    assert "silence proves nothing: 0 of 1 rule evaluated" in text
    assert "not RWD001: warm up: fewer than 64 groups" in text


def test_what_was_left_out_and_what_was_skipped_is_counted_by_cause(tmp_path):
    refused = example(RolloutFailed, cause="prompt_too_long", group_index=None, completions=0)
    failed = example(RolloutFailed, cause="reward_timeout", group_index=4, completions=3)
    history = history_of(refused, failed, failed, *step(1.0), *step(1.0, "no_signal"), *step(1.0, "nonfinite"))
    text = text_of(history, tmp_path)
    assert "left out     1 row: 1 prompt_too_long\n             6 completions: 6 reward_timeout\n" in text
    assert "updates      1 of 3 steps; 1 without a signal, 1 not finite, skipped\n" in text


def test_nothing_is_invented_for_a_run_that_ended_before_its_first_step(tmp_path):
    unmeasured = Cost(0, 0.0, math.nan, math.nan, math.nan, math.nan)
    text = text_of(history_of(), tmp_path, "failed", MonitorCost(unmeasured, unmeasured, unmeasured))
    assert "learned      held-out results: not measured\n" in text
    assert "took         62 s for 0 steps\n" in text
    for word in ("training", "tokens", "cost", "left out", "updates", "nan"):
        assert word not in text.replace(str(tmp_path), "")


def test_one_evaluation_is_no_progress_and_nan_is_shown(tmp_path):
    assert "held-out pass rate 0.44 ± 0.03 (step 0, n 256)\n" in text_of(history_of(evaluated(0, 0.44)), tmp_path)
    history = history_of(evaluated(0, 0.44), evaluated(50, math.nan, math.nan, failed=9))
    assert "0.44 ± 0.03 → nan ± nan (step 0 → 50, n 256, 9 could not be scored)" in " ".join(
        text_of(history, tmp_path).split()
    )


def test_a_task_without_a_declared_range_is_judged_by_its_reward(tmp_path):
    first = evaluated(0, None, None, reward_mean=-3.25, reward_se=0.5)
    last = evaluated(9, None, None, reward_mean=1234.5, reward_se=20.0)
    text = text_of(history_of(first, last), tmp_path)
    assert "held-out reward -3.25 ± 0.50 → 1234 ± 20.00 (step 0 → 9, n 256)" in text


def test_a_resumed_run_says_where_it_began_and_counts_on_from_there(tmp_path):
    resumed = example(RunResumed, checkpoint_step=100)
    history = history_of(resumed, *step(1.0))
    text = text_of(history, tmp_path)
    assert history.step == 101
    assert "for 1 step, 0.125 s a step (median), resumed at step 100\n" in text


def test_a_stamped_event_and_a_bare_one_count_the_same():
    bare = history_of(*(example(StepCompleted) for _ in range(3)))
    stamped = history_of(*(example(StepCompleted, step=number) for number in (1, 2, 3)))
    assert (bare.step, stamped.step) == (3, 3)


def test_a_long_series_keeps_its_shape_in_bounded_memory():
    curve = Curve()
    for i in range(100_000):
        curve.add(i / 100_000)
    assert len(curve.points) < 120
    assert curve.points == sorted(curve.points)
    assert curve.points[0] < 0.02
    assert curve.points[-1] > 0.97


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, ABSENT), (0.8125, "0.81"), (-0.004, "-0.00"), (12345.6, "1.235e+04"), (math.inf, "inf"), (math.nan, "nan")],
)
def test_a_share_has_two_decimals_and_says_when_there_is_none(value, expected):
    assert share(value) == expected


def test_a_log_file_gets_the_report_without_escape_sequences(tmp_path):
    stream = io.StringIO()
    Console(file=stream, width=80).print(summarise(history_of(*step(1.0)), tmp_path / "r", "completed", None, 1.0))
    assert "\x1b" not in stream.getvalue()
    assert max(len(line) for line in stream.getvalue().splitlines()) == 80


def test_progress_and_summary_load_without_torch():
    script = "import sys, tocsin.trainer.progress; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
