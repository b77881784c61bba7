"""What a resumed run remembers of the requests of earlier attempts."""

from pathlib import Path
from typing import Any

from tocsin.diagnostics.feed import EVENTS_FILE, RunWriter
from tocsin.schemas.control import KnobPatch
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ControlAnswered, KnobChanged, RunResumed
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.control_memory import Earlier, read_earlier


def answered(id: str, state: str = "accepted", verb: str = "set") -> ControlAnswered:
    return ControlAnswered.model_validate(
        {
            "request_id": id,
            "verb": verb,
            "state": state,
            "reason": f"reason of {id}",
            "actor": "agent:a",
            "idempotency_key": f"key-{id}",
            "patches": [KnobPatch(path="grad_clip", expect=1.0, to=0.5)] if verb == "set" else [],
        }
    )


def changed(id: str, generation: int) -> KnobChanged:
    content: dict[str, Any] = {"before": 1.0, "after": 0.5, "actor": "agent:a", "effective_step": 3}
    return KnobChanged(path="grad_clip", request_id=id, config_generation=generation, **content)


def resumed(generation: int) -> RunResumed:
    content: dict[str, Any] = {"knobs": Knobs().model_dump(), "devices": [], "versions": {}}
    return RunResumed(checkpoint_step=2, rewound_from_step=5, config_generation=generation, **content)


def earlier(folder: Path, generation: int, *events: BaseEvent) -> Earlier:
    with RunWriter(folder, "run") as writer:
        for event in events:
            writer.event(event)
    return read_earlier(folder / EVENTS_FILE, generation)


def test_keys_of_what_was_carried_out_are_remembered_with_the_reason_given(tmp_path: Path):
    found = earlier(tmp_path, 1, answered("a"), changed("a", 1), answered("b", "refused"), answered("c", verb="pause"))
    assert found.take_lost() == []
    assert found.keys == {"key-a": "reason of a", "key-c": "reason of c"}


def test_what_was_accepted_and_never_done_is_answered_as_lost_and_may_be_asked_for_again(tmp_path: Path):
    found = earlier(tmp_path, 0, answered("a"))
    (lost,) = found.take_lost()
    assert (lost.request_id, lost.state, lost.seq, lost.patches) == ("a", "refused", 0, [])
    assert lost.reason.startswith("lost: the run was killed before it was carried out")
    assert found.keys == {}


def test_a_lost_request_is_answered_once_however_often_the_run_is_resumed(tmp_path: Path):
    (lost,) = earlier(tmp_path, 0, answered("a")).take_lost()
    assert earlier(tmp_path, 0, resumed(0), lost).take_lost() == []


def test_a_change_that_the_resume_undid_may_be_asked_for_again_and_is_not_lost(tmp_path: Path):
    found = earlier(tmp_path, 1, answered("a"), changed("a", 1), answered("b"), changed("b", 2))
    assert found.take_lost() == []
    assert set(found.keys) == {"key-a"}


def test_what_an_earlier_resume_undid_stays_undone_when_its_number_is_used_again(tmp_path: Path):
    found = earlier(tmp_path, 1, answered("a"), changed("a", 1), resumed(0), answered("b"), changed("b", 1), resumed(1))
    assert found.take_lost() == []
    assert set(found.keys) == {"key-b"}
