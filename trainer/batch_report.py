"""What one optimizer step says about the groups that it took: `BatchConsumed`.

It is written while the learner waits, so nothing here looks at single tokens: what needs them was counted by the
rollout process (`texts`) and comes with the groups. Values that are not finite flow into the `Number` fields as they
are; they are what the rules look for.

Shape letters: C completions of the step, K groups of the step.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.schemas.batch import BatchConsumed, ComponentStats, GroupColumns, Histogram, Quantiles, TextStats
from tocsin.schemas.config import LossConfig, RunConfig
from tocsin.schemas.events import Interval
from tocsin.trainer.data import Group
from tocsin.trainer.rewards import passed

Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Completions:
    """The completions of the step, group after group. Every group has at least one."""

    size_K: Integers
    start_K: Integers
    """Position of each group's first completion."""
    reward_C: Doubles
    length_C: Integers
    stale_C: Integers
    components: dict[str, Doubles]
    """[C] by reward function, NaN where it could not tell."""
    passed_C: Integers | None
    """1 for a pass, else 0; None when no reward function decides."""


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
    all_C = _completions(groups, config.pass_tops, step)
    span_C = np.array([c.version_span for group in groups for c in group.completions], dtype=np.int64)
    # A reward function may answer infinities; the NaN of inf - inf is then the right mean.
    with np.errstate(over="ignore", invalid="ignore"):
        stats = _component_stats(all_C)
        return BatchConsumed(
            groups=_columns(groups, config.loss, all_C, flight),
            reward_range=config.reward_range,
            reward_mean=float(all_C.reward_C.mean()),
            pass_rate=None if all_C.passed_C is None else float(all_C.passed_C.mean()),
            components={label: mean for label, (mean, _) in stats.items()},
            component_stats={label: spread for label, (_, spread) in stats.items()},
            length=quantiles(all_C.length_C),
            length_histogram=_length_histogram(all_C.length_C),
            **_lengths_by_pass(all_C),
            staleness=quantiles(all_C.stale_C),
            version_span=quantiles(span_C),
            mixed_frac=float((span_C > 0).mean()),
            finish_reasons=dict(Counter(c.finish_reason for group in groups for c in group.completions)),
            texts=_texts(groups),
            max_staleness=max_staleness,
        )


def quantiles(values: Integers | Doubles) -> Quantiles:
    """Mean, median, 95th percentile and maximum of at least one value."""
    p50, p95 = np.quantile(values, (0.5, 0.95)).tolist()
    return Quantiles(mean=float(values.mean()), p50=p50, p95=p95, max=float(values.max()))


def busy_times(groups: Sequence[Group]) -> tuple[Interval, Interval]:
    """When at least one group was generated: first launch to last token. And scored: until the last reward."""
    return (
        Interval(began=min(g.launched_at for g in groups), ended=max(g.generated_at for g in groups)),
        Interval(began=min(g.generated_at for g in groups), ended=max(g.scored_at for g in groups)),
    )


def _completions(groups: Sequence[Group], tops: Mapping[str, float] | None, step: int) -> _Completions:
    completions = [completion for group in groups for completion in group.completions]
    size_K = np.array([len(group.completions) for group in groups], dtype=np.int64)
    components = {}
    for label in dict.fromkeys(label for group in groups for label in group.components):
        parts = [group.components.get(label) for group in groups]
        filled = [np.full(len(g.rewards), np.nan) if p is None else p for g, p in zip(groups, parts, strict=True)]
        components[label] = np.concatenate(filled)
    passed_C = None if tops is None else passed(components, tops, len(completions)).astype(np.int64)
    return _Completions(
        size_K=size_K,
        start_K=np.cumsum(size_K) - size_K,
        reward_C=np.concatenate([group.rewards for group in groups]),
        length_C=np.array([len(completion.token_ids) for completion in completions], dtype=np.int64),
        stale_C=step - np.array([min(v for v, _ in c.versions) for c in completions], dtype=np.int64),
        components=components,
        passed_C=passed_C,
    )


