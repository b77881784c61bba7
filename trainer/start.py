"""Where an attempt of a run begins: at the model that was named, or at a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.diagnostics.feed import EVENTS_FILE
from tocsin.diagnostics.reader import read_events
from tocsin.schemas.base import as_float
from tocsin.schemas.config import RunConfig
from tocsin.schemas.events import EvaluationCompleted, RunResumed
from tocsin.schemas.knobs import Knobs, KnobValue
from tocsin.trainer.checkpoint import CheckpointState, read_latest
from tocsin.trainer.loop import Position


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run. Made by `launch`, without torch."""

    config: RunConfig
    folder: Path
    run_id: str
    attempt: int
    resume: bool
    overrides: dict[str, KnobValue]
    """Knob values for a resumed run, from `--set`."""
    from_step: int | None = None
    """Step that a resumed run goes back to, or to the checkpoint before it."""
    requires: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By reward label, the arguments that the function must get."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where an attempt begins."""

    model_path: str | Path
    position: Position
    knobs: Knobs
    state: CheckpointState | None
    rewound_from_step: int
    evaluated: dict[int, float] = field(default_factory=dict)
    """Mean held-out reward by version, of the past that the checkpoint has."""


def starting_point(plan: Plan) -> Start:
    """The model and position to start from. Raises `CheckpointError`."""
    if not plan.resume:
        return Start(plan.config.model.path, Position(), plan.config.knobs, None, 0)
    folder, state = read_latest(plan.folder, plan.from_step)
    position = Position(state.step, state.step, state.sampler_version, state.config_generation)
    last, evaluated = 0, dict[int, float]()
    for event in read_events(plan.folder / EVENTS_FILE):
        last = max(last, event.step)
        if isinstance(event, EvaluationCompleted):
            evaluated[event.version] = as_float(event.reward_mean)
        elif isinstance(event, RunResumed):
            evaluated = {version: mean for version, mean in evaluated.items() if version <= event.checkpoint_step}
    evaluated = {version: mean for version, mean in evaluated.items() if version <= state.step}
    return Start(folder, position, state.knobs, state, last, evaluated)
