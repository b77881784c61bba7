"""From completions to a scored group or to a failure: the one boundary where a bad row becomes data, not a crash."""

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np

from tocsin.trainer.data import Completion, Failure, FailureCause, Group, GroupRequest
from tocsin.trainer.messages import Done, Evaluated, Failed, Fatal, Setup
from tocsin.trainer.reward_workers import RewardTimeout, RewardWorkerDied, RewardWorkers
from tocsin.trainer.rewards import passed, total
from tocsin.trainer.slots import Slot

CONSTANT_REWARD = 0.5
"""What the fault `constant-reward` makes of every reward: a value inside the range of the built-in verifiers."""


class Scorer:
    """Scores groups and reports them to the learner."""

    def __init__(
        self,
        connection: Connection,
        workers: RewardWorkers,
        setup: Setup,
        *,
        on_failed: Callable[[GroupRequest], Slot],
    ):
        self.connection = connection
        self.workers = workers
        self.config = setup.config
        self.weights = {reward.label: reward.weight for reward in setup.config.rewards}
        self.on_failed = on_failed
        self.failures_in_a_row = 0
        self._tops = setup.config.pass_tops
        self._evaluation: list[tuple[np.ndarray, np.ndarray, list[Failure]]] = []
        """Of each part: rewards, passes and failures."""

    async def train(self, request: GroupRequest, completions: Sequence[Completion], launched: float) -> bool:
        """Score one group and send it; False when nothing of it can be trained on."""
        rewards, valid, components, failures = await self._score([request] * len(completions), completions)
        whole = int(valid.sum()) < 2
        if whole:
            self._failed(request, failures, len(completions))
            return False
        self.failures_in_a_row = 0
        kept = np.flatnonzero(valid).tolist()
        if self._constant(request):
            rewards = np.full_like(rewards, CONSTANT_REWARD)
            components = {label: np.full_like(values, CONSTANT_REWARD) for label, values in components.items()}
        group = Group(
            request=request,
            completions=tuple(completions[i] for i in kept),
            rewards=rewards[kept],
            components={label: values[kept] for label, values in components.items()},
            num_failed=len(completions) - len(kept),
            launched_at=launched,
            scored_at=time.monotonic(),
        )
        self.connection.send(Done(group, failures))
        return True

    async def evaluate(
        self, version: int, requests: list[GroupRequest], groups: list[list[Completion]], *, last: bool
    ) -> None:
        """Score held-out completions, one per request; the last part sends the result of all parts."""
        completions = [completion for group in groups for completion in group]
        rewards, valid, components, failures = await self._score(requests, completions)
        passes = passed(components, self._tops or {}, len(rewards))
        self._evaluation.append((rewards[valid], passes[valid], failures))
        if last:
            parts, self._evaluation = self._evaluation, []
            scored = np.concatenate([part for part, _, _ in parts]).tolist()
            passes = np.concatenate([part for _, part, _ in parts]).tolist()
            lost = [failure for _, _, failures in parts for failure in failures]
            self.connection.send(Evaluated(version, scored, passes if self._tops else None, lost))

    async def _score(
        self, requests: Sequence[GroupRequest], completions: Sequence[Completion]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], list[Failure]]:
        """Rewards [n] (NaN where invalid), valid mask [n], components [n] (NaN where unknown), and the failures."""
        columns = {
            name: [request.prompt.columns.get(name) for request in requests] for name in requests[0].prompt.columns
        }
        try:
            scores = await self.workers.score(
                [completion.text for completion in completions], [request.prompt.text for request in requests], columns
            )
        except (RewardTimeout, RewardWorkerDied) as error:
            cause: FailureCause = "reward_timeout" if isinstance(error, RewardTimeout) else "reward_error"
            none = np.zeros(len(completions))
            return none, none.astype(bool), {}, [Failure(cause, str(error), len(completions), whole_group=True)]
        rewards, valid = total(scores, self.weights)
        components = {
            label: np.array([np.nan if value is None else value for value in values], float)
            for label, values in scores.components.items()
        }
        whole = int(valid.sum()) < 2
        counted: dict[tuple[FailureCause, str], int] = {}
        for cause_and_error in scores.errors.values():
            counted[cause_and_error] = counted.get(cause_and_error, 0) + 1
        failures = [Failure(cause, text, n, whole_group=whole) for (cause, text), n in counted.items()]
        return rewards, valid, components, failures

    def _failed(self, request: GroupRequest, failures: list[Failure], completions: int) -> None:
        known = failures or [Failure("reward_invalid", "fewer than two completions have a reward", completions, True)]
        self.connection.send(Failed(request, known, self.on_failed(request)))
        self.failures_in_a_row += 1
        limit = self.config.reward_workers.max_consecutive_failures
        if self.failures_in_a_row >= limit:
            self.connection.send(
                Fatal(
                    f"{limit} groups in a row could not be scored, the last one because of "
                    f"{known[0].cause}: {known[0].error}; nothing would ever be trained. Mend the reward function or "
                    "raise `reward_workers.max_consecutive_failures`",
                    user_error=True,
                )
            )

    def _constant(self, request: GroupRequest) -> bool:
        fault = self.config.fault
        return fault is not None and fault.name == "constant-reward" and request.target_step >= fault.onset_step
