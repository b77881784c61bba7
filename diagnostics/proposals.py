"""What rules share in their findings: one knob to move, one thing to look at, and shares of time as evidence."""

from dataclasses import replace
from typing import Literal

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.knob_patch import patch
from tocsin.diagnostics.rule import Proposal
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Evidence

PIPELINE_STEPS = 20
"""Steps before an answer is judged beyond those that its data spend in the pipeline."""


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
