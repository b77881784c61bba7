"""One attempt of a run: wiring the parts, running the loop, and ending in good order whatever happened.

prepare: writer lock, rollout process (its imports overlap with ours), learner, prompts, monitor
run:     TrainLoop until done, interrupted or failed
end:     checkpoint, `run_ended`, children stopped, files closed
"""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tocsin.diagnostics import render
from tocsin.diagnostics.added_rules import added, engine_for
from tocsin.diagnostics.control import NO_REFERENCE
from tocsin.diagnostics.feed import EVENTS_FILE, Record, RunWriter
from tocsin.diagnostics.monitor import Monitor
from tocsin.diagnostics.outlets import open_outlets
from tocsin.schemas.control import ControlRequest
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RolloutFailed, RunEnded, RunResumed, RunStarted
from tocsin.trainer.checkpoint import CheckpointWriter
from tocsin.trainer.control import ControlDoor, Desk
from tocsin.trainer.control_memory import read_earlier
from tocsin.trainer.devices import describe_device
from tocsin.trainer.disk import write_problem
from tocsin.trainer.endings import (
    Ending,
    Interrupted,
    RolloutError,
    RolloutInputError,
    SidesDisagree,
    TooManyNonFinite,
)
from tocsin.trainer.faults import planted
from tocsin.trainer.gates_launch import Launch, pass_gates
from tocsin.trainer.learner import Learner, OutOfMemory
from tocsin.trainer.ledger import GroupLedger
from tocsin.trainer.loop import Parts, Position, TrainLoop
from tocsin.trainer.messages import Setup
from tocsin.trainer.preflight import check_arguments
from tocsin.trainer.progress import Progress
from tocsin.trainer.prompts import PromptSet, load_prompt_sets
from tocsin.trainer.resources import ResourceSampler
from tocsin.trainer.rollout_client import RolloutClient
from tocsin.trainer.rollout_store import RolloutStore
from tocsin.trainer.run_folder import versions
from tocsin.trainer.run_setup import run_setup
from tocsin.trainer.signals import StopFlag
from tocsin.trainer.start import Plan, Start, starting_point
from tocsin.trainer.sync import Broadcast
from tocsin.trainer.tuner import listener
from tocsin.trainer.vllm.nccl import NcclSender
from tocsin.trainer.vllm.transfer import NCCL_BACKEND, backend_of
from tocsin.trainer.weights import Probe, WeightStore, probe_tokens

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 10.0


