"""Actions: typed, bounded changes that answer a diagnostic, and the record of what happened to them."""

from typing import Annotated, Literal

from pydantic import Field

from tocsin.schemas.base import SCHEMA_VERSION, Count, Model, Timestamp
from tocsin.schemas.knobs import Effective, KnobValue

Applicability = Literal["automatic", "review", "placeholder", "advisory"]
ActionState = Literal[
    "proposed",
    "approved",
    "rejected",
    "dry_run",
    "applying",
    "applied",
    "target_met",
    "no_effect",
    "harmed",
    "inconclusive",
    "confounded",
    "reverted",
    "expired",
]

Title = Annotated[str, Field(max_length=120)]
"""Imperative, one line."""


class Patch(Model):
    """One knob change. `expect` is an optimistic lock: another value in force refuses the patch."""

    path: str
    expect: KnobValue
    to: KnobValue | None = None
    """New value, computed. Absent in a `placeholder` action, whose value somebody must choose."""
    min: KnobValue
    max: KnobValue
    effective: Effective | Literal["restart"]


class Verify(Model):
    """When the action counts as having worked."""

    metric: str
    operator: Literal["<", "<=", ">", ">="]
    threshold: float
    within: Annotated[int, Field(gt=0)]
    unit: str
    """Unit of `within`: steps, groups, completions."""


class Action(Model):
    """One way to answer a diagnostic."""

    id: str
    """`<diagnostic id>/<verb>`, for instance `zero-std-groups/trainer#2/raise-group-size`."""
    title: Title
    """Imperative, one line."""
    applicability: Applicability
    """`automatic`: bounded, reversible and shown to help. `review`: somebody agrees first. `placeholder`: a value
    must be chosen. `advisory`: nothing to apply."""
    risk: Literal["low", "medium", "high"]
    preferred: bool = False
    patches: list[Patch] = []
    verify: Verify | None = None
    on_failure: Literal["revert", "keep", "ask"] = "revert"
    cooldown_steps: Count = 0
    """Optimizer steps before the same knob may move again: longer than the delay of the pipeline."""
    disabled: str | None = None
    """Why the action cannot be applied now."""


class ActionRecord(Model):
    """A step in the life of an action or of a direct knob change."""

    record: Literal["action"] = "action"
    schema_version: str = SCHEMA_VERSION
    run_id: str = ""
    seq: Count = 0
    event_seq: Count
    """Event behind this record, for instance the `knob_changed` that applied it."""
    ts: Timestamp
    step: Count
    config_generation: Count
    action_id: str
    diagnostic_id: str | None = None
    state: ActionState
    actor: str
    """`person:<name>`, `agent:<name>`, `autotune`, `learner`, `fault:<name>`."""
    path: str | None = None
    before: KnobValue | None = None
    after: KnobValue | None = None
    idempotency_key: str | None = None
    request_id: str | None = None
    """Request of the control door that led to it; absent for changes of the trainer's own."""
    note: str = ""
