"""The monitor: takes events from a running trainer, writes them, and lets the engine judge them.

An event's way: `emit` in the trainer's thread stamps it and puts it into a bounded queue; the monitor's own thread
writes it to `events.jsonl`, shows it to the engine, and writes what the engine says to `feed.jsonl`. Because that
thread is its own, a trainer that hangs still gets a clock, and rules about hanging still speak.
"""

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tocsin.diagnostics.clock import Cost, Meter, utc_text
from tocsin.diagnostics.feed import EVENTS_FILE, Record, RunWriter
from tocsin.diagnostics.jsonl import NotAFeed
from tocsin.diagnostics.reader import read_events
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, ComponentHeartbeat, RunContinued, RunEnded, RunPaused, RunResumed

GATHER_S: Final = 0.25
"""How long events gather before the thread looks. Handled together they cost half as much as one by one: the thread
wakes once for several steps, takes the interpreter from the trainer once, and finds its data in the cache."""
QUEUED_EVENTS: Final = 65_536
"""Events that may wait for the thread; about half an hour of a demo run. More are dropped and counted."""
HELD_RECORDS: Final = 1_000
"""Records kept for later while the disk refuses them."""

log: Final = logging.getLogger("tocsin")

Shown = TypeVar("Shown", BaseEvent, Record)
"""What a hook is given."""


class Engine(Protocol):
    """Whatever judges events. Pure: time reaches it as `ClockTicked`."""

    def observe(self, event: BaseEvent) -> Sequence[Record]:
        """The records that this event gives rise to, each naming it as `event_seq`."""
        ...


class MonitorCost(NamedTuple):
    """What the diagnostics cost, so that it can be compared with the step."""

    emit: Cost
    """Wall-clock time that `emit` held up its caller."""
    write: Cost
    """Wall-clock time to encode and append an event, in the monitor's thread."""
    rules: Cost
    """Processor time of the engine, in the monitor's thread; waits for other threads are left out."""


class Lost(NamedTuple):
    """What did not get through. All zero in a healthy run."""

    events: int
    """The queue was full, the monitor closed, or the disk refused."""
    records: int
    """Could not be encoded, or the disk refused for so long that more than `HELD_RECORDS` were waiting."""
    engine_errors: int
    """Events at which the engine raised."""
    hook_errors: int
    """Times at which `on_record`, `on_event` or `on_judged` raised."""


class _Position(NamedTuple):
    step: int = 0
    policy_version: int = 0
    config_generation: int = 0


def _nothing(_: object) -> None:
    """The hook of a monitor whose events or records nobody wants to see at once."""


def _nobody(_event: BaseEvent, _records: Sequence[Record]) -> None:
    """The hook of a monitor in whose run nobody acts on records."""


