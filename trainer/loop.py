"""The step loop: collect, train, sync, report, save.

                    groups of step s                          weights of version s + 1
    rollout process ----------------> collect -> learner.step -------------------------> rollout process
                                                     |
                                                     +--> events (batch, step, queue, resources, syncs)

While the learner works on step s the sampler generates for step s + 1 and further, as far as `max_staleness` allows.
Every attempt at a step advances the step, also one without an update. Knobs change only here, between two steps.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tocsin.diagnostics.admission import knob, with_values
from tocsin.schemas.base import as_float
from tocsin.schemas.config import RunConfig
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import CheckpointSaved, KnobChanged, QueueSampled, WeightsSynced
from tocsin.schemas.knobs import Knobs, KnobValue
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.advantages import group_advantages
from tocsin.trainer.checkpoint import CheckpointState, CheckpointWriter, saved_slots, size_of
from tocsin.trainer.control import ControlDoor, Origin
from tocsin.trainer.data import Ints
from tocsin.trainer.evaluation import evaluation_event
from tocsin.trainer.learner import Learner
from tocsin.trainer.messages import Sync, Synced
from tocsin.trainer.pipes import Stopwatch
from tocsin.trainer.resources import ResourceSampler
from tocsin.trainer.rollout_client import QueuedGroup, RolloutClient
from tocsin.trainer.rollout_store import RolloutStore
from tocsin.trainer.stats import batch_event, quantiles
from tocsin.trainer.weights import Probe, WeightStore

LR_TOO_HIGH_FACTOR = 10.0
"""How the fault `lr-too-high` raises the learning rate, in mid-run: enough to ruin the policy within a few steps, and
little enough that lowering it again saves the run."""


class TooManyNonFinite(RuntimeError):
    """Updates were skipped too often in a row; the last good weights are in the checkpoint."""


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
        self._sync_started: dict[int, tuple[float, float, int]] = {}
        """Per version: when its sync began, seconds of writing, bytes."""

    def run(self) -> None:
        """All remaining steps. Raises `Interrupted` at a barrier, and what the learner or the rollout side raise."""
        self._tell_position()
        self._sync()
        if self._evaluation_due() and self.position.step not in self.parts.evaluated:
            self._evaluate()
        while self.position.step < self.config.steps:
            self.step()
        self._finish()

    def step(self) -> None:
        """One optimizer step: collect, train, sync, report, save."""
        self._barrier()
        watch = Stopwatch()
        queued = self.parts.rollout.collect(self.position.step)
        watch.lap("wait")
        self._note_syncs()
        event = self.parts.learner.step([item.group for item in queued], self.knobs, self.position.step)
        self._report_batch(queued)
        self.position.step += 1
        if event.outcome == "updated":
            self.position.version = self.position.step
        self._tell_position()
        watch.lap("learner")
        if self._sync_due():
            self._sync()
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
        self._note_syncs()
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
        fault, step = self.config.fault, self.position.step
        if fault is not None and fault.name == "lr-too-high" and step == fault.onset_step:
            # From the launch value: a run that is resumed at this very step may hold the raised one already.
            # Without the noise of the product, so that people and agents can write the value down.
            raised = min(1.0, float(f"{self.config.knobs.learning_rate * LR_TOO_HIGH_FACTOR:.6g}"))
            if self.knobs.learning_rate != raised:
                self.change_knob("learning_rate", raised, f"fault:{fault.name}")
        self.parts.control.at_barrier()
        if self._sync_due():  # a lower bound on staleness may need newer weights before this step's groups can start
            self._sync()

    def _sync_due(self) -> bool:
        last = self.position.step >= self.config.steps
        return last or self.position.step - self.position.sampler_version >= self.knobs.weight_sync_every

    def _sync(self) -> None:
        """Send the weights of this barrier, once the sampler has taken the ones before."""
        parts, version = self.parts, self.position.step
        if self._sync_started:
            parts.rollout.wait_for_sync(max(self._sync_started))
            self._note_syncs()
        began = time.monotonic()
        with parts.learner.meter.phase("sync"):
            weights = parts.learner.weights()
            parts.probe.expect(version, parts.learner.probe(parts.probe_ids))
            path = parts.weights.write(version, weights)
        written = time.monotonic() - began
        size = sum(w.numel() * w.element_size() for w in weights.values())
        self._sync_started[version] = (began, written, size)
        self.position.sampler_version = version
        parts.rollout.sync(Sync(version, path))

    def _note_syncs(self) -> None:
        """Report the syncs that the sampler acknowledged."""
        parts = self.parts
        answers, parts.rollout.synced = parts.rollout.synced, []
        for answer in answers:
            if answer.version in self._sync_started:
                self._report_sync(answer)
                parts.weights.acknowledged(answer.version)

    def _report_sync(self, answer: Synced) -> None:
        began, written, size = self._sync_started.pop(answer.version)
        gap, moved = self.parts.probe.compare(answer.version, answer.probe_logprobs)
        tolerance = self.parts.probe.tolerance
        assert tolerance is not None
        self.parts.emit(
            WeightsSynced(
                version=answer.version,
                seconds={
                    "write": written,
                    "pause": answer.pause_s,
                    "load": answer.load_s,
                    "verify": answer.verify_s,
                    "total": time.monotonic() - began,
                },
                bytes=size,
                probe_gap=gap,
                probe_moved=moved,
                probe_tolerance=tolerance,
                verified=gap <= tolerance,
            )
        )

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
        seconds = {
            "wait": watch.laps["wait"],
            **event.seconds,
            "sync_wait": watch.laps["sync_wait"],
            "total": watch.total,
        }
        completed = event.model_copy(update={"seconds": seconds})
        parts.emit(completed)
        parts.emit(
            QueueSampled(
                ledger=parts.rollout.ledger.snapshot(),
                learner_wait_s=seconds["wait"],
                sampler_wait_s=parts.rollout.take_sampler_wait(),
                step_s=seconds["total"],
                queue_wait=quantiles(np.array([max(0.0, taken - item.arrived) for item in queued])),
            )
        )
        self._lower_budget(completed)
        if (resources := parts.resources.sample(parts.learner, parts.rollout)) is not None:
            parts.emit(resources)

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
        self.parts.rollout.wait_for_sync(self.position.sampler_version)
        self._note_syncs()
        self._wait_for_evaluation()
        self.save()

    def _tell_position(self) -> None:
        self.parts.at(self.position)
