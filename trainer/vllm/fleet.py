"""The servers of a run: which are ready, and how one that is dead, deaf or paused comes back.

A server is ready when it holds the newest weights. Only ready ones generate; what fails is brought back by a task of
its own while the others go on. `SamplerDied` means that none is left and none is coming back.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from tocsin.schemas.config import RunConfig
from tocsin.trainer.data import Floats
from tocsin.trainer.messages import (
    ProcessNews,
    ReadyForWeights,
    SamplerFacts,
    ServerSampled,
    Setup,
    Sync,
    WeightsLoaded,
)
from tocsin.trainer.sampler import SamplerDied
from tocsin.trainer.samplers import MisfitSampler, Report
from tocsin.trainer.vllm.answers import Counters
from tocsin.trainer.vllm.client import ServerError, TimedOut, Unavailable, VllmClient
from tocsin.trainer.vllm.engine import Engine, synced
from tocsin.trainer.vllm.expected import Expected
from tocsin.trainer.vllm.interpreter import Unusable
from tocsin.trainer.vllm.servers import PortInUse, ServerFailed, ServerSpec, VllmServer, specs
from tocsin.trainer.vllm.transfer import NCCL_BACKEND, FileTransfer, NcclTransfer, Transfer, backend_of

RETURN_POLL_S: Final = 1.0
"""How often a server of the user that went away is looked for."""
UNASKED_PAUSES: Final = 2
"""Looks in a row at which a server stood still although no sync was under way: somebody else paused it."""


class Member:
    """One server of the fleet: the engine, its process if it is ours, and its state."""

    def __init__(self, engine: Engine, spec: ServerSpec | None):
        self.engine = engine
        self.spec = spec
        """How to start it; None for a server of the user."""
        self.server: VllmServer | None = None
        self.is_ready = False
        self.is_gone = False
        """It was given up."""
        self.returning: asyncio.Task[None] | None = None
        self.fault = ""
        """Why it was lost last."""
        self.unasked_pauses = 0
        self.looked_at = time.monotonic()
        self.counters: Counters | None = None


class Fleet:
    """All servers, and the tasks that look after them."""

    def __init__(self, config: RunConfig, setup: Setup, report: Report):
        self._config = config
        self._setup = setup
        self._report = report
        self._members: list[Member] = []
        self._weights: Sync | None = None
        self._restarts = 0
        self._changed = asyncio.Event()
        self._reason = "no server was started"
        self._is_syncing = False
        self._looking: asyncio.Task[None] | None = None
        backend = backend_of(config, setup.config.device.learner)  # resolved, unlike the one the process got
        self._joint = NcclTransfer() if backend == NCCL_BACKEND else None
        """Set where all servers take weights in one broadcast."""
        self._group: list[str] = []
        """Servers that met for it."""
        self._transfer: Transfer = self._joint or FileTransfer(setup.learner.weights_folder)
        self._expected = Expected(
            model=config.model.path,
            policy=setup.model_path,
            vocab_size=setup.learner.vocab_size,
            max_length=setup.learner.max_length,
            eos_ids=setup.learner.eos_ids,
            backend=self._transfer.backend,
        )

    @property
    def version(self) -> int:
        """Version of the newest weights."""
        return -1 if self._weights is None else self._weights.version

    @property
    def facts(self) -> SamplerFacts | None:
        """What the first server said; None before `open`."""
        return self._members[0].engine.facts if self._members else None

    async def probe(self) -> dict[str, Floats]:
        """Log-probs of the probe under the weights held now, by server. Raises `SamplerDied`."""
        try:
            for client in [member.engine.client for member in self._members]:
                if await client.is_paused():
                    raise SamplerDied(
                        f"{client.url} must not be paused, and is: a run changes its weights, or ended while it did; "
                        "start it again, or have a run send it all weights"
                    )
            return {member.engine.name: await member.engine.probe() for member in self._members}
        except ServerError as error:
            raise SamplerDied(str(error)) from error

    async def open(self) -> None:
        """Start or find all servers. Raises `MisfitSampler` for one that cannot be used, `SamplerDied` for one that
        does not come up."""
        settings = self._config.sampler
        ours: Sequence[ServerSpec | None] = self._specs() if settings.launch else [None] * len(settings.urls)
        urls = [spec.url for spec in ours if spec is not None] or settings.urls
        for number, (url, spec) in enumerate(zip(urls, ours, strict=True)):
            client = VllmClient(url, timeout_s=settings.timeout_s)
            engine = Engine(f"vllm-{number}", client, self._setup.probe)
            fault = self._config.fault
            if fault is not None and fault.name == "stale-prefix-cache":
                engine.keeps_cache_from = fault.onset_step
            self._members.append(Member(engine, spec))
        try:
            await asyncio.gather(*(self._start(member) for member in self._members))
        except PortInUse as error:
            raise MisfitSampler(str(error)) from error
        except (ServerError, ServerFailed) as error:
            raise SamplerDied(str(error)) from error
        self._looking = asyncio.create_task(self._look_after())

    def _specs(self) -> list[ServerSpec]:
        """The servers that this run starts. Raises `MisfitSampler`."""
        setup, backend = self._setup, self._transfer.backend
        try:
            return specs(
                self._config,
                model=setup.model_path,
                max_length=setup.learner.max_length,
                weight_transfer=backend,
                folder=setup.logs,
            )
        except Unusable as error:
            raise MisfitSampler(str(error)) from error

    async def close(self) -> None:
        """End our servers and our tasks."""
        tasks = [task for m in self._members if (task := m.returning)] + ([self._looking] if self._looking else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(m.server.stop() for m in self._members if m.server is not None))
        await asyncio.gather(*(m.engine.client.close() for m in self._members))

    async def pick(self) -> Engine:
        """The ready server with the least to do. Raises `SamplerDied`."""
        while not (ready := [member.engine for member in self._members if member.is_ready]):
            await self._wait_for_return()
        return min(ready, key=lambda engine: engine.outstanding)

    async def sync(self, message: Sync) -> dict[str, WeightsLoaded]:
        """Send weights to every ready server; answers by server. Raises `SamplerDied` when none takes them."""
        self._weights = message
        self._is_syncing = True
        try:
            while True:
                if not (targets := [m for m in self._members if m.returning is None and not m.is_gone]):
                    await self._wait_for_return()
                    continue
                if self._joint is not None:
                    await self._meet(targets)
                    self._report(ReadyForWeights(message.version))
                answers = await asyncio.gather(*(self._send(member) for member in targets))
                if taken := {name: answer for name, answer in answers if answer is not None}:
                    return taken
                await self._wait_for_return()
        finally:
            self._is_syncing = False

    async def _meet(self, members: list[Member]) -> None:
        """Have the learner and these servers form a group, unless it is the same group as before.

        The learner broadcasts when all of them stand by. A server that is lost meanwhile makes the broadcast fail.
        """
        assert self._joint is not None
        names = [member.engine.name for member in members]
        try:
            if members and names != self._group:
                sizes = [await member.engine.client.world_size() for member in members]
                meeting, offsets = self._joint.meet(members[0].engine.client.url, sizes)
                self._report(meeting)
                pairs = zip(members, offsets, strict=True)
                await asyncio.gather(*(m.engine.client.init_transfer(self._joint.init_info(o)) for m, o in pairs))
                self._group = names
        except ServerError as error:
            raise SamplerDied(f"the servers could not form a group for weights: {error}") from error

    async def suspect(self, engine: Engine, error: ServerError, life: int) -> None:
        """A request failed there: find out whether the server is gone, and bring it back if it is.

        `life` is that of the engine when the request was sent; what an earlier life left unanswered is no news.
        """
        member = next(m for m in self._members if m.engine is engine)
        is_deaf = isinstance(error, TimedOut) or not await engine.client.healthy()
        if is_deaf and life == engine.life:
            self._lose(member, str(error))

    async def _start(self, member: Member) -> None:
        if member.spec is not None:
            member.server = VllmServer(member.spec)
            member.server.start()
            await member.server.wait_until_healthy(self._config.sampler.start_timeout_s, self._telling(member))
        await self._connect(member)
        self._report(ProcessNews("sampler", "started", f"{member.engine.name} at {member.engine.client.url}"))

    def _telling(self, member: Member) -> Callable[[str], None]:
        """Reports what a server does while it starts."""
        return lambda text: self._report(ProcessNews("sampler", "alive", f"starting {member.engine.name}: {text}"))

    async def _connect(self, member: Member) -> None:
        await member.engine.connect(self._expected)
        if self._joint is None:
            await member.engine.client.init_transfer(self._transfer.init_info(1))

    async def _send(self, member: Member) -> tuple[str, WeightsLoaded | None]:
        assert self._weights is not None
        try:
            answer = await member.engine.sync(self._weights, self._transfer)
        except ServerError as error:
            self._lose(member, str(error))
            return member.engine.name, None
        member.is_ready = True
        self._changed.set()
        return member.engine.name, answer

    def _lose(self, member: Member, reason: str) -> None:
        """Take a server out of service, and begin to bring it back. Its requests fail and move on."""
        if member.returning is not None or member.is_gone:
            return
        member.is_ready = False
        member.engine.life += 1
        self._group = []  # it has to join a new one, even when it is back before the next sync
        self._note_death(member, reason)
        if member.server is not None:
            member.server.kill()
        member.returning = asyncio.create_task(self._bring_back(member))

    async def _bring_back(self, member: Member) -> None:
        try:
            await (self._find_again(member) if member.spec is None else self._restart(member))
            member.is_ready = self._weights is not None and member.engine.version == self._weights.version
            self._report(ProcessNews("sampler", "restarted", f"{member.engine.name}, restart {self._restarts}"))
        except (ServerError, MisfitSampler, SamplerDied) as error:
            if member.server is not None:
                member.server.kill()
            member.is_gone = True
            self._note_death(member, str(error))
        finally:
            member.returning = None
            self._changed.set()

    def _note_death(self, member: Member, reason: str) -> None:
        member.fault = reason
        self._reason = f"{member.engine.name}: {reason}"
        self._report(ProcessNews("sampler", "died", self._reason))

    async def _restart(self, member: Member) -> None:
        while True:
            if self._restarts >= self._config.sampler.max_restarts:
                raise SamplerDied(f"{member.fault}, after {self._restarts} restarts")
            self._restarts += 1
            member.engine.version = -1
            try:
                await self._start(member)
                await self._catch_up(member)
                return
            except (ServerError, ServerFailed) as error:
                member.fault = str(error)
                assert member.server is not None
                member.server.kill()
                await asyncio.sleep(RETURN_POLL_S)  # a port is not free again at once

    async def _find_again(self, member: Member) -> None:
        """Wait for a server of the user, for as long as a request may be retried."""
        deadline = time.monotonic() + self._config.sampler.retry_budget_s
        member.engine.version = -1
        while True:
            try:
                if await member.engine.client.healthy():
                    await self._connect(member)
                    await self._catch_up(member)
                    return
            except Unavailable as error:
                member.fault = str(error)
            if time.monotonic() > deadline:
                raise SamplerDied(f"{member.fault}; it did not come back within the retry budget")
            await asyncio.sleep(RETURN_POLL_S)

    async def _catch_up(self, member: Member) -> None:
        """Send it the newest weights, again when they change meanwhile. Raises `ServerError`.

        Weights that are broadcast reach it with the next sync, together with the others.
        """
        while self._joint is None and self._weights is not None and member.engine.version != self._weights.version:
            answer = await member.engine.sync(self._weights, self._transfer)
            self._report(synced({member.engine.name: answer}))

    async def _wait_for_return(self) -> None:
        """Until a server changes its state. Raises `SamplerDied` when none is coming back."""
        self._changed.clear()
        if not any(member.returning for member in self._members):
            alive = self._joint is not None and any(not member.is_gone for member in self._members)
            state = "holds the weights, which are broadcast to all at once" if alive else "is left"
            raise SamplerDied(f"no vLLM server {state}; the last one: {self._reason}")
        await self._changed.wait()

    async def _look_after(self) -> None:
        """Read every ready server's metrics, for as long as the fleet lives."""
        while True:
            await asyncio.gather(*(self._look(member) for member in self._members if member.is_ready))
            await asyncio.sleep(self._config.sampler.poll_s)

    async def _look(self, member: Member) -> None:
        life = member.engine.life
        try:
            now, counters = time.monotonic(), await member.engine.client.counters()
            paused = not self._is_syncing and await member.engine.client.is_paused()
        except ServerError as error:
            await self.suspect(member.engine, error, life)
            return
        if (before := member.counters) is not None:
            self._report(ServerSampled(member.engine.sampled(before, counters, now - member.looked_at)))
        member.counters, member.looked_at = counters, now
        member.unasked_pauses = member.unasked_pauses + 1 if paused and not self._is_syncing else 0
        if member.unasked_pauses >= UNASKED_PAUSES:
            await self._wake(member)

    async def _wake(self, member: Member) -> None:
        """Whoever paused the server may have begun to change its weights: send all of them, then resume."""
        member.unasked_pauses = 0
        if self._joint is not None:  # a broadcast is for all of them or none
            self._lose(member, "somebody else paused it")
            return
        self._report(ProcessNews("sampler", "alive", f"{member.engine.name} was paused by somebody else; resumed"))
        name, answer = await self._send(member)
        if answer is not None:
            self._report(synced({name: answer}))
