"""What one optimizer step reports: token statistics for `StepCompleted`, group columns for `BatchConsumed`.

Values that are not finite flow into the `Number` fields as they are; they are what the rules look for.

Shape letters: N trained tokens of the step, C completions of the step, K groups of the step.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tocsin.schemas.batch import BatchConsumed, GroupColumns, Histogram, Quantiles
from tocsin.schemas.config import LossConfig, RunConfig
from tocsin.schemas.knobs import Knobs
from tocsin.schemas.step import LogProbGap, RatioMoments
from tocsin.trainer.data import Group
from tocsin.trainer.loss import LossTerms
from tocsin.trainer.rewards import passed

Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

TOP_BUCKET = 8
"""Staleness bucket that holds itself and everything above."""


@dataclass(frozen=True)
class TokenStats:
    """Token statistics of a step under the field names of `StepCompleted`, so that `**vars(stats)` fills them in.

    None, or an empty list, means that no token was trained.
    """

    clip_low_frac: float | None = None
    clip_high_frac: float | None = None
    dual_clip_frac: float | None = None
    entropy: float | None = None
    ratio: list[RatioMoments] = field(default_factory=list)
    ess_frac: float | None = None
    logprob_gap: LogProbGap | None = None
    kl_ref: float | None = None


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Columns over the trained tokens of one micro-batch, on the CPU."""

    logp_N: Doubles
    sampler_logp_N: Doubles
    clip_log_ratio_N: Doubles
    advantage_N: Doubles
    entropy_N: Doubles
    staleness_N: Integers
    kl_ref_N: Doubles | None


class StepTokens:
    """The trained tokens of one step, collected micro-batch by micro-batch.

    Start a new one for each attempt: after an out-of-memory retry the old one holds tokens twice.
    """

    def __init__(self) -> None:
        self._parts: list[_Tokens] = []

    def append(self, terms: LossTerms) -> None:
        """Take the tokens of one micro-batch off the device."""
        self._parts.append(
            _Tokens(
                logp_N=_doubles(terms.logp_N),
                sampler_logp_N=_doubles(terms.sampler_logp_N),
                clip_log_ratio_N=_doubles(terms.clip_log_ratio_N),
                advantage_N=_doubles(terms.advantage_N),
                entropy_N=_doubles(terms.entropy_N),
                staleness_N=terms.staleness_N.cpu().numpy().astype(np.int64),
                kl_ref_N=None if terms.kl_ref_N is None else _doubles(terms.kl_ref_N),
            )
        )

    def nonfinite(self) -> list[str]:
        """Which log-probs hold a NaN or an infinity, in the words of `StepCompleted.nonfinite`."""
        found = []
        if not all(np.isfinite(part.logp_N).all() for part in self._parts):
            found.append("learner_logprob")
        if not all(np.isfinite(part.sampler_logp_N).all() for part in self._parts):
            found.append("sampler_logprob")
        return found

    def finish(self, knobs: Knobs) -> TokenStats:
        """The statistics of everything appended; `knobs` are those that the loss used."""
        parts = [part for part in self._parts if len(part.logp_N) > 0]
        if not parts:
            return TokenStats()
        kl_refs = [part.kl_ref_N for part in parts if part.kl_ref_N is not None]
        advantage_N = np.concatenate([part.advantage_N for part in parts])
        staleness_N = np.concatenate([part.staleness_N for part in parts])
        # Overflow to infinity, and the NaN of inf / inf, are results here and not accidents.
        with np.errstate(over="ignore", invalid="ignore"):
            log_ratio_N = np.concatenate([part.logp_N - part.sampler_logp_N for part in parts])
            ratio_N = np.exp(log_ratio_N)
            judged_N = np.exp(np.concatenate([part.clip_log_ratio_N for part in parts]))
            worse_N = advantage_N < 0
            return TokenStats(
                clip_low_frac=_share(worse_N & (judged_N < 1 - knobs.clip_low)),
                clip_high_frac=_share((advantage_N > 0) & (judged_N > 1 + knobs.clip_high)),
                dual_clip_frac=_share(worse_N & (judged_N > knobs.dual_clip)),
                entropy=float(np.concatenate([part.entropy_N for part in parts]).mean()),
                ratio=_moments(ratio_N, staleness_N),
                ess_frac=float(ratio_N.sum() ** 2 / (len(ratio_N) * (ratio_N * ratio_N).sum())),
                logprob_gap=_gap(log_ratio_N),
                kl_ref=float(np.concatenate(kl_refs).mean()) if kl_refs else None,
            )


