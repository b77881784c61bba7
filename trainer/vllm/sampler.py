"""Several vLLM servers behind the interface of a sampler: spread the load, move work, start servers again.

generate -> the ready server with the least to do -> completions
              | it fails: wait, and ask again, there or elsewhere, while the budget lasts
              | it is dead or deaf: not ready any more; its work moves on, and a task brings it back
sync     -> all ready servers at once
look     -> every `poll_s` their metrics; one that somebody paused is sent its weights again and resumed
"""

import asyncio
import time
from typing import Final

import tenacity

from tocsin.schemas.config import RunConfig
from tocsin.trainer.data import Completion, Failure, Floats, GroupRequest
from tocsin.trainer.messages import Generate, Generated, SamplerFacts, Setup, Sync, Synced
from tocsin.trainer.samplers import Report
from tocsin.trainer.vllm.client import Refused, Unavailable
from tocsin.trainer.vllm.engine import synced
from tocsin.trainer.vllm.fleet import Fleet

RETRY_FIRST_S: Final = 0.2
RETRY_LONGEST_S: Final = 10.0


class VllmSampler:
    """The servers of one run."""

    label = "vllm"
    batch_groups: int | None = None

    def __init__(self, config: RunConfig, report: Report):
        self._config = config
        self._report = report
        self._fleet: Fleet | None = None

    async def load(self, setup: Setup) -> None:
        """Start the servers or find those of the user. Raises `MisfitSampler`, `SamplerDied`."""
        self._fleet = Fleet(self._config, setup, self._report)
        await self._fleet.open()

    @property
    def facts(self) -> SamplerFacts | None:
        """What the model of the servers is; they have been made sure to run one and the same."""
        return None if self._fleet is None else self._fleet.facts

    async def probe(self) -> dict[str, Floats]:
        """Log-probs of the probe under the weights held now, by server."""
        return await self._opened.probe()

    async def close(self) -> None:
        """End the servers that were started; those of the user go on."""
        if self._fleet is not None:
            await self._fleet.close()

    async def sync(self, message: Sync) -> Synced:
        """Send weights to every server; those that fail are brought back in the background."""
        return synced(await self._opened.sync(message))

    async def generate(self, message: Generate) -> Generated:
        """Completions of every group, each group on one server."""
        began, version = time.monotonic(), self._opened.version
        results = await asyncio.gather(*(self._group(request) for request in message.requests))
        errors = {i: result for i, result in enumerate(results) if isinstance(result, Failure)}
        completions = [[] if isinstance(result, Failure) else result for result in results]
        return Generated(completions, version, time.monotonic() - began, errors)

    async def _group(self, request: GroupRequest) -> list[Completion] | Failure:
        try:
            return await self._with_retries(request)
        except Refused as error:
            return Failure("sampler_refused", str(error), request.size, whole_group=True)
        except Unavailable as error:
            return Failure("sampler_error", str(error), request.size, whole_group=True)

    async def _with_retries(self, request: GroupRequest) -> list[Completion]:
        fleet, failed_at, waited = self._opened, 0.0, 0.0

        def is_spent(state: tenacity.RetryCallState) -> bool:
            # From the first failure on: before that the request was only long. Waiting for a server to come back is
            # not its fault either.
            return time.monotonic() - failed_at - waited >= self._config.sampler.retry_budget_s

        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Unavailable),
            wait=tenacity.wait_exponential(RETRY_FIRST_S, RETRY_LONGEST_S) + tenacity.wait_random(0, RETRY_FIRST_S),
            stop=is_spent,
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                asked = time.monotonic()
                engine = await fleet.pick()
                waited += time.monotonic() - asked if failed_at else 0.0
                life = engine.life
                try:
                    return await engine.generate(request)
                except Unavailable as error:
                    failed_at = failed_at or time.monotonic()
                    await fleet.suspect(engine, error, life)
                    raise
        raise AssertionError("unreachable")

    @property
    def _opened(self) -> Fleet:
        assert self._fleet is not None, "`load` comes first"
        return self._fleet
