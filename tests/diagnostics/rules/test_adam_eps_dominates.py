"""POL017: two readings of a share that is told every fifty updates."""

import pytest

from tests.diagnostics.scenario import diagnostics, step, transitions, unevaluated
from tocsin.diagnostics.rules.adam_eps_dominates import AdamEpsDominates
from tocsin.schemas.event import BaseEvent

RULE = AdamEpsDominates()


def readings(*shares: float, every: int = 50) -> list[list[BaseEvent]]:
    return [[step(adam_eps_frac=share if i == every - 1 else None)] for share in shares for i in range(every)]


def test_fires_at_the_second_reading() -> None:
    found = diagnostics(RULE, readings(0.5, 0.6))
    assert [(record.reason, record.last.step, record.severity) for record in found] == [("fired", 100, "info")]
    assert found[0].summary == "Adam's epsilon outweighs the gradients of 60% of the coordinates looked at"
    assert found[0].actions[0].applicability == "advisory"


def test_one_reading_is_no_finding() -> None:
    assert transitions(RULE, readings(0.5, 0.1, 0.5, 0.1)) == []


@pytest.mark.parametrize(("share", "fires"), [(0.2, False), (0.21, True)])
def test_a_fifth_does_not_fire(share: float, fires: bool) -> None:
    assert bool(transitions(RULE, readings(share, share, share))) is fires


def test_resolves_at_the_first_reading_below() -> None:
    assert transitions(RULE, readings(0.5, 0.5, 0.5, 0.1)) == [(100, "fired"), (200, "resolved")]


def test_steps_without_an_update_have_no_reading_to_wait_for() -> None:
    idle: list[list[BaseEvent]] = [[step(outcome="no_signal", update_ratio=None)] for _ in range(200)]
    assert unevaluated(RULE, [*readings(0.1), *idle]) is None


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, [[step()] for _ in range(99)]) == ("warm_up", "no step reported `adam_eps_frac` yet")
    missing = ("missing_input", "steps report no `adam_eps_frac`")
    assert unevaluated(RULE, [[step()] for _ in range(110)]) == missing
    lost = transitions(RULE, [*readings(0.5, 0.5), *([step()] for _ in range(120))])
    assert [reason for _, reason in lost] == ["fired", "data_lost"]
