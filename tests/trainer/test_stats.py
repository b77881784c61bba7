"""Step statistics against numbers worked out by hand."""

import json
import math

import pytest
import torch

from tests.records import violations
from tocsin.schemas.base import NonFinite, as_float
from tocsin.schemas.knobs import Knobs
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.loss import LossTerms
from tocsin.trainer.stats import StepTokens, TokenStats

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


def test_log_ratios_are_kept_per_staleness_with_their_sign():
    fresh, stale = finish(terms(log_ratio=[-0.2, -0.4, 0.3, -0.3], staleness=[0, 0, 1, 1])).ratio
    assert (fresh.log_mean, stale.log_mean) == (pytest.approx(-0.3), pytest.approx(0.0, abs=1e-7))
    assert fresh.k3 == pytest.approx((math.exp(-0.2) - 0.8 + math.exp(-0.4) - 0.6) / 2, rel=1e-5)
    assert stale.k3 == pytest.approx(math.cosh(0.3) - 1, rel=1e-5)


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
