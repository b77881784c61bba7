"""OFF010: the gap of old weights grows with the learner's movement, that of a mismatch does not."""

import math

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, synced, transitions, unevaluated
from tocsin.diagnostics.rules.sync_not_applied import SyncNotApplied
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunResumed

RULE = SyncNotApplied()


def syncs(*pairs: tuple[float, float]) -> list[list[BaseEvent]]:
    """One sync per step: gap and movement."""
    return [[step(), synced(gap, moved)] for gap, moved in pairs]


def test_fires_at_the_second_sync_that_left_the_sampler_behind() -> None:
    run = [[started(learning_rate=3e-4)], *syncs((0.0, 0.1), (0.1, 0.1), (0.19, 0.1))]
    found = diagnostics(RULE, run)
    assert [(record.last.step, record.reason, record.severity) for record in found] == [(3, "fired", "critical")]
    assert found[0].summary == (
        "Sampler and learner disagree by 0.19 nats since step 2 (2 syncs); the learner moved 0.2"
    )
    assert [action.applicability for action in found[0].actions] == ["advisory", "review"]
    patch = found[0].actions[1].patches[0]
    assert (patch.path, patch.expect, patch.to) == ("learning_rate", 3e-4, 1.5e-4)


def test_one_sync_that_disagrees_is_not_enough() -> None:
    assert transitions(RULE, syncs((0.1, 0.1), (0.0, 0.1), (0.1, 0.1), (0.0, 0.1))) == []


@pytest.mark.parametrize("gap", [0.05, 0.1, 0.15, 0.3, 5.0])
def test_a_mismatch_whose_gap_stays_the_same_is_left_to_its_own_rule(gap: float) -> None:
    assert transitions(RULE, syncs(*[(gap, 0.1)] * 40)) == []


def test_stays_open_while_the_learner_turns_back_and_resolves_when_a_sync_agrees() -> None:
    away = [(0.1, 0.1), (0.2, 0.1), (0.05, 0.15), (0.02, 0.1), (0.05, 0.1)]
    assert transitions(RULE, syncs(*away, (0.0, 0.1))) == [(2, "fired"), (6, "resolved")]


def test_the_share_of_the_movement_must_reach_six_tenths() -> None:
    assert transitions(RULE, syncs((0.1, 0.1), (0.118, 0.1))) == []
    assert transitions(RULE, syncs((0.1, 0.1), (0.122, 0.1))) == [(2, "fired")]


def test_a_learner_that_does_not_move_shows_nothing() -> None:
    assert transitions(RULE, syncs(*[(5e-5, 5e-5)] * 20)) == []


def test_a_gap_that_is_not_a_number_says_nothing_about_weights() -> None:
    assert transitions(RULE, syncs(*[(math.nan, 0.1)] * 20)) == []


def test_a_resume_loads_weights_anew_and_ends_the_count() -> None:
    resumed = RunResumed(checkpoint_step=1, rewound_from_step=1, knobs={}, devices=[], versions={})
    assert transitions(RULE, [*syncs((0.1, 0.1)), [resumed], *syncs((0.1, 0.1))]) == []


def test_says_that_no_sync_was_seen() -> None:
    assert unevaluated(RULE, [[started()], [step()]]) == ("warm_up", "waits for its first `weights_synced` event")
    lost = [*syncs((0.1, 0.1), (0.2, 0.1)), *([step()] for _ in range(60))]
    assert [reason for _, reason in transitions(RULE, lost)] == ["fired", "data_lost"]
