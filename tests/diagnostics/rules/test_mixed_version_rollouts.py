"""OFF014: spans beyond the bound, apart from the mixture that in-flight updates are meant to make."""

import math

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.mixed_version_rollouts import MixedVersionRollouts
from tocsin.schemas.batch import BatchConsumed, Quantiles
from tocsin.schemas.event import BaseEvent

RULE = MixedVersionRollouts()


def spans(n: int, p95: float, mixed: float | None, *, bound: int = 2) -> list[list[BaseEvent]]:
    """Steps whose completions span `p95` versions, a share `mixed` of them more than one."""
    plain = batch([[0.0, 1.0]] * 4, max_staleness=bound).model_dump()
    span = Quantiles(mean=p95 / 2, p50=p95 / 2, p95=p95, max=p95)
    made = BatchConsumed.model_validate({**plain, "version_span": span.model_dump(), "mixed_frac": mixed})
    return [[made, step()] for _ in range(n)]


def test_names_spans_beyond_the_bound() -> None:
    run = [[started(max_staleness=2, groups_per_step=16, in_flight_groups=48)], *spans(15, 1, 0.2), *spans(10, 3, 0.4)]
    found = diagnostics(RULE, run)
    assert [(record.reason, record.severity, record.last.step) for record in found] == [("fired", "info", 19)]
    assert found[0].summary == ("In 5 of 10 batches the p95 of version spans was above the bound 2 (largest 3 steps)")
    assert [action.title for action in found[0].actions] == [
        "lower in_flight_groups 48 to 39",
        "look for what makes single generations take several steps",
    ]


def test_a_span_at_the_bound_is_what_was_asked_for() -> None:
    assert transitions(RULE, spans(40, 2, 0.5)) == []


def test_most_completions_of_several_versions_are_normal_and_said_once() -> None:
    found = diagnostics(RULE, spans(40, 1, 0.9))
    assert [(record.reason, record.severity) for record in found] == [("fired", "info")]
    assert found[0].summary == (
        "In 10 of 10 batches most completions span a weight sync (median 90%), within the bound"
    )
    assert [action.applicability for action in found[0].actions] == ["advisory"]


def test_the_local_sampler_has_one_version_per_completion() -> None:
    assert transitions(RULE, spans(40, 0, 0.0, bound=0)) == []


def test_resolves_when_spans_are_short_again() -> None:
    found = transitions(RULE, [*spans(15, 3, 0.4), *spans(20, 1, 0.4)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_no_patch_is_offered_where_one_change_does_not_reach_the_groups_in_flight() -> None:
    run = [[started(max_staleness=2, groups_per_step=16, in_flight_groups=1024)], *spans(15, 3, 0.4)]
    assert [action.patches for action in diagnostics(RULE, run)[0].actions] == [[]]


def test_a_span_or_share_that_is_not_a_number_says_nothing() -> None:
    assert transitions(RULE, spans(40, 1, math.nan)) == []
    assert transitions(RULE, spans(40, 1, None)) == []
    assert unevaluated(RULE, spans(40, math.nan, 0.9)) == (
        "missing_input",
        "no `batch_consumed` with a version span came in the last 10 steps",
    )


def test_says_that_its_input_is_missing() -> None:
    plain: list[list[BaseEvent]] = [[batch([[0.0, 1.0]] * 4), step()] for _ in range(30)]
    assert unevaluated(RULE, plain) is not None
    assert unevaluated(RULE, spans(9, 3, 0.9)) == ("warm_up", "fewer than 10 batches were seen")
    found = transitions(RULE, [*spans(15, 3, 0.4), *plain])
    assert [reason for _, reason in found] == ["fired", "data_lost"]
