"""Faults that name rules which the benchmark does not count as right, each planted in a run of its own.

`test_evidence.py` says which rules may warn because of what is shown here.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.runs import Recording, start, train, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.config import DiagnosticsConfig, EvaluationConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.events import RunStarted
from tocsin.schemas.fault import FaultConfig, FaultName
from tocsin.trainer.demo_task import DIGITS, row, write_rows

pytestmark = pytest.mark.training

ONSET = 12
BROAD = {"groups_per_step": 8, "group_size": 8}
"""Enough completions a step for rules that count them."""

Row = dict[str, str]


def run_of(policy: TinyPolicy, steps: int, **changes: Any) -> RunConfig:
    """A run without evaluations; `data` are fields of that part of the configuration."""
    data = {"evaluation": None, **changes.pop("data", {})}
    config = tiny_config(policy, steps=steps, **changes)
    return config.model_copy(update={"data": config.data.model_copy(update=data)})


def with_fault(name: FaultName, dose: float = 1.0, onset: int = ONSET) -> FaultConfig:
    return FaultConfig(name=name, onset_step=onset, dose=dose)


def written(rows: Iterable[Row], folder: Path) -> dict[str, Any]:
    """Training data, taken in this order."""
    path = folder / "train.jsonl"
    write_rows(list(rows), path)
    return {"train": str(path), "shuffle": False}


def rows_of(digits: Iterable[int], n: int, *, length: int = DIGITS) -> list[Row]:
    """Rows whose prompts have only these digits."""
    rng = np.random.default_rng(0)
    return [row(line) for line in rng.choice(list(digits), size=(n, length))]


def named(recording: Recording, code: str, *, after: int = ONSET) -> list[Diagnostic]:
    """What a rule said, step `after` being the last that had no fault; it fired, and not before."""
    said = recording.diagnostics()
    found = [record for record in said if record.code == code]
    assert found, f"{code} said nothing; what spoke: {sorted({record.code for record in said})}"
    assert found[0].reason == "fired"
    assert found[0].fired is not None
    assert found[0].fired.step > after
    return found


@pytest.fixture(scope="module")
def unreadable(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A second verifier that reads answers which begin with a low digit, and data that have none of them any more."""
    folder = tmp_path_factory.mktemp("unreadable")
    rewards = [RewardConfig(function="exact"), RewardConfig(function="regex", pattern=r"^([0-4]\d*)$")]
    rows = [*rows_of(range(10), 8 * ONSET), *rows_of(range(5, 10), 8 * 60)]
    return train(run_of(tiny_policy, ONSET + 30, knobs=BROAD, rewards=rewards, data=written(rows, folder)), folder)


def test_answers_that_a_verifier_cannot_read_are_named(unreadable: Recording) -> None:
    found = named(unreadable, "GEN012")
    assert found[0].severity in ("warning", "critical")
    assert found[0].summary.startswith("regex found no answer in ")


def test_a_reward_function_that_gives_nothing_any_more_is_named(unreadable: Recording) -> None:
    found = named(unreadable, "RWD010")
    assert found[0].severity == "warning"
    assert found[0].summary.startswith("Reward function regex gave 0 to all ")


def test_prompts_that_do_not_fit_are_named_at_the_start(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    data = written([*rows_of(range(10), 64), *rows_of(range(10), 8, length=20)], tmp_path)

    def said(room: int) -> list[tuple[str, str]]:
        model = ModelConfig(path=str(tiny_policy.model), max_length=room)
        recording = train(run_of(tiny_policy, 1, model=model, data=data), tmp_path / str(room))
        return [(record.reason, record.severity) for record in recording.diagnostics() if record.code == "GEN014"]

    # 21 tokens of prompt and 8 of completion.
    assert said(29) == []
    assert said(28)[0] == ("fired", "critical")


def test_short_rows_beside_a_long_one_are_padding(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    even, long = rows_of(range(10), 8 * 100), rows_of(range(10), 100, length=40)
    rows = [*even[: 8 * ONSET], *(one for i in range(88) for one in (*even[7 * i : 7 * i + 7], long[i]))]
    knobs = {"groups_per_step": 8, "skip_zero_spread": False}
    config = run_of(tiny_policy, ONSET + 60, knobs=knobs, data=written(rows, tmp_path))
    found = named(train(config, tmp_path), "SYS009")
    assert [(record.reason, record.severity) for record in found[:2]] == [("fired", "info"), ("escalated", "warning")]


def test_recomputed_log_probs_are_named(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    config = run_of(tiny_policy, ONSET + 26, fault=with_fault("recomputed-logprobs"))
    assert named(train(config, tmp_path), "POL005")[0].severity == "warning"


def test_a_reward_that_is_gone_is_named(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    config = run_of(tiny_policy, ONSET + 14, knobs=BROAD, fault=with_fault("truncated"))
    assert named(train(config, tmp_path), "POL009")[0].severity in ("warning", "critical")


def test_a_reward_that_is_gamed_parts_from_the_held_out_score(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    config = run_of(
        tiny_policy,
        ONSET + 36,
        knobs={**BROAD, "learning_rate": 1e-3},
        fault=with_fault("proxy-reward", 3),
        data={"evaluation": str(tiny_policy.held_out)},
        evaluation=EvaluationConfig(every=ONSET, prompts=128),
    )
    assert "critical" in {record.severity for record in named(train(config, tmp_path), "GEN010")}


def until_said(config: RunConfig, folder: Path, code: str) -> Recording:
    """Train until a rule says something, and no longer."""
    with start("train", write_config(config, folder / "run.toml"), runs_dir=folder / "runs") as run:
        run.until_event(lambda event: isinstance(event, RunStarted))
        run.until(lambda: any(record.code == code for record in run.recording().diagnostics()))
        return run.recording()


def test_syncs_that_became_slow_cost_tokens_per_second(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    onset = 30  # the best pace is that of 20 steps
    config = run_of(tiny_policy, 200, fault=with_fault("slow-sync", 2, onset))
    found = named(until_said(config, tmp_path, "SYS008"), "SYS008", after=onset)
    # A warning takes 100 steps.
    assert found[0].severity == "info"
    assert "what grew most is weight syncs" in found[0].summary


def test_a_sampler_that_hangs_is_named_by_the_clock(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    diagnostics = DiagnosticsConfig(tick_s=0.5, thresholds={"OFF018": {"floor": 5.0}})
    config = run_of(tiny_policy, ONSET + 8, fault=with_fault("hung-sampler"), diagnostics=diagnostics)
    # Step `ONSET` waits for the batch and never ends.
    found = named(until_said(config, tmp_path, "OFF018"), "OFF018", after=ONSET - 1)
    assert found[0].severity in ("warning", "critical")
    assert "the rollout process has waited for its sampler" in found[0].summary
