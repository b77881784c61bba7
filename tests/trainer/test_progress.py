"""A person sees where the run is, and the display neither holds training up nor ends it."""

import io
import math
import sys
import threading
import time
from typing import Any, TypeVar

import pytest
from rich.console import Console

from tests.schemas.examples import EVENT_EXAMPLES, RECORD_EXAMPLES
from tocsin.diagnostics.history import ABSENT, History
from tocsin.diagnostics.panel import Stage, draw, progress_line, sparkline
from tocsin.schemas.base import NonFinite
from tocsin.schemas.batch import BatchConsumed, Quantiles
from tocsin.schemas.diagnosis import At, Coverage, Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ComponentHeartbeat, EvaluationCompleted, QueueSampled, RolloutFailed
from tocsin.schemas.generation import SamplerSampled
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.progress import Progress

E = TypeVar("E", bound=BaseEvent)


class Clock:
    """Seconds that the test decides."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def example(kind: type[E], **changes: Any) -> E:
    """The published example of an event, unstamped, with other values."""
    found = next(event for event in EVENT_EXAMPLES if type(event) is kind)
    return kind(**{**dict(found), "step": 0, **changes})


def batch(pass_rate: float) -> BatchConsumed:
    spread = Quantiles(mean=0.9, p50=1.0, p95=1.0, max=1.0)
    return example(BatchConsumed, reward_mean=pass_rate, pass_rate=pass_rate, staleness=spread, max_staleness=1)


def completed(entropy: float | None = 0.61) -> StepCompleted:
    return example(StepCompleted, entropy=entropy)


def one_step(pass_rate: float = 0.8) -> tuple[BaseEvent, ...]:
    return (
        example(SamplerSampled, tokens=1000),
        batch(pass_rate),
        completed(),
        example(QueueSampled, learner_wait_s=0.06, sampler_wait_s=0.015, step_s=0.5),
    )


def evaluated(version: int, pass_rate: float, error: float) -> EvaluationCompleted:
    return example(EvaluationCompleted, version=version, pass_rate=pass_rate, pass_rate_se=error)


def diagnostic(step: int = 40, **changes: Any) -> Diagnostic:
    at = At(step=step, policy_version=0, ts="")
    base = {"summary": "S.", "actions": [], "relations": [], "started": at, "fired": at, "last": at}
    return Diagnostic(**{**dict(RECORD_EXAMPLES[0]), **base, "fingerprint": changes.get("code", "RWD001"), **changes})


def run(history: History, clock: Clock, num_steps: int, pass_rate: float = 0.8) -> None:
    """Steps of half a second."""
    for _ in range(num_steps):
        clock.now += 0.5
        for event in one_step(pass_rate):
            history.observe(event)


def panel_lines(history: History, stage: Stage | None = None, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, record=True)
    console.print(draw(history, stage, width))
    return console.export_text().splitlines()


def test_the_panel_shows_the_numbers_of_the_run_in_80_columns():
    clock = Clock()
    history = History(400, clock)
    history.observe(evaluated(0, 0.44, 0.031))
    run(history, clock, 120)
    history.observe(evaluated(100, 0.79, 0.025))
    lines = panel_lines(history)
    text = "\n".join(lines)
    assert {len(line) for line in lines} == {80}
    assert len(lines) == 10
    for part in (
        "step 120/400  ━",
        "30 %, 140 s left",
        "reward     0.80",
        "pass rate  0.80",
        "held-out   0.79 ± 0.03 (step 100)",
        "at first   0.44 ± 0.03",
        "staleness  0.9 of at most 1",
        "speed      2,000 tokens/s",
        "waits      learner 12 %, sampler 3 %",
        "entropy    0.610 nats",
        "no spread  50 % of groups",
        "updates    120 of 120 steps",
        "pass rate  ▇▇▇",
        "open       no diagnostic",
        " 60 s ─╯",
    ):
        assert part in text


def test_a_narrow_terminal_gets_one_column_and_nothing_wraps():
    clock = Clock()
    history = History(400, clock)
    run(history, clock, 3)
    history.record(diagnostic(summary="x" * 160))
    lines = panel_lines(history, width=44)
    assert {len(line) for line in lines} == {44}
    assert any("WARNING RWD001" in line and "…" in line for line in lines)


def test_what_is_absent_is_a_dash_and_what_is_not_finite_says_so():
    history = History(10, Clock())
    history.observe(completed(entropy=None))
    text = "\n".join(panel_lines(history))
    assert f"reward     {ABSENT}" in text
    assert f"entropy    {ABSENT}" in text
    assert f"learner {ABSENT}, sampler {ABSENT}" in text
    history.observe(completed(entropy=math.nan))
    history.observe(batch(math.nan))
    history.observe(evaluated(0, math.nan, math.inf))
    text = "\n".join(panel_lines(history))
    assert "reward     nan" in text
    assert "entropy    nan nats" in text
    assert "held-out   nan ± inf" in text
    assert "pass rate  ·" in text
    assert isinstance(completed(entropy=math.nan).entropy, NonFinite)


def test_a_held_out_result_of_now_needs_no_step_and_a_wait_is_never_more_than_the_step():
    clock = Clock()
    history = History(400, clock)
    run(history, clock, 10)
    history.observe(evaluated(10, 0.79, 0.025))
    for _ in range(20):
        history.observe(example(QueueSampled, learner_wait_s=0.1, sampler_wait_s=8.0, step_s=0.5))
    line = progress_line(history)
    assert "held-out 0.79 ± 0.03  staleness" in line
    assert "waits learner 20 % sampler 100 %" in line


def test_open_diagnostics_are_listed_gravest_first_until_they_resolve():
    history = History(400, Clock())
    history.record(diagnostic(40, severity="info", code="POL003"))
    history.record(diagnostic(41))
    history.record(diagnostic(42, severity="critical", code="POL015"))
    listed = [line.split()[-4:-1] for line in panel_lines(history) if "zero-std-groups" in line]
    assert [words[0] for words in listed] == ["POL015", "RWD001", "POL003"]
    history.record(diagnostic(43, state="resolved", reason="resolved"))
    assert "RWD001" not in "\n".join(panel_lines(history))


def test_a_stage_has_a_bar_only_when_its_length_is_known():
    history = History(400, Clock())
    known = panel_lines(history, Stage("pre-training the model", 0.5))
    assert known[1].startswith("│ pre-training the model  ━")
    assert "50 %" in known[1]
    assert "━" not in panel_lines(history, Stage("starting the sampler", None))[1]


def test_a_run_that_stands_still_says_since_when_instead_of_promising_an_end():
    clock = Clock()
    history = History(400, clock)
    run(history, clock, 5)
    clock.now += 42
    assert "last step 42 s ago" in panel_lines(history)[1]


def test_a_plain_line_holds_everything_that_matters():
    clock = Clock()
    history = History(400, clock)
    history.observe(evaluated(0, 0.44, 0.03))
    run(history, clock, 30)
    history.record(diagnostic())
    assert progress_line(history) == (
        "step 30/400  reward 0.80  pass 0.80  held-out 0.44 ± 0.03 (step 0)  staleness 0.9/1  "
        "waits learner 12 % sampler 3 %  2,000 tok/s  open 1 warning"
    )


@pytest.mark.parametrize(
    ("points", "span", "expected"),
    [
        ([0.0, 0.5, 1.0], (0.0, 1.0), "▁▅█"),
        ([2.0, 3.0], None, "▁█"),
        ([2.0, 2.0], None, "▁▁"),
        ([0.0, math.nan, 9.0], (0.0, 1.0), "▁·█"),
        ([0.0] * 8 + [1.0] * 8, (0.0, 1.0), "▁▁▁▁████"),
        ([], None, ""),
    ],
)
def test_a_sparkline_shows_the_whole_series_in_the_room_there_is(points, span, expected):
    assert sparkline(points, 8, span) == expected


def test_a_log_gets_stages_steps_and_diagnostics_as_plain_lines():
    stream = io.StringIO()
    with Progress(steps=2, stream=stream) as progress:
        progress.note("run demo-1\x1b[2J")
        progress.stage("loading the model")
        wait_for(stream, "loading the model")
        for event in one_step():
            progress.observe(event)
        wait_for(stream, "step 1/2")
        progress.record(diagnostic())
        progress.record(diagnostic(severity="info", code="POL003"))
        for event in one_step():
            progress.observe(event)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[tocsin] run demo-1?[2J"
    assert lines[1] == "loading the model"
    assert lines[2].startswith("step 1/2  reward 0.80")
    assert lines[3] == "[tocsin] WARNING RWD001 zero-std-groups: S. -> tocsin explain RWD001"
    assert lines[4].startswith("step 2/2")
    assert len(lines) == 5


def wait_for(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 5
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, f"{text!r} never appeared"
        time.sleep(0.02)


def test_only_the_first_failure_of_a_cause_and_the_fate_of_processes_are_told():
    stream = io.StringIO()
    failure = RolloutFailed(
        cause="reward_error", prompt_id="3-a", group_index=1, completions=2, whole_group=False, error="ValueError: x"
    )
    with Progress(steps=9, stream=stream) as progress:
        progress.observe(failure)
        progress.observe(failure)
        progress.observe(ComponentHeartbeat(component="sampler", state="alive"))
        progress.observe(ComponentHeartbeat(component="sampler", state="alive", detail="vllm-0 was resumed"))
        progress.observe(ComponentHeartbeat(component="sampler", state="died", detail="exit code -9"))
    assert stream.getvalue().splitlines() == [
        "[tocsin] reward_error at prompt 3-a: ValueError: x (others are only counted)",
        "[tocsin] sampler: vllm-0 was resumed",
        "[tocsin] sampler died: exit code -9",
    ]
    assert progress.history.failed == {"reward_error": 4}


def test_coverage_is_printed_only_when_diagnostics_cannot_be_trusted():
    stream = io.StringIO()
    at = At(step=1, policy_version=0, ts="")
    with Progress(steps=9, stream=stream) as progress:
        for health in ("ok", "unknown", "degraded"):
            progress.record(Coverage(event_seq=1, at=at, evaluated=["RWD001"], not_evaluated={}, health=health))
        progress.record(RECORD_EXAMPLES[1])
    assert stream.getvalue().splitlines() == [
        "[tocsin] COVERAGE degraded: 1 of 1 rule evaluated",
        "[tocsin] ACTION applied group_size 8 -> 16 by person:ada at step 3 for zero-std-groups/trainer#1",
    ]


def test_a_terminal_shows_the_panel_prints_above_it_and_is_restored_after_an_error():
    stream = io.StringIO()
    before = sys.stderr

    def fail() -> None:
        with Progress(steps=400, stream=stream, live=True) as progress:
            for event in one_step():
                progress.observe(event)
            progress.record(diagnostic())
            wait_for(stream, "step 1/400")
            wait_for(stream, "WARNING")
            raise RuntimeError("the run failed")

    with pytest.raises(RuntimeError, match="the run failed"):
        fail()
    written = stream.getvalue()
    assert written.index("\x1b[?25l") < written.rindex("\x1b[?25h")
    assert not [thread for thread in threading.enumerate() if thread.name == "tocsin-display"]
    assert sys.stderr is before


class Blocked(io.StringIO):
    """A pipe that nobody reads until `gate` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def write(self, text: str) -> int:
        self.gate.wait(10)
        return super().write(text)