def batch_event(
    groups: Sequence[Group],
    config: RunConfig,
    *,
    step: int,
    max_staleness: int,
    flight: Sequence[int],
) -> BatchConsumed:
    """The event about the groups that one step took; at least one group.

    `step` counts the optimizer steps finished before it. `flight` states per group how much of its staleness passed
    while it was generated and scored, in optimizer steps.
    """
    completions = [completion for group in groups for completion in group.completions]
    reasons = [completion.finish_reason for completion in completions]
    length_C = np.array([len(completion.token_ids) for completion in completions], dtype=np.int64)
    stale_C = step - np.array([min(v for v, _ in c.versions) for c in completions], dtype=np.int64)
    reward_C = np.concatenate([group.rewards for group in groups])
    # A reward function may answer infinities; the NaN of inf - inf is then the right mean.
    with np.errstate(over="ignore", invalid="ignore"):
        return BatchConsumed(
            groups=_columns(groups, config.loss, (reward_C, length_C, stale_C), flight),
            reward_range=config.reward_range,
            reward_mean=float(reward_C.mean()),
            pass_rate=_pass_rate(groups, config.pass_tops),
            components=_component_means(groups),
            length=quantiles(length_C),
            length_histogram=_length_histogram(length_C),
            staleness=quantiles(stale_C),
            finish_reasons=dict(Counter(reasons)),
            max_staleness=max_staleness,
        )


def _columns(
    groups: Sequence[Group],
    loss: LossConfig,
    per_completion: tuple[Doubles, Integers, Integers],
    flight: Sequence[int],
) -> GroupColumns:
    """Columns over groups out of rewards, lengths and staleness over completions; every group has at least one."""
    reward_C, length_C, stale_C = per_completion
    size_K = np.array([len(group.completions) for group in groups], dtype=np.int64)
    start_K = np.cumsum(size_K) - size_K
    mean_K = np.add.reduceat(reward_C, start_K) / size_K
    centred_C = reward_C - np.repeat(mean_K, size_K)
    low_K = np.minimum.reduceat(reward_C, start_K)
    high_K = np.maximum.reduceat(reward_C, start_K)
    return GroupColumns(
        group_index=[group.request.index for group in groups],
        prompt_id=[group.request.prompt.id for group in groups],
        size=size_K.tolist(),
        num_failed=[group.num_failed for group in groups],
        reward_mean=mean_K.tolist(),
        reward_std=np.sqrt(np.add.reduceat(centred_C * centred_C, start_K) / size_K).tolist(),
        reward_min=low_K.tolist(),
        reward_max=high_K.tolist(),
        zero_spread=(high_K - low_K <= loss.zero_spread_tolerance).tolist(),
        tokens=np.add.reduceat(length_C, start_K).tolist(),
        truncated=[sum(c.finish_reason == "length" for c in group.completions) for group in groups],
        staleness=np.maximum.reduceat(stale_C, start_K).tolist(),
        staleness_flight=list(flight),
        config_generation=[group.request.config_generation for group in groups],
    )


def _pass_rate(groups: Sequence[Group], tops: Mapping[str, float] | None) -> float | None:
    if tops is None:
        return None
    return _share(np.concatenate([passed(group.components, tops, len(group.completions)) for group in groups]))


def _component_means(groups: Sequence[Group]) -> dict[str, float]:
    """Mean of each reward function over the completions it scored; without an entry where it scored none."""
    names = dict.fromkeys(name for group in groups for name in group.components)
    means = {}
    for name in names:
        values = np.concatenate([group.components[name] for group in groups if name in group.components])
        scored = values[~np.isnan(values)]
        if len(scored) > 0:
            means[name] = float(scored.mean())
    return means


def _length_histogram(length_C: Integers) -> Histogram:
    """Counts between 0, 1, 2, 4, 8, ... up to the first power of two above the longest completion."""
    top = int(length_C.max()).bit_length()
    edges = [0, *(1 << exponent for exponent in range(top + 1))]
    counts, _ = np.histogram(length_C, bins=edges)
    return Histogram(edges=[float(edge) for edge in edges], counts=counts.tolist())


def quantiles(values: Integers | Doubles) -> Quantiles:
    """Mean, median, 95th percentile and maximum of at least one value."""
    p50, p95 = np.quantile(values, (0.5, 0.95)).tolist()
    return Quantiles(mean=float(values.mean()), p50=p50, p95=p95, max=float(values.max()))


def _moments(ratio_N: Doubles, staleness_N: Integers) -> list[RatioMoments]:
    bucket_N = np.minimum(staleness_N, TOP_BUCKET)
    moments = []
    for bucket in np.unique(bucket_N).tolist():
        ratios = ratio_N[bucket_N == bucket]
        moments.append(
            RatioMoments(
                staleness=bucket,
                tokens=len(ratios),
                mean=float(ratios.mean()),
                mean_square=float((ratios * ratios).mean()),
                max=float(ratios.max()),
            )
        )
    return moments


def _gap(log_ratio_N: Doubles) -> LogProbGap:
    absolute_N = np.abs(log_ratio_N)
    p95, p99 = np.quantile(absolute_N, (0.95, 0.99)).tolist()
    return LogProbGap(
        k1=float(-log_ratio_N.mean()),
        k3=float((np.expm1(log_ratio_N) - log_ratio_N).mean()),
        abs_mean=float(absolute_N.mean()),
        abs_p95=p95,
        abs_p99=p99,
        abs_max=float(absolute_N.max()),
    )


def _share(hits: npt.NDArray[np.bool_]) -> float:
    return float(hits.mean())


def _doubles(tensor: Tensor) -> Doubles:
    return tensor.detach().cpu().double().numpy()
