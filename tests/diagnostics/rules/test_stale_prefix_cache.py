"""OFF013: what becomes of a cache at a sync decides, and hits alone say nothing."""

import pytest

from tests.diagnostics.scenario import diagnostics, polled, started, step, synced, transitions, unevaluated
from tocsin.diagnostics.rules.stale_prefix_cache import StalePrefixCache
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunResumed
from tocsin.schemas.generation import SamplerSampled

RULE = StalePrefixCache()


def syncs(n: int, state: str | None, *, hits: int = 500) -> list[list[BaseEvent]]:
    """Steps with a sync each, and a look at a server with that many hits."""
    look = polled(prefix_hit_tokens=hits, prefix_query_tokens=1000)
    return [[synced(prefix_cache=state), step(), look] for _ in range(n)]


def test_names_a_cache_that_outlives_its_weights() -> None:
    found = diagnostics(RULE, syncs(10, "kept"))
    assert [(record.reason, record.severity, record.last.step) for record in found] == [("fired", "info", 2)]
    assert found[0].summary == (
        "Servers kept their prefix caches over the last 3 weight syncs and found 1000 of 2000 prompt tokens there since"
    )
    assert found[0].actions[0].title.startswith("reset the prefix cache at every weight sync")


@pytest.mark.parametrize("state", ["reset", "none"])
def test_hits_of_a_group_in_a_cache_that_is_reset_are_what_it_is_for(state: str) -> None:
    assert transitions(RULE, syncs(40, state, hits=950)) == []


def test_a_kept_cache_without_hits_does_no_harm() -> None:
    assert transitions(RULE, syncs(40, "kept", hits=0)) == []


def test_one_sync_is_not_enough() -> None:
    assert transitions(RULE, [*syncs(1, "kept"), *syncs(1, "reset"), *syncs(1, "kept"), *syncs(5, "reset")]) == []


def test_hits_before_the_second_sync_that_kept_it_do_not_count() -> None:
    assert transitions(RULE, [*syncs(1, "kept", hits=900), *syncs(5, "kept", hits=0)]) == []


def test_resolves_with_the_first_reset() -> None:
    found = transitions(RULE, [*syncs(10, "kept"), *syncs(1, "reset")])
    assert found == [(2, "fired"), (10, "resolved")]


def test_a_new_attempt_begins_anew() -> None:
    resumed = RunResumed(checkpoint_step=1, rewound_from_step=2, knobs={}, devices=[], versions={})
    assert transitions(RULE, [*syncs(2, "kept"), [resumed], *syncs(2, "kept")]) == []


def test_says_why_it_is_not_evaluated() -> None:
    local = SamplerSampled(sampler="local", version=1, groups=1, completions=8, tokens=80, seconds=0.1)
    run: list[list[BaseEvent]] = [[started(), local], *([synced(), step()] for _ in range(5))]
    assert unevaluated(RULE, run) == ("not_applicable", "the local sampler computes every prompt anew")
    assert unevaluated(RULE, [[started()], *syncs(5, None)]) == (
        "missing_input",
        "syncs do not say what became of the prefix cache",
    )
    unseen: list[list[BaseEvent]] = [[synced(prefix_cache="kept"), step()] for _ in range(10)]
    assert unevaluated(RULE, unseen) == ("missing_input", "no server was looked at since its prefix cache was kept")
    lost = transitions(RULE, [*syncs(10, "kept"), *syncs(10, None)])
    assert [reason for _, reason in lost] == ["fired", "data_lost"]
