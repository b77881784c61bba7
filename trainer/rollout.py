"""The rollout process: prompts to scored groups, in slots.

    slots -> dispatch -> sampler -> scoring tasks -> reward workers -> learner
      ^                     ^ weight syncs, between the batches of a local sampler or in the midst of a server's work
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
from tocsin.trainer.activity import Activity
from tocsin.trainer.data import Completion, Failure, GroupRequest
from tocsin.trainer.faults import faulty_request
from tocsin.trainer.messages import (
    Evaluate,
    Fatal,
    Generate,
    Launched,
    Opened,
    Ready,
    Retune,
    Setup,
    Stop,
    Sync,
)
from tocsin.trainer.pipes import Inbox, PipeClosed
from tocsin.trainer.processes import child_main_setup
from tocsin.trainer.prompts import PromptOrder
from tocsin.trainer.reward_workers import RewardWorkers
from tocsin.trainer.rewards import RewardError
from tocsin.trainer.sampler import SamplerDied
from tocsin.trainer.samplers import MisfitSampler, Sampler, make_sampler
from tocsin.trainer.scoring import Scorer
from tocsin.trainer.slots import Slot, Slots
from tocsin.trainer.tally import Tally
from tocsin.trainer.texts import end_ids


def rollout_process(connection: Connection, config: RunConfig) -> None:
    """Target of the process."""
    child_main_setup("rollout")
    asyncio.run(_run(connection, config))


async def _run(connection: Connection, config: RunConfig) -> None:
    inbox = Inbox(connection, name="learner")
    sampler = make_sampler(config, connection.send)
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
    except (RewardError, MisfitSampler) as error:
        connection.send(Fatal(str(error), user_error=True))
    except SamplerDied as error:
        connection.send(Fatal(str(error), user_error=False))
    finally:
        await sampler.close()
        await workers.close()


class _Rollout:
    """The state of a running rollout process."""

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        sampler: Sampler,
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
        self.tokenizer = Tokenizer.from_file(str(setup.model_path / "tokenizer.json"))
        ends = end_ids(self.tokenizer, setup.learner.eos_ids)
        self.scorer = Scorer(connection, workers, setup, ends=ends, on_failed=self._slot_failed)
        self.order = PromptOrder(len(setup.prompts), setup.config.seed, setup.config.data.shuffle)
        self.acknowledged = -1
        self.control: list[Sync | Evaluate] = []
        self.wake = asyncio.Event()
        self.stopping = False
        self.generating = 0
        """Batches that the sampler is at work on."""
        self.tally = Tally()
        self.activity = Activity()
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Work until `Stop`. Raises `PipeClosed`, `SamplerDied`."""
        # Side by side: a server may take minutes to start, and meanwhile somebody may want to stop.
        listener = asyncio.create_task(self._listen())
        worker = asyncio.create_task(self._load_and_dispatch())
        done, _ = await asyncio.wait({listener, worker}, return_when=asyncio.FIRST_COMPLETED)
        for task in (listener, worker, *self.tasks):
            task.cancel()
        for task in done:
            task.result()

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

    async def _load_and_dispatch(self) -> None:
        await self.sampler.load(self.setup)
        heart = asyncio.create_task(self.activity.report(self.connection.send))
        try:
            await self._dispatch()
        finally:
            heart.cancel()

    async def _dispatch(self) -> None:
        """Give the sampler weights and evaluations first, one after the other, then groups."""
        while not self.stopping:
            if self.control:
                await self._serve_control(self.control.pop(0))
            elif batch := self._next_batch():
                if self.sampler.batch_groups is None:
                    self._spawn(self._sample(batch))
                else:
                    await self._sample(batch)
            else:
                await self._idle()

    async def _idle(self) -> None:
        began, is_idle = time.monotonic(), self.generating == 0
        self.wake.clear()
        await self.wake.wait()
        # Before the first weights nobody could have been served, so that is not a wait for slots.
        if self.acknowledged >= 0 and is_idle:
            self.tally.waited_s += time.monotonic() - began

    async def _serve_control(self, message: Sync | Evaluate) -> None:
        if isinstance(message, Sync):
            with self.activity.doing("sync"):
                await self._sync(message)
        else:
            with self.activity.doing("evaluate"):
                await self._evaluate(message)

    async def _sync(self, message: Sync) -> None:
        answer = await self.sampler.sync(message)
        self.acknowledged = answer.version
        self.connection.send(answer)

    async def _evaluate(self, message: Evaluate) -> None:
        prompts, together = self.setup.evaluation, self.sampler.batch_groups
        rows = len(prompts) if together is None else together * self.knobs.group_size
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
            completions, errors = await self._generate(requests)
            done = [i for i in range(len(requests)) if i not in errors]
            part = [requests[i] for i in done], [completions[i] for i in done], list(errors.values())
            self._spawn(self.scorer.evaluate(message.version, part, last=start + rows >= len(prompts)))
        self._flush_tally()

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
        while (slot := self.slots.peek()) is not None and len(taken) < (self.sampler.batch_groups or 1):
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
        request = GroupRequest(
            index=slot.index,
            target_step=slot.step,
            prompt=self.setup.prompts[self.order(slot.index)],
            size=slot.group_size,
            temperature=self.knobs.temperature,
            max_tokens=self.knobs.max_completion_tokens,
            config_generation=self.config_generation,
        )
        return faulty_request(self.config.fault, request)

    async def _sample(self, requests: list[GroupRequest]) -> None:
        launched = time.monotonic()
        completions, errors = await self._generate(requests)
        for i, (request, group) in enumerate(zip(requests, completions, strict=True)):
            if i in errors:
                self.scorer.refuse(request, errors[i])
            else:
                self._spawn(self._score(request, group, launched))

    async def _score(self, request: GroupRequest, completions: list[Completion], launched: float) -> None:
        with self.activity.doing("score"):
            is_done = await self.scorer.train(request, completions, launched)
        if is_done:
            self.slots.done(request.index)
            self.wake.set()

    def _slot_failed(self, request: GroupRequest) -> Slot:
        self.wake.set()
        return self.slots.failed(request.index)

    async def _generate(self, requests: list[GroupRequest]) -> tuple[list[list[Completion]], dict[int, Failure]]:
        """Completions with their texts, and by position why there are none."""
        if self.tally.purpose != requests[0].purpose:
            self._flush_tally()
        self.generating += 1
        try:
            with self.activity.doing("generate"):
                answer = await self.sampler.generate(Generate(requests))
        finally:
            self.generating -= 1
            self.wake.set()
        self.tally.add(requests, answer)
        if self.tally.groups >= (1 if self.sampler.batch_groups else self.knobs.groups_per_step):
            self._flush_tally()
        return [self._with_texts(group) for group in answer.completions], answer.errors

    def _flush_tally(self) -> None:
        """Report what was generated since the last report."""
        if self.tally.groups:
            self.connection.send(self.tally.report(self.sampler.label))
            self.tally = Tally()

    def _with_texts(self, group: list[Completion]) -> list[Completion]:
        texts = self.tokenizer.decode_batch([c.token_ids.tolist() for c in group], skip_special_tokens=True)
        return [
            Completion(c.token_ids, c.logprobs, c.finish_reason, c.versions, c.temperature, text)
            for c, text in zip(group, texts, strict=True)
        ]

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