def test_a_stream_that_stands_still_does_not_hold_up_training():
    stream = Blocked()
    with Progress(steps=1000, stream=stream) as progress:
        progress.note("stuck")
        time.sleep(0.4)
        began = time.monotonic()
        for _ in range(200):
            for event in one_step():
                progress.observe(event)
            progress.record(diagnostic())
        assert time.monotonic() - began < 10, "the stream was waited for"
        stream.gate.set()
    assert progress.history.step == 200


class Gone(io.StringIO):
    """A pipe whose reader left."""

    def write(self, text: str) -> int:
        raise BrokenPipeError("nobody reads")


def test_a_stream_that_is_gone_switches_the_display_off_and_nothing_else(caplog):
    with Progress(steps=10, stream=Gone()) as progress:
        progress.note("hello")
        time.sleep(0.4)
        for event in one_step():
            progress.observe(event)
    assert progress.history.step == 1
    assert [record.message for record in caplog.records] == [
        "tocsin progress: the display failed and is off; training is not affected"
    ]


def test_text_that_an_encoding_lacks_is_replaced():
    raw = io.BytesIO()
    with Progress(steps=10, stream=io.TextIOWrapper(raw, encoding="ascii", write_through=True)) as progress:
        progress.note("0.79 ± 0.03")
        time.sleep(0.4)
        assert raw.getvalue() == b"[tocsin] 0.79 ? 0.03\n"
