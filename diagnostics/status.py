"""What `tocsin status` knows about a run: who writes, the newest metrics, what is open, what is evaluated."""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from tocsin.diagnostics.clock import unix_seconds
from tocsin.diagnostics.errors import CANNOT_TELL, judge
from tocsin.diagnostics.feed import EVENTS_FILE, parse_event
from tocsin.diagnostics.integrity import FeedCheck, FeedState, check_feed
from tocsin.diagnostics.jsonl import NotAFeed, lines_backwards, read_header
from tocsin.diagnostics.reader import FeedReader, count
from tocsin.diagnostics.recording import Verdict
from tocsin.diagnostics.runs import BadManifest, RunNotFound, read_manifest
from tocsin.schemas.base import SCHEMA_VERSION, Model, Number
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.config import RunConfig
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, QueueSampled, RunContinued, RunEnded, RunPaused
from tocsin.schemas.feed import ActiveCounts, WriterState

E = TypeVar("E", bound=BaseEvent)

SEARCHED_BYTES: Final = 32 << 20
"""How far back the newest metrics are looked for: about a thousand steps at 1,024 completions a step."""


class Metrics(Model):
    """Newest values of the numbers that a person asks for first. Absent means that no event said."""

    step: int
    """Optimizer steps finished."""
    reward_mean: Number | None = None
    """Mean over the completions of the newest batch."""
    pass_rate: Number | None = None
    staleness_p50: Number | None = None
    """Optimizer steps, over the completions of the newest batch."""
    staleness_max: Number | None = None
    max_staleness: int | None = None
    learner_wait_frac: float | None = None
    """Share of the newest step that the learner stood still for groups."""
    sampler_wait_frac: float | None = None
    """Share of the newest step that the sampler stood still for free slots."""
    evaluation: str | None = None
    """Name of the newest held-out evaluation."""
    evaluation_reward: Number | None = None
    evaluation_reward_se: Number | None = None
    evaluation_step: int | None = None
    """Optimizer step of the weights that were evaluated."""
    paused_by: str | None = None
    """Who made training stand still; absent while it goes on. Untrusted."""
    paused_s: float | None = None
    """How long ago that was."""
    outcome: str | None = None
    """How the run ended: completed, interrupted, failed; absent while it goes on."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Recent:
    """The newest events of a recording, newest first."""

    events: list[BaseEvent]

    def newest(self, kind: type[E]) -> E | None:
        """The newest event of one type."""
        return next((event for event in self.events if isinstance(event, kind)), None)


WANTED: Final[dict[bytes, type[BaseEvent]]] = {
    b'"batch_consumed"': BatchConsumed,
    b'"queue_sampled"': QueueSampled,
    b'"evaluation_completed"': EvaluationCompleted,
    b'"run_ended"': RunEnded,
    b'"run_paused"': RunPaused,
    b'"run_continued"': RunContinued,
}
"""Event types by the text that a line of theirs contains, so that the other lines need no parsing."""


def recent(path: Path) -> Recent:
    """The newest event of each type in `WANTED`, and the newest event of all, read backwards from the end.

    Nothing when the file is missing.
    """
    found: list[BaseEvent] = []
    missing = dict(WANTED)
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        for line in lines_backwards(file, max(0, end - SEARCHED_BYTES), end):
            if found and not any(text in line for text in missing):
                continue
            event = parse_event(line)
            if event is None:
                continue  # the header, or a line that a crash tore
            if not found or type(event) in missing.values():
                found.append(event)
            missing = {text: kind for text, kind in missing.items() if kind is not type(event)}
            if not missing:
                break
    return Recent(found)


def metrics(events: Recent, writer: WriterState) -> Metrics:
    """The numbers of `events` that a person asks for first. How an attempt ended is over once the next one starts."""
    batch = events.newest(BatchConsumed)
    queue = events.newest(QueueSampled)
    evaluation = events.newest(EvaluationCompleted)
    ended = events.newest(RunEnded)
    if ended is not None and (ended.attempt < events.events[0].attempt or writer.state == "starting"):
        ended = None
    pause = _pause(events) if writer.state in ("alive", "stalled") else None
    paused_at = unix_seconds(pause.ts) if pause else None
    long_enough = queue is not None and queue.step_s > 0
    return Metrics(
        step=max((event.step for event in events.events[:1]), default=0),
        reward_mean=batch.reward_mean if batch else None,
        pass_rate=batch.pass_rate if batch else None,
        staleness_p50=batch.staleness.p50 if batch else None,
        staleness_max=batch.staleness.max if batch else None,
        max_staleness=batch.max_staleness if batch else None,
        learner_wait_frac=queue.learner_wait_s / queue.step_s if queue and long_enough else None,
        sampler_wait_frac=queue.sampler_wait_s / queue.step_s if queue and long_enough else None,
        evaluation=evaluation.name if evaluation else None,
        evaluation_reward=evaluation.reward_mean if evaluation else None,
        evaluation_reward_se=evaluation.reward_se if evaluation else None,
        evaluation_step=evaluation.version if evaluation else None,
        paused_by=pause.actor if pause else None,
        paused_s=None if paused_at is None else max(0.0, time.time() - paused_at),
        outcome=ended.outcome if ended else None,
        error=ended.error if ended else None,
    )


def _pause(events: Recent) -> RunPaused | None:
    """The pause that the newest attempt is in."""
    paused, continued = events.newest(RunPaused), events.newest(RunContinued)
    if paused is None or paused.attempt < events.events[0].attempt:
        return None
    return None if continued is not None and continued.seq > paused.seq else paused


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that `tocsin status` prints."""

    run_id: str
    folder: Path
    task: str
    """One line about data, rewards, loss and batch; empty when `run.json` cannot be read."""
    writer: WriterState
    metrics: Metrics
    active: list[Diagnostic]
    """Open diagnostics, what to answer first first; see `FeedReader.active`."""
    coverage: Coverage | None
    pending: list[Diagnostic] | None
    """What has held for too short a time to be reported; none when it was not asked for."""
    feed: FeedCheck

    @property
    def exit_code(self) -> int:
        """What the process exits with; see `errors.judge`. A feed that lost something proves nothing."""
        if self.feed.state in ("incomplete", "unreadable"):
            return CANNOT_TELL
        return judge(count(self.active), self.writer, self.coverage, failed=self.metrics.outcome == "failed")

    def line(self) -> "StatusLine":
        """The first line of `tocsin status --json`."""
        return StatusLine(
            run_id=self.run_id,
            folder=str(self.folder),
            task=self.task,
            writer=self.writer,
            metrics=self.metrics,
            active=count(self.active),
            health=self.coverage.health if self.coverage else "unknown",
            feed=self.feed.state,
            exit_code=self.exit_code,
        )


