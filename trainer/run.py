"""One attempt of a run: wiring the parts, running the loop, and ending in good order whatever happened.

prepare: writer lock, rollout process (its imports overlap with ours), learner, prompts, monitor
run:     TrainLoop until done, interrupted or failed
end:     checkpoint, `run_ended`, children stopped, files closed
"""

import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from tocsin.diagnostics import render
from tocsin.diagnostics.control import NO_REFERENCE
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.feed import EVENTS_FILE, Record, RunWriter
from tocsin.diagnostics.monitor import Monitor, MonitorCost
from tocsin.diagnostics.reader import read_events
from tocsin.schemas.base import as_float
from tocsin.schemas.config import RunConfig
from tocsin.schemas.control import ControlRequest
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, RolloutFailed, RunEnded, RunResumed, RunStarted
from tocsin.schemas.knobs import Knobs, KnobValue
from tocsin.trainer.checkpoint import CheckpointState, CheckpointWriter, read_latest
from tocsin.trainer.control import ControlDoor, Desk
from tocsin.trainer.control_memory import read_earlier
from tocsin.trainer.data import Ints
from tocsin.trainer.devices import describe_device
from tocsin.trainer.disk import write_problem
from tocsin.trainer.learner import Learner, OutOfMemory
from tocsin.trainer.ledger import GroupLedger
from tocsin.trainer.loop import Parts, Position, TooManyNonFinite, TrainLoop
from tocsin.trainer.messages import Setup
from tocsin.trainer.preflight import check_arguments
from tocsin.trainer.progress import Progress
from tocsin.trainer.prompts import PromptSet, Room, load_prompts
from tocsin.trainer.resources import ResourceSampler
from tocsin.trainer.rollout_client import Interrupted, RolloutClient, RolloutError, RolloutInputError
from tocsin.trainer.rollout_store import RolloutStore
from tocsin.trainer.run_folder import versions
from tocsin.trainer.signals import StopFlag
from tocsin.trainer.weights import Probe, WeightStore, probe_tokens

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 10.0

Outcome = Literal["completed", "interrupted", "failed"]


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


@dataclass(slots=True)
class Ending:
    """How an attempt ended."""

    outcome: Outcome = "failed"
    error: str | None = None
    cost: MonitorCost | None = None


@dataclass(frozen=True, slots=True)
class _Start:
    """Where an attempt begins."""

    model_path: str | Path
    position: Position
    knobs: Knobs
    state: CheckpointState | None
    rewound_from_step: int
    evaluated: dict[int, float] = field(default_factory=dict)
    """Mean held-out reward by version, of the past that the checkpoint has."""


