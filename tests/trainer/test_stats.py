"""Step statistics and the batch event against numbers worked out by hand."""

import json
import math

import numpy as np
import pytest
import torch

from tests.records import violations
from tocsin.schemas.base import NonFinite, as_float
from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.knobs import Knobs
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.data import Completion, Group, GroupRequest, Prompt
from tocsin.trainer.loss import LossTerms
from tocsin.trainer.stats import StepTokens, TokenStats, batch_event

KNOBS = Knobs(clip_low=0.2, clip_high=0.3, dual_clip=3.0)


def terms(*, log_ratio: list[float], kl_ref: list[float] | None = None, **columns: list[float]) -> LossTerms:
    """Tokens whose sampler log-prob is -1; by default of advantage 1, entropy 0.5 and staleness 0."""
    count = len(log_ratio)
    ratios = torch.tensor(log_ratio)
    return LossTerms(
        loss=torch.zeros(()),
        logp_N=ratios - 1,
        sampler_logp_N=torch.full((count,), -1.0),
        clip_log_ratio_N=torch.tensor(columns.get("clip_log_ratio", log_ratio)),
        advantage_N=torch.tensor(columns.get("advantage", [1.0] * count)),
        entropy_N=torch.tensor(columns.get("entropy", [0.5] * count)),
        staleness_N=torch.tensor(columns.get("staleness", [0] * count), dtype=torch.int32),
        kl_ref_N=None if kl_ref is None else torch.tensor(kl_ref),
    )


def finish(*parts: LossTerms) -> TokenStats:
    tokens = StepTokens()
    for part in parts:
        tokens.append(part)
    return tokens.finish(KNOBS)


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
        scored_at=1.0,
    )


def event(groups: list[Group], **fields: object):
    rewards = fields.get("rewards", [RewardConfig(function="exact")])
    config = RunConfig(steps=9, model=ModelConfig(path="x"), data=DataConfig(train="x"), rewards=rewards)
    return batch_event(groups, config, step=6, max_staleness=2, flight=fields.get("flight", [0] * len(groups)))


def test_clip_fractions_count_a_side_only_with_the_advantage_that_it_clips():
    stats = finish(
        terms(log_ratio=[-0.5, -0.5, 0.5, 0.5], advantage=[-1.0, 1.0, -1.0, 1.0]),
        terms(log_ratio=[2.0, 2.0, 0.0, 0.5], advantage=[-1.0, 1.0, -1.0, 0.0]),
    )
    assert stats.clip_low_frac == 1 / 8
    assert stats.clip_high_frac == 2 / 8
    assert stats.dual_clip_frac == 1 / 8


def test_clip_fractions_use_the_ratio_that_the_clip_judges():
    stats = finish(terms(log_ratio=[0.9, 0.0], clip_log_ratio=[0.45, 0.45]))
    assert stats.clip_high_frac == 1.0
    assert as_float(stats.ratio[0].max) == pytest.approx(math.exp(0.9))


def test_ratio_moments_are_kept_per_exact_staleness_and_capped_at_eight():
    log2 = math.log(2.0)
    stats = finish(terms(log_ratio=[0.0, log2, log2, 0.0, -log2], staleness=[0, 0, 3, 8, 40]))
    moments = [(m.staleness, m.tokens, m.mean, m.mean_square, m.max) for m in stats.ratio]
    assert moments == [
        (0, 2, pytest.approx(1.5), pytest.approx(2.5), pytest.approx(2.0)),
        (3, 1, pytest.approx(2.0), pytest.approx(4.0), pytest.approx(2.0)),
        (8, 2, pytest.approx(0.75), pytest.approx(0.625), pytest.approx(1.0)),
    ]


def test_effective_sample_size_is_one_for_equal_ratios_and_falls_when_one_dominates():
    assert finish(terms(log_ratio=[0.3, 0.3])).ess_frac == pytest.approx(1.0)
    # Ratios 1, 1, 1, 7: 10^2 / (4 x 52).
    assert finish(terms(log_ratio=[0.0, 0.0, 0.0, math.log(7.0)])).ess_frac == pytest.approx(100 / 208)


