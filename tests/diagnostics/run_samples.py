"""Records with plain values and a small engine, for tests of the feed and of the monitor."""

from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.diagnosis import At, Coverage, Diagnostic, Evidence, Reason, Severity, State
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted
from tocsin.schemas.manifest import Attempt, Manifest

TS = "2026-01-31T12:00:00.000Z"


def evaluated(reward: float) -> EvaluationCompleted:
    """An event with one measured number."""
    return EvaluationCompleted(name="held-out", version=0, n=8, failed=0, reward_mean=reward, reward_se=0.1)


def diagnostic(
    id: str = "nan-inf/learner#1",
    *,
    event_seq: int = 1,
    state: State = "firing",
    severity: Severity = "warning",
    observed: float = 2.0,
) -> Diagnostic:
    """A finding in one of its states."""
    reasons: dict[State, Reason] = {"firing": "fired", "resolved": "resolved", "no_data": "data_lost"}
    at = At(step=event_seq, policy_version=0, ts=TS)
    evidence = Evidence(
        metric="loss", observed=observed, operator=">", threshold=1.0, window=1, window_unit="steps", n=1
    )
    return Diagnostic(
        event_seq=event_seq,
        code="POL015",
        name="nan-inf",
        kind="fault",
        id=id,
        fingerprint="0123456789ab",
        episode=1,
        state=state,
        reason=reasons[state],
        severity=severity,
        summary="The loss was not finite in 2 of 2 steps",
        labels={"component": "learner"},
        config_generation=0,
        started=at,
        last=at,
        count=1,
        evidence=[evidence],
        causes=[],
        actions=[],
        help="tocsin explain POL015",
    )


def action(id: str = "nan-inf/learner#1/lower-lr", *, event_seq: int = 1, about: str | None = None) -> ActionRecord:
    """A step in the life of an action."""
    return ActionRecord(
        event_seq=event_seq,
        ts=TS,
        step=1,
        config_generation=0,
        action_id=id,
        diagnostic_id=about,
        state="proposed",
        actor="autotune",
    )


def coverage(*, event_seq: int = 1, evaluated: tuple[str, ...] = ("POL015",)) -> Coverage:
    """A statement of which rules are evaluated."""
    return Coverage(
        event_seq=event_seq,
        at=At(step=1, policy_version=0, ts=TS),
        evaluated=list(evaluated),
        not_evaluated={},
        health="ok",
    )


def manifest(run_id: str, created: str = "2026-01-31T12:00:00.000Z") -> Manifest:
    """What `run.json` says about a run of ten steps."""
    config = RunConfig(
        steps=10,
        model=ModelConfig(path="model"),
        data=DataConfig(train="train.jsonl"),
        rewards=[RewardConfig(function="exact")],
    )
    attempt = Attempt(attempt=1, pid=1, host="here", boot_id="b", started=created)
    return Manifest(
        run_id=run_id, created=created, config=config, versions={"python": "3.11"}, hardware={}, attempts=[attempt]
    )


class LowReward:
    """An engine that says coverage at its first event and one finding at each evaluation with a negative reward."""

    def __init__(self) -> None:
        self.seen: list[BaseEvent] = []

    def observe(self, event: BaseEvent) -> list[Diagnostic | ActionRecord | Coverage]:
        """Judge one event."""
        self.seen.append(event)
        records: list[Diagnostic | ActionRecord | Coverage] = []
        if len(self.seen) == 1:
            records.append(coverage(event_seq=event.seq))
        if isinstance(event, EvaluationCompleted) and isinstance(event.reward_mean, float) and event.reward_mean < 0:
            records.append(diagnostic(f"low-reward/learner#{event.seq}", event_seq=event.seq))
        return records
