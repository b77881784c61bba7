"""POL001: low entropy is success at the ceiling and collapse below it."""

import math

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.entropy_collapse import EntropyCollapse
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged

RULE = EntropyCollapse()
COLLAPSED = [[1.0] * 8] * 9 + [[0.0] * 8] * 7
"""Every prompt is always or never solved, at a pass rate of 0.56."""
MIXED = [[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]] * 16


def steps(entropy: float | None, rewards: list[list[float]], *, n: int) -> list[list[BaseEvent]]:
    return [[batch(rewards), step(entropy=entropy)] for _ in range(n)]


def collapsing() -> list[list[BaseEvent]]:
    return [*steps(0.5, MIXED, n=30), *steps(0.06, COLLAPSED, n=40)]


def test_fires_when_entropy_and_spread_are_gone_below_the_ceiling() -> None:
    found = diagnostics(RULE, [[started(learning_rate=1e-4)], *collapsing()])
    assert [(record.reason, record.severity) for record in found] == [("fired", "info")]
    assert 45 <= found[0].last.step <= 60
    assert found[0].summary.endswith("groups have no spread at pass rate 0.56")
    titles = [action.title for action in found[0].actions]
    assert titles[:2] == ["raise clip_high 0.2 to 0.28", "lower learning_rate 0.0001 to 5e-05"]


def test_is_graver_the_further_entropy_fell() -> None:
    def severity(level: float) -> str:
        features = Features()
        run = [*steps(0.5, MIXED, n=30), *steps(level, COLLAPSED, n=20)]
        for event in (event for group in run for event in group):
            # The step is part of the envelope, which a run gives to its events.
            features.update(event.model_copy(update={"step": 50}))
        found = RULE.check(features, is_open=False)
        assert isinstance(found, Finding)
        return found.severity

    assert (severity(0.08), severity(0.01)) == ("warning", "critical")


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_learns_loses_its_entropy_and_nothing_is_wrong(seed: int) -> None:
    rng = np.random.default_rng(seed)
    run = []
    for t in range(200):
        solve = rng.beta(*(2 * np.array([(p := 0.99 - 0.54 * np.exp(-t / 40)), 1 - p])), 16)
        rewards = (rng.random((16, 8)) < solve[:, None]).astype(float)
        run.append([batch(rewards.tolist()), step(entropy=0.02 + 0.48 * math.exp(-t / 25))])
    assert transitions(RULE, run) == []


def test_low_entropy_with_reward_spread_is_no_finding() -> None:
    assert transitions(RULE, [*steps(0.5, MIXED, n=30), *steps(0.03, MIXED, n=60)]) == []


def test_lost_spread_at_high_entropy_is_no_finding_here() -> None:
    assert transitions(RULE, [*steps(0.5, MIXED, n=30), *steps(0.5, COLLAPSED, n=60)]) == []


def test_exactly_the_limit_does_not_fire() -> None:
    run = [*steps(0.5, MIXED, n=30), *steps(0.125, COLLAPSED, n=60)]
    assert transitions(EntropyCollapse(fire=0.25), run) == []
    assert [reason for _, reason in transitions(EntropyCollapse(fire=0.26), run)] == ["fired"]


def test_resolves_when_entropy_is_back() -> None:
    found = transitions(RULE, [*collapsing(), *steps(0.4, COLLAPSED, n=30)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_a_change_of_temperature_measures_the_beginning_anew() -> None:
    change = KnobChanged(path="temperature", before=1.0, after=0.5, actor="person:a", effective_step=31)
    assert transitions(RULE, [*steps(0.5, MIXED, n=30), [change], *steps(0.06, COLLAPSED, n=60)]) == []


def test_steps_that_train_no_token_miss_no_entropy_and_leave_what_is_open_open() -> None:
    idle = [[batch([[0.0] * 8] * 16), step(outcome="no_signal", entropy=None, tokens_trained=0)] for _ in range(40)]
    assert unevaluated(RULE, [*steps(0.5, MIXED, n=30), *idle]) is None
    assert [reason for _, reason in transitions(RULE, [*collapsing(), *idle])] == ["fired"]


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, steps(None, MIXED, n=30)) == (
        "missing_input",
        "steps that train tokens report no `entropy`",
    )
    assert unevaluated(RULE, steps(0.5, MIXED, n=5)) == ("warm_up", "fewer than 20 steps with an entropy were seen")
    found = transitions(RULE, [*collapsing(), *steps(None, COLLAPSED, n=30)])
    assert [reason for _, reason in found] == ["fired", "data_lost"]


def test_an_entropy_that_is_not_a_number_counts_as_not_measured() -> None:
    assert unevaluated(RULE, steps(math.nan, MIXED, n=30)) is not None
