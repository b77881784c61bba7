"""The rollout process: prompts to scored groups, in slots.

    slots -> dispatch -> sampler (one batch at a time) -> scoring tasks -> reward workers -> learner
      ^                     ^ weight syncs and evaluations go between batches
      |___ freed by failures, opened by acknowledged weights

It imports neither torch nor transformers, holds no state that the learner cannot rebuild, and may be killed at any
moment: the learner starts a new one and hands it the groups that were in flight.
"""

import asyncio
import time
from multiprocessing.connection import Connection
from typing import Any

from tokenizers import Tokenizer

from tocsin.schemas.config import RunConfig
from tocsin.trainer.data import Completion, GroupRequest
from tocsin.trainer.messages import (
    BatchSampled,
    Evaluate,
    Fatal,
    Generate,
    Launched,
    Opened,
    ProcessNews,
    Ready,
    Retune,
    Setup,
    Stop,
    Sync,
    Synced,
    WeightsLoaded,
)
from tocsin.trainer.pipes import Inbox, PipeClosed
from tocsin.trainer.processes import child_main_setup
from tocsin.trainer.prompts import PromptOrder
from tocsin.trainer.reward_workers import RewardWorkers
from tocsin.trainer.rewards import RewardError
from tocsin.trainer.sampler import LocalSamplerHandle, SamplerDied
from tocsin.trainer.scoring import Scorer
from tocsin.trainer.slots import Slot, Slots

TRUNCATED_FAULT_TOKENS = 4
"""Length limit that the fault `truncated` sets on the embedded task, whose answers have seven tokens."""


def rollout_process(connection: Connection, config: RunConfig) -> None:
    """Target of the process."""
    child_main_setup("rollout")
    asyncio.run(_run(connection, config))


async def _run(connection: Connection, config: RunConfig) -> None:
    inbox = Inbox(connection, name="learner")
    sampler = LocalSamplerHandle(config.device.threads)
    workers = RewardWorkers(config.reward_workers, config.rewards)
    try:
        # Before anything else, so that a reward function that cannot be loaded is refused within seconds.
        await workers.start()
        connection.send(Ready(workers.requires))
        setup = await inbox.get()
        if isinstance(setup, Setup):
            await _Rollout(connection, inbox, sampler, workers, setup).run()
    except PipeClosed:
        return  # the learner is gone, and with it everybody who would want an answer
    except RewardError as error:
        connection.send(Fatal(str(error), user_error=True))
    except SamplerDied as error:
        connection.send(Fatal(str(error), user_error=False))
    finally:
        sampler.stop()
        await workers.close()


