"""The agent in Python: on a live run, and on a run whose verdicts are written by hand."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents_examples import agent as module
from agents_examples.agent import Agent, main
from tests.agents_examples.wasteful import CURE, EXAMPLES, HARM, actions, following, states, until_state, wasteful
from tests.diagnostics.open_door import served
from tests.diagnostics.run_folder import Run, example
from tests.trainer.runs import Recording
from tests.trainer.tiny import TinyPolicy
from tocsin.diagnostics.control import Asker, Look, Outcome, ask_set, carry_out, look_at
from tocsin.schemas.actions import Action, ActionRecord
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.control import ControlRequest
from tocsin.schemas.diagnosis import Diagnostic, Relation
from tocsin.schemas.events import ControlAnswered

ME = "agent:agent.py"
OPTIONS = argparse.Namespace(allow="review", actor=ME, yes=True, interval=0.05)
ACTION = "zero-std-groups/trainer#1/raise-group-size"


@pytest.mark.training
def test_what_cures_stays_and_what_harms_is_taken_back(tiny_policy: TinyPolicy, tmp_path: Path):
    said = tmp_path / "said.txt"
    command = [sys.executable, str(EXAMPLES / "agent.py"), "--runs-dir", str(tmp_path / "runs"), "--yes"]
    with wasteful(tiny_policy, tmp_path, wrong_rule=True) as run, following(command, said) as agent:
        until_state(run, HARM, "reverted")
        reverted_at = look_at(run.folder).writer.step
        run.until(lambda: look_at(run.folder).writer.step >= reverted_at + 12)
        knobs = look_at(run.folder).situation.knobs
        run.interrupt()
        run.wait()
        assert agent.wait(60) == 1, "the wrong rule is open at the end"

    assert states(run.folder, CURE, "agent:agent.py") == ["approved", "applied", "target_met"]
    taken_back = ["approved", "applied", "harmed", "approved", "reverted"]
    assert states(run.folder, HARM, "agent:agent.py") == taken_back, "and it is not tried again"
    assert {record.action_id for record in actions(run.folder)} == {CURE, HARM}
    assert (knobs.microbatch_tokens, knobs.temperature) == (256, 1.0)
    rewards = [as_float(batch.reward_mean) for batch in run.recording().of(BatchConsumed)[-6:]]
    assert sum(rewards) / 6 > 0.3, "what the run has learned is not lost"

    text = said.read_text()
    assert "agent: SYS001 perhaps because the micro-batch token budget is small" in text
    assert "agent: try raise microbatch_tokens 64 to 256 [review]" in text
    assert "agent: verdict target_met: nothing to take back" in text
    assert "agent: verdict harmed, so it was taken back: temperature 2 -> 1" in text


def test_without_yes_it_only_says_what_would_happen(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = Run(tmp_path).firing()
    with served(run):
        agent = Agent(run.folder, argparse.Namespace(**{**vars(OPTIONS), "yes": False}))
        agent.answer_next()
        agent.answer_next()
    assert capsys.readouterr().out.count("dry run, nothing was changed") == 1
    assert not list((run.folder / "control").rglob("*.json"))


@pytest.mark.parametrize(
    "changes",
    [
        {"relations": [Relation(kind="explained_by", id="lr-too-high/learner#1")]},
        {"severity": "info"},
        {"state": "no_data"},
        {"actions": []},
    ],
)
def test_what_is_explained_mild_or_without_data_is_left_alone(tmp_path: Path, changes: dict[str, object]):
    run = Run(tmp_path).healthy()
    run.writer.record(example(Diagnostic, **{"relations": [], **changes}))
    with served(run):
        Agent(run.folder, OPTIONS).answer_next()
    assert not list((run.folder / "control").rglob("*.json"))


def test_what_may_not_be_applied_without_somebody_is_left_alone(tmp_path: Path):
    run = Run(tmp_path).firing()
    with served(run):
        Agent(run.folder, argparse.Namespace(**{**vars(OPTIONS), "allow": "automatic"})).answer_next()
    assert not list((run.folder / "control").rglob("*.json"))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["latest"], 3, "CRITICAL"),
        (["no-such-run"], 3, "must be a run folder"),
        (["latest", "--as", "root"], 2, "agent:NAME"),
    ],
)
def test_a_run_that_is_dead_or_not_there_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
):
    run = Run(tmp_path).firing(severity="critical").kill()
    assert main([*arguments, "--runs-dir", str(tmp_path), "--yes"]) == code
    assert says in "".join(capsys.readouterr())
    assert not list((run.folder / "control").rglob("*.json"))


def test_what_it_may_apply_is_one_word_that_leaves_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    followed: list[tuple[str, str]] = []

    def follow(agent: Agent) -> int:
        followed.append((agent.folder.name, agent.options.allow))
        return 0

    monkeypatch.setattr(Agent, "follow", follow)
    for name in ("mine", "newer"):
        Run(tmp_path, name).kill()
    usual = ["--runs-dir", str(tmp_path), "--yes"]
    for allow in (["--allow", "automatic"], ["--allow", "review"], []):
        assert main([*usual, *allow, "mine"]) == 0
    assert followed == [("mine", "automatic"), ("mine", "review"), ("mine", "review")]
    with pytest.raises(SystemExit, match="2"):
        main([*usual, "--allow", "advisory"])
    assert "invalid choice: 'advisory'" in capsys.readouterr().err


def said_of(run: Run, state: str, *, actor: str = ME, request: str = "1" * 16, **changes: object) -> None:
    """The feed says something about the action, or about the knob that it moves."""
    own = {"action_id": ACTION, "state": state, "actor": actor, "request_id": request, **changes}
    run.writer.record(example(ActionRecord, **own))


def harmed(run: Run, *, request: str = "1" * 16) -> None:
    """What this agent applied has a verdict."""
    said_of(run, "applied", request=request)
    said_of(run, "harmed", request=request)


def move(folder: Path, **values: int) -> None:
    """Somebody else changes a knob."""
    look = look_at(folder)
    outcome = carry_out(look, ask_set(look, Asker(actor="person:ada"), values), timeout_s=10)
    assert outcome.state == "applied"


def requests(run: Run) -> list[str]:
    """What became of the requests of this agent, in order."""
    answers = Recording(run.folder).of(ControlAnswered)
    return [answer.state for answer in answers if answer.actor == ME]


def overtaking(meanwhile: Callable[[], None]) -> Callable[[Path], Look]:
    """`look_at`, after whose first answer something happens before the asker can go on."""
    looks: list[Look] = []

    def look(folder: Path) -> Look:
        looks.append(look_at(folder))
        if len(looks) == 1:
            meanwhile()
        return looks[-1]

    return look


def test_taking_back_is_asked_again_when_another_change_overtakes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = Run(tmp_path).firing()
    with served(run) as loop:
        agent = Agent(run.folder, OPTIONS)
        agent.act()
        assert loop.knobs.group_size == 16
        (change,) = agent.changes.values()
        harmed(run, request=change.request_id or "")
        said_of(run, "applied", actor="person:bob", action_id="knob/clip_low@7", path="clip_low", diagnostic_id=None)
        agent.poll(None)
        monkeypatch.setattr(module, "look_at", overtaking(lambda: move(run.folder, groups_per_step=17)))
        agent.act()
        assert (loop.knobs.group_size, len(agent.changes)) == (16, 1), "refused, and still to be done"
        agent.act()
        assert (loop.knobs.group_size, loop.knobs.groups_per_step, agent.changes) == (8, 17, {})
        agent.act()
    assert requests(run) == ["accepted", "refused", "accepted"], "and it is not tried again"
    out = capsys.readouterr().out
    assert "ACTION applied" in out.partition("ACTION harmed")[2], "the page is read to its end"
    assert out.count("it is asked for until it is taken back: `config_generation` must be") == 1
    assert out.endswith("  agent: verdict harmed, so it was taken back: group_size 16 -> 8\n")


def test_an_agent_that_is_started_again_takes_back_what_harmed_meanwhile(tmp_path: Path):
    run = Run(tmp_path).firing()
    harmed(run)
    for number in range(30):
        run.writer.record(example(Diagnostic, id=f"lr-too-high/learner#{number}", state="resolved", actions=[]))
    with served(run) as loop:
        move(run.folder, group_size=16)
        agent = Agent(run.folder, OPTIONS)
        agent.remember()
        agent.poll(None)
        agent.act()
        agent.act()
        assert (loop.knobs.group_size, requests(run)) == (8, ["accepted"])


def test_an_agent_that_is_started_again_waits_for_the_verdict_on_what_it_applied(tmp_path: Path):
    run = Run(tmp_path).firing()
    said_of(run, "applied")
    run.writer.record(example(Diagnostic, id="other/trainer#1", relations=[], actions=other_actions()))
    with served(run) as loop:
        move(run.folder, group_size=16)
        agent = Agent(run.folder, OPTIONS)
        agent.remember()
        agent.act()
        assert requests(run) == [], "one change at a time"
        said_of(run, "target_met")
        agent.poll(None)
        agent.act()
        assert (loop.knobs.group_size, loop.knobs.groups_per_step) == (16, 17)


def other_actions() -> list[Action]:
    (action,) = example(Diagnostic).actions
    patch = action.patches[0].model_copy(update={"path": "groups_per_step", "expect": 16, "to": 17})
    return [action.model_copy(update={"id": "other/trainer#1/raise-groups-per-step", "patches": [patch]})]


@pytest.mark.parametrize(
    ("actor", "after"),
    [
        ("agent:other", []),
        (ME, [("target_met", {})]),
        (ME, [("harmed", {}), ("reverted", {"request": "2" * 16, "before": 16, "after": 8})]),
        (ME, [("harmed", {}), ("applied", {"action_id": "knob/x@1", "actor": "person:ada", "diagnostic_id": None})]),
    ],
    ids=["of somebody else", "concluded", "taken back", "moved on by somebody"],
)
def test_what_is_not_its_own_or_is_over_is_not_taken_up(
    tmp_path: Path, actor: str, after: list[tuple[str, dict[str, Any]]]
):
    run = Run(tmp_path).healthy()
    said_of(run, "applied", actor=actor)
    for state, changes in after:
        said_of(run, state, **changes)
    with served(run):
        agent = Agent(run.folder, OPTIONS)
        agent.remember()
        agent.poll(None)
        agent.act()
    assert (agent.changes, requests(run)) == ({}, [])


def test_a_knob_that_has_another_value_by_now_is_left_to_people_and_that_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = Run(tmp_path).healthy()
    harmed(run)
    with served(run) as loop:
        move(run.folder, group_size=12)
        agent = Agent(run.folder, OPTIONS)
        agent.remember()
        agent.act()
        agent.act()
        assert (loop.knobs.group_size, agent.changes) == (12, {})
    assert capsys.readouterr().out.count("verdict harmed, and group_size has another value by now: left as it is") == 1
    assert requests(run) == []


def test_what_can_never_be_taken_back_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = Run(tmp_path).healthy()
    said_of(run, "applied", before=1, after=8)
    said_of(run, "harmed", before=1, after=8)
    with served(run):
        agent = Agent(run.folder, OPTIONS)
        agent.remember()
        agent.act()
        agent.act()
    assert requests(run) == ["refused"]
    assert capsys.readouterr().out.count("cannot be taken back: `group_size`") == 1


def test_what_was_accepted_and_not_carried_out_yet_is_not_asked_for_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = Run(tmp_path).healthy()
    harmed(run)
    agent = Agent(run.folder, OPTIONS)
    agent.remember()
    asked: list[str] = []

    def carried_out(look: Look, request: ControlRequest, *, timeout_s: float) -> Outcome:
        asked.append(request.id)
        return Outcome(answer=example(ControlAnswered, state="accepted", request_id=request.id))

    monkeypatch.setattr(module, "carry_out", carried_out)
    monkeypatch.setattr(module, "look_at", at_16)
    agent.act()
    agent.act()
    assert len(asked) == 1
    said_of(run, "rejected", request=asked[0], note="at the barrier: a knob changed in between: look and ask again")
    agent.poll(None)
    agent.act()
    assert len(asked) == 2
    said_of(run, "reverted", request=asked[1], before=16, after=8)
    agent.poll(None)
    agent.act()
    assert (len(asked), agent.changes) == (2, {})
    run.kill()


def at_16(folder: Path) -> Look:
    """A look at a run in which the change is in force."""
    look = look_at(folder)
    knobs = look.situation.knobs.model_copy(update={"group_size": 16})
    return replace(look, situation=replace(look.situation, knobs=knobs))
