"""Spans, made from events after the fact: an event says when something ended and how long its parts took.

One trace per optimizer step:

    tocsin.step       the learner's step: tocsin.wait, tocsin.train, tocsin.sync_wait inside it
    tocsin.generate   of the groups that the step consumed; begins while earlier steps train
    tocsin.score      of the same groups
    tocsin.sync       the weights that the step made, on their way; overlaps with the next step
    tocsin.checkpoint

`generate` and `score` begin before their parent and `sync` ends after it: that is the overlap that asynchronous
training is for, and on one time line it can be seen.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, Tracer, set_span_in_context

from tocsin.diagnostics.clock import unix_seconds
from tocsin.schemas.base import as_float
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import CheckpointSaved, QueueSampled, RunEnded, RunResumed, RunStarted
from tocsin.schemas.generation import WeightsSynced, WeightSyncStarted
from tocsin.schemas.step import StepCompleted

REMEMBERED: Final = 64
"""Steps whose spans may still get children: a sync or a checkpoint that takes longer starts a trace of its own."""
PARTS: Final = ("write", "pause", "load", "verify", "resume")
"""What a sync does, one after the other."""
UNANSWERED: Final = "the sampler never acknowledged these weights"

Value = str | bool | int | float
Attributes = Mapping[str, Value]
NONE: Final[Attributes] = {}


class Spans:
    """Turns events into ended spans of `tracer`, in the order in which the events come."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._steps: OrderedDict[int, SpanContext] = OrderedDict()
        """The spans of the newest steps of this attempt."""
        self._sending: WeightSyncStarted | None = None

    def context(self, step: int) -> Context:
        """The trace of a step; an empty context when there is none, or none any more."""
        found = self._steps.get(step)
        return Context() if found is None else set_span_in_context(NonRecordingSpan(found), Context())

    def observe(self, event: BaseEvent) -> None:
        """Make the spans that this event completes."""
        if isinstance(event, StepCompleted):
            self._step(event)
        elif isinstance(event, QueueSampled):
            self._rollouts(event)
        elif isinstance(event, WeightSyncStarted):
            self._give_up(event)
            self._sending = event
        elif isinstance(event, WeightsSynced):
            self._sending = None
            self._sync(event)
        elif isinstance(event, CheckpointSaved):
            began = event.mono - event.seconds
            self._span("tocsin.checkpoint", event, began, event.mono, {"tocsin.checkpoint.size": event.bytes})
        elif isinstance(event, RunEnded):
            self._give_up(event)
        elif isinstance(event, RunStarted | RunResumed):
            self._steps.clear()
            self._sending = None

    def _step(self, event: StepCompleted) -> None:
        took = event.seconds
        ended = event.mono
        began = ended - took.get("total", 0.0)
        trained = began + took.get("wait", 0.0)
        attributes: dict[str, Value] = {
            "tocsin.step.outcome": event.outcome,
            "tocsin.groups": event.groups,
            "tocsin.groups.trained": event.groups_trained,
            "tocsin.tokens": event.tokens,
            "tocsin.tokens.trained": event.tokens_trained,
        }
        problem = f"not finite: {', '.join(event.nonfinite)}" if event.outcome == "nonfinite" else None
        context = self._span("tocsin.step", event, began, ended, attributes, parent=Context(), problem=problem)
        self._steps[event.step] = context
        if len(self._steps) > REMEMBERED:
            self._steps.popitem(last=False)
        if took.get("wait"):
            self._span("tocsin.wait", event, began, trained)
        computed = took.get("forward_backward", 0.0) + took.get("optimizer", 0.0)
        self._span("tocsin.train", event, trained, min(ended, trained + computed), problem=problem)
        if took.get("sync_wait"):
            self._span("tocsin.sync_wait", event, ended - took["sync_wait"], ended)

    def _rollouts(self, event: QueueSampled) -> None:
        for name, interval in (("tocsin.generate", event.generating), ("tocsin.score", event.scoring)):
            if interval is not None:
                self._span(name, event, interval.began, interval.ended)

    def _sync(self, event: WeightsSynced) -> None:
        took = event.seconds
        began = event.mono - took.get("total", 0.0)
        # The learner looks for the answer when it has time, so the total may be longer than the sync was.
        ended = min(event.mono, began + sum(took.get(part, 0.0) for part in PARTS))
        attributes: dict[str, Value] = {
            "tocsin.sync.version": event.version,
            "tocsin.sync.attempt": event.attempt_number,
            "tocsin.sync.size": event.bytes,
            "tocsin.sync.verified": event.verified,
            **{f"tocsin.sync.{part}": took[part] for part in PARTS if part in took},
        }
        problem = None
        if not event.verified:
            problem = f"probe gap {as_float(event.probe_gap):.3g} above {as_float(event.probe_tolerance):.3g} nats"
        parent = self.context(event.version)
        self._span("tocsin.sync", event, began, ended, attributes, parent=parent, problem=problem)

    def _give_up(self, now: BaseEvent) -> None:
        """End the sync that something else overtook."""
        sent, self._sending = self._sending, None
        if sent is not None:
            attributes = {"tocsin.sync.version": sent.version, "tocsin.sync.attempt": sent.attempt_number}
            parent = self.context(sent.version)
            self._span("tocsin.sync", now, sent.mono, now.mono, attributes, parent=parent, problem=UNANSWERED)

    def _span(  # noqa: PLR0913 a span is made of these
        self,
        name: str,
        event: BaseEvent,
        began: float,
        ended: float,
        attributes: Attributes = NONE,
        *,
        parent: Context | None = None,
        problem: str | None = None,
    ) -> SpanContext:
        """Make a span of the interval `[began, ended]` on the event's clock; by default in the trace of its step."""
        context = self.context(event.step) if parent is None else parent
        # The spans below a step have its trace, and attributes are much of what a span costs.
        position = NONE if context else envelope(event)
        span = self._tracer.start_span(
            name, context, attributes={**position, **attributes}, start_time=unix_ns(event, began)
        )
        if problem is not None:
            span.set_status(Status(StatusCode.ERROR, problem))
        span.end(unix_ns(event, max(began, ended)))
        return span.get_span_context()


def envelope(event: BaseEvent) -> dict[str, Value]:
    """Where in which run something happened, as attributes of a span."""
    return {
        "tocsin.run.id": event.run_id,
        "tocsin.attempt": event.attempt,
        "tocsin.step.number": event.step,
        "tocsin.policy.version": event.policy_version,
        "tocsin.config.generation": event.config_generation,
    }


def unix_ns(event: BaseEvent, mono: float) -> int:
    """Unix time in nanoseconds of a moment on the event's monotonic clock."""
    now = unix_seconds(event.ts) or 0.0
    return round(now * 1_000) * 1_000_000 - round((event.mono - mono) * 1e9)
