"""What must hold in every run, whatever it trains: sums that add up, shares that are shares, fields that stay."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, KnobChanged, QueueSampled, RunResumed, RunStarted
from tocsin.schemas.knobs import KnobValue
from tocsin.schemas.step import StepCompleted

FIELDS: Final = (
    "loss",
    "grad_norm",
    "update_ratio",
    "entropy",
    "ess_frac",
    "clip_low_frac",
    "clip_high_frac",
    "logprob_gap",
)
"""Fields of `step_completed` that a trainer reports in every update or never."""
SHARES: Final = ("clip_low_frac", "clip_high_frac", "ess_frac")
ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that cannot be, as it was first seen."""

    metric: str
    text: str
    """One clause with numbers."""
    observed: float
    operator: Literal["<", "<=", ">", ">=", "==", "!="]
    limit: float
    step: int


class Invariants(Feature):
    """What was broken lately. A NaN breaks nothing here: that a number is not finite is a finding of its own."""

    takes = (RunStarted, RunResumed, KnobChanged, BatchConsumed, StepCompleted, QueueSampled, ClockTicked)
    KEEP: ClassVar[int] = 20
    """Steps for which something that happened once is remembered."""
    USUAL: ClassVar[int] = 10
    """Updates in which a field must have been there to be missed."""
    ABSENT: ClassVar[int] = 3
    """Updates in a row without it."""
    BATCHES: ClassVar[int] = 64
    """Steps whose groups are remembered."""

    def __init__(self) -> None:
        self.broken: dict[str, Broken] = {}
        """By what is broken; the oldest first."""
        self._last: dict[str, int] = {}
        """Step at which each was last seen broken."""
        self._knobs: dict[str, KnobValue] = {}
        self._queue_bound = math.inf
        self._events_dropped = 0
        self._updates = 0
        self._missed: dict[str, int] = dict.fromkeys(FIELDS, 0)
        """Updates without each field."""
        self._absent: dict[str, int] = {}
        """The newest updates in a row without it, of fields that are missing now."""
        self._consumed: set[int] = set()
        self._batches: deque[set[int]] = deque()

    def update(self, event: BaseEvent) -> None:
        """Take in an event and hold it against everything that it says."""
        if isinstance(event, StepCompleted):
            self._forget(event.step)
            self._judge(event, self._in_step(event))
            if event.outcome == "updated":
                self._count(event)
        elif isinstance(event, BatchConsumed):
            self._judge(event, self._in_batch(event))
        elif isinstance(event, QueueSampled):
            self._judge(event, self._in_ledger(event))
        elif isinstance(event, ClockTicked):
            if event.events_dropped > self._events_dropped:
                text = f"{event.events_dropped} events were lost so far"
                lost = Broken("clock_ticked.events_dropped", text, event.events_dropped, ">", 0.0, event.step)
                self._events_dropped = event.events_dropped
                self._judge(event, iter([lost]))
        else:
            self._configure(event)

    def _judge(self, event: BaseEvent, found: Iterator[Broken]) -> None:
        for item in found:
            self.broken.setdefault(item.metric, item)
            self._last[item.metric] = event.step

    def _forget(self, step: int) -> None:
        for metric in [metric for metric, last in self._last.items() if step - last > self.KEEP]:
            del self._last[metric], self.broken[metric]

    def _configure(self, event: BaseEvent) -> None:
        if isinstance(event, KnobChanged):
            self._knobs[event.path] = event.after
        elif isinstance(event, RunStarted | RunResumed):
            self._knobs = dict(event.knobs)
            self._queue_bound = 0.0
            self._events_dropped = 0
            self._consumed.clear()
            self._batches.clear()
        groups, staleness = self._knobs.get("groups_per_step"), self._knobs.get("max_staleness")
        known = groups is not None and staleness is not None
        # Steps that opened under larger values keep their slots, so the largest bound of the attempt counts.
        self._queue_bound = max(self._queue_bound, groups * (staleness + 1)) if known else math.inf  # type: ignore[operator]

    def _in_step(self, event: StepCompleted) -> Iterator[Broken]:
        for name in SHARES:
            value = as_float(event.__dict__[name])
            if value < -ROUNDING or value > 1 + ROUNDING:
                yield _no_share(f"step_completed.{name}", value, event.step)
        entropy = as_float(event.entropy)
        if entropy < -ROUNDING:
            yield Broken("step_completed.entropy", f"entropy is {entropy:.3g}", entropy, "<", 0.0, event.step)
        total = event.seconds.get("total")
        parts = sum(event.seconds.values()) - (total or 0.0)
        if total is not None and parts > 1.05 * total + 1e-3:
            text = f"the parts of a step add up to {parts:.3g} s of {total:.3g} s"
            yield Broken("step_completed.seconds", text, parts, ">", total, event.step)

    def _count(self, event: StepCompleted) -> None:
        """Count in how many updates each field was there, and for how many it has been missing since."""
        self._updates += 1
        values = event.__dict__
        missing = [name for name in FIELDS if values[name] is None]
        self._absent = {name: self._absent.get(name, 0) + 1 for name in missing} if missing else {}
        for name, updates in self._absent.items():
            self._missed[name] += 1
            present = self._updates - self._missed[name]
            if updates >= self.ABSENT and present >= self.USUAL:
                text = f"{name} has been missing for {updates} updates, after {present} with it"
                metric = f"step_completed.{name}"
                self._judge(event, iter([Broken(metric, text, float(updates), ">=", self.ABSENT, event.step)]))

    def _in_batch(self, event: BatchConsumed) -> Iterator[Broken]:
        rate = as_float(event.pass_rate)
        if rate < -ROUNDING or rate > 1 + ROUNDING:
            yield _no_share("batch_consumed.pass_rate", rate, event.step)
        indices = event.groups.group_index
        groups = set(indices)
        again = len(indices) - len(groups - self._consumed)
        if again:
            text = f"{again} of {len(indices)} groups of a step were consumed before"
            yield Broken("batch_consumed.groups.group_index", text, float(again), ">", 0.0, event.step)
        self._consumed |= groups
        self._batches.append(groups)
        if len(self._batches) > self.BATCHES:
            self._consumed -= self._batches.popleft()

    def _in_ledger(self, event: QueueSampled) -> Iterator[Broken]:
        ledger = event.ledger
        balance = ledger.balance()
        if balance:
            text = f"the ledger cannot account for {abs(balance)} of {ledger.launched} groups"
            yield Broken("queue_sampled.ledger", text, float(balance), "!=", 0.0, event.step)
        if ledger.queued > self._queue_bound:
            text = f"{ledger.queued} groups are queued where at most {self._queue_bound:g} can be"
            yield Broken("queue_sampled.ledger.queued", text, ledger.queued, ">", self._queue_bound, event.step)

    def restart(self) -> None:
        """What must hold has no baseline: nothing to forget."""


def _no_share(metric: str, value: float, step: int) -> Broken:
    limit = 1.0 if value > 1 else 0.0
    return Broken(metric, f"{metric} is {value:.3g}, and a share", value, ">" if value > 1 else "<", limit, step)
