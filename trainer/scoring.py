"""From completions to a scored group or to a failure: the one boundary where a bad row becomes data, not a crash."""

import asyncio
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np

from tocsin.trainer.data import Completion, Failure, FailureCause, Group, GroupRequest, Ints, Scored
from tocsin.trainer.faults import scoring_delay_s, spoil_scores
from tocsin.trainer.messages import Done, Evaluated, Failed, Fatal, Setup
from tocsin.trainer.reward_workers import RewardTimeout, RewardWorkerDied, RewardWorkers
from tocsin.trainer.rewards import passed, total
from tocsin.trainer.slots import Slot
from tocsin.trainer.texts import distinct, group_texts


class Scorer:
    """Scores groups and reports them to the learner."""

    def __init__(
        self,
        connection: Connection,
        workers: RewardWorkers,
        setup: Setup,
        *,
        ends: Ints,
        on_failed: Callable[[GroupRequest], Slot],
    ):
        """`ends` holds the tokens that end an answer."""
        self.connection = connection
        self.workers = workers
        self.config = setup.config
        self.weights = {reward.label: reward.weight for reward in setup.config.rewards}
        self.ends = ends
        self.on_failed = on_failed
        self.failures_in_a_row = 0
        self._tops = setup.config.pass_tops
        self._evaluation: list[tuple[np.ndarray, np.ndarray, list[Failure]]] = []
        """Of each part: rewards, passes and failures."""

    async def train(self, request: GroupRequest, completions: Sequence[Completion], launched: float) -> bool:
        """Score one group, just generated, and send it; False when nothing of it can be trained on."""
        generated = time.monotonic()
        scored = await self._score([request] * len(completions), completions)
        if (fault := self.config.fault) is not None:
            await asyncio.sleep(scoring_delay_s(fault, request.target_step))
            spoil_scores(fault, self.config.seed, request, completions, scored)
        if int(scored.valid.sum()) < 2:
            self._failed(request, scored.failures, len(completions))
            return False
        self.failures_in_a_row = 0
        done = time.monotonic()
        positions = np.flatnonzero(scored.valid).tolist()
        kept = tuple(completions[i] for i in positions)
        unparsed = {
            label: [positions.index(i) for i in found if i in positions] for label, found in scored.unparsed.items()
        }
        group = Group(
            request=request,
            completions=kept,
            rewards=scored.rewards[positions],
            components={label: values[positions] for label, values in scored.components.items()},
            num_failed=len(completions) - len(kept),
            launched_at=launched,
            generated_at=generated,
            scored_at=done,
            distinct=distinct(kept),
            texts=group_texts(request.prompt.text, kept, self.ends, unparsed),
        )
        self.connection.send(Done(group, scored.failures))
        return True

    def refuse(self, request: GroupRequest, failure: Failure) -> None:
        """Report a group for which there are no completions."""
        self._failed(request, [failure], request.size)

    async def evaluate(
        self, version: int, part: tuple[list[GroupRequest], list[list[Completion]], list[Failure]], *, last: bool
    ) -> None:
        """Score held-out completions, one per request; the last part sends the result of all parts.

        `part` has requests, their completions, and why there are none for others.
        """
        requests, groups, lost = part
        completions = [completion for group in groups for completion in group]
        rewards, passes = np.zeros(0), np.zeros(0, dtype=np.bool_)
        if requests:
            scored = await self._score(requests, completions)
            rewards = scored.rewards[scored.valid]
            passes = passed(scored.components, self._tops or {}, len(completions))[scored.valid]
            lost = [*lost, *scored.failures]
        self._evaluation.append((rewards, passes, lost))
        if last:
            parts, self._evaluation = self._evaluation, []
            mine = [value for part, _, _ in parts for value in part.tolist()]
            passing = [value for _, part, _ in parts for value in part.tolist()]
            lost = [failure for _, _, failures in parts for failure in failures]
            self.connection.send(Evaluated(version, mine, passing if self._tops else None, lost))

    async def _score(self, requests: Sequence[GroupRequest], completions: Sequence[Completion]) -> Scored:
        columns = {
            name: [request.prompt.columns.get(name) for request in requests] for name in requests[0].prompt.columns
        }
        try:
            scores = await self.workers.score(
                [completion.text for completion in completions], [request.prompt.text for request in requests], columns
            )
        except (RewardTimeout, RewardWorkerDied) as error:
            cause: FailureCause = "reward_timeout" if isinstance(error, RewardTimeout) else "reward_error"
            none = np.full(len(completions), np.nan)
            return Scored(none, ~np.isnan(none), [Failure(cause, str(error), len(completions), whole_group=True)])
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
        return Scored(rewards, valid, failures, components, scores.unparsed)

    def _failed(self, request: GroupRequest, failures: list[Failure], completions: int) -> None:
        known = failures or [Failure("reward_invalid", "fewer than two completions have a reward", completions, True)]
        self.connection.send(Failed(request, known, self.on_failed(request)))
        self.failures_in_a_row += 1
        limit = self.config.reward_workers.max_consecutive_failures
        if self.failures_in_a_row >= limit:
            is_unsampled = known[0].cause.startswith("sampler")
            what, whose = ("generated", "sampler") if is_unsampled else ("scored", "reward function")
            self.connection.send(
                Fatal(
                    f"{limit} groups in a row could not be {what}, the last one because of "
                    f"{known[0].cause}: {known[0].error}; nothing would ever be trained. "
                    f"Mend the {whose} or raise "
                    "`reward_workers.max_consecutive_failures`",
                    user_error=True,
                )
            )
