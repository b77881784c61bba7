"""Requests: how anybody outside the trainer asks for a change. One file per request in the run's `control/` folder.

A request is written aside and renamed into place, acknowledged within a second, and carried out at a step barrier.
The answer is in the feed. Whatever is in such a file is untrusted until it has been checked.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tocsin.schemas.base import SCHEMA_VERSION, Count, Model, Timestamp
from tocsin.schemas.knobs import KnobValue

Verb = Literal["set", "act", "silence", "pause", "resume", "checkpoint", "stop"]

Line = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""One line of text without control characters."""

Actor = Annotated[str, Field(max_length=80, pattern=r"^(person|agent|autotune)(:[A-Za-z0-9._@-]{1,64})?$")]
"""Who asks: `person:ada`, `agent:nightwatch`, `autotune`."""


class KnobPatch(Model):
    """One knob change. `expect` is an optimistic lock: another value in force refuses the whole request."""

    path: Annotated[str, Field(max_length=64)]
    expect: KnobValue | None = None
    to: KnobValue


class ControlRequest(Model):
    """Contents of one file in `control/`, named `<id>.json`."""

    record: Literal["request"] = "request"
    schema_version: str = SCHEMA_VERSION
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    idempotency_key: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
    """A second request with the key of an accepted one changes nothing and gets the same answer."""
    actor: Actor
    created: Timestamp
    expires: Timestamp
    """A request that is read after this moment is refused."""
    attempt: Annotated[int, Field(ge=1)]
    """Attempt of the run that the asker saw; another one refuses the request."""
    verb: Verb
    config_generation: Count | None = None
    """Optimistic lock: knob changes that the asker has seen. Another number in force refuses the request."""
    patches: Annotated[list[KnobPatch], Field(max_length=16)] = []
    """For `set`, and for `act` with a placeholder value."""
    action_id: Annotated[str, Field(max_length=200)] | None = None
    """For `act`."""
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}\d{3}$")] | None = None
    """For `silence`: rule whose records are held back."""
    until_step: Count | None = None
    """For `silence`: first step that is not silenced any more; not above the present one ends a silence."""
    note: Line = ""

    @model_validator(mode="after")
    def _complete(self) -> "ControlRequest":
        needs: dict[str, tuple[str, Any]] = {
            "set": ("patches", self.patches),
            "act": ("action_id", self.action_id),
            "silence": ("code", self.code and self.until_step is not None),
        }
        name, given = needs.get(self.verb, ("", True))
        if not given:
            raise ValueError(f"`{self.verb}` needs `{name}`" + (" and `until_step`" if name == "code" else ""))
        paths = [patch.path for patch in self.patches]
        if len(set(paths)) < len(paths):
            raise ValueError(f"`patches` must name each knob once, got {paths}")
        return self
