"""What the engine concludes: diagnostics with evidence, ranked causes and actions, and coverage.

A diagnostic record is written when the state of a finding changes, never once per step. Fields with reasons:
`id` is readable because agents handle names better than hashes; `fingerprint` holds the identity and never a
value; `summary` gives no advice, advice lives in `actions`.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, FiniteFloat

from tocsin.schemas.actions import Action
from tocsin.schemas.base import SCHEMA_VERSION, Count, Fraction, Model, Number, Seconds, Timestamp

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")
"""From mild to grave."""

Hours = Annotated[FiniteFloat, Field(ge=0)]
Kind = Literal["fault", "efficiency", "lint"]
State = Literal["pending", "firing", "resolved", "no_data"]
Reason = Literal[
    "pending",
    "fired",
    "escalated",
    "explained",
    "unexplained",
    "reminder",
    "resolved",
    "reopened",
    "data_lost",
    "data_back",
    "run_ended",
]
Unit = Literal["completions", "groups", "steps", "syncs", "samples", "polls", "evaluations", "seconds"]


class At(Model):
    """A moment of the run."""

    step: Count
    policy_version: Count
    ts: Timestamp


class Evidence(Model):
    """One measured fact behind a finding, with what it was compared to."""

    metric: str
    """Path of the event field, or a documented quantity computed from it."""
    observed: Number
    operator: Literal["<", "<=", ">", ">=", "==", "!="]
    threshold: Number
    unit: str = ""
    window: Count
    """How much was looked at."""
    window_unit: Unit
    n: Count
    """Independent observations in the window."""
    baseline: Number | None = None
    """What a healthy run would show here, when that is known."""


class Cause(Model):
    """One possible cause. Several are ranked; none is claimed to be the only one."""

    code: str | None = None
    """Rule that would name this cause by itself, if there is one."""
    text: str
    weight: Fraction
    """Rank as a prior between 0 and 1; the causes of one diagnostic need not add up."""
    check: str
    """What tells this cause apart from the others."""


class Relation(Model):
    """A link to another diagnostic."""

    kind: Literal["explained_by", "explains"]
    id: str


class Cost(Model):
    """What the run spent from the onset of a finding until now. Whether that is lost depends on the finding."""

    hours: Hours | None = None
    """Wall-clock time, without that in which somebody had paused the run and that between two attempts."""
    tokens: Count | None = None
    """Completion tokens consumed."""
    tokens_without_gradient: Count | None = None
    """Those of them that did not go through the forward pass: groups without reward spread, as a rule."""
    learner_idle_s: Seconds | None = None
    """In which the learner waited for groups."""
    sampler_idle_s: Seconds | None = None
    """In which the sampler waited for free slots."""
    devices: Count | None = None
    """Devices of the run: each second above is so many device-seconds."""


class Diagnostic(Model):
    """A finding that changed its state."""

    record: Literal["diagnostic"] = "diagnostic"
    schema_version: str = SCHEMA_VERSION
    run_id: str = ""
    seq: Count = 0
    """Position in the feed, assigned by its writer."""
    event_seq: Count
    """Event that made the engine say this."""
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}\d{3}$")]
    """Rule code such as `RWD001`. Never reused. Codes that begin with X are those of rules of other packages."""
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    """What is wrong, in words: `zero-std-groups`."""
    kind: Kind
    id: str
    """`name/where#episode`, for instance `zero-std-groups/trainer#2`."""
    fingerprint: str
    """Hash of code, run and labels."""
    episode: Annotated[int, Field(ge=1)]
    state: State
    reason: Reason
    """Why this record was written. `pending` is shown on request only and never written."""
    severity: Severity
    """Highest severity of the episode."""
    summary: Annotated[str, Field(max_length=160)]
    """One sentence with numbers and without advice; stands alone in a log."""
    labels: dict[str, str]
    """Identity of the finding: `component`, `device`."""
    config_generation: Count
    started: At
    """When the condition first held."""
    fired: At | None = None
    """When it had held long enough."""
    last: At
    """When it last held."""
    resolved: At | None = None
    count: Count
    """Evaluations in this episode at which the condition held."""
    evidence: Annotated[list[Evidence], Field(min_length=1)]
    causes: list[Cause]
    """Most likely first."""
    actions: list[Action]
    relations: list[Relation] = []
    """`explained_by` names the direct cause, `explains` what this finding is the direct cause of."""
    suppressed: bool = False
    """An open finding that explains this one stands for it: readers count and show that one. False for reward
    collapse, non-finite numbers, memory near its end and weights that did not arrive, which are never hidden."""
    cost: Cost | None = None
    help: str
    """Command that prints the documentation of the rule."""


class NotEvaluated(Model):
    """Why a rule says nothing, which is different from health."""

    reason: Literal["missing_input", "warm_up", "disabled", "error", "not_applicable"]
    detail: str
    """One sentence that does not change from step to step."""


class Coverage(Model):
    """Which rules are evaluated and which are not. Written on change."""

    record: Literal["coverage"] = "coverage"
    schema_version: str = SCHEMA_VERSION
    run_id: str = ""
    seq: Count = 0
    event_seq: Count
    at: At
    evaluated: list[str]
    """Codes, sorted."""
    not_evaluated: dict[str, NotEvaluated]
    """By code; `package:entry point` for a rule of another package that cannot be loaded."""
    health: Literal["ok", "degraded", "unknown"]
    """`degraded`: a rule raised or cannot be loaded, the monitor lost events, or findings are held back. `unknown`:
    nothing is evaluated yet."""
    held_back: Count = 0
    """Findings that would fire and are not reported, because too many fired in the last steps. They are reported when
    there is room, if they still hold."""
    silenced: dict[str, Count] = {}
    """Codes whose records somebody asked to hold back, with the first step at which they are written again."""
