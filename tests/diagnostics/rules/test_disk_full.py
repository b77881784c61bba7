"""SYS010: free space in checkpoints, and the pace at which it goes."""

import pytest

from tests.diagnostics.scenario import GIB, diagnostics, step, synced, transitions, unevaluated
from tocsin.diagnostics.rules.disk_full import DiskFull
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import CheckpointSaved
from tocsin.schemas.resources import ResourcesSampled

RULE = DiskFull()
SAVED = CheckpointSaved(path="checkpoints/1", seconds=1.0, bytes=10 * GIB)


def free(*sizes: float, every: float = 60.0) -> list[list[BaseEvent]]:
    """Samples of free space in GiB, one a minute."""
    return [
        [
            step(),
            ResourcesSampled(
                devices=[],
                host_rss_bytes={},
                host_memory_frac=0.2,
                disk_free_bytes=int(size * GIB),
                disk_total_bytes=1000 * GIB,
                mono=every * (i + 1),
            ),
        ]
        for i, size in enumerate(sizes)
    ]


def test_room_for_less_than_three_checkpoints_is_a_warning_and_for_one_critical() -> None:
    found = diagnostics(RULE, [[SAVED], *free(100, 29, 11)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "warning"), ("escalated", "critical")]
    assert found[0].summary == "29 of 1e+03 GiB are free and a checkpoint takes 10 GiB"


def test_exactly_three_checkpoints_fit() -> None:
    assert transitions(RULE, [[SAVED], *free(30)]) == []
    assert transitions(RULE, [[SAVED], *free(29.9)]) == [(1, "fired")]


def test_a_disk_that_fills_within_two_hours_is_told_before() -> None:
    found = diagnostics(RULE, [[SAVED], *free(*(190 - 5 * i for i in range(10)))])
    assert (
        found[0].summary == "145 of 1e+03 GiB are free and a checkpoint takes 10 GiB; full in 29 minutes at this pace"
    )
    assert transitions(RULE, [[SAVED], *free(*(190 - 0.5 * i for i in range(10)))]) == []


def test_a_large_disk_that_is_nearly_full_has_room() -> None:
    assert transitions(RULE, [[SAVED], *free(*(500 - 5 * i for i in range(20)))]) == []


def test_before_the_first_checkpoint_the_weights_tell_its_size() -> None:
    (found,) = diagnostics(RULE, [[synced(bytes=2 * GIB)], *free(20)])
    assert found.summary == "20 of 1e+03 GiB are free and a checkpoint, by the weights sent, takes 8 GiB"


def test_resolves_when_there_is_room_again() -> None:
    found = transitions(RULE, [[SAVED], *free(29, 35, 35, 35, 45, 45, 45)])
    assert found == [(1, "fired"), (7, "resolved")]


def test_waits_for_a_size() -> None:
    detail = "no checkpoint and no weight sync has told a size yet"
    assert unevaluated(RULE, free(1, 1, 1)) == ("warm_up", detail)


@pytest.mark.parametrize("fire", [1.2, 4.0, float("nan")])
def test_limits_must_rise(fire: float) -> None:
    with pytest.raises(ValueError, match="SYS010"):
        DiskFull(fire=fire)
