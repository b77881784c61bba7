"""The step loop: collect, train, sync, report, save.

                    groups of step s                          weights of version s + 1
    rollout process ----------------> collect -> learner.step -------------------------> rollout process
                                                     |
                                                     +--> events (batch, step, queue, resources, syncs)

While the learner works on step s the sampler generates for step s + 1 and further, as far as `max_staleness` allows.
Every attempt at a step advances the step, also one without an update. Knobs change only here, between two steps.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tocsin.diagnostics.admission import knob, with_values
from tocsin.schemas.base import as_float
from tocsin.schemas.config import RunConfig
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import CheckpointSaved, KnobChanged, QueueSampled
from tocsin.schemas.knobs import Knobs, KnobValue
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.advantages import group_advantages
from tocsin.trainer.batch_report import batch_event, busy_times, quantiles
from tocsin.trainer.checkpoint import CheckpointState, CheckpointWriter, saved_slots, size_of
from tocsin.trainer.control import ControlDoor, Origin
from tocsin.trainer.data import Ints, QueuedGroup
from tocsin.trainer.endings import Interrupted, TooManyNonFinite
from tocsin.trainer.evaluation import evaluation_event
from tocsin.trainer.faults import faulty_knob, filling_disk, lost_events, step_knobs
from tocsin.trainer.learner import Learner
from tocsin.trainer.pipes import Stopwatch
from tocsin.trainer.resources import ResourceSampler
from tocsin.trainer.rollout_client import RolloutClient
from tocsin.trainer.rollout_store import RolloutStore
from tocsin.trainer.sync import Broadcast, SyncTools, WeightSender
from tocsin.trainer.weights import Probe, WeightStore

UNPROVEN: Final = "the sampler does not hold the weights that it was sent, twice; see weights_synced and OFF010"


@dataclass
class Position:
    """Where the run is. The monitor stamps events with it."""

    step: int = 0
    """Optimizer steps finished."""
    version: int = 0
    """Step of the learner's weights."""
    sampler_version: int = 0
    """Step of the weights that were last sent to the sampler."""
    config_generation: int = 0


@dataclass
class Parts:
    """What the loop works with, wired in `run`."""

    config: RunConfig
    folder: Path
    learner: Learner
    rollout: RolloutClient
    weights: WeightStore
    broadcast: Broadcast | None
    probe: Probe
    probe_ids: Ints
    store: RolloutStore
    checkpoints: CheckpointWriter
    resources: ResourceSampler
    control: ControlDoor
    emit: Callable[[BaseEvent], None]
    at: Callable[[Position], None]
    event_seq: Callable[[], int]
    versions: dict[str, str]
    evaluated: frozenset[int] = frozenset()
    """Versions whose evaluation an earlier attempt reported."""


