"""The receiving side of the control door: answers at once, changes at the barrier, all of a request or nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.diagnostics.run_samples import diagnostic
from tests.trainer.control_room import LAUNCHED, Room, make_room, patches
from tocsin.diagnostics.feed import RunWriter
from tocsin.schemas.actions import Action, Patch
from tocsin.schemas.events import CheckpointSaved, ControlAnswered, KnobChanged, RunContinued, RunPaused
from tocsin.trainer.control import Origin


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """The control door of a run that stands at step 40."""
    with RunWriter(tmp_path / "run", "run") as writer:
        yield make_room(writer.folder, writer)


def test_a_change_is_answered_at_once_and_made_at_the_barrier_in_the_name_of_its_asker(room: Room):
    id = room.ask(idempotency_key="k1", note="reward fell")
    assert room.polled() == [("accepted", "learning_rate 0.0001 -> 5e-05 from the next step on")]
    assert room.loop.knobs.learning_rate == 1e-4
    room.door.at_barrier()
    assert room.loop.knobs.learning_rate == 5e-5
    (changed,) = room.events
    assert isinstance(changed, KnobChanged)
    assert (changed.request_id, changed.actor, changed.idempotency_key) == (id, "agent:nightwatch", "k1")
    assert (changed.note, changed.before, changed.after) == ("reward fell", 1e-4, 5e-5)
    assert [path.name for path in room.control.iterdir()] == ["done"]
    assert [path.name for path in (room.control / "done").iterdir()] == [f"{id}.json"]


def test_the_thread_answers_within_a_second_while_nobody_comes_to_a_barrier(room: Room):
    room.door.open(room.loop)
    began = time.monotonic()
    room.ask()
    while not room.events and time.monotonic() - began < 5:
        time.sleep(0.01)
    assert time.monotonic() - began < 1
    assert room.answers()[0][0] == "accepted"
    room.door.close()
    assert room.answers() == [("refused", "the run ended before it could be carried out")]


def test_nothing_is_changed_when_the_second_patch_is_bad(room: Room):
    room.ask(patches=patches(learning_rate=5e-5, grad_clip=1e9))
    assert room.polled() == [("refused", "`grad_clip` must be between 0.0001 and 10000, got 1000000000.0")]
    room.door.at_barrier()
    assert room.loop.knobs == LAUNCHED


def test_the_key_of_an_accepted_request_changes_nothing_a_second_time_and_gets_the_same_answer(room: Room):
    room.ask(idempotency_key="k")
    ((_, reason),) = room.polled()
    room.door.at_barrier()
    room.ask(idempotency_key="k", patches=patches(learning_rate=1e-4))
    assert room.polled() == [("duplicate", reason)]
    room.door.at_barrier()
    assert room.loop.knobs.learning_rate == 5e-5


def test_the_key_of_a_refused_request_may_be_used_again(room: Room):
    room.ask(idempotency_key="k", patches=patches(learning_rate=5.0))
    room.ask(idempotency_key="k")
    assert [state for state, _ in room.polled()] == ["refused", "accepted"]


def test_of_two_requests_that_saw_the_same_state_the_second_is_refused_with_the_reason(room: Room):
    seen = [{"path": "learning_rate", "expect": 1e-4, "to": 5e-5}]
    room.ask(patches=seen)
    room.ask(patches=[{**seen[0], "to": 2e-4}])
    room.ask(config_generation=0, patches=patches(grad_clip=0.5))
    states = room.polled()
    assert [state for state, _ in states] == ["accepted", "refused", "refused"]
    assert states[1][1].startswith("`learning_rate` must be 0.0001 as expected, and is 5e-05")
    assert states[2][1].startswith("`config_generation` must be 1, got 0")
    room.door.at_barrier()
    assert (room.loop.knobs.learning_rate, room.loop.knobs.grad_clip) == (5e-5, 1.0)


def test_a_change_that_was_overtaken_before_the_barrier_is_refused_there_and_may_be_asked_for_again(room: Room):
    room.ask(idempotency_key="k")
    room.polled()
    room.loop.change_knobs({"learning_rate": 1e-2}, Origin(actor="fault:lr-too-high"))
    room.door.at_barrier()
    ((state, reason),) = room.answers()
    assert state == "refused"
    assert reason.startswith("at the barrier: `learning_rate` must be 0.0001 as expected, and is 0.01")
    assert room.loop.knobs.learning_rate == 1e-2
    room.ask(idempotency_key="k", patches=patches(learning_rate=1e-4))
    assert room.polled()[0][0] == "accepted"


def test_an_action_of_an_open_diagnostic_is_applied_under_its_id(room: Room):
    action = Action(
        id="nan-inf/learner#1/lower",
        title="Lower learning_rate",
        applicability="review",
        risk="low",
        patches=[Patch(path="learning_rate", expect=1e-4, to=5e-5, min=0.0, max=1.0, effective="next_step")],
    )
    room.ask("act", action_id=action.id)
    assert room.polled()[0][1].endswith("there are: none")
    room.writer.record(diagnostic().model_copy(update={"actions": [action]}))
    room.ask("act", action_id=action.id)
    assert room.polled()[0][0] == "accepted"
    room.door.at_barrier()
    (changed,) = room.events
    assert isinstance(changed, KnobChanged)
    assert (changed.action_id, changed.after) == (action.id, 5e-5)
    room.writer.record(diagnostic(state="resolved"))
    room.ask("act", action_id=action.id)
    assert room.polled()[0][0] == "refused"


def test_a_paused_run_still_answers_changes_and_saves_until_somebody_goes_on(room: Room):
    def meanwhile(verb: str) -> Callable[[], None]:
        return lambda: (room.ask(verb), room.door.poll())[1]

    room.loop.while_idle = iter(meanwhile(verb) for verb in ("set", "checkpoint", "pause", "resume"))
    room.ask("pause")
    room.door.poll()
    room.door.at_barrier()
    states = [event.state for event in room.events if isinstance(event, ControlAnswered)]
    assert states == ["accepted", "accepted", "accepted", "refused", "accepted"]
    room.answers()
    assert [type(event) for event in room.events] == [RunPaused, KnobChanged, CheckpointSaved, RunContinued]
    room.ask("resume")
    assert room.polled()[0][1].startswith("the run must be paused to go on")


def test_a_stop_is_passed_on_at_once_and_a_silence_is_only_answered(room: Room):
    id = room.ask("stop", note="enough")
    room.ask("silence", code="RWD001", until_step=140)
    assert [state for state, _ in room.polled()] == ["accepted", "accepted"]
    assert [(asked.id, asked.note) for asked in room.stopped] == [(id, "enough")]
    room.door.at_barrier()
    assert room.events == []


def test_a_checkpoint_that_cannot_be_written_is_an_answer_and_not_the_end_of_the_run(room: Room):
    room.loop.disk_is_full = True
    room.ask("checkpoint")
    room.polled()
    room.door.at_barrier()
    assert room.answers() == [("refused", "the checkpoint could not be written: [Errno 28] No space left on device")]


def test_many_askers_at_once_are_answered_once_each(room: Room):
    room.door.open(room.loop)
    askers = [threading.Thread(target=room.ask, args=("checkpoint",)) for _ in range(40)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    deadline = time.monotonic() + 10
    while len(room.events) < 40 and time.monotonic() < deadline:
        time.sleep(0.05)
    room.door.at_barrier()
    room.door.close()
    answered = [event.request_id for event in room.events if isinstance(event, ControlAnswered)]
    assert (len(answered), len(set(answered))) == (40, 40)
