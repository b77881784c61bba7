"""One vLLM server of a run: what it must be, how it takes weights, how it generates.

    connect -> pause -> update -> version read back -> checksums -> resume -> probe      (every sync)
            \\-> generate, generate, ...                                                  (between, across and beside)

A server is resumed only after a complete update. Whatever goes wrong before that leaves it paused, so that nothing is
ever sampled from half-new weights; the next attempt, or the next process, sends all of them again.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

import numpy as np

from tocsin.schemas.generation import EngineSampled
from tocsin.trainer.data import Completion, Floats, GroupRequest, Ints
from tocsin.trainer.messages import SamplerFacts, Sync, Synced, WeightsLoaded
from tocsin.trainer.samplers import MisfitSampler
from tocsin.trainer.vllm.answers import Counters, digest_of_checksums
from tocsin.trainer.vllm.client import Refused, Unavailable, VllmClient
from tocsin.trainer.vllm.expected import Expected
from tocsin.trainer.vllm.transfer import Transfer

GAUGES: Final = ("running", "waiting", "kv_usage")
"""Of `Counters`: what is read as it is."""


def synced(answers: Mapping[str, WeightsLoaded]) -> Synced:
    """What servers, by name, say of one version of the weights; at least one of them."""
    times = [(a.pause_s, a.load_s, a.verify_s, a.resume_s) for a in answers.values()]
    first = next(iter(answers.values()))
    return Synced(
        version=first.version,
        seconds=dict(zip(("pause", "load", "verify", "resume"), map(max, zip(*times, strict=True)), strict=True)),
        probes={name: answer.probe_logprobs for name, answer in answers.items()},
        checksums={name: answer.checksum for name, answer in answers.items() if answer.checksum},
        prefix_cache=first.prefix_cache,
    )


class Engine:
    """One server behind its client."""

    def __init__(self, name: str, client: VllmClient, probe: Ints):
        self.name = name
        self.client = client
        self.version = -1
        """Weights that it holds; -1 before the first sync."""
        self.life = 0
        """Rises each time that the server is lost."""
        self.outstanding = 0
        """Completions that it was asked for and has not answered."""
        self.finished = 0
        self.failed = 0
        """Requests since the last look at its metrics."""
        self.facts: SamplerFacts | None = None
        self.caches_prefixes = True
        self.keeps_cache_from: int | None = None
        """The fault `stale-prefix-cache`: from this version on cached prefixes outlive their weights."""
        self._probe = probe
        self._syncing = asyncio.Lock()

    async def connect(self, expected: Expected) -> None:
        """Make sure that this run can use the server. Raises `MisfitSampler`, or `Unavailable` when it is away."""
        try:
            facts = await self.client.facts()
            expected.check(facts, self.client.url)
            # A run that ended in the midst of a sync left it paused: it answers no prompt before the first whole sync,
            # which fails where the vocabulary differs.
            if not await self.client.is_paused():
                await expected.check_vocabulary(self.client)
        except Refused as error:
            raise MisfitSampler(str(error)) from error
        self.caches_prefixes = facts.prefix_caching
        self.facts = SamplerFacts(facts.model, expected.eos_ids, expected.vocab_size)

    async def sync(self, message: Sync, transfer: Transfer) -> WeightsLoaded:
        """Take over weights, with one full resend when something goes wrong on the way. Raises `ServerError`.

        One at a time: two that overlap would leave the weights of one under the version of the other.
        """
        async with self._syncing:
            try:
                return await self._sync(message, transfer)
            except Unavailable:
                if transfer.is_joint:  # the others have taken the broadcast; it does not come again
                    raise
                return await self._sync(message, transfer)

    async def _sync(self, message: Sync, transfer: Transfer) -> WeightsLoaded:
        keeps = self.keeps_cache_from is not None and message.version >= self.keeps_cache_from
        began = time.monotonic()
        await self.client.pause(clear_cache=not keeps)
        paused = time.monotonic()
        await self.client.update_weights(transfer.update_info(message), message.version)
        loaded = time.monotonic()
        await self._prove_version(message.version)
        checksum = digest_of_checksums(await self.client.checksums())
        proved = time.monotonic()
        await self.client.resume()
        resumed = time.monotonic()
        self.version = message.version
        probe_logprobs = await self.probe()
        return WeightsLoaded(
            version=message.version,
            load_s=loaded - paused,
            verify_s=(proved - loaded) + (time.monotonic() - resumed),
            probe_logprobs=probe_logprobs,
            pause_s=paused - began,
            resume_s=resumed - proved,
            checksum=checksum,
            prefix_cache="none" if not self.caches_prefixes else "kept" if keeps else "reset",
        )

    async def _prove_version(self, version: int) -> None:
        held = await self.client.weight_version()
        if held != str(version):
            raise Unavailable(f"{self.client.url} must hold the weights of version {version}, and says `{held}`")

    async def probe(self) -> Floats:
        """[rows, L - 1] log-probs of the probe under the weights held now. Raises `ServerError`."""
        return np.stack(await asyncio.gather(*(self.client.prompt_logprobs(row) for row in self._probe)))

    async def generate(self, request: GroupRequest) -> list[Completion]:
        """The completions of one group. Raises `ServerError`."""
        self.outstanding += request.size
        keeps = self.keeps_cache_from is not None and self.version >= self.keeps_cache_from
        salt = "tocsin" if keeps else f"tocsin-{self.version}"
        try:
            completions = await self.client.generate(request, salt=salt)
            if any(completion.finish_reason == "abort" for completion in completions):
                raise Unavailable(f"{self.client.url} gave up a request before it was finished")
        except Unavailable:
            self.failed += 1
            raise
        finally:
            self.outstanding -= request.size
        self.finished += 1
        return completions

    def sampled(self, before: Counters, now: Counters, interval_s: float) -> EngineSampled:
        """Increases between two looks; a counter that fell belongs to a server that was started again."""
        old, new = asdict(before), asdict(now)
        rises = {name: int(max(0.0, new[name] - old[name])) for name in new if name not in GAUGES}
        finished, self.finished = self.finished, 0
        failed, self.failed = self.failed, 0
        return EngineSampled(
            engine=self.name,
            interval_s=interval_s,
            running=int(now.running),
            waiting=int(now.waiting),
            kv_usage=min(1.0, now.kv_usage),
            requests_finished=finished,
            requests_failed=failed,
            **rises,
        )
