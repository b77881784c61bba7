"""Where a distance between sampler and learner comes from: the table that tells like symptoms apart.

    what is wrong          probe                        mean ratio        tokens by age
    weights not applied    gap follows the movement     one               all ages alike, growing with the steps
    numeric mismatch       gap apart from the movement  above one         all ages alike, not growing
    filters of a sampler   agrees                       below one         all ages alike, one-sided
    staleness              agrees                       one               the older, the further
    recomputed log-probs   agrees                       exactly one       exactly one at every age

The mean ratio is one over whatever a sampler draws from its whole distribution, however far the learner has moved;
noise in the log-probs of one side raises it, and a distribution that was cut lowers it to the mass that was kept.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.ratios import Bucket, Ratios
from tocsin.schemas.diagnosis import Cause, Evidence

Origin = Literal["OFF010", "OFF004", "OFF006", "OFF001", "POL005"]

ABOVE_ONE: Final = 0.05
"""Distance of the mean ratio above one that shows noise, beyond chance."""
BELOW_ONE: Final = 0.01
"""Distance below one that shows filters, beyond chance: it multiplies over the tokens of a completion. Healthy runs of
the embedded demo reach 0.003, and 0.02 with top-p 0.8."""
ERRORS: Final = 4.0
"""Standard errors that chance explains."""
ONE_SIDED: Final = 0.8
"""Share of the distance that has one sign when filters made it."""
NARROW: Final = 0.8
"""Effective sample size that ratios keep when filters made them; those of a policy that broke away scatter."""
FLAT_STEPS: Final = 20
"""Updates in a row with ratios of exactly one."""


def origin(features: Features) -> Origin | None:
    """What the table says now; None when nothing is far from anything, or nothing fits."""
    syncs, ratios = features.syncs, features.ratios
    if syncs.holds_old_weights:
        return "OFF010"
    if syncs.streak.syncs >= 2 or is_noisy(ratios.pooled):
        return "OFF004"
    if is_cut(ratios):
        return "OFF006"
    if ratios.flat.steps >= FLAT_STEPS and ratios.flat.moved > 0:
        return "POL005"
    return "OFF001" if syncs.seen and _grows_with_age(ratios.by_age) else None


def is_noisy(pooled: Bucket) -> bool:
    """Whether the mean ratio is above one, as noise in the log-probs of one side makes it."""
    return pooled.mean - 1 > max(ABOVE_ONE, ERRORS * pooled.error)


def is_cut(ratios: Ratios) -> bool:
    """Whether the mean ratio is below one by what a filter takes away, with the same sign and size for most tokens."""
    pooled = ratios.pooled
    if not 1 - pooled.mean > max(BELOW_ONE, ERRORS * pooled.error):
        return False
    return pooled.ess >= NARROW and ratios.one_sided > ONE_SIDED


def _grows_with_age(ages: Mapping[int, Bucket]) -> bool:
    """Whether older tokens are further away; a single age tells as well when it is not that of the present weights."""
    if not ages or max(ages) == 0:
        return False
    return len(ages) == 1 or ages[max(ages)].ess < ages[min(ages)].ess


def table(features: Features) -> tuple[Evidence, ...]:
    """The columns of the table as far as they were measured: probe, mean ratio, youngest and oldest tokens."""
    ages, pooled = features.ratios.by_age, features.ratios.pooled
    found = [_probe(features.syncs.streak.syncs)] if features.syncs.seen else []
    if pooled.tokens:
        found.append(_mean(pooled, len(features.ratios.window)))
    ends = sorted({min(ages), max(ages)}) if ages else ()
    return (*found, *(_age(age, ages[age], len(features.ratios.window)) for age in ends))


def _probe(disagree: int) -> Evidence:
    return Evidence(
        metric="syncs in a row with weights_synced.probe_gap > probe_tolerance",
        observed=disagree,
        operator=">" if disagree else "==",
        threshold=0,
        unit="syncs",
        window=max(1, disagree),
        window_unit="syncs",
        n=max(1, disagree),
        baseline=0,
    )


def _mean(pooled: Bucket, steps: int) -> Evidence:
    return Evidence(
        metric="mean of step_completed.ratio",
        observed=pooled.mean,
        operator=">" if pooled.mean > 1 else "<=",
        threshold=1.0,
        unit="ratio",
        window=steps,
        window_unit="steps",
        n=pooled.tokens,
        baseline=1.0,
    )


def _age(staleness: int, bucket: Bucket, steps: int) -> Evidence:
    return Evidence(
        metric=f"ess of step_completed.ratio at staleness {staleness}",
        observed=bucket.ess,
        operator="<" if bucket.ess < 1 else ">=",
        threshold=1.0,
        unit="share",
        window=steps,
        window_unit="steps",
        n=bucket.tokens,
        baseline=1.0,
    )


def told_apart(causes: Sequence[Cause], found: str | None) -> tuple[Cause, ...] | None:
    """`causes` with the one that the table names in front; None, which leaves the order, when it names none of them."""
    first = next((cause for cause in causes if cause.code == found and found is not None), None)
    if first is None:
        return None
    others = [cause for cause in causes if cause is not first]
    return (first.model_copy(update={"weight": max(first.weight, *(c.weight for c in others), 0.6)}), *others)
