"""The learner's hand on the rollout process: starts it, feeds it, keeps the books, replaces it when it dies.

What must survive the process is kept here: slots, queue and ledger. `collect` returns a step's groups.
"""

import contextlib
import queue
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from multiprocessing.process import BaseProcess
from typing import Any, Final

from tocsin.schemas.config import RunConfig
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ComponentHeartbeat, RolloutFailed
from tocsin.schemas.generation import SamplerSampled, WeightSyncStarted
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.data import Failure, GroupRequest, QueuedGroup
from tocsin.trainer.endings import Interrupted, RolloutError, RolloutInputError
from tocsin.trainer.ledger import GroupLedger
from tocsin.trainer.messages import (
    BatchSampled,
    Done,
    Evaluate,
    Evaluated,
    Failed,
    Fatal,
    Heartbeat,
    Launched,
    Opened,
    ProcessNews,
    Ready,
    ReadyForWeights,
    Rendezvous,
    Retune,
    ServerSampled,
    Setup,
    Stop,
    Sync,
    Synced,
)
from tocsin.trainer.pipes import PipeClosed, read_in_thread
from tocsin.trainer.processes import heavy_context, start_child
from tocsin.trainer.rollout import rollout_process
from tocsin.trainer.slots import Slot

POLL_S: Final = 0.2
"""How often a wait looks at the stop flag."""
MAX_RESTARTS: Final = 3
GRACE_S: Final = 30.0
"""On top of every time-out of the rollout process, before the process itself counts as hung."""