class TrainLoop:
    """Runs steps until the configured number is reached or somebody asks to stop."""

    def __init__(self, parts: Parts, knobs: Knobs, position: Position):
        self.parts = parts
        self.config = parts.config
        self.knobs = knobs
        self.position = position
        self.nonfinite_in_a_row = 0
        self.sender = WeightSender(
            SyncTools(
                learner=parts.learner,
                rollout=parts.rollout,
                store=parts.weights,
                probe=parts.probe,
                probe_ids=parts.probe_ids,
                is_remote=parts.config.sampler.kind == "vllm",
                broadcast=parts.broadcast,
                emit=parts.emit,
            )
        )

    def run(self) -> None:
        """All remaining steps. Raises `Interrupted` at a barrier, and what the learner or the rollout side raise."""
        self._tell_position()
        self._sync()
        self._await_first_proof()
        if self._evaluation_due() and self.position.step not in self.parts.evaluated:
            self._evaluate()
        while self.position.step < self.config.steps:
            self.step()
        self._finish()

    def _await_first_proof(self) -> None:
        """Wait until the sampler holds the first weights: nothing is sampled before, so no time is lost.

        Raises `Interrupted`; `SidesDisagree` when both sides give different log-probs, unless that is asked for.
        """
        while self.sender.is_waiting:
            if self.parts.rollout.should_stop():
                raise Interrupted
            self.parts.rollout.pump()
            self.sender.note()
        if self.config.sampler.on_mismatch == "pause":
            self.sender.require_agreement()

    def step(self) -> None:
        """One optimizer step: collect, train, sync, report, save."""
        self._barrier()
        watch = Stopwatch()
        queued = self.parts.rollout.collect(self.position.step)
        watch.lap("wait")
        self.sender.note()
        knobs = step_knobs(self.config.fault, self.position.step, self.knobs)
        event = self.parts.learner.step([item.group for item in queued], knobs, self.position.step)
        self._report_batch(queued)
        self.position.step += 1
        if event.outcome == "updated":
            self.position.version = self.position.step
        self._tell_position()
        watch.lap("learner")
        try:
            if self._sync_due():
                self._sync()
        finally:  # the step was made, also when a stop interrupts the wait for the weights before
            watch.lap("sync_wait")
            self._report_step(event, watch, queued)
        self._guard_nonfinite(event)
        if self._evaluation_due():
            self._evaluate()
        self._save_when_due()

    def change_knob(self, path: str, value: KnobValue, actor: str) -> None:
        """Give a knob a new value from the next step on. Raises `ValueError`, changing nothing."""
        self.change_knobs({path: value}, Origin(actor=actor))

    def change_knobs(self, changes: Mapping[str, KnobValue], origin: Origin) -> None:
        """Give knobs new values from the next step on: all of them, or with a `ValueError` none."""
        before, self.knobs = self.knobs, with_values(self.knobs, changes)
        for path in changes:
            self.position.config_generation += 1
            self._tell_position()
            self.parts.emit(
                KnobChanged(
                    path=path,
                    before=knob(before, path),
                    after=knob(self.knobs, path),
                    effective_step=self.position.step,
                    **asdict(origin),
                )
            )
        self.parts.rollout.retune(self.knobs, self.position.config_generation)

    def idle(self) -> None:
        """Serve the rollout side for a moment while training stands still. Raises `Interrupted`."""
        self.parts.rollout.rest()
        self.sender.note()
        self._note_evaluations()

    def save(self) -> Path:
        """Write a checkpoint of the present barrier."""
        watch = Stopwatch()
        parts, position = self.parts, self.position
        parts.store.flush()
        aside = parts.checkpoints.begin(position.step)
        try:
            parts.learner.save(aside)
        except OSError:
            parts.checkpoints.discard()  # a full disk has to take the end of the record yet
            raise
        state = CheckpointState(
            step=position.step,
            sampler_version=position.sampler_version,
            knobs=self.knobs,
            config_generation=position.config_generation,
            next_step=parts.rollout.next_step,
            next_index=parts.rollout.next_index,
            slots=saved_slots(parts.rollout.outstanding()),
            ledger=parts.rollout.ledger.snapshot(),
            probe_tolerance=parts.probe.tolerance,
            event_seq=parts.event_seq(),
            threads=self.config.device.threads,
            versions=parts.versions,
        )
        folder = parts.checkpoints.commit(aside, state)
        relative = str(folder.relative_to(parts.folder))
        parts.emit(CheckpointSaved(path=relative, seconds=watch.total, bytes=size_of(folder)))
        return folder

    def _barrier(self) -> None:
        """Everything that happens between two steps: planted faults, and what was asked for at the control door."""
        fault = self.config.fault
        turned = faulty_knob(fault, self.position.step, self.config.knobs)
        if fault is not None and turned is not None and knob(self.knobs, turned[0]) != turned[1]:
            self.change_knob(*turned, f"fault:{fault.name}")
        if self.sender.is_unproven and self.config.sampler.on_mismatch == "pause":
            self.parts.control.hold("weight-sync", UNPROVEN)
            self.sender.start_over()
            self._sync()
        self.parts.control.at_barrier()
        if self._sync_due():  # a lower bound on staleness may need newer weights before this step's groups can start
            self._sync()

    def _sync_due(self) -> bool:
        last = self.position.step >= self.config.steps
        return last or self.position.step - self.position.sampler_version >= self.knobs.weight_sync_every

    def _sync(self) -> None:
        """Send the weights of this barrier, once the sampler has taken the ones before."""
        self.position.sampler_version = self.position.step
        self.sender.send(self.position.step)

    def _report_batch(self, queued: list[QueuedGroup]) -> None:
        parts, step = self.parts, self.position.step
        groups = [item.group for item in queued]
        flight = [max(0, item.version - item.group.oldest_version) for item in queued]
        event = batch_event(
            groups,
            self.config,
            step=step,
            max_staleness=self.knobs.max_staleness,
            flight=flight,
        )
        parts.emit(event)
        loss = self.config.loss
        advantages = [
            group_advantages(g.rewards, scale=loss.scales, eps=loss.advantage_eps, tolerance=loss.zero_spread_tolerance)
            for g in groups
        ]
        parts.store.add(step, groups, advantages)

    def _report_step(self, event: StepCompleted, watch: Stopwatch, queued: list[QueuedGroup]) -> None:
        parts, taken = self.parts, watch.started + watch.laps["wait"]
        groups = [item.group for item in queued]
        seconds = {
            "wait": watch.laps["wait"],
            **event.seconds,
            "sync_wait": watch.laps["sync_wait"],
            "total": watch.total,
        }
        generating, scoring = busy_times(groups)
        fault, step = self.config.fault, self.position.step - 1
        completed, ledger = event.model_copy(update={"seconds": seconds}), parts.rollout.ledger.snapshot()
        completed, ledger = lost_events(fault, step, completed, ledger)
        parts.emit(completed)
        parts.emit(
            QueueSampled(
                ledger=ledger,
                learner_wait_s=seconds["wait"],
                sampler_wait_s=parts.rollout.take_sampler_wait(),
                step_s=seconds["total"],
                queue_wait=quantiles(np.array([max(0.0, taken - item.arrived) for item in queued])),
                generate_s=quantiles(np.array([g.generated_at - g.launched_at for g in groups])),
                score_s=quantiles(np.array([g.scored_at - g.generated_at for g in groups])),
                generating=generating,
                scoring=scoring,
            )
        )
        self._lower_budget(completed)
        if (resources := parts.resources.sample(parts.learner, parts.rollout)) is not None:
            parts.emit(filling_disk(fault, step, resources, parts.learner.checkpoint_bytes))

    def _lower_budget(self, event: StepCompleted) -> None:
        """After an out-of-memory retry, go on with the budget that fitted."""
        stats = event.microbatches
        if event.oom_retries and stats is not None and stats.token_budget < self.knobs.microbatch_tokens:
            self.change_knob("microbatch_tokens", stats.token_budget, "learner")

    def _guard_nonfinite(self, event: StepCompleted) -> None:
        self.nonfinite_in_a_row = self.nonfinite_in_a_row + 1 if event.outcome == "nonfinite" else 0
        limit = self.config.optimizer.max_nonfinite_steps
        if self.nonfinite_in_a_row >= limit:
            self.save()
            raise TooManyNonFinite(
                f"{limit} updates in a row were skipped because {', '.join(event.nonfinite)} was not finite "
                f"(loss {as_float(event.loss):g}); the weights before them are in the last checkpoint"
            )

    def _evaluation_due(self) -> bool:
        step, every = self.position.step, self.config.evaluation.every
        return step in (0, self.config.steps) or (every > 0 and step % every == 0)

    def _evaluate(self) -> None:
        """Ask for an evaluation; one at a time, the weights of the last sync."""
        if self.config.data.evaluation is None:
            return
        self._wait_for_evaluation()
        self.parts.rollout.evaluate(self.position.sampler_version)

    def _wait_for_evaluation(self) -> None:
        self.parts.rollout.wait_for_evaluation()
        self._note_evaluations()

    def _note_evaluations(self) -> None:
        results, self.parts.rollout.evaluated = self.parts.rollout.evaluated, []
        for result in results:
            event = evaluation_event("held-out", result)
            self.parts.checkpoints.results[event.version] = as_float(event.reward_mean)
            self.parts.emit(event)

    def _save_when_due(self) -> None:
        self._note_evaluations()
        every = self.config.checkpoint.every
        if every and self.position.step % every == 0 and self.position.step < self.config.steps:
            self.save()

    def _finish(self) -> None:
        """Bring in what is still under way, and write the last checkpoint."""
        self.sender.settle()
        self._wait_for_evaluation()
        self.save()

    def _tell_position(self) -> None:
        self.parts.at(self.position)
