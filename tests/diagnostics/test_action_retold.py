"""What the feed says of the auto-tuner's decisions, and of findings whose actions a change has outdated."""

from dataclasses import replace

from tests.diagnostics.scenario import run, started, step
from tests.diagnostics.scripted import proposal, scripted
from tests.diagnostics.test_action_log import ACTION, actions, story
from tocsin.diagnostics.engine import Engine
from tocsin.schemas.autotune import AutotuneDecided
from tocsin.schemas.control import KnobPatch
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ControlAnswered, KnobChanged


def test_what_the_auto_tuner_decides_is_on_record() -> None:
    said = {"diagnostic_id": "rule-pol014/learner#1", "action_id": ACTION}
    patches = [KnobPatch(path="learning_rate", expect=1e-4, to=5e-5)]
    decided: list[BaseEvent] = [
        AutotuneDecided(decision="dry_run", patches=patches, reason="would lower it", **said),
        AutotuneDecided(decision="declined", reason="too early", **said),
        AutotuneDecided(decision="asked", reason="a person has to decide", **said),
    ]
    found = actions(iter([[started(learning_rate=1e-4)], [*decided, step()]]))
    assert [(record.state, record.path, record.after, record.note) for record in found] == [
        ("dry_run", "learning_rate", 5e-5, "would lower it"),
        ("rejected", None, None, "too early"),
        ("proposed", None, None, "a person has to decide"),
    ]
    assert {(record.actor, record.diagnostic_id, record.request_id) for record in found} == {
        ("autotune", "rule-pol014/learner#1", None)
    }


def test_a_finding_that_outlasts_a_change_is_told_again_with_actions_for_the_new_value() -> None:
    lowers = scripted("POL014", (10, 500), proposals=(replace(proposal(), cooldown_steps=15),))
    found = [r for r in run(Engine([lowers]), story(clip_after=0.6)) if isinstance(r, Diagnostic)]
    assert [(record.last.step, record.reason) for record in found] == [(10, "fired"), (34, "reminder")]


def test_a_finding_whose_actions_name_another_knob_is_not_told_again() -> None:
    other = KnobChanged(path="temperature", before=1.0, after=0.9, actor="person:ada", effective_step=25)
    lowers = scripted("POL014", (10, 500), proposals=(proposal(),))
    steps = ([e for e in group if not isinstance(e, KnobChanged | ControlAnswered)] for group in story(clip_after=0.6))
    events = ([other, *group] if t == 25 else group for t, group in enumerate(steps))
    found = [r for r in run(Engine([lowers]), events) if isinstance(r, Diagnostic)]
    assert [record.reason for record in found] == ["fired"]
