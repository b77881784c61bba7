"""The knobs of the loss in a running run: each one shows at the very step from which it is in force.

The run is on-policy, so that ratios are one but for rounding and every share of clipped tokens is sharp: many tokens
are beyond a clip of zero, and none is beyond a clip of a hundredth.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isclose

import pytest

from tests.trainer.runs import Recording, start, tocsin, write_config
from tests.trainer.test_run_control import CHANGES, change
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.diagnostics.control import look_at
from tocsin.schemas.base import as_float
from tocsin.schemas.config import EvaluationConfig
from tocsin.schemas.events import KnobChanged
from tocsin.schemas.knobs import LIMITS, KnobValue
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training

LAUNCHED: dict[str, KnobValue] = {
    "max_staleness": 0,
    "clip_low": 0.0,
    "clip_high": 0.0,
    "dual_clip": 1.000001,
    "kl_beta": 1.0,
    "learning_rate": 1e-3,
}
LOSS_CHANGES: dict[str, dict[str, KnobValue]] = {
    "clip_low": {"clip_low": 0.01},
    "dual_clip": {"dual_clip": 1.5},
    "clip_high": {"clip_high": 0.1},
    "short": {"max_completion_tokens": 4, "temperature": 0.7},
    "kl_beta": {"kl_beta": 2.0},
    "entropy_coef": {"entropy_coef": 0.01},
}
"""Answers that are cut at four tokens are all wrong: then there are no advantages, and the loss is what the penalty and
the bonus add up to."""


@dataclass
class Turned:
    """A run that went through every change above."""

    recording: Recording
    at: dict[str, int] = field(default_factory=dict)
    """By change, optimizer steps finished when it was made."""

    def steps(self, first: str | None, last: str | None = None) -> list[StepCompleted]:
        """Updates made from one change on and before another one."""
        low = self.at[first] if first else 0
        high = self.at[last] if last else 10**9
        found = [e for e in self.recording.of(StepCompleted) if low < e.step <= high and e.outcome == "updated"]
        assert found, "there are steps to look at"
        return found


@pytest.fixture(scope="module")
def turned(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Turned]:
    """One run, all changes, six steps apart."""
    folder = tmp_path_factory.mktemp("knobs")
    evaluation = EvaluationConfig(every=0, prompts=4)
    config = tiny_config(tiny_policy, steps=100_000, knobs=dict(LAUNCHED), evaluation=evaluation)
    with start("train", write_config(config, folder / "run.toml"), runs_dir=folder / "runs") as run:
        run.until_step(6)
        seen = Turned(Recording(run.folder))
        for name, values in LOSS_CHANGES.items():
            outcome = change(run, values)
            assert outcome.state == "applied", outcome.answer
            seen.at[name] = outcome.effects[-1].step
            run.until_step(seen.at[name] + 6)
        seen.at["end"] = look_at(run.folder).situation.step
        assert tocsin("stop", run.folder, "--yes", cwd=folder).code == 0
        run.wait()
        seen.recording = run.recording()
        yield seen


def share(steps: list[StepCompleted], name: str) -> list[float]:
    return [as_float(vars(step)[name]) for step in steps]


def test_the_lower_clip_is_in_force_from_the_next_step_on(turned: Turned) -> None:
    assert max(share(turned.steps(None, "clip_low"), "clip_low_frac")) > 0
    assert set(share(turned.steps("clip_low"), "clip_low_frac")) == {0.0}


def test_the_upper_clip_is_in_force_from_the_next_step_on(turned: Turned) -> None:
    assert max(share(turned.steps(None, "clip_high"), "clip_high_frac")) > 0
    assert set(share(turned.steps("clip_high"), "clip_high_frac")) == {0.0}


def test_the_dual_clip_is_in_force_from_the_next_step_on(turned: Turned) -> None:
    assert max(share(turned.steps(None, "dual_clip"), "dual_clip_frac")) > 0
    assert set(share(turned.steps("dual_clip"), "dual_clip_frac")) == {0.0}


def test_penalty_and_bonus_have_their_weight_from_the_next_step_on(turned: Turned) -> None:
    weights = {"short": (1.0, 0.0), "kl_beta": (2.0, 0.0), "entropy_coef": (2.0, 0.01)}
    # The first groups after the change were asked for before it.
    phases = {"short": turned.steps("short", "kl_beta")[2:], "kl_beta": turned.steps("kl_beta", "entropy_coef")}
    for name, steps in {**phases, "entropy_coef": turned.steps("entropy_coef")}.items():
        beta, bonus = weights[name]
        for step in steps:
            expected = beta * as_float(step.kl_ref) - bonus * as_float(step.entropy)
            assert isclose(as_float(step.loss), expected, rel_tol=1e-3, abs_tol=1e-6), (name, step.step)


def test_the_loss_uses_the_temperature_that_a_completion_was_sampled_with(turned: Turned) -> None:
    rows = {(row["step"], round(row["temperature"], 3)) for row in turned.recording.rollouts()}
    assert {temperature for _, temperature in rows} == {1.0, 0.7}
    for step in turned.steps(None):
        assert step.logprob_gap is not None
        assert as_float(step.logprob_gap.abs_mean) < 1e-4, "sampler and learner agree, whatever the temperature"


def test_a_knob_that_says_the_next_step_changes_nothing_of_the_step_before(turned: Turned) -> None:
    for event in turned.recording.of(KnobChanged):
        assert event.effective_step == event.step
        assert event.step in turned.at.values()


def test_every_knob_is_turned_in_a_running_run() -> None:
    def paths(changes: Mapping[str, Mapping[str, KnobValue]]) -> set[str]:
        return {path for values in changes.values() for path in values}

    assert paths(CHANGES) | paths(LOSS_CHANGES) == set(LIMITS)