class Run:
    """One attempt. Make it, then call `execute` once."""

    def __init__(self, plan: Plan, writer: RunWriter, rollout: RolloutClient, progress: Progress):
        self.plan = plan
        self.config = plan.config
        self.writer = writer
        self.rollout = rollout
        self.progress = progress
        settings = plan.config.diagnostics
        engine = Engine(disable=settings.disable, thresholds=settings.thresholds)
        self.monitor = Monitor(writer, engine, attempt=plan.attempt, tick_s=settings.tick_s, on_record=self.note_record)

    def execute(self, stop: StopFlag) -> Ending:
        """Run to the end, whatever it is. Raises `ValueError` subclasses for bad input found before the first event."""
        start = _starting_point(self.plan)
        self.progress.stage("loading the model")
        learner = Learner(self.config, start.model_path, start.knobs)
        if start.state is not None:
            learner.restore(Path(start.model_path))
            self.rollout.ledger = GroupLedger.resumed(start.state.ledger)
        self.progress.stage("reading the prompts")
        train, held_out = _prompts(self.config, learner)
        for prompt_set in (train, held_out):
            check_arguments(self.plan.requires, prompt_set.prompts)
        self.rollout.emit, self.rollout.should_stop = self.emit, stop.is_set
        with ExitStack() as stack:
            weights = WeightStore()
            stack.callback(weights.close)
            door = self._door(start, learner, (train, held_out), stop)
            parts = self._parts(start, learner, train, weights, door)
            self.rollout.setup(self._setup(start, learner, (train, held_out), parts.probe_ids))
            loop = TrainLoop(parts, start.knobs, start.position)
            self.at(start.position)
            # The libraries leave a million objects behind that live as long as the process. Every full collection
            # would visit them all, in whichever thread happens to allocate: a step or the rules of the monitor.
            gc.collect()
            gc.freeze()
            stop.arm()
            self.monitor.start()
            with self._ended(loop) as ending:
                self._announce(start, learner, parts.versions)
                self._report_refused(start, (train, held_out))
                for path, value in self.plan.overrides.items():
                    loop.change_knob(path, value, "launch")
                self.progress.stage("starting the sampler")
                door.open(loop)
                loop.run()
                ending.outcome = "completed"
        ending.cost = self.monitor.cost()
        return ending

    def emit(self, event: BaseEvent) -> None:
        """Record an event and show it."""
        self.monitor.emit(event)
        self.progress.observe(event)

    def note_record(self, record: Record) -> None:
        """Log and show a new record of the feed; called in the monitor's thread."""
        render.log_record(record)
        self.progress.record(record)

    def at(self, position: Position) -> None:
        """Events carry this position from now on."""
        self.monitor.at(
            step=position.step, policy_version=position.version, config_generation=position.config_generation
        )

    @contextmanager
    def _ended(self, loop: TrainLoop) -> Iterator[Ending]:
        """Turn whatever ends the loop into an outcome, save what can be saved, and have the feed say so."""
        ending = Ending()
        try:
            yield ending
        except Interrupted:
            ending.outcome = "interrupted"
            self._last_write(ending, loop.save)
        except (RolloutError, RolloutInputError, OutOfMemory, TooManyNonFinite) as error:
            ending.error = str(error)
            if not isinstance(error, TooManyNonFinite):
                self._last_write(ending, loop.save)
        except OSError as error:
            ending.error = write_problem(self.plan.folder, error)
            log.debug("the attempt ended with this", exc_info=error)
        except ValueError as error:
            # Bad input was found before the first event; from here on a `ValueError` is a bug and shows where.
            ending.error = f"{type(error).__name__}: {error}"
            raise RuntimeError("training stopped because of a bug; see above") from error
        except BaseException as error:
            ending.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._last_write(ending, loop.parts.store.close)
            self.rollout.ledger.drop_open("run_ended")
            loop.parts.control.close()
            self.emit(RunEnded(outcome=ending.outcome, error=ending.error))
            self.monitor.close(CLOSE_TIMEOUT_S)

    def _last_write(self, ending: Ending, write: Callable[[], object]) -> None:
        """Call `write`; a disk that refuses makes the outcome a failure, and the first reason stays."""
        try:
            write()
        except OSError as error:
            ending.outcome = "failed"
            ending.error = ending.error or write_problem(self.plan.folder, error)
            log.debug("the last files could not be written", exc_info=error)

    def _door(
        self, start: _Start, learner: Learner, prompts: tuple[PromptSet, PromptSet], stop: StopFlag
    ) -> ControlDoor:
        def ask_to_stop(request: ControlRequest) -> None:
            self.progress.note(f"{request.actor} asked to stop{request.note and ': '}{request.note}")
            stop.ask()

        longest = max(len(prompt.token_ids) for prompt_set in prompts for prompt in prompt_set.prompts)
        earlier = read_earlier(self.plan.folder / EVENTS_FILE, start.position.config_generation)
        return ControlDoor(
            Desk(
                folder=self.plan.folder,
                attempt=self.plan.attempt,
                launched=self.config.knobs,
                emit=self.emit,
                stop=ask_to_stop,
                fixed={} if learner.reference is not None else {"kl_beta": NO_REFERENCE},
                ceilings={"max_completion_tokens": learner.max_length - longest},
                earlier=earlier,
            )
        )

    def _parts(
        self, start: _Start, learner: Learner, train: PromptSet, weights: WeightStore, control: ControlDoor
    ) -> Parts:
        folder = self.plan.folder
        tolerance = start.state.probe_tolerance if start.state else None
        return Parts(
            config=self.config,
            folder=folder,
            learner=learner,
            rollout=self.rollout,
            weights=weights,
            probe=Probe(self.config.model.dtype, tolerance),
            probe_ids=probe_tokens(train.prompts, learner.vocab_size, self.config.seed, limit=learner.max_length),
            store=RolloutStore(folder / "rollouts", attempt=self.plan.attempt),
            checkpoints=CheckpointWriter(folder, self.config.checkpoint.keep, start.evaluated),
            resources=ResourceSampler(folder),
            control=control,
            emit=self.emit,
            at=self.at,
            event_seq=lambda: self.writer.last_event_seq,
            versions=versions(),
            evaluated=frozenset(start.evaluated),
        )

    def _setup(self, start: _Start, learner: Learner, prompts: tuple[PromptSet, PromptSet], probe: Ints) -> Setup:
        # The sampler and the rollout process need a folder with weights, configuration and tokenizer.json, whatever
        # the policy came from.
        policy = self.plan.folder / "policy"
        if not policy.exists():
            learner.save_model(policy)
        device = self.config.device.model_copy(update={"learner": learner.device.type})
        state = start.state
        return Setup(
            config=self.config.model_copy(update={"device": device}),
            model_path=policy,
            prompts=prompts[0].prompts,
            evaluation=prompts[1].prompts,
            knobs=start.knobs,
            config_generation=start.position.config_generation,
            next_step=state.next_step if state else 0,
            next_index=state.next_index if state else 0,
            reissue=state.reissue() if state else [],
            probe=probe,
        )

    def _announce(self, start: _Start, learner: Learner, found: dict[str, str]) -> None:
        """The first event of the attempt: what runs, or from where it goes on."""
        devices = [describe_device(self.config.device, learner.device)]
        if start.state is None:
            self.emit(
                RunStarted(
                    num_steps=self.config.steps,
                    seed=self.config.seed,
                    loss_variant=self.config.loss.variant,
                    knobs=start.knobs.model_dump(),
                    devices=devices,
                    versions=found,
                )
            )
            return
        self.emit(
            RunResumed(
                checkpoint_step=start.state.step,
                rewound_from_step=max(start.rewound_from_step, start.state.step),
                knobs=start.knobs.model_dump(),
                devices=devices,
                versions=found,
            )
        )

    def _report_refused(self, start: _Start, prompts: tuple[PromptSet, PromptSet]) -> None:
        """Rows of the data that will never be sampled; once, not again when the run is resumed."""
        rows = [] if start.state else [row for prompt_set in prompts for row in prompt_set.refused]
        for row in rows:
            self.rollout.failures[row.cause] += 1
            self.emit(
                RolloutFailed(
                    cause=row.cause, prompt_id=row.prompt_id, completions=0, whole_group=True, error=row.error
                )
            )


