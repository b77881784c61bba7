import math

import pytest
from pydantic import ValidationError

from tocsin.schemas.knobs import KNOBS, LIMITS, Knobs, unknown_knob

INTEGERS = (
    "max_staleness",
    "weight_sync_every",
    "in_flight_groups",
    "microbatch_tokens",
    "max_completion_tokens",
    "groups_per_step",
    "group_size",
)


def test_the_registry_holds_every_field_in_reading_order():
    assert [knob.path for knob in KNOBS] == list(Knobs.model_fields) == list(LIMITS)


def test_the_registry_states_type_and_default_of_every_knob():
    defaults = Knobs().model_dump()
    assert {knob.path: knob.default for knob in KNOBS} == defaults
    assert {knob.path for knob in KNOBS if knob.type == "int"} == set(INTEGERS)
    assert {knob.path for knob in KNOBS if knob.type == "bool"} == {"skip_zero_spread"}


def test_every_knob_says_what_it_is_who_reads_it_and_what_it_moves():
    for knob in KNOBS:
        assert knob.description.endswith("."), knob.path
        assert set(knob.read_by) <= {"learner", "rollout", "sampler"}, knob.path
        assert knob.read_by, knob.path
        assert knob.moves, knob.path


def test_no_knob_moves_an_outcome_whose_baseline_must_hold():
    assert {metric for knob in KNOBS for metric in knob.moves} & {"reward", "reward_mean", "pass_rate"} == set()


def test_every_knob_may_move_and_may_drift_further_than_one_change():
    for knob in KNOBS:
        assert 1 < knob.step_ratio <= knob.drift_ratio, knob.path
        assert knob.min <= knob.default <= knob.max, knob.path


@pytest.mark.parametrize("path", [path for path in LIMITS if path != "skip_zero_spread"])
def test_a_value_past_a_bound_is_refused_with_both_bounds(path: str):
    low, high = LIMITS[path].low, LIMITS[path].high
    for outside in (low - 1, high + 1):
        value = int(outside) if path in INTEGERS else outside
        with pytest.raises(ValidationError) as caught:
            Knobs().changed(path, value)
        assert f"`{path}` must be between {low:g} and {high:g}, got {value}" in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, "fast", None, [1e-4]])
def test_a_learning_rate_that_is_no_number_is_refused(value: object):
    with pytest.raises(ValidationError, match="learning_rate"):
        Knobs().changed("learning_rate", value)


def test_half_a_group_is_refused():
    with pytest.raises(ValidationError, match="group_size"):
        Knobs().changed("group_size", 8.5)


def test_a_change_moves_one_knob_and_leaves_the_original_alone():
    knobs = Knobs()
    changed = knobs.changed("temperature", 0.7)
    assert (knobs.temperature, changed.temperature) == (1.0, 0.7)
    assert changed.changed("temperature", 1.0) == knobs


def test_an_unknown_knob_is_refused_with_the_names_of_the_known_ones():
    with pytest.raises(KeyError) as caught:
        Knobs().changed("learning_rte", 1e-4)
    assert caught.value.args == (unknown_knob("learning_rte"),)
    assert unknown_knob("learning_rte").startswith("unknown knob `learning_rte`; the knobs are: clip_high, clip_low, ")


def test_weights_that_come_later_than_the_staleness_bound_allows_are_refused():
    with pytest.raises(ValidationError) as caught:
        Knobs(max_staleness=0, weight_sync_every=2)
    assert (
        "`weight_sync_every` must be at most `max_staleness` + 1 = 1, got 2: "
        "later groups could never be sampled in time. Raise `max_staleness`"
    ) in str(caught.value)
    assert Knobs(max_staleness=1, weight_sync_every=2).weight_sync_every == 2


def test_lowering_the_staleness_bound_below_the_sync_interval_is_refused():
    with pytest.raises(ValidationError, match="weight_sync_every"):
        Knobs(max_staleness=3, weight_sync_every=4).changed("max_staleness", 2)


def test_a_dual_clip_inside_the_trust_region_is_refused():
    with pytest.raises(ValidationError) as caught:
        Knobs(clip_high=2.0, dual_clip=3.0)
    assert "`dual_clip` must be above 1 + `clip_high` = 3, got 3" in str(caught.value)
    assert Knobs(clip_high=2.0, dual_clip=3.5).dual_clip == 3.5