class RolloutClient:
    """One rollout process and the books about it. For the learner's main thread only."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._messages: queue.Queue[Any] = queue.Queue()
        self.ledger = GroupLedger()
        self.open_slots: dict[int, Slot] = {}
        """By group index, of every group that the learner has not consumed."""
        self.queued: dict[int, QueuedGroup] = {}
        self.synced: list[Synced] = []
        """Answers to syncs that nobody has taken yet."""
        self.acknowledged = -1
        """Newest version that the sampler confirmed."""
        self._receiving = -1  # newest version that servers stand by for
        self.evaluated: list[Evaluated] = []
        self.failures: Counter[str] = Counter()
        """Completions and rows that failed, by cause."""
        self.version = 0
        """Step of the learner's newest weights."""
        self.sampler_wait_s = 0.0
        """Time the sampler stood still for free slots since the last `take_sampler_wait`."""
        self.tokens = 0
        """Completion tokens generated for training."""
        self.next_step = 0
        """First step whose slots are not open yet."""
        self.next_index = 0
        """First group index that was never given to a slot."""
        # When the process last said something, and was last told something.
        self._heard = self._asked = time.monotonic()
        self._restarts = 0
        self._setup: Setup | None = None
        self._last_sync: Sync | None = None
        self._pending_evaluation: Evaluate | None = None
        self.emit: Callable[[BaseEvent], None] = lambda event: None
        self.should_stop: Callable[[], bool] = lambda: False
        self.meet: Callable[[Rendezvous], None] = lambda meeting: None
        self._handlers: dict[type, Callable[[Any], None]] = {
            Ready: self._note_ready,
            Opened: lambda message: self._open(message.slots),
            Launched: self._launch,
            Done: self._arrive,
            Failed: self._fail,
            Synced: self._note_sync,
            Evaluated: self._take_evaluation,
            BatchSampled: self._sampled,
            ProcessNews: lambda message: self.emit(ComponentHeartbeat(**asdict(message))),
            Heartbeat: lambda message: self.emit(message.event),
            ServerSampled: lambda message: self.emit(message.event),
            Rendezvous: lambda message: self.meet(message),  # noqa: PLW0108  the learner's end is set later
            ReadyForWeights: self._note_ready_for_weights,
            Fatal: self._end,
            PipeClosed: self._revive,
        }
        self._spawn()

    def _spawn(self) -> None:
        context = heavy_context()
        self._connection, child = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=rollout_process, args=(child, self._config), name="tocsin-rollout"
        )
        start_child(self.process, threads=self._config.device.threads)
        child.close()
        self._messages = queue.Queue()
        read_in_thread(self._connection, self._messages.put, name="rollout")

    def wait_until_ready(self) -> Ready:
        """Block until the reward functions are loaded. Raises `RolloutInputError` when they cannot be."""
        message = self._messages.get()
        if isinstance(message, Fatal):
            self._end(message)
        if isinstance(message, PipeClosed):
            raise RolloutInputError("the rollout process ended while it started; see the messages above")
        assert isinstance(message, Ready)
        self._messages.put(message)  # nobody records events yet
        return message

    def setup(self, setup: Setup) -> None:
        """Hand over everything the process needs, once."""
        self._setup = setup
        self.next_step, self.next_index = setup.next_step, setup.next_index
        self.open_slots = {slot.index: slot for slot in setup.reissue}
        self._send(setup)

    def sync(self, message: Sync) -> None:
        """Announce new weights; the answer comes into `synced`."""
        self.emit(WeightSyncStarted(version=message.version, attempt_number=message.attempt_number))
        self._last_sync = message
        self.version = message.version
        self._send(message)

    def retune(self, knobs: Knobs, config_generation: int) -> None:
        """Tell the process about new knob values."""
        assert self._setup is not None
        self._setup = replace(self._setup, knobs=knobs, config_generation=config_generation)
        self._send(Retune(knobs, config_generation))

    def evaluate(self, version: int) -> None:
        """Ask for an evaluation of the weights of the last `sync`; the answer comes into `evaluated`."""
        self._pending_evaluation = Evaluate(version)
        self._send(self._pending_evaluation)

    def collect(self, step: int) -> list[QueuedGroup]:
        """All groups of `step`, in order of index. Blocks until they are there.

        Raises `Interrupted`, `RolloutError`, `RolloutInputError`.
        """
        # Looked at before the groups are: a sampler that is ahead would otherwise keep a run from ever stopping.
        while not self.should_stop():
            if self._whole(step):
                return self._take(step)
            self.pump()
        raise Interrupted

    def _take(self, step: int) -> list[QueuedGroup]:
        indices = sorted(index for index, slot in self.open_slots.items() if slot.step == step)
        for index in indices:
            del self.open_slots[index]
            self.ledger.consume(index)
        return [self.queued.pop(index) for index in indices]

    def _whole(self, step: int) -> bool:
        wanted = [index for index, slot in self.open_slots.items() if slot.step == step]
        return bool(wanted) and all(index in self.queued for index in wanted)

    def wait_for_sync(self, version: int) -> None:
        """Block until the sampler holds `version`. Raises as `collect`."""
        self._pump_while(lambda: self.acknowledged < version)

    def wait_until_receiving(self, version: int) -> None:
        """Block until the servers stand by for a broadcast of `version`. Raises as `collect`."""
        self._pump_while(lambda: self._receiving < version)
        self._receiving = version - 1  # a resend is announced anew

    def wait_for_evaluation(self) -> None:
        """Block until no evaluation is under way. Raises as `collect`."""
        self._pump_while(lambda: self._pending_evaluation is not None)

    def _pump_while(self, is_waiting: Callable[[], bool]) -> None:
        while is_waiting():
            if self.should_stop():
                raise Interrupted
            self.pump()

    def pump(self) -> None:
        """Take in what the process said; waits a moment for the first message.

        A process that is silent for longer than any answer may take is killed, and then replaced like a dead one.
        """
        try:
            self._handle(self._messages.get(timeout=POLL_S))
            while True:
                self._handle(self._messages.get_nowait())
        except queue.Empty:
            pass
        if self._setup is not None and time.monotonic() - max(self._heard, self._asked) > self._patience_s(self._setup):
            self.process.kill()

    def rest(self) -> None:
        """`pump` while nobody waits for the process, so that its silence means nothing. Raises `Interrupted`, too."""
        if self.should_stop():
            raise Interrupted
        self._asked = time.monotonic()
        self.pump()

    def _patience_s(self, setup: Setup) -> float:
        sampler, workers = setup.config.sampler, setup.config.reward_workers
        start_s = sampler.start_timeout_s + sampler.timeout_s if sampler.kind == "vllm" else 0.0
        return start_s + sampler.timeout_s * (1 + sampler.max_restarts) + workers.timeout_s + GRACE_S

    def take_sampler_wait(self) -> float:
        """Seconds that the sampler waited for slots since the last call."""
        seconds, self.sampler_wait_s = self.sampler_wait_s, 0.0
        return seconds

    def _handle(self, message: Any) -> None:
        if not isinstance(message, Heartbeat):
            self._heard = time.monotonic()
        self._handlers[type(message)](message)

    def _note_ready(self, _message: Ready) -> None:
        self.emit(ComponentHeartbeat(component="rollout", state="started", detail=f"pid {self.process.pid}"))

    def _launch(self, message: Launched) -> None:
        for slot in message.slots:
            self.ledger.launch(slot.index, slot.step)

    def _note_sync(self, message: Synced) -> None:
        self.acknowledged = max(self.acknowledged, message.version)
        self.synced.append(message)

    def _note_ready_for_weights(self, message: ReadyForWeights) -> None:
        self._receiving = message.version

    def _take_evaluation(self, message: Evaluated) -> None:
        self._pending_evaluation = None
        self.evaluated.append(message)

    def _end(self, message: Fatal) -> None:
        raise RolloutInputError(message.error) if message.user_error else RolloutError(message.error)

    def _open(self, slots: list[Slot]) -> None:
        for slot in slots:
            self.open_slots[slot.index] = slot
            self.next_step = max(self.next_step, slot.step + 1)
            self.next_index = max(self.next_index, slot.index + 1)

    def _arrive(self, message: Done) -> None:
        group = message.group
        index = group.request.index
        self.ledger.arrive(index)
        self.queued[index] = QueuedGroup(group, time.monotonic(), self.version)
        self._report(group.request, message.failures)

    def _fail(self, message: Failed) -> None:
        index = message.request.index
        del self.open_slots[index]
        self._open([message.replacement])
        self.ledger.fail(index, message.failures[0].cause)
        self._report(message.request, message.failures)

    def _report(self, request: GroupRequest, failures: list[Failure]) -> None:
        for failure in failures:
            self.failures[failure.cause] += failure.completions
            self.emit(
                RolloutFailed(
                    cause=failure.cause,
                    prompt_id=request.prompt.id,
                    group_index=request.index,
                    completions=failure.completions,
                    whole_group=failure.whole_group,
                    error=failure.error,
                )
            )

    def _sampled(self, message: BatchSampled) -> None:
        self.sampler_wait_s += message.waited_s
        if message.purpose == "train":
            self.tokens += message.tokens
        self.emit(
            SamplerSampled(
                sampler=message.sampler,
                version=message.version,
                groups=message.groups,
                completions=message.completions,
                tokens=message.tokens,
                seconds=message.seconds,
                purpose=message.purpose,
            )
        )

    def _revive(self, message: PipeClosed) -> None:
        """The process is gone: start another one and hand it the groups that were lost with it."""
        self.process.join(1.0)
        detail = f"exit code {self.process.exitcode}"
        self.emit(ComponentHeartbeat(component="rollout", state="died", detail=detail))
        if self._setup is None or self._restarts >= MAX_RESTARTS or (self._last_sync and self._last_sync.layout):
            raise RolloutError(f"the rollout process ended with {detail}, after {self._restarts} restarts")
        self._restarts += 1
        for index in list(self.ledger.in_flight):
            self.ledger.fail(index, "worker_died")
        self._connection.close()
        self._spawn()
        lost = [slot for index, slot in sorted(self.open_slots.items()) if index not in self.queued]
        self._send(replace(self._setup, next_step=self.next_step, next_index=self.next_index, reissue=_by_step(lost)))
        if self._last_sync is not None:
            self._send(self._last_sync)
            if self._pending_evaluation is not None:  # the new process has the newest weights only
                self._pending_evaluation = Evaluate(self._last_sync.version)
                self._send(self._pending_evaluation)
        self.emit(ComponentHeartbeat(component="rollout", state="restarted", detail=f"{len(lost)} groups issued again"))

    def outstanding(self) -> list[Slot]:
        """Every open slot, in the order in which its group would be issued again."""
        return _by_step(list(self.open_slots.values()))

    def _send(self, message: Any) -> None:
        self._asked = time.monotonic()
        # A process that is gone is noticed by the reader, which starts another one with everything it needs.
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def stop(self) -> None:
        """End the process in good order, or kill it."""
        self._send(Stop())
        self.process.join(5.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._connection.close()


def _by_step(slots: list[Slot]) -> list[Slot]:
    return sorted(slots, key=lambda slot: (slot.step, slot.replacement, slot.index))