def test_log_prob_gap_has_signed_and_unsigned_estimates_and_tails():
    gap = finish(terms(log_ratio=[0.2, -0.4])).logprob_gap
    assert gap.k1 == pytest.approx(0.1, rel=1e-5)
    assert gap.k3 == pytest.approx((math.exp(0.2) - 1.2 + math.exp(-0.4) - 0.6) / 2, rel=1e-5)
    assert gap.abs_mean == pytest.approx(0.3, rel=1e-5)
    assert gap.abs_p95 == pytest.approx(0.39, rel=1e-5)
    assert gap.abs_p99 == pytest.approx(0.398, rel=1e-5)
    assert gap.abs_max == pytest.approx(0.4, rel=1e-5)


def test_means_are_over_tokens_and_not_over_micro_batches():
    stats = finish(
        terms(log_ratio=[0.0], entropy=[1.0], kl_ref=[0.4]),
        terms(log_ratio=[0.0, 0.0, 0.0], entropy=[0.0, 0.0, 1.0], kl_ref=[0.0, 0.0, 0.0]),
    )
    assert stats.entropy == pytest.approx(0.5)
    assert stats.kl_ref == pytest.approx(0.1)


def test_statistics_do_not_depend_on_how_tokens_were_cut():
    log_ratio, advantage = [0.1, -0.5, 0.9, 2.0], [1.0, -1.0, 1.0, -1.0]
    whole = finish(terms(log_ratio=log_ratio, advantage=advantage))
    parts = [terms(log_ratio=[r], advantage=[a]) for r, a in zip(log_ratio, advantage, strict=True)]
    assert finish(*parts) == whole


def test_a_step_without_trained_tokens_reports_nothing_instead_of_zeros():
    assert finish() == TokenStats()
    assert finish(terms(log_ratio=[])) == TokenStats()


def test_non_finite_log_probs_are_named_and_reach_the_event_as_such():
    tokens = StepTokens()
    tokens.append(terms(log_ratio=[0.0, math.nan]))
    assert tokens.nonfinite() == ["learner_logprob"]
    stats = tokens.finish(KNOBS)
    completed = StepCompleted(
        outcome="nonfinite", learning_rate=0.1, groups=1, groups_trained=1, tokens=2, tokens_trained=2, seconds={},
        **vars(stats),
    )  # fmt: skip
    nan = NonFinite(nonfinite="nan")
    assert completed.ess_frac == nan
    assert completed.ratio[0].mean == nan
    assert completed.logprob_gap.abs_p99 == nan
    assert violations(json.loads(completed.model_dump_json(exclude_none=True)), "event") == []


def test_an_infinite_sampler_log_prob_is_named_and_does_not_stop_the_statistics():
    tokens = StepTokens()
    bad = terms(log_ratio=[0.0, 0.0])
    bad.sampler_logp_N[1] = -math.inf
    tokens.append(bad)
    assert tokens.nonfinite() == ["sampler_logprob"]
    stats = tokens.finish(KNOBS)
    assert stats.ratio[0].max == NonFinite(nonfinite="inf")
    assert stats.logprob_gap.abs_max == NonFinite(nonfinite="inf")


def test_statistics_fill_a_step_event_that_its_schema_accepts():
    stats = finish(terms(log_ratio=[0.1, -0.2], kl_ref=[0.1, 0.2], staleness=[0, 1]))
    completed = StepCompleted(
        outcome="updated", learning_rate=0.1, groups=1, groups_trained=1, tokens=2, tokens_trained=2, seconds={},
        **vars(stats),
    )  # fmt: skip
    assert completed.kl_ref == pytest.approx(0.15)
    assert violations(json.loads(completed.model_dump_json(exclude_none=True)), "event") == []


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
