"""Generation servers by their own metrics: load, preemptions, speed, failures, and what their caches hold."""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, RunResumed, RunStarted
from tocsin.schemas.generation import EngineSampled, SamplerSampled, WeightsSynced

LOCAL: Final = "local"
"""Name in `sampler_sampled` of the sampler that is no server."""
SILENT_S: Final = 600.0
"""Without any look at a server for so long, the windows are too old to judge."""


@dataclass(frozen=True, slots=True)
class ServerWindow:
    """The last looks at one server, oldest first."""

    polls: deque[EngineSampled]
    last: int
    """Number of the newest look, counted over all servers."""

    @property
    def busy(self) -> list[EngineSampled]:
        """The looks that found sequences running."""
        return [poll for poll in self.polls if poll.running > 0 and poll.interval_s > 0]

    @property
    def speed(self) -> float:
        """Tokens per second and running sequence, over the busy looks; NaN without any."""
        busy = self.busy
        return sum(p.generated_tokens for p in busy) / sum(p.interval_s * p.running for p in busy) if busy else math.nan

    @property
    def rate(self) -> float:
        """Tokens per second of busy time; NaN without any."""
        busy = self.busy
        return sum(p.generated_tokens for p in busy) / sum(p.interval_s for p in busy) if busy else math.nan

    @property
    def failed(self) -> int:
        """Requests that failed for reasons of the server."""
        return sum(poll.requests_failed for poll in self.polls)

    @property
    def asked(self) -> int:
        """Requests that were answered or failed."""
        return self.failed + sum(poll.requests_finished for poll in self.polls)

    @property
    def preemptions(self) -> int:
        """Sequences thrown out of the KV cache."""
        return sum(poll.preemptions for poll in self.polls)


class Engines(Feature):
    """The last looks at every server of the attempt, bounded in servers as well."""

    takes = (RunStarted, RunResumed, EngineSampled, SamplerSampled, BatchConsumed, ClockTicked)
    moved_by = frozenset({"waits"})
    POLLS: ClassVar[int] = 6
    MOST: ClassVar[int] = 64
    GONE: ClassVar[int] = 12
    """Rounds of looks without a server after which it is no longer one of them."""

    def __init__(self) -> None:
        self.servers: dict[str, ServerWindow] = {}
        """By name, the one looked at longest ago first."""
        self.is_local = False
        """Completions come from the local sampler, which is no server."""
        self.length = math.nan
        """Mean tokens per completion of the last batch; NaN before there is one."""
        self._looks = 0
        self._newest = self._now = 0.0

    def update(self, event: BaseEvent) -> None:
        """Take in a look at a server, or what its numbers are compared with."""
        if isinstance(event, EngineSampled):
            self._look(event)
        elif isinstance(event, SamplerSampled):
            self.is_local = event.sampler == LOCAL
        elif isinstance(event, BatchConsumed):
            self.length = as_float(event.length.mean)
        elif isinstance(event, ClockTicked):
            self._now = event.mono
        else:
            self.servers.clear()

    def _look(self, event: EngineSampled) -> None:
        self._looks += 1
        self._newest = self._now = event.mono
        known = self.servers.pop(event.engine, None)
        polls = deque[EngineSampled](maxlen=self.POLLS) if known is None else known.polls
        polls.append(event)
        self.servers[event.engine] = ServerWindow(polls, self._looks)
        oldest = next(iter(self.servers))
        is_gone = self._looks - self.servers[oldest].last > self.GONE * len(self.servers)
        if is_gone or len(self.servers) > self.MOST:
            del self.servers[oldest]

    @property
    def unpolled(self) -> tuple[Literal["not_applicable", "missing_input"], str] | None:
        """Why there is nothing to say about servers; None when they are looked at."""
        if self.servers and self._now - self._newest <= SILENT_S:
            return None
        if self.is_local:
            return "not_applicable", "the local sampler is no server"
        return "missing_input", "no `engine_sampled` event in the last ten minutes"

    @property
    def full(self) -> dict[str, ServerWindow]:
        """Servers with a full window, by name."""
        return {name: server for name, server in self.servers.items() if len(server.polls) == self.POLLS}

    def redone(self, server: ServerWindow) -> float:
        """Share of a server's tokens that it computes a second time because of preemptions, as an estimate.

        A sequence that is thrown out is half done on average. NaN before a batch said how long completions are.
        """
        again = server.preemptions * self.length / 2
        made = sum(poll.generated_tokens for poll in server.polls)
        return again / (made + again) if made + again > 0 else 0.0 if server.preemptions == 0 else math.nan

    def restart(self) -> None:
        """Start all windows over."""
        self.servers.clear()


def others(values: dict[str, float], name: str) -> float:
    """Median of the values of all but one; NaN without others or with one that is not a number."""
    return median([value for other, value in values.items() if other != name])


@dataclass(frozen=True, slots=True)
class PrefixPoll:
    """One look at a server's prefix cache after weights were synced over it."""

    kept: int
    """Syncs in a row that had left the cache as it was."""
    hits: int
    """Prompt tokens found in it."""
    queries: int


class PrefixCaches(Feature):
    """Syncs in a row after which prefixes of older weights stayed usable, and whether anything was found there."""

    takes = (RunStarted, RunResumed, WeightsSynced, EngineSampled)
    POLLS: ClassVar[int] = 6

    def __init__(self) -> None:
        self.state: str | None = None
        """`reset`, `kept` or `none` at the newest sync; None when it did not say."""
        self.kept = 0
        self.polls: deque[PrefixPoll] = deque(maxlen=self.POLLS)

    def update(self, event: BaseEvent) -> None:
        """Take in a sync or a look at a server."""
        if isinstance(event, EngineSampled):
            if self.kept:
                self.polls.append(PrefixPoll(self.kept, event.prefix_hit_tokens, event.prefix_query_tokens))
        elif isinstance(event, WeightsSynced):
            self.state = event.prefix_cache
            self.kept = self.kept + 1 if self.state == "kept" else 0
            if not self.kept:
                self.polls.clear()
        else:
            self.state, self.kept = None, 0
            self.polls.clear()

    def restart(self) -> None:
        """What a cache holds has no baseline: nothing to forget."""