class _Rollout:
    """The state of a running rollout process."""

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        sampler: LocalSamplerHandle,
        workers: RewardWorkers,
        setup: Setup,
    ):
        self.connection = connection
        self.inbox = inbox
        self.sampler = sampler
        self.setup = setup
        self.config = setup.config
        self.knobs = setup.knobs
        self.config_generation = setup.config_generation
        self.slots = Slots(setup.next_step, setup.next_index)
        for slot in setup.reissue:
            self.slots.reissue(slot)
        self.scorer = Scorer(connection, workers, setup, on_failed=self._slot_failed)
        self.order = PromptOrder(len(setup.prompts), setup.config.seed)
        self.acknowledged = -1
        self.control: list[Sync | Evaluate] = []
        self.wake = asyncio.Event()
        self.stopping = False
        self.waited_s = 0.0
        self.tokenizer = Tokenizer.from_file(str(setup.model_path / "tokenizer.json"))
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Work until `Stop`. Raises `PipeClosed`, `SamplerDied`."""
        await self._load()
        listener = asyncio.create_task(self._listen())
        dispatcher = asyncio.create_task(self._dispatch())
        done, _ = await asyncio.wait({listener, dispatcher}, return_when=asyncio.FIRST_COMPLETED)
        for task in (listener, dispatcher, *self.tasks):
            task.cancel()
        for task in done:
            task.result()

    async def _load(self) -> None:
        try:
            await self.sampler.load(self.setup)
        except SamplerDied as error:
            await self._revive(error)

    async def _listen(self) -> None:
        """Take messages of the learner as they come."""
        while not self.stopping:
            message = await self.inbox.get()
            if isinstance(message, Stop):
                self.stopping = True
            elif isinstance(message, Retune):
                self.knobs, self.config_generation = message.knobs, message.config_generation
            elif isinstance(message, Sync | Evaluate):
                self.control.append(message)
            self.wake.set()

    async def _dispatch(self) -> None:
        """Give the sampler one thing at a time: weights and evaluations first, then groups."""
        while not self.stopping:
            if self.control:
                await self._serve_control(self.control.pop(0))
            elif batch := self._next_batch():
                await self._sample(batch)
            else:
                await self._idle()

    async def _idle(self) -> None:
        began = time.monotonic()
        self.wake.clear()
        await self.wake.wait()
        # Before the first weights nobody could have been served, so that is not a wait for slots.
        if self.acknowledged >= 0:
            self.waited_s += time.monotonic() - began

    async def _serve_control(self, message: Sync | Evaluate) -> None:
        if isinstance(message, Sync):
            await self._sync(message)
        else:
            await self._evaluate(message)

    async def _sync(self, message: Sync) -> None:
        asked = time.monotonic()
        try:
            answer = await self.sampler.sync(message)
        except SamplerDied as error:
            restarted = await self._revive(error)
            assert restarted is not None
            answer = restarted
        pause_s = time.monotonic() - asked - answer.load_s - answer.verify_s
        self._acknowledge(answer, max(0.0, pause_s))

    def _acknowledge(self, answer: WeightsLoaded, pause_s: float) -> None:
        self.acknowledged = answer.version
        self.connection.send(Synced(answer.version, pause_s, answer.load_s, answer.verify_s, answer.probe_logprobs))

    async def _evaluate(self, message: Evaluate) -> None:
        rows = self.config.sampler.batch_groups * self.knobs.group_size
        prompts = self.setup.evaluation
        for start in range(0, len(prompts), rows):
            requests = [
                GroupRequest(
                    index=start + i,
                    target_step=message.version,
                    prompt=prompt,
                    size=1,
                    temperature=self.knobs.temperature,
                    max_tokens=self.knobs.max_completion_tokens,
                    config_generation=self.config_generation,
                    purpose="eval",
                )
                for i, prompt in enumerate(prompts[start : start + rows])
            ]
            completions = await self._generate(requests)
            last = start + rows >= len(prompts)
            self._spawn(self.scorer.evaluate(message.version, requests, completions, last=last))

    def _next_batch(self) -> list[GroupRequest]:
        """Groups of one step that are generated together; empty when nothing may be admitted now."""
        if self.acknowledged < 0:
            return []
        steps_left = self.config.steps - self.acknowledged
        opened = self.slots.open(
            acknowledged=self.acknowledged,
            # Nobody would train on a group for a step after the last one.
            max_staleness=min(self.knobs.max_staleness, steps_left - 1),
            groups_per_step=self.knobs.groups_per_step,
            group_size=self.knobs.group_size,
        )
        if opened:
            self.connection.send(Opened(opened))
        first = self.slots.peek()
        if first is None or first.step > self.acknowledged + self.knobs.max_staleness:
            return []
        taken: list[Slot] = []
        while (slot := self.slots.peek()) is not None and len(taken) < self.config.sampler.batch_groups:
            alone = slot.replacement and taken
            full = self.slots.held >= self.knobs.in_flight_groups
            if slot.step != first.step or alone or full:
                break
            taken.append(self.slots.take())
            if slot.replacement:
                break
        if taken:
            self.connection.send(Launched(taken))
        return [self._request(slot) for slot in taken]

    def _request(self, slot: Slot) -> GroupRequest:
        limit = self.knobs.max_completion_tokens
        fault = self.config.fault
        if fault is not None and fault.name == "truncated" and slot.step >= fault.onset_step:
            limit = min(limit, TRUNCATED_FAULT_TOKENS)
        return GroupRequest(
            index=slot.index,
            target_step=slot.step,
            prompt=self.setup.prompts[self.order(slot.index)],
            size=slot.group_size,
            temperature=self.knobs.temperature,
            max_tokens=limit,
            config_generation=self.config_generation,
        )

    async def _sample(self, requests: list[GroupRequest]) -> None:
        launched = time.monotonic()
        completions = await self._generate(requests)
        for request, group in zip(requests, completions, strict=True):
            self._spawn(self._score(request, group, launched))

    async def _score(self, request: GroupRequest, completions: list[Completion], launched: float) -> None:
        if await self.scorer.train(request, completions, launched):
            self.slots.done(request.index)
            self.wake.set()

    def _slot_failed(self, request: GroupRequest) -> Slot:
        self.wake.set()
        return self.slots.failed(request.index)

    async def _generate(self, requests: list[GroupRequest]) -> list[list[Completion]]:
        """Completions with their texts. A sampler that dies is replaced and asked again."""
        while True:
            try:
                answer = await self.sampler.generate(Generate(requests))
                break
            except SamplerDied as error:
                await self._revive(error)
        tokens = sum(len(completion.token_ids) for group in answer.completions for completion in group)
        rows = sum(len(group) for group in answer.completions)
        purpose = requests[0].purpose
        self.connection.send(
            BatchSampled(answer.version, len(requests), rows, tokens, answer.seconds, purpose, self.waited_s)
        )
        self.waited_s = 0.0
        return [self._with_texts(group) for group in answer.completions]

    def _with_texts(self, group: list[Completion]) -> list[Completion]:
        texts = self.tokenizer.decode_batch([c.token_ids.tolist() for c in group], skip_special_tokens=True)
        return [
            Completion(c.token_ids, c.logprobs, c.finish_reason, c.versions, c.temperature, text)
            for c, text in zip(group, texts, strict=True)
        ]

    async def _revive(self, died: SamplerDied) -> WeightsLoaded | None:
        """Start the sampler again, more than once if need be. Raises `SamplerDied` when the budget is spent."""
        while True:
            self.connection.send(ProcessNews("sampler", "died", str(died)))
            if self.sampler.restarts >= self.config.sampler.max_restarts:
                raise SamplerDied(f"{died}, after {self.sampler.restarts} restarts; see the messages above it")
            try:
                answer = await self.sampler.restart()
            except SamplerDied as error:
                died = error
            else:
                self.connection.send(ProcessNews("sampler", "restarted", f"restart {self.sampler.restarts}"))
                return answer

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.connection.send(Fatal(f"{type(error).__name__}: {error}", user_error=False))
            self.stopping = True
            self.wake.set()
