"""Faults planted into the events of healthy steps: each changes what the fault would change, and nothing else."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import QueueSampled, RolloutFailed
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.step import StepCompleted

Plant = Callable[[BaseEvent, int], Iterable[BaseEvent]]
"""From an event and the number of steps since the onset to the events that take its place."""


def planted(steps: Iterable[list[BaseEvent]], plant: Plant, *, first: int, last: int) -> Iterator[list[BaseEvent]]:
    """The steps with `plant` at work from optimizer step `first` to `last`."""
    for events in steps:
        changed: list[BaseEvent] = []
        for event in events:
            at_work = first <= event.step <= last
            changed += plant(event, event.step - first) if at_work else [event]
        yield changed


def with_rewards(event: BatchConsumed, value: float, **fields: Any) -> BatchConsumed:
    """The batch in which every completion got this share of the reward range, and none passes."""
    low, high = (0.0, 1.0) if event.reward_range is None else map(as_float, event.reward_range)
    reward, n = low + value * (high - low), len(event.groups.size)
    same = dict.fromkeys(("reward_mean", "reward_min", "reward_max"), [reward] * n)
    columns = {**same, "reward_std": [0.0] * n, "zero_spread": [True] * n, "passed": [0] * n, **fields}
    groups = event.groups.model_copy(update=columns)
    changes = {"groups": groups, "reward_mean": reward, "pass_rate": 0.0, "length_passed": None, "length_failed": None}
    return event.model_copy(update=changes)


def constant_reward(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """Every completion gets one and the same reward."""
    return [with_rewards(event, 0.3) if isinstance(event, BatchConsumed) else event]


def truncated(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """Completions end before their answer."""
    if not isinstance(event, BatchConsumed):
        return [event]
    cut = with_rewards(event, 0.0, truncated=event.groups.size)
    return [cut.model_copy(update={"finish_reasons": {"length": sum(event.groups.size)}})]


def not_a_number(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """Two of three losses are not a number."""
    if not isinstance(event, StepCompleted) or since % 3 == 2:
        return [event]
    changes = {"outcome": "nonfinite", "nonfinite": ["loss"], "update_ratio": None}
    return [event.model_copy(update=changes)]


def stale_weights(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """The sampler keeps the weights that it had, while the learner moves by 0.3 nats from sync to sync."""
    if not isinstance(event, WeightsSynced):
        return [event]
    # Never beyond the sum of the movements, also where two syncs end in one step and none in another.
    gap = 0.3 * max(1, since - 1)
    return [event.model_copy(update={"probe_gap": gap, "probe_moved": 0.3, "verified": False})]


def slow_sampler(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """Generation takes nine times as long as training."""
    if isinstance(event, QueueSampled):
        waits = {"learner_wait_s": 9 * event.step_s, "sampler_wait_s": 0.0, "step_s": 10 * event.step_s}
        return [event.model_copy(update=waits)]
    if isinstance(event, StepCompleted):
        total = event.seconds["total"]
        return [event.model_copy(update={"seconds": {**event.seconds, "wait": 9 * total, "total": 10 * total}})]
    return [event]


def same_completions(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """The completions of each group are copies of one another."""
    if not isinstance(event, BatchConsumed):
        return [event]
    return [with_rewards(event, 0.0, distinct=[1] * len(event.groups.size))]


def verifier_outage(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """As many completions as are scored cannot be."""
    if not isinstance(event, BatchConsumed):
        return [event]
    groups = event.groups
    envelope = {name: getattr(event, name) for name in BaseEvent.model_fields}
    lost = [
        RolloutFailed(
            **envelope,
            cause="reward_timeout",
            prompt_id=prompt,
            group_index=index,
            completions=size,
            whole_group=False,
            error="TimeoutError: 10 s",
        )
        for index, prompt, size in zip(groups.group_index, groups.prompt_id, groups.size, strict=True)
    ]
    failed = groups.model_copy(update={"num_failed": groups.size})
    return [*lost, event.model_copy(update={"groups": failed})]


def runaway(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """Updates fifty times as large as before destroy the policy."""
    if isinstance(event, BatchConsumed) and since > 2:
        return [with_rewards(event, 0.0)]
    if isinstance(event, StepCompleted) and event.logprob_gap is not None:
        gap = event.logprob_gap.model_copy(update={"abs_mean": 2.0, "k3": 1.0})
        ratio = None if event.update_ratio is None else 50 * as_float(event.update_ratio)
        return [event.model_copy(update={"update_ratio": ratio, "logprob_gap": gap, "ess_frac": 0.05})]
    return [event]


def lost_groups(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """The ledger loses a group in each step."""
    if not isinstance(event, QueueSampled):
        return [event]
    ledger = event.ledger.model_copy(update={"launched": event.ledger.launched + 1 + since})
    return [event.model_copy(update={"ledger": ledger})]


FAULTS: Final[dict[str, tuple[Plant, str]]] = {
    "constant-reward": (constant_reward, "RWD001"),
    "truncated": (truncated, "GEN001"),
    "nan": (not_a_number, "POL015"),
    "stale-weights": (stale_weights, "OFF010"),
    "slow-sampler": (slow_sampler, "OFF016"),
    "same-completions": (same_completions, "RWD006"),
    "verifier-outage": (verifier_outage, "GEN011"),
    "lost-groups": (lost_groups, "SYS012"),
    "runaway": (runaway, "POL014"),
}
"""By name: the fault, and the rule that must be among those that name it."""
