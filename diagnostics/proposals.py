"""What rules share in their findings: one knob to move, one thing to look at, and numbers as evidence."""

from dataclasses import replace
from typing import Final, Literal

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.knob_patch import patch
from tocsin.diagnostics.rule import Proposal
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Evidence, Unit

PIPELINE_STEPS = 20
"""Steps before an answer is judged beyond those that its data spend in the pipeline."""
WIDE: Final = 4
"""Optimizer steps of staleness that nobody calls fresh any more."""


def move(
    settings: Settings, path: str, wanted: float, verify: Verify, *, risk: Literal["low", "medium", "high"] = "low"
) -> Proposal | None:
    """Move one knob towards `wanted`, as far as one change may go; None when there is no room or no known value.

    A computed number keeps two significant digits: more would pretend to a precision that nobody has.
    """
    change = patch(settings, path, float(f"{wanted:.2g}") if isinstance(settings.knob(path), float) else wanted)
    if change is None or change.to is None:
        return None
    verb = "raise" if change.to > change.expect else "lower"
    return Proposal(
        verb=f"{verb}-{path.replace('_', '-')}",
        title=f"{verb} {path} {change.expect:g} to {change.to:g}",
        applicability="review",
        risk=risk,
        patches=(change,),
        verify=verify,
        cooldown_steps=pipeline_delay(settings) + PIPELINE_STEPS,
    )


def fewer_in_flight(settings: Settings, verify: Verify) -> Proposal | None:
    """A fifth fewer groups in flight than there can be now; None where one change of the cap does not reach so far.

    The slots of `max_staleness` bound the groups in flight as well, so a cap far above them has to come down first.
    """
    cap, groups, bound = (settings.knob(k) for k in ("in_flight_groups", "groups_per_step", "max_staleness"))
    if cap is None or groups is None or bound is None:
        return None
    most = min(cap, groups * (bound + 1))
    fewer = move(settings, "in_flight_groups", 0.8 * most, verify)
    return fewer if fewer is not None and (fewer.patches[0].to or most) < most else None


def fresher(settings: Settings, verify: Verify) -> Proposal | None:
    """A lower bound of staleness: half of one so wide that one step less makes no difference, else by one."""
    bound = settings.knob("max_staleness")
    if not bound:
        return None
    return move(settings, "max_staleness", bound // 2 if bound > WIDE else bound - 1, verify)


def pipeline_delay(settings: Settings) -> int:
    """Steps until a change of the rollout process is in every group that is trained on."""
    return int(settings.knob("max_staleness") or 0) + 1


def look(verb: str, title: str) -> Proposal:
    """Something for a person to look at; nothing to apply."""
    return Proposal(verb=verb, title=title, applicability="advisory", on_failure="keep")


def ranked(*proposals: Proposal | None) -> tuple[Proposal, ...]:
    """Those that there are, in order, the first one preferred."""
    found = [proposal for proposal in proposals if proposal is not None]
    return tuple(replace(proposal, preferred=position == 0) for position, proposal in enumerate(found))


def time_share(metric: str, observed: float, limit: float, steps: int) -> Evidence:
    """A share of the time of `steps` steps beside the limit that it reached or stayed below."""
    return Evidence(
        metric=metric,
        observed=observed,
        operator=">=" if observed >= limit else "<",
        threshold=limit,
        unit="share of time",
        window=steps,
        window_unit="steps",
        n=steps,
    )


def measured(
    metric: str,
    observed: float,
    operator: Literal["<", "<=", ">", ">=", "==", "!="],
    limit: float,
    *,
    unit: str,
    over: tuple[int, Unit],
) -> Evidence:
    """One number beside its limit, taken over so many observations."""
    return Evidence(
        metric=metric,
        observed=observed,
        operator=operator,
        threshold=limit,
        unit=unit,
        window=over[0],
        window_unit=over[1],
        n=over[0],
    )
