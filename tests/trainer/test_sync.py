"""The learner's side of a sync with a rollout process that is played by the test."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tocsin.schemas.event import BaseEvent
from tocsin.trainer.data import Floats
from tocsin.trainer.messages import Sync, Synced
from tocsin.trainer.sync import SyncTools, WeightSender
from tocsin.trainer.weights import Probe, WeightStore

PROBE = np.array([[1, 2]], dtype=np.int32)


@dataclass
class PlayedLearner:
    """Holds one number, which is also what the probe gives."""

    value: float = 0.0
    meter: Any = field(default_factory=lambda: SimpleNamespace(phase=lambda name: _Phase()))

    def weights(self, *, is_aliased: bool, is_local: bool) -> dict[str, Tensor]:
        return {"w": torch.tensor([[self.value, 1.0]]), "b": torch.tensor([1.0], dtype=torch.bfloat16)}

    def probe(self, ids: Any) -> Tensor:
        return torch.tensor([[self.value]])


class _Phase:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


@dataclass
class PlayedRollout:
    """Answers a sync when it is waited for, with what the servers hold."""

    holds: list[float]
    """What the probe gives at each answer, in order."""
    log: list[Any]
    acknowledged: int = -1
    synced: list[Synced] = field(default_factory=list)
    waiting: list[Sync] = field(default_factory=list)

    def sync(self, message: Sync) -> None:
        self.log.append(("sync", message.version, message.attempt_number))
        self.waiting.append(message)

    def wait_for_sync(self, version: int) -> None:
        while self.acknowledged < version:
            message = self.waiting.pop(0)
            self.acknowledged = max(self.acknowledged, message.version)
            held: Floats = np.array([[self.holds.pop(0)]], dtype=np.float32)
            self.synced.append(Synced(message.version, {}, {"server": held}))

    def wait_until_receiving(self, version: int) -> None:
        self.log.append(("stands by", version))


@dataclass
class Office:
    """A sender between the two."""

    learner: PlayedLearner
    rollout: PlayedRollout
    sender: WeightSender
    log: list[Any]
    events: list[BaseEvent]

    def verdicts(self) -> list[tuple[Any, ...]]:
        return [(e.version, e.attempt_number, e.verified) for e in self.events]  # type: ignore[attr-defined]


@dataclass
class PlayedBroadcast:
    """Notes what is sent."""

    log: list[Any]

    def meet(self, meeting: object) -> None: ...

    def send(self, weights: Mapping[str, Tensor]) -> None:
        self.log.append(("broadcast", list(weights)))


def office(tmp_path: Path, *, holds: list[float], is_broadcast: bool = False) -> Office:
    log: list[Any] = []
    events: list[BaseEvent] = []
    learner, rollout = PlayedLearner(), PlayedRollout(holds, log)
    played: Any = learner
    answering: Any = rollout
    tools = SyncTools(
        learner=played,
        rollout=answering,
        store=WeightStore(tmp_path),
        probe=Probe("float32"),
        probe_ids=PROBE,
        is_remote=True,
        broadcast=PlayedBroadcast(log) if is_broadcast else None,
        emit=events.append,
    )
    return Office(learner, rollout, WeightSender(tools), log, events)


def test_weights_that_did_not_arrive_are_sent_once_more_with_the_same_file(tmp_path: Path):
    desk = office(tmp_path, holds=[0.0, 0.0, 1.0])
    desk.sender.send(0)
    desk.learner.value = 1.0
    desk.sender.send(1)
    desk.sender.settle()
    assert desk.log == [("sync", 0, 1), ("sync", 1, 1), ("sync", 1, 2)]
    assert desk.verdicts() == [(0, 1, True), (1, 1, False), (1, 2, True)]
    assert not desk.sender.is_unproven


def test_two_failed_proofs_in_a_row_leave_the_weights_unproven(tmp_path: Path):
    desk = office(tmp_path, holds=[0.0, 0.0, 0.0])
    desk.sender.send(0)
    desk.learner.value = 1.0
    desk.sender.send(1)
    desk.sender.settle()
    assert desk.verdicts()[1:] == [(1, 1, False), (1, 2, False)]
    assert desk.sender.is_unproven


def test_a_version_that_is_sent_again_waits_for_an_answer_of_its_own(tmp_path: Path):
    desk = office(tmp_path, holds=[0.0, 0.0, 0.0, 0.0, 2.0])
    desk.sender.send(0)
    desk.learner.value = 1.0
    desk.sender.send(1)
    desk.sender.settle()
    desk.sender.start_over()
    desk.sender.send(1)  # as after a pause; its number was acknowledged long ago
    desk.learner.value = 2.0
    desk.sender.send(2)
    desk.sender.settle()
    assert desk.verdicts()[3:] == [(1, 1, False), (2, 2, True)]
    assert not desk.sender.is_unproven


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_broadcast_starts_when_all_servers_stand_by_and_is_announced_with_its_layout(tmp_path: Path, attempts: int):
    desk = office(tmp_path, holds=[0.0] * attempts, is_broadcast=True)
    for version in range(attempts):
        desk.sender.send(version)
    assert desk.log == [
        step
        for version in range(attempts)
        for step in (("sync", version, 1), ("stands by", version), ("broadcast", ["w", "b"]))
    ]
    assert desk.rollout.waiting[-1].layout == (("w", "float32", (1, 2)), ("b", "bfloat16", (1,)))
    assert desk.rollout.waiting[-1].path == Path()
    assert list(desk.sender._tools.store.folder.iterdir()) == [], "no file is written"


def test_what_was_broadcast_is_not_sent_again_before_the_next_version(tmp_path: Path):
    desk = office(tmp_path, holds=[0.0, 0.0, 0.0], is_broadcast=True)
    desk.sender.send(0)
    desk.learner.value = 1.0
    desk.sender.send(1)
    desk.sender.settle()
    assert not desk.sender.is_unproven
    desk.learner.value = 2.0
    desk.sender.send(2)
    desk.sender.settle()
    assert desk.verdicts() == [(0, 1, True), (1, 1, False), (2, 2, False)]
    assert desk.sender.is_unproven