def _columns(groups: Sequence[Group], loss: LossConfig, all_C: _Completions, flight: Sequence[int]) -> GroupColumns:
    size_K, start_K, reward_C = all_C.size_K, all_C.start_K, all_C.reward_C
    mean_K = np.add.reduceat(reward_C, start_K) / size_K
    centred_C = reward_C - np.repeat(mean_K, size_K)
    low_K = np.minimum.reduceat(reward_C, start_K)
    high_K = np.maximum.reduceat(reward_C, start_K)
    distinct = [group.distinct for group in groups if group.distinct is not None]
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
        tokens=np.add.reduceat(all_C.length_C, start_K).tolist(),
        truncated=[sum(c.finish_reason == "length" for c in group.completions) for group in groups],
        staleness=np.maximum.reduceat(all_C.stale_C, start_K).tolist(),
        staleness_flight=list(flight),
        config_generation=[group.request.config_generation for group in groups],
        passed=None if all_C.passed_C is None else np.add.reduceat(all_C.passed_C, start_K).tolist(),
        distinct=distinct if len(distinct) == len(groups) else None,
    )


def _component_stats(all_C: _Completions) -> dict[str, tuple[float, ComponentStats]]:
    """Mean and spread of each reward function over the completions it scored; no entry where it scored none."""
    size_K, start_K = all_C.size_K, all_C.start_K
    stats = {}
    for label, value_C in all_C.components.items():
        scored_C = ~np.isnan(value_C)
        if not scored_C.any():
            continue
        scored = value_C[scored_C]
        n_K = np.add.reduceat(scored_C.astype(np.int64), start_K)
        mean_K = np.add.reduceat(np.where(scored_C, value_C, 0.0), start_K) / np.maximum(n_K, 1)
        centred_C = np.where(scored_C, value_C - np.repeat(mean_K, size_K), 0.0)
        square_K = np.add.reduceat(centred_C * centred_C, start_K)
        several_K = n_K > 1
        stats[label] = (
            float(scored.mean()),
            ComponentStats(
                n=len(scored),
                min=float(scored.min()),
                max=float(scored.max()),
                std_within=math.sqrt((square_K / np.maximum(n_K, 1))[several_K].mean()) if several_K.any() else None,
            ),
        )
    return stats


def _lengths_by_pass(all_C: _Completions) -> dict[str, float]:
    """Mean lengths of passing and of failing completions, over the groups that have both; none without such a group."""
    if all_C.passed_C is None:
        return {}
    passed_K = np.add.reduceat(all_C.passed_C, all_C.start_K)
    both_K = (passed_K > 0) & (passed_K < all_C.size_K)
    if not both_K.any():
        return {}
    length_K = np.add.reduceat(all_C.length_C, all_C.start_K)
    of_passed_K = np.add.reduceat(all_C.length_C * all_C.passed_C, all_C.start_K)
    passing = (of_passed_K[both_K] / passed_K[both_K]).mean()
    failing = ((length_K - of_passed_K)[both_K] / (all_C.size_K - passed_K)[both_K]).mean()
    return {"length_passed": float(passing), "length_failed": float(failing)}


def _length_histogram(length_C: Integers) -> Histogram:
    """Counts between 0, 1, 2, 4, 8, ... up to the first power of two above the longest completion."""
    top = int(length_C.max()).bit_length()
    edges = [0, *(1 << exponent for exponent in range(top + 1))]
    counts, _ = np.histogram(length_C, bins=edges)
    return Histogram(edges=[float(edge) for edge in edges], counts=counts.tolist())


def _texts(groups: Sequence[Group]) -> TextStats | None:
    """Sums over the groups; None unless the texts of all were looked at."""
    texts = [group.texts for group in groups if group.texts is not None]
    if len(texts) < len(groups):
        return None
    unparsed: dict[str, int] = {}
    for counts in texts:
        for label, num in counts.unparsed.items():
            unparsed[label] = unparsed.get(label, 0) + num
    return TextStats(
        judged=sum(counts.judged for counts in texts),
        repetitive=sum(counts.repetitive for counts in texts),
        script_judged=sum(counts.script_judged for counts in texts),
        other_script=sum(counts.other_script for counts in texts),
        cut_with_end=sum(counts.cut_with_end for counts in texts),
        unparsed=unparsed,
    )
