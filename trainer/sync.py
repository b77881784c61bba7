"""Weights on their way from the learner to the sampler, and the proof that they arrived.

    weights + expected probe -> file (or broadcast) -> rollout process -> sampler
                                        <- version, seconds, probes, checksums <-

A probe that disagrees has the same weights sent once more in full. When that fails too, `is_unproven` says so, and the
loop stops at its next barrier: to train on with a sampler of unknown weights would be to train on noise.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from torch import Tensor

from tocsin.schemas.event import BaseEvent
from tocsin.schemas.generation import WeightsSynced
from tocsin.trainer.data import Ints
from tocsin.trainer.digest import digest_of
from tocsin.trainer.endings import SidesDisagree
from tocsin.trainer.learner import Learner
from tocsin.trainer.messages import Rendezvous, Sync, Synced
from tocsin.trainer.rollout_client import RolloutClient
from tocsin.trainer.weights import Probe, WeightStore

ATTEMPTS: Final = 2
"""Times that weights are sent before they count as unproven."""


class Broadcast(Protocol):
    """The learner's end of a group that takes weights all at once. Raises `RolloutError`."""

    def meet(self, meeting: Rendezvous) -> None:
        """Join the servers, again whenever they have changed."""

    def send(self, weights: Mapping[str, Tensor]) -> None:
        """Send every tensor, in order."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    message: Sync
    began: float
    """Monotonic clock."""
    written_s: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SyncTools:
    """What it takes to send weights."""

    learner: Learner
    rollout: RolloutClient
    store: WeightStore
    probe: Probe
    probe_ids: Ints
    is_remote: bool
    """Whether servers take the weights: then tied ones go under every name, with a digest of the file."""
    broadcast: Broadcast | None
    """Sends weights to servers directly; None when they read the file."""
    emit: Callable[[BaseEvent], None]


class WeightSender:
    """Sends versions, one after the other, and judges the answers. Used from the main thread only."""

    def __init__(self, tools: SyncTools):
        self._tools = tools
        self._under_way: dict[int, _UnderWay] = {}
        self._answered: _UnderWay | None = None
        """The newest that was answered for."""
        self._failed = 0
        """Proofs that failed in a row."""
        self._gap = math.nan
        """Of the newest proof, in nats."""

    @property
    def is_waiting(self) -> bool:
        """Whether the sampler owes an answer."""
        return bool(self._under_way)

    @property
    def is_unproven(self) -> bool:
        """Whether the sampler did not take the weights, although they were sent again."""
        return self._failed >= ATTEMPTS

    def send(self, version: int) -> None:
        """Send the learner's weights as `version`, once the sampler has answered for the ones before."""
        tools = self._tools
        self.wait()
        self.note(is_followed=True)
        began = time.monotonic()
        with tools.learner.meter.phase("sync"):
            weights = tools.learner.weights(is_aliased=tools.is_remote, is_local=tools.broadcast is not None)
            tools.probe.expect(version, tools.learner.probe(tools.probe_ids))
            message = self._message(version, weights)
        size = sum(w.numel() * w.element_size() for w in weights.values())
        self._dispatch(_UnderWay(message, began, time.monotonic() - began, size), weights)

    def _message(self, version: int, weights: Mapping[str, Tensor]) -> Sync:
        tools, number = self._tools, min(self._failed + 1, ATTEMPTS)
        if tools.broadcast is not None:
            layout = tuple((name, str(w.dtype).removeprefix("torch."), tuple(w.shape)) for name, w in weights.items())
            return Sync(version, Path(), attempt_number=number, layout=layout)
        path = tools.store.write(version, dict(weights))
        return Sync(version, path, digest_of(path) if tools.is_remote else "", number)

    def _dispatch(self, sent: _UnderWay, weights: Mapping[str, Tensor]) -> None:
        tools, version = self._tools, sent.message.version
        self._under_way[version] = sent
        # A version that is sent again was acknowledged before, and that must not be taken for the answer.
        tools.rollout.acknowledged = min(tools.rollout.acknowledged, version - 1)
        tools.rollout.sync(sent.message)
        if tools.broadcast is not None:
            tools.rollout.wait_until_receiving(version)
            tools.broadcast.send(weights)

    def start_over(self) -> None:
        """Forget the proofs that failed: somebody looked at it and wants to go on."""
        self._failed = 0

    def require_agreement(self) -> None:
        """Raises `SidesDisagree` when the newest gap is larger than rounding can explain, whatever was tolerated."""
        ceiling = self._tools.probe.ceiling
        if not self._gap <= ceiling:
            raise SidesDisagree(
                f"log-probs of learner and sampler must agree within {ceiling:g} nats on the first weights, got a gap "
                f"of {self._gap:.3g}: they hold other weights or compute differently; `tocsin check` tells which; "
                '`sampler.on_mismatch = "continue"` trains all the same'
            )

    def wait(self) -> None:
        """Block until the sampler has answered for everything that was sent. Raises `RolloutError`."""
        if self._under_way:
            self._tools.rollout.wait_for_sync(max(self._under_way))

    def settle(self) -> None:
        """`wait`, report, and wait again where weights had to be sent once more."""
        while self._under_way:
            self.wait()
            self.note()

    def note(self, *, is_followed: bool = False) -> None:
        """Report the syncs that the sampler acknowledged; `is_followed` when newer weights are sent right after."""
        rollout = self._tools.rollout
        answers, rollout.synced = rollout.synced, []
        for answer in answers:
            sent = self._under_way.pop(answer.version, None)
            # A sampler that was lost and came back says once more what it holds, and is judged once more.
            if sent is None and self._answered is not None and self._answered.message.version == answer.version:
                took = sum(answer.seconds.values())
                sent = replace(self._answered, began=time.monotonic() - took, written_s=0.0)
            if sent is not None:
                self._report(answer, sent, is_followed=is_followed)

    def _report(self, answer: Synced, sent: _UnderWay, *, is_followed: bool) -> None:
        tools = self._tools
        self._answered = sent
        gap, moved = tools.probe.compare(answer.version, answer.probes.values())
        tolerance = tools.probe.tolerance
        assert tolerance is not None
        verified, self._gap = gap <= tolerance, gap
        tools.emit(
            WeightsSynced(
                version=answer.version,
                seconds={"write": sent.written_s, **answer.seconds, "total": time.monotonic() - sent.began},
                bytes=sent.bytes,
                probe_gap=gap,
                probe_moved=moved,
                probe_tolerance=tolerance,
                verified=verified,
                attempt_number=sent.message.attempt_number,
                prefix_cache=answer.prefix_cache,
                checksums=answer.checksums,
            )
        )
        tools.store.acknowledged(answer.version)
        # A gap that is not finite says that the model is broken, not which weights were compared.
        self._failed = self._failed + 1 if not verified and math.isfinite(gap) else 0
        # What was broadcast is not kept, and the learner has moved on: the next sync is the second attempt there.
        if self._failed and not is_followed and self._failed < ATTEMPTS and tools.broadcast is None:
            self._send_again(sent)

    def _send_again(self, sent: _UnderWay) -> None:
        again = replace(sent.message, attempt_number=self._failed + 1)
        self._dispatch(_UnderWay(again, time.monotonic(), 0.0, sent.bytes), {})