def _starting_point(plan: Plan) -> _Start:
    """The model and position to start from. Raises `CheckpointError`."""
    if not plan.resume:
        return _Start(plan.config.model.path, Position(), plan.config.knobs, None, 0)
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
    return _Start(folder, position, state.knobs, state, last, evaluated)


def _prompts(config: RunConfig, learner: Learner) -> tuple[PromptSet, PromptSet]:
    """Training and held-out prompts. Raises `DataError`."""
    room, data = _room(config, learner.max_length), config.data
    train = load_prompts(data.train, split=data.split, config=data, tokenizer=learner.tokenizer, room=room)
    if data.evaluation is None:
        return train, PromptSet([], [])
    held_out = load_prompts(
        data.evaluation,
        split=data.evaluation_split,
        config=data,
        tokenizer=learner.tokenizer,
        room=room,
    )
    return train, PromptSet(held_out.prompts[: config.evaluation.prompts], held_out.refused)


def _room(config: RunConfig, positions: int) -> Room:
    """What a model that takes `positions` tokens leaves for a prompt, and which setting to blame for it."""
    answer = config.knobs.max_completion_tokens
    if config.model.max_length == positions:
        return Room(positions - answer, "raise `model.max_length` or lower `knobs.max_completion_tokens`")
    own = f"the model has {positions} positions and {answer} are for the completion"
    return Room(positions - answer, f"lower `knobs.max_completion_tokens`: {own}")
