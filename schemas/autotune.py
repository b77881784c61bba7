"""The auto-tuner: its part of the configuration, and the event that says what it decided without changing anything."""

from typing import Annotated, Final, Literal

from pydantic import Field, PositiveInt, model_validator

from tocsin.schemas.actions import Applicability
from tocsin.schemas.base import Model
from tocsin.schemas.control import KnobPatch
from tocsin.schemas.diagnosis import Severity
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.knobs import LIMITS, unknown_knob

AutotuneMode = Literal["off", "dry-run", "on"]
ACTOR: Final = "autotune"
"""Who asks, in everything that the auto-tuner does."""


class AutotuneConfig(Model):
    """`[autotune]`: actions that the run takes by itself. Without this section it takes none."""

    mode: AutotuneMode = "dry-run"
    """`dry-run`: the feed says what would be changed, and nothing is. `on`: it is changed."""
    allow: dict[str, list[str]] = {}
    """Knobs that the actions of a rule may change, by rule code: `allow.POL014 = ["learning_rate"]`. To name a rule
    is the agreement that an action of applicability `review` waits for. In a dry run an empty table allows
    everything, so that it shows what could be allowed."""
    automatic: list[str] = []
    """Knobs that actions of applicability `automatic` may change, whatever their rule."""
    min_severity: Severity = "warning"
    """Mildest finding that is answered."""
    max_changes: PositiveInt = 8
    """Changes that one rule may lead to in one run. Two rules that pull a knob to and fro come to an end."""
    policy: str | None = None
    """Import path `package.module:Class` of another policy than ours; see `tocsin.diagnostics.autotune`."""

    def permits(self, code: str, path: str, applicability: Applicability) -> bool:
        """Whether an action of rule `code` may change the knob `path`."""
        if self.mode == "dry-run" and not self.allow and not self.automatic:
            return True
        return path in self.allow.get(code, ()) or (applicability == "automatic" and path in self.automatic)

    @model_validator(mode="after")
    def _consistent(self) -> "AutotuneConfig":
        for path in (*self.automatic, *(path for paths in self.allow.values() for path in paths)):
            if path not in LIMITS:
                raise ValueError(unknown_knob(path))
        if self.mode == "on" and not self.allow and not self.automatic:
            raise ValueError(
                '`autotune.mode` = `on` needs `autotune.allow`, for instance `allow.POL014 = ["learning_rate"]`; '
                "a run with `dry-run` shows what could be allowed"
            )
        if self.policy is not None and ":" not in self.policy:
            raise ValueError(f"`autotune.policy` must be `package.module:Class`, got `{self.policy}`")
        return self


class AutotuneDecided(BaseEvent):
    """What the auto-tuner decided about a finding without asking for a change. Changes have requests like anybody's."""

    type: Literal["autotune_decided"] = "autotune_decided"
    decision: Literal["dry_run", "declined", "asked"]
    """`dry_run`: it would have asked for `patches`. `declined`: it does not act, for `reason`. `asked`: it leaves the
    finding to a person for `reason`."""
    diagnostic_id: str
    action_id: str
    patches: Annotated[list[KnobPatch], Field(max_length=16)] = []
    reason: str
    """One line."""