class StatusLine(Model):
    """First line of `tocsin status --json`; the open diagnostics and the coverage record follow it."""

    record: Literal["status"] = "status"
    schema_version: str = SCHEMA_VERSION
    run_id: str
    folder: str
    task: str
    writer: WriterState
    metrics: Metrics
    active: ActiveCounts
    health: Literal["ok", "degraded", "unknown"]
    feed: FeedState
    """Whether the feed of a run that is over agrees with its events."""
    exit_code: int


def gather(
    folder: Path,
    *,
    replayed: Verdict | None = None,
    reader: FeedReader | None = None,
    check: Callable[[Path, list[Diagnostic], Verdict | None], FeedCheck] = check_feed,
) -> Status:
    """The status of a run now; `replayed` adds what is pending. Raises `NotAFeed` when it has no feed and no events.

    Who asks often keeps the `reader`, and what `check` found of a run that is over.
    """
    reader = FeedReader(folder) if reader is None else reader
    writer = reader.writer_state()  # first: what an ended run left open is then complete
    run_id, task = _identity(folder)
    active: list[Diagnostic] = []
    coverage, feed = None, FeedCheck("unreadable")
    try:
        active, coverage = reader.active(), reader.coverage()
        is_over = writer.state in ("ended", "dead")
        feed = check(folder, active, replayed) if is_over else FeedCheck("unchecked")
    except NotAFeed:
        read_header(folder / EVENTS_FILE, "events")  # raises when these are gone as well
    return Status(
        run_id=run_id,
        folder=folder,
        task=task,
        writer=writer,
        metrics=metrics(recent(folder / EVENTS_FILE), writer),
        active=active,
        coverage=coverage,
        pending=None if replayed is None else replayed.engine.pending(),
        feed=feed,
    )


def _identity(folder: Path) -> tuple[str, str]:
    """Id and task of a run. A run without a readable manifest is still worth reporting."""
    try:
        manifest = read_manifest(folder)
    except (RunNotFound, BadManifest):
        return folder.resolve().name, ""
    return manifest.run_id, describe_task(manifest.config)


def describe_task(config: RunConfig) -> str:
    """`sort.jsonl, reward exact; dapo, 16 x 8 completions a step, 400 steps, seed 0`."""
    rewards = " + ".join(reward.label for reward in config.rewards)
    batch = f"{config.knobs.groups_per_step} x {config.knobs.group_size} completions a step"
    fault = f"; planted fault {config.fault.name} from step {config.fault.onset_step}" if config.fault else ""
    data = Path(config.data.train).name
    return f"{data}, reward {rewards}; {config.loss.variant}, {batch}, {config.steps} steps, seed {config.seed}{fault}"
