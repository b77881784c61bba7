"""OFF017: a sampler that idles because training is slow, told apart from turns and from slots that are short."""

import math

import pytest
from pydantic import ValidationError

from tests.diagnostics.scenario import diagnostics, judged, started, step, transitions, unevaluated, waited
from tocsin.diagnostics.rules.generator_backpressure import GeneratorBackpressure
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import MicrobatchStats

RULE = GeneratorBackpressure()


def waits(
    learner: float, sampler: float, *, n: int, num: int = 1, computed: float = 0.9, step_s: float = 1.0
) -> list[list[BaseEvent]]:
    cut = MicrobatchStats(num=num, token_budget=1024, max_tokens=1000, padded_frac=0.1)
    seconds = {"forward_backward": computed * step_s, "optimizer": 0.0, "total": step_s}
    return [[step(microbatches=cut, seconds=seconds), waited(learner, sampler, step_s=step_s)] for _ in range(n)]


def test_warns_when_the_sampler_waits_most_of_the_time_and_the_learner_does_not() -> None:
    slow = waits(0.0, 0.8, n=40, step_s=6)
    found = diagnostics(RULE, [[started(max_staleness=1)], *waits(0.1, 0.2, n=60), *slow])
    assert [(record.reason, record.kind, record.severity) for record in found] == [("fired", "efficiency", "warning")]
    assert 65 <= found[0].last.step <= 75
    assert found[0].actions[0].title == "give devices of the sampler to the learner at the next start"


def test_two_fifths_of_the_time_are_the_usual_price() -> None:
    assert transitions(RULE, waits(0.05, 0.4, n=200)) == []


def test_exactly_half_of_the_time_fires() -> None:
    assert transitions(RULE, waits(0.0, 0.5, n=60)) == [(42, "fired")]
    assert transitions(RULE, waits(0.0, 0.49, n=60)) == []


def test_when_both_wait_slots_are_short_and_not_the_learner_slow() -> None:
    assert transitions(RULE, waits(0.5, 0.6, n=100)) == []


def test_at_staleness_zero_the_sampler_has_to_wait() -> None:
    assert unevaluated(RULE, [[started(max_staleness=0)], *waits(0.1, 0.9, n=60)]) == (
        "not_applicable",
        "at max_staleness 0 the sampler has to wait for the learner",
    )


def test_larger_micro_batches_are_proposed_where_a_step_runs_several() -> None:
    found = diagnostics(RULE, [[started(max_staleness=1, microbatch_tokens=1024)], *waits(0.0, 0.8, n=60, num=3)])
    patch = found[0].actions[0].patches[0]
    assert (patch.path, patch.expect, patch.to) == ("microbatch_tokens", 1024, 4096)
    assert found[0].actions[0].on_failure == "keep", "fewer passes are faster, also where they are not enough"


def test_a_learner_that_does_not_compute_is_to_be_profiled_first() -> None:
    found = diagnostics(RULE, [[started(max_staleness=1)], *waits(0.0, 0.8, n=60, computed=0.2)])
    assert found[0].actions[0].title == "profile the learner: computing takes 20% of the step"


def test_resolves_when_the_wait_is_over() -> None:
    found = transitions(RULE, [*waits(0.0, 0.8, n=60), *waits(0.1, 0.1, n=60)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_start_up_and_one_long_wait_do_not_count() -> None:
    run = [*waits(0.0, 0.99, n=8, step_s=60), *waits(0.1, 0.1, n=40), *waits(0.0, 0.99, n=1, step_s=300)]
    assert transitions(RULE, [*run, *waits(0.1, 0.1, n=40)]) == []


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, waits(0.0, 0.8, n=20)) == ("warm_up", "fewer than 30 steps with an update were seen")
    found = transitions(RULE, [*waits(0.0, 0.8, n=60), *([step()] for _ in range(60))])
    assert [reason for _, reason in found] == ["fired", "data_lost"]


def test_steps_without_length_are_no_shares() -> None:
    assert transitions(RULE, waits(0.0, 0.0, n=60, step_s=0.0)) == []


@pytest.mark.parametrize("field", ["sampler_wait_s", "learner_wait_s", "step_s"])
def test_waits_that_are_not_numbers_are_no_shares(field: str) -> None:
    assert judged(RULE, waits(0.0, 0.8, n=60)) == "warning"
    broken = waited(0.0, 0.8).model_copy(update={field: math.nan})
    assert judged(RULE, [[step(), broken] for _ in range(60)]) is None
    # And no event has them.
    with pytest.raises(ValidationError, match=field):
        waited(0.0, 0.8, **{field: math.nan})


def test_a_share_that_is_not_a_number_neither_fires_nor_holds() -> None:
    # Beside this step all others have no length.
    endless = waits(0.0, 1.0, n=1, step_s=1e300)
    slow = waits(0.0, 0.8, n=60)
    assert transitions(RULE, [*waits(0.1, 0.1, n=40), *endless, *waits(0.1, 0.1, n=20), *endless]) == []
    found = transitions(RULE, [*slow, *endless, *waits(0.0, 0.8, n=20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]
