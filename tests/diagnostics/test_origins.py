"""The table that tells apart why sampler and learner are far from each other."""

from collections.abc import Sequence

import pytest

from tests.diagnostics.scenario import batch, step, synced
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.origins import origin, table, told_apart
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.staleness_high import StalenessHigh
from tocsin.diagnostics.rules.sync_not_applied import SyncNotApplied
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import LogProbGap, RatioMoments

GROUPS = [[0.0, 1.0, 0.0, 1.0]] * 4


def bucket(staleness: int, ess: float = 0.99, mean: float = 1.0) -> RatioMoments:
    return RatioMoments(staleness=staleness, tokens=300, mean=mean, mean_square=mean * mean / ess, max=9)


def updates(
    *buckets: RatioMoments, gaps: Sequence[float] = (0.0,) * 6, k1: float = 0.0, stale: float = 1
) -> list[BaseEvent]:
    """One update and one sync per gap of the probe, the learner moving by 0.1 nats between two of them."""
    moved = LogProbGap(k1=k1, k3=0.1, abs_mean=0.1, abs_p95=0.2, abs_p99=0.3, abs_max=0.5)
    made: list[BaseEvent] = []
    for gap in gaps:
        made += [
            batch(GROUPS, staleness=(stale, stale, stale), max_staleness=8),
            step(ratio=list(buckets), logprob_gap=moved, ess_frac=0.4),
            synced(gap, 0.1),
        ]
    return made


def seen(events: list[BaseEvent]) -> Features:
    features = Features()
    for event in events:
        features.update(event)
    return features


FOLLOWS = [0.1 * i for i in range(1, 7)]


@pytest.mark.parametrize(
    ("events", "code"),
    [
        (updates(bucket(1, 0.4), bucket(2, 0.4), gaps=FOLLOWS), "OFF010"),
        (updates(bucket(1), bucket(2), gaps=[0.3] * 6), "OFF004"),
        (updates(bucket(1, 0.6, 1.3), bucket(2, 0.6, 1.3)), "OFF004"),
        (updates(bucket(1, 0.95, 0.85), k1=0.095), "OFF006"),
        (updates(bucket(1, 0.9), bucket(4, 0.3)), "OFF001"),
        (updates(bucket(1, 1.0), bucket(2, 1.0), gaps=[0.0] * 25), "POL005"),
        (updates(bucket(0), bucket(0)), None),
        ([], None),
    ],
)
def test_the_table_names_one_reason(events: list[BaseEvent], code: str | None) -> None:
    assert origin(seen(events)) == code


def test_old_tokens_are_no_reason_without_a_probe_that_agrees() -> None:
    assert (
        origin(seen([event for event in updates(bucket(1, 0.9), bucket(4, 0.3)) if event.type != "weights_synced"]))
        is None
    )


def test_the_table_has_what_was_measured_and_nothing_else() -> None:
    assert table(Features()) == ()
    found = table(seen(updates(bucket(1, 0.9), bucket(2, 0.8), bucket(4, 0.5))))
    assert [(item.metric, item.observed) for item in found] == [
        ("syncs in a row with weights_synced.probe_gap > probe_tolerance", 0),
        ("mean of step_completed.ratio", 1.0),
        ("ess of step_completed.ratio at staleness 1", pytest.approx(0.9)),
        ("ess of step_completed.ratio at staleness 4", pytest.approx(0.5)),
    ]


def test_a_reason_that_a_rule_does_not_know_leaves_its_causes_alone() -> None:
    causes = StalenessHigh.causes
    assert told_apart(causes, None) is None
    assert told_apart(causes, "POL005") is None
    found = told_apart(causes, "OFF010")
    assert found is not None
    assert [cause.code for cause in found] == ["OFF010", None, "SYS005", None, "OFF004"]
    assert found[0].weight >= max(cause.weight for cause in found)


@pytest.mark.parametrize(
    ("gaps", "code"), [([0.0] * 10, None), ([0.3] * 10, "OFF004"), (FOLLOWS + [0.7] * 4, "OFF010")]
)
def test_old_data_with_an_effect_say_whether_age_is_the_reason(gaps: list[float], code: str | None) -> None:
    found = StalenessHigh().check(seen(updates(bucket(6, 0.4), gaps=gaps, stale=6)), is_open=False)
    assert isinstance(found, Finding)
    assert (found.causes or StalenessHigh.causes)[0].code == code
    assert "mean of step_completed.ratio" in [item.metric for item in found.evidence]


def test_weights_that_do_not_arrive_show_at_every_age() -> None:
    found = SyncNotApplied().check(seen(updates(bucket(1, 0.4), bucket(2, 0.4), gaps=FOLLOWS)), is_open=False)
    assert isinstance(found, Finding)
    assert [item.observed for item in found.evidence[-2:]] == [pytest.approx(0.4), pytest.approx(0.4)]