class Monitor:
    """Records one attempt of a run. `emit` and `at` may be called from any thread and never fail.

    Signal handlers must not call `emit`: the thread that they interrupt may be inside it.

    `on_event` sees each event in the monitor's thread, once it is on file and before it is judged. `on_record` sees
    each new record there, in order: with its number, or without one (`seq` 0) while the disk refuses. On a resumed run
    the engine is first shown the events on file, and the records it gives that the feed lacks are appended.

    `on_judged` sees each event with the records that it gave rise to, once they are written, in the monitor's thread;
    on a resumed run the events on file first, in the same way.
    """

    def __init__(  # noqa: PLR0913 three hooks, because each sees something else at another time
        self,
        writer: RunWriter,
        engine: Engine,
        *,
        attempt: int,
        tick_s: float,
        on_record: Callable[[Record], None] = _nothing,
        on_judged: Callable[[BaseEvent, Sequence[Record]], None] = _nobody,
        on_event: Callable[[BaseEvent], None] = _nothing,
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._attempt = attempt
        self._tick_s = tick_s
        self._on_record = on_record
        self._on_judged = on_judged
        self._on_event = on_event
        self._queue: deque[BaseEvent] = deque()
        self._position = _Position()
        self._closing = threading.Event()
        self._ended = False
        self._paused = False
        self._last_news = time.monotonic()
        self._held: deque[Record] = deque()
        self._guard = threading.Lock()
        self._lost = Lost(0, 0, 0, 0)
        self._emit_time, self._write_time, self._rule_time = Meter(), Meter(), Meter()
        self._thread = threading.Thread(target=self._run, name="tocsin-monitor", daemon=True)

    def start(self) -> None:
        """Start the thread. Events emitted before are kept."""
        self._thread.start()

    def at(self, *, step: int, policy_version: int, config_generation: int) -> None:
        """Set the position that the next events carry."""
        self._position = _Position(step, policy_version, config_generation)

    def emit(self, event: BaseEvent) -> None:
        """Stamp an event and queue it. Never blocks; an event that cannot be queued is counted in `lost`."""
        began = time.perf_counter_ns()
        try:
            if self._closing.is_set() or len(self._queue) >= QUEUED_EVENTS:
                self._lose("events")
            else:
                self._queue.append(self._stamped(event))
        except Exception:  # the boundary around training: a faulty event costs itself, never the run
            self._complain("events", "an event could not be recorded")
        self._emit_time.add(self._position.step, time.perf_counter_ns() - began)

    def close(self, timeout_s: float) -> bool:
        """Write what is queued and stop; whether that was done within `timeout_s`. The writer stays open."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        return not self._abandon()

    def _abandon(self) -> int:
        """Count what came too late to be written; how many events that were."""
        num = 0
        for _ in self._queued():
            self._lose("events")
            num += 1
        return num

    def _queued(self) -> Iterator[BaseEvent]:
        """Take events off the queue until it is empty."""
        with contextlib.suppress(IndexError):
            while True:
                yield self._queue.popleft()

    @property
    def lost(self) -> Lost:
        """What did not get through so far."""
        return self._lost

    def cost(self) -> MonitorCost:
        """What was spent so far, by stage."""
        return MonitorCost(self._emit_time.cost(), self._write_time.cost(), self._rule_time.cost())

    def _stamped(self, event: BaseEvent) -> BaseEvent:
        position = self._position
        envelope: dict[str, Any] = {
            "run_id": self._writer.run_id,
            "attempt": self._attempt,
            "ts": utc_text(),
            "mono": time.monotonic(),
            **position._asdict(),
        }
        return event.model_copy(update=envelope)

    def _run(self) -> None:
        self._replay()
        next_tick = time.monotonic() + self._tick_s
        while True:
            is_closing = self._closing.wait(min(GATHER_S, self._tick_s))
            for event in self._queued():
                if not (isinstance(event, ComponentHeartbeat) and event.is_routine):
                    self._last_news = max(self._last_news, event.mono)
                self._handle(event)
            if is_closing:
                break
            if time.monotonic() >= next_tick:
                self._tick()
                next_tick = time.monotonic() + self._tick_s
        self._write_held()

    def _tick(self) -> None:
        """Say that time passed; not after `run_ended`, which is an attempt's last word."""
        if not self._ended:
            idle_s = max(0.0, time.monotonic() - self._last_news)
            self._handle(
                self._stamped(ClockTicked(idle_s=idle_s, paused=self._paused, events_dropped=self._lost.events))
            )

    def _replay(self) -> None:
        """Bring the engine to where the events on file end, and complete the feed if a crash left it behind."""
        last, covered, tail = (
            self._writer.last_event_seq,
            self._writer.last_record_event_seq,
            [_content(record) for record in self._writer.records_of_last_event],
        )
        if last == 0:
            return
        try:
            for event in read_events(self._writer.folder / EVENTS_FILE):
                records = self._judge(event)
                for record in records:
                    known = record.event_seq < covered or _content(record) in tail
                    if not known:
                        self._publish(record)
                self._tell(event, records)
        except (OSError, NotAFeed):  # the run goes on with an engine that knows less
            self._complain("engine_errors", "the events of earlier attempts could not be read")

    def _handle(self, event: BaseEvent) -> None:
        """Write one event and what the engine makes of it. An event that is not on file is not judged either."""
        began = time.perf_counter_ns()
        try:
            written = self._writer.event(event)
        except (OSError, ValueError):  # the boundary around the disk: training outlives it
            self._complain("events", f"`{event.__class__.__name__}` could not be written")
            return
        self._write_time.add(event.step, time.perf_counter_ns() - began)
        self._ended = self._ended or isinstance(event, RunEnded)
        if isinstance(event, RunPaused | RunContinued | RunResumed):
            self._paused = isinstance(event, RunPaused)
        self._show(self._on_event, written, "event")
        began = time.thread_time_ns()
        records = self._judge(written)
        self._rule_time.add(event.step, time.thread_time_ns() - began)
        for record in records:
            self._publish(record)
        self._tell(written, records)

    def _tell(self, event: BaseEvent, records: Sequence[Record]) -> None:
        try:
            self._on_judged(event, records)
        except Exception:  # the boundary around the hook: a faulty listener costs itself
            self._complain("hook_errors", f"the listener failed at event {event.seq}; training is not affected")

    def _judge(self, event: BaseEvent) -> Sequence[Record]:
        try:
            return list(self._engine.observe(event))
        except Exception:  # the boundary around the engine: diagnostics never stop training
            self._complain("engine_errors", f"the engine failed at event {event.seq}; training is not affected")
            return ()

    def _publish(self, record: Record) -> None:
        """Append a record and show it. While the disk refuses, records wait in order and are shown at once."""
        self._held.append(record)
        shown = self._write_held() or record
        if len(self._held) > HELD_RECORDS:
            self._held.popleft()
            self._lose("records")
        self._show(self._on_record, shown, "record")

    def _show(self, hook: Callable[[Shown], None], item: Shown, what: str) -> None:
        try:
            hook(item)
        except Exception:  # the boundary around the hooks: a faulty listener costs itself
            self._complain("hook_errors", f"the listener failed at {what} {item.seq}; training is not affected")

    def _write_held(self) -> Record | None:
        """Write the records that wait, in order; returns the last one as written, None when it was not."""
        written = None
        while self._held:
            try:
                written = self._writer.record(self._held[0])
            except OSError as error:
                log.debug("a record waits for the disk: %s", error)
                return None
            except Exception:  # the boundary around records: one that cannot be written must not hold up the others
                written = None
                self._complain("records", "a record could not be written")
            self._held.popleft()
        return written

    def _lose(self, what: str) -> bool:
        """Count a loss; whether it is the first of its kind."""
        with self._guard:
            before: int = self._lost._asdict()[what]
            self._lost = self._lost._replace(**{what: before + 1})
        return before == 0

    def _complain(self, what: str, message: str) -> None:
        """Count the failure that is being handled, and log the first of its kind; a bug with its traceback."""
        if not self._lose(what):
            return
        if isinstance(sys.exception(), OSError):
            log.error("tocsin monitor: %s; later failures of this kind are only counted", message)
        else:
            log.exception("tocsin monitor: %s; later failures of this kind are only counted", message)


def _content(record: Record) -> Record:
    """A record without what its writing added."""
    return record.model_copy(update={"seq": 0, "run_id": ""})
