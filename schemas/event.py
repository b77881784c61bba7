"""The envelope that every event carries."""

from tocsin.schemas.base import Count, Model, Seconds, Timestamp


class BaseEvent(Model):
    """A past-tense fact. The recorder fills in the envelope; an emitter states only what it measured.

    `seq` is the only order that holds. Durations come from `mono`, never from `ts`.
    """

    run_id: str = ""
    attempt: Count = 0
    """Which start of the run wrote this; rises by one with each resume."""
    seq: Count = 0
    """Assigned by the single writer, from 1, without gaps within `events.jsonl`."""
    ts: Timestamp = ""
    mono: Seconds = 0.0
    """Monotonic clock of the host; comparable only within one attempt."""
    step: Count = 0
    """Optimizer steps finished when this happened, skipped and empty ones included."""
    policy_version: Count = 0
    """Step of the newest weights that the learner holds."""
    config_generation: Count = 0
    """Knob changes applied so far."""