class Run:
    """One attempt. Make it, then call `execute` once."""

    def __init__(self, plan: Plan, writer: RunWriter, rollout: RolloutClient, progress: Progress):
        self.plan = plan
        self.config = plan.config
        self.writer = writer
        self.rollout = rollout
        self.progress = progress
        settings = plan.config.diagnostics
        engine = engine_for(settings, added())
        for line in added().lines():
            progress.note(line)
        self.outlets = open_outlets(plan.folder, plan.run_id, plan.config.alerts, progress.note)
        self.monitor = Monitor(
            writer,
            engine,
            attempt=plan.attempt,
            tick_s=settings.tick_s,
            on_record=self.note_record,
            on_event=self.outlets.observe,
            on_judged=listener(plan.config, plan.folder, plan.attempt, engine, self.emit),
        )

    def execute(self, stop: StopFlag) -> Ending:
        """Run to the end, whatever it is. Raises `ValueError` subclasses for bad input found before the first event."""
        start = starting_point(self.plan)
        self.progress.stage("loading the model")
        learner = Learner(self.config, start.model_path, start.knobs)
        if start.state is not None:
            if planted(self.config.fault, start.state.step) != "lost-optimizer":
                learner.restore(Path(start.model_path))
            self.rollout.ledger = GroupLedger.resumed(start.state.ledger)
        self.progress.stage("reading the prompts")
        train, held_out = load_prompt_sets(self.config, learner.tokenizer, learner.max_length)
        for prompt_set in (train, held_out):
            check_arguments(self.plan.requires, prompt_set.prompts)
        knobs = start.knobs.model_copy(update=self.plan.overrides)
        launch = Launch(self.config, self.plan.folder, learner, (train, held_out), start.position.step)
        pass_gates(launch, knobs, self.progress)
        self.rollout.emit, self.rollout.should_stop = self.emit, stop.is_set
        with ExitStack() as stack:
            folder = self.config.sampler.weights_dir
            weights = WeightStore(None if folder is None else Path(folder))
            stack.callback(weights.close)
            door = self._door(start, learner, (train, held_out), stop)
            parts = self._parts(start, learner, train, weights, door)
            self.rollout.setup(self._setup(start, learner, (train, held_out), parts))
            loop = TrainLoop(parts, start.knobs, start.position)
            self.at(start.position)
            # The libraries leave a million objects behind that live as long as the process. Every full collection
            # would visit them all, in whichever thread happens to allocate: a step or the rules of the monitor.
            gc.collect()
            gc.freeze()
            stop.arm()
            self.monitor.start()
            with self._ended(loop) as ending:
                self._announce(start, learner, (train, held_out))
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
        """Log, show and send a new record of the feed; called in the monitor's thread."""
        render.log_record(record)
        self.progress.record(record)
        self.outlets.record(record)

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
        except (RolloutError, RolloutInputError, OutOfMemory, SidesDisagree, TooManyNonFinite) as error:
            ending.error = str(error)
            if not isinstance(error, SidesDisagree | TooManyNonFinite):
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
            self.outlets.close()

    def _last_write(self, ending: Ending, write: Callable[[], object]) -> None:
        """Call `write`; a disk that refuses makes the outcome a failure, and the first reason stays."""
        try:
            write()
        except OSError as error:
            ending.outcome = "failed"
            ending.error = ending.error or write_problem(self.plan.folder, error)
            log.debug("the last files could not be written", exc_info=error)

    def _door(
        self, start: Start, learner: Learner, prompts: tuple[PromptSet, PromptSet], stop: StopFlag
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
        self, start: Start, learner: Learner, train: PromptSet, weights: WeightStore, control: ControlDoor
    ) -> Parts:
        folder = self.plan.folder
        tolerance = start.state.probe_tolerance if start.state else None
        return Parts(
            config=self.config,
            folder=folder,
            learner=learner,
            rollout=self.rollout,
            weights=weights,
            broadcast=self._broadcast(learner),
            probe=Probe(self.config.model.dtype, tolerance),
            probe_ids=probe_tokens(train.prompts, learner.vocab_size, self.config.seed, limit=learner.max_length - 1),
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

    def _broadcast(self, learner: Learner) -> Broadcast | None:
        """The learner's end of a group for weights, where they travel that way."""
        if self.config.sampler.kind != "vllm" or backend_of(self.config, learner.device.type) != NCCL_BACKEND:
            return None
        sender = NcclSender(self.config.sampler.timeout_s)
        self.rollout.meet = sender.meet
        return sender

    def _setup(self, start: Start, learner: Learner, prompts: tuple[PromptSet, PromptSet], parts: Parts) -> Setup:
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
            probe=parts.probe_ids,
            learner=learner.facts(parts.weights.folder),
            logs=self.plan.folder,
        )

    def _announce(self, start: Start, learner: Learner, prompts: tuple[PromptSet, PromptSet]) -> None:
        """The first event of the attempt: what runs, or from where it goes on."""
        devices = [describe_device(self.config.device, learner.device)]
        setup = run_setup(self.config, *prompts, learner.tokenizer)
        if start.state is None:
            self.emit(
                RunStarted(
                    num_steps=self.config.steps,
                    seed=self.config.seed,
                    loss_variant=self.config.loss.variant,
                    knobs=start.knobs.model_dump(),
                    devices=devices,
                    versions=versions(),
                    setup=setup,
                )
            )
            return
        self.emit(
            RunResumed(
                checkpoint_step=start.state.step,
                rewound_from_step=max(start.rewound_from_step, start.state.step),
                knobs=start.knobs.model_dump(),
                devices=devices,
                versions=versions(),
                setup=setup,
            )
        )

    def _report_refused(self, start: Start, prompts: tuple[PromptSet, PromptSet]) -> None:
        """Rows of the data that will never be sampled; once, not again when the run is resumed."""
        rows = [] if start.state else [row for prompt_set in prompts for row in prompt_set.refused]
        for row in rows:
            self.rollout.failures[row.cause] += 1
            self.emit(
                RolloutFailed(
                    cause=row.cause, prompt_id=row.prompt_id, completions=0, whole_group=True, error=row.error
                )
            )
