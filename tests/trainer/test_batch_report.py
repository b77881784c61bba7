"""The batch event against numbers worked out by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.records import violations
from tocsin.schemas.base import NonFinite
from tocsin.schemas.batch import ComponentStats, TextStats
from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.events import Interval
from tocsin.trainer.batch_report import batch_event, busy_times
from tocsin.trainer.data import Completion, Group, GroupRequest, GroupTexts, Prompt


def group(*, index: int, rewards: list[float], lengths: list[int], **fields: object) -> Group:
    """A group sampled by the weights of version 5 unless `versions` gives one span list per completion."""
    count = len(rewards)
    versions = fields.get("versions", [((5, length),) for length in lengths])
    reasons = fields.get("reasons", ["stop"] * count)
    completions = tuple(
        Completion(
            token_ids=np.zeros(length, dtype=np.int32),
            logprobs=np.zeros(length, dtype=np.float32),
            finish_reason=reason,
            versions=spans,
            temperature=1.0,
        )
        for length, reason, spans in zip(lengths, reasons, versions, strict=True)
    )
    request = GroupRequest(
        index=index,
        target_step=6,
        prompt=Prompt(id=f"{index}-0badcafe", text="x", token_ids=np.zeros(2, dtype=np.int32), columns={}),
        size=count,
        temperature=1.0,
        max_tokens=16,
        config_generation=3,
    )
    return Group(
        request=request,
        completions=completions,
        rewards=np.array(rewards),
        components={name: np.array(values) for name, values in fields.get("components", {"exact": rewards}).items()},
        num_failed=fields.get("num_failed", 0),
        launched_at=0.0,
        generated_at=0.0,
        scored_at=1.0,
        distinct=fields.get("distinct"),
        texts=fields.get("texts"),
    )


def event(groups: list[Group], **fields: object):
    rewards = fields.get("rewards", [RewardConfig(function="exact")])
    config = RunConfig(steps=9, model=ModelConfig(path="x"), data=DataConfig(train="x"), rewards=rewards)
    return batch_event(groups, config, step=6, max_staleness=2, flight=fields.get("flight", [0] * len(groups)))


def test_batch_event_describes_each_group_in_columns():
    groups = [
        group(index=4, rewards=[1.0, 0.0, 0.0, 1.0], lengths=[1, 2, 3, 4], reasons=["stop", "stop", "length", "stop"]),
        group(
            index=5,
            rewards=[0.1, 0.1],
            lengths=[16, 5],
            reasons=["length", "abort"],
            versions=[((4, 10), (5, 6)), ((5, 5),)],
            num_failed=2,
        ),
    ]
    consumed = event(groups, flight=[0, 1])
    columns = consumed.groups
    assert columns.group_index == [4, 5]
    assert columns.prompt_id == ["4-0badcafe", "5-0badcafe"]
    assert columns.size == [4, 2]
    assert columns.num_failed == [0, 2]
    assert columns.reward_mean == pytest.approx([0.5, 0.1])
    assert columns.reward_std == pytest.approx([0.5, 0.0])
    assert (columns.reward_min, columns.reward_max) == ([0.0, 0.1], [1.0, 0.1])
    assert columns.zero_spread == [False, True]
    assert columns.tokens == [10, 21]
    assert columns.truncated == [1, 1]
    assert columns.staleness == [1, 2]
    assert columns.staleness_flight == [0, 1]
    assert columns.config_generation == [3, 3]
    assert consumed.finish_reasons == {"stop": 3, "length": 2, "abort": 1}
    assert consumed.reward_mean == pytest.approx(2.2 / 6)
    assert consumed.pass_rate == pytest.approx(2 / 6)
    assert consumed.max_staleness == 2
    assert violations(json.loads(consumed.model_dump_json(exclude_none=True)), "event") == []


def test_distributions_are_over_completions():
    spans = [((6, 1),), ((5, 2),), ((5, 3),), ((3, 1), (6, 9))]
    consumed = event([group(index=0, rewards=[0.0] * 4, lengths=[1, 2, 3, 10], versions=spans)])
    length, staleness = consumed.length, consumed.staleness
    assert (length.mean, length.p50, length.max) == (4.0, 2.5, 10)
    assert length.p95 == pytest.approx(3 + 0.85 * 7)
    assert (staleness.mean, staleness.p50, staleness.max) == (1.25, 1.0, 3)


def test_length_histogram_has_power_of_two_edges_that_close_below_each_power():
    consumed = event([group(index=0, rewards=[0.0] * 6, lengths=[0, 1, 2, 3, 4, 8])])
    assert consumed.length_histogram.edges == [0, 1, 2, 4, 8, 16]
    assert consumed.length_histogram.counts == [1, 1, 2, 1, 1]


def test_pass_rate_forgives_rounding_and_is_absent_without_a_declared_range():
    near = [group(index=0, rewards=[0.3, 0.0], lengths=[1, 1], components={"f": [0.1 * 3, 0.0]})]
    assert event(near, rewards=[RewardConfig(function="m:f", range=(0.0, 0.3))]).pass_rate == 0.5
    undeclared = event(near, rewards=[RewardConfig(function="m:f")])
    assert undeclared.pass_rate is None
    assert undeclared.reward_range is None


def test_a_pass_is_decided_by_the_verifier_and_not_by_a_shaping_reward_beside_it():
    components = {"exact": [1.0, 1.0, 0.0, math.nan], "brief": [0.2, 0.9, 1.0, 1.0]}
    groups = [group(index=0, rewards=[1.02, 1.09, 0.1, 0.1], lengths=[1] * 4, components=components)]
    shaping = RewardConfig(function="m:brief", weight=0.1, range=(0.0, 1.0))
    consumed = event(groups, rewards=[RewardConfig(function="exact"), shaping])
    assert consumed.pass_rate == 0.5
    assert consumed.reward_range == (0.0, 1.1)
    both = shaping.model_copy(update={"passes": True})
    assert event(groups, rewards=[RewardConfig(function="exact"), both]).pass_rate == 0.0


def test_component_means_leave_out_what_a_function_could_not_tell():
    consumed = event(
        [
            group(index=0, rewards=[1.0, 0.0], lengths=[1, 1], components={"a": [1.0, math.nan], "b": [math.nan] * 2}),
            group(index=1, rewards=[1.0, 0.0], lengths=[1, 1], components={"a": [0.0, 0.5], "b": [math.nan] * 2}),
        ]
    )
    assert consumed.components == {"a": 0.5}


def test_infinite_rewards_reach_the_event_as_such():
    consumed = event([group(index=0, rewards=[math.inf, 0.0], lengths=[1, 1])])
    assert consumed.reward_mean == NonFinite(nonfinite="inf")
    assert consumed.groups.reward_std == [NonFinite(nonfinite="nan")]
    assert consumed.groups.reward_min == [0.0]


def test_passes_are_counted_by_group_and_absent_when_nothing_decides():
    groups = [
        group(index=0, rewards=[1.0, 0.0, 1.0], lengths=[1] * 3),
        group(index=1, rewards=[0.0, 0.0], lengths=[1] * 2),
    ]
    assert event(groups).groups.passed == [2, 0]
    assert event(groups, rewards=[RewardConfig(function="m:exact")]).groups.passed is None


def test_distinct_completions_are_reported_only_when_every_group_was_looked_at():
    looked_at = group(index=0, rewards=[0.0, 0.0], lengths=[1, 1], distinct=2)
    unseen = group(index=1, rewards=[0.0, 0.0], lengths=[1, 1])
    assert event([looked_at, looked_at]).groups.distinct == [2, 2]
    assert event([looked_at, unseen]).groups.distinct is None


def test_component_stats_take_the_spread_within_groups_and_each_group_once():
    first = {"exact": [0.0, 1.0], "brief": [5.0, 5.0]}
    second = {"exact": [0.0, 0.0, 0.0, 0.0], "brief": [1.0, math.nan, math.nan, math.nan]}
    consumed = event(
        [
            group(index=0, rewards=[0.0, 1.0], lengths=[1] * 2, components=first),
            group(index=1, rewards=[0.0] * 4, lengths=[1] * 4, components=second),
            group(index=2, rewards=[0.0] * 2, lengths=[1] * 2, components={"exact": [1.0, 1.0]}),
        ]
    )
    # Variances within the groups: 1/4, 0 and 0 for `exact`. `brief` scored two completions of the first group only.
    assert consumed.component_stats == {
        "exact": ComponentStats(n=8, min=0.0, max=1.0, std_within=math.sqrt(1 / 12)),
        "brief": ComponentStats(n=3, min=1.0, max=5.0, std_within=0.0),
    }


def test_a_function_that_never_scored_two_completions_of_a_group_has_no_spread_within():
    consumed = event([group(index=0, rewards=[1.0, 1.0], lengths=[1, 1], components={"rare": [2.0, math.nan]})])
    assert consumed.component_stats == {"rare": ComponentStats(n=1, min=2.0, max=2.0)}


def test_lengths_of_passes_and_failures_are_compared_within_groups_that_have_both():
    consumed = event(
        [
            group(index=0, rewards=[1.0, 1.0, 0.0], lengths=[2, 4, 9]),
            group(index=1, rewards=[1.0, 0.0], lengths=[5, 7]),
            group(index=2, rewards=[1.0, 1.0], lengths=[100, 100]),
        ]
    )
    assert (consumed.length_passed, consumed.length_failed) == (4.0, 8.0)
    uniform = event([group(index=0, rewards=[1.0, 1.0], lengths=[3, 3])])
    assert (uniform.length_passed, uniform.length_failed) == (None, None)


def test_text_counts_are_summed_over_the_groups_that_must_all_have_them():
    texts = GroupTexts(judged=2, repetitive=1, script_judged=2, other_script=1, cut_with_end=1, unparsed={"numeric": 1})
    seen = group(index=0, rewards=[0.0, 1.0], lengths=[1, 1], texts=texts)
    unseen = group(index=1, rewards=[0.0, 1.0], lengths=[1, 1])
    assert event([seen, seen]).texts == TextStats(
        judged=4, repetitive=2, script_judged=4, other_script=2, cut_with_end=2, unparsed={"numeric": 2}
    )
    assert event([seen, unseen]).texts is None


def test_the_groups_of_a_step_are_generated_and_scored_from_the_first_to_the_last_of_them():
    one = group(index=0, rewards=[0.0, 1.0], lengths=[1, 1])
    early = replace(one, launched_at=10.0, generated_at=14.0, scored_at=15.0)
    late = replace(one, launched_at=11.0, generated_at=13.0, scored_at=17.0)
    assert busy_times([early, late]) == (Interval(began=10.0, ended=14.0), Interval(began=13.0, ended=17.0))
