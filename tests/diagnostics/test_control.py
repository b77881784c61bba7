"""The asking side of the control door: what the files of a run say, requests, and what became of them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.diagnostics.run_folder import Run, example
from tocsin.diagnostics.admission import Refused
from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.control import (
    Asker,
    NobodyReads,
    Outcome,
    ask,
    ask_act,
    ask_set,
    ask_silence,
    await_outcome,
    await_verdict,
    foresee,
    look_at,
    submit,
    withdraw,
)
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.runs import read_manifest, write_manifest
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.control import ControlRequest, KnobPatch
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.events import (
    CheckpointSaved,
    ControlAnswered,
    KnobChanged,
    RunContinued,
    RunPaused,
    RunResumed,
    RunStarted,
)
from tocsin.schemas.knobs import Knobs

AGENT = Asker(actor="agent:nightwatch")


def answered(run: Run, request: ControlRequest, state: str = "accepted", **changes: Any) -> None:
    own = {"request_id": request.id, "verb": request.verb, "state": state, "patches": request.patches}
    run.event(ControlAnswered, **{**own, **changes})


def changed(run: Run, after: float, generation: int, **changes: Any) -> None:
    own = {"path": "learning_rate", "before": 1e-6, "after": after, "config_generation": generation}
    run.event(KnobChanged, **{**own, "request_id": None, "action_id": None, **changes})


def test_the_knobs_in_force_are_those_of_the_launch_and_every_change_since(runs: Path):
    run = Run(runs)
    changed(run, 5e-7, 1)
    changed(run, 2e-6, 2, step=9)
    situation = look_at(run.folder).situation
    assert (situation.knobs.learning_rate, situation.config_generation, situation.step) == (2e-6, 2, 9)
    assert situation.launched.learning_rate == Knobs().learning_rate
    assert (situation.attempt, situation.is_paused) == (1, False)
    run.kill()


def test_a_resume_starts_over_from_the_knobs_of_its_checkpoint(runs: Path):
    run = Run(runs)
    changed(run, 5e-7, 1)
    run.event(RunPaused)
    manifest = read_manifest(run.folder)
    second = manifest.attempts[0].model_copy(update={"attempt": 2})
    write_manifest(run.folder, manifest.model_copy(update={"attempts": [*manifest.attempts, second]}))
    run.event(RunResumed, attempt=2, config_generation=0)
    situation = look_at(run.folder).situation
    assert (situation.knobs, situation.config_generation, situation.attempt) == (Knobs(), 0, 2)
    assert not situation.is_paused
    run.kill()


def test_a_pause_lasts_until_the_run_goes_on(runs: Path):
    run = Run(runs)
    run.event(RunPaused)
    changed(run, 5e-7, 1)
    assert look_at(run.folder).situation.is_paused
    run.event(RunContinued)
    assert not look_at(run.folder).situation.is_paused
    run.kill()


def test_the_penalty_to_a_reference_is_live_only_in_a_run_that_loaded_one(runs: Path):
    without = Run(runs, "without")
    look = look_at(without.folder)
    with pytest.raises(Refused, match="loaded no reference model"):
        foresee(look, ask_set(look, AGENT, {"kl_beta": 0.01}))
    without.kill()
    loaded = Run(runs, "loaded")
    loaded.event(RunStarted, knobs=Knobs(kl_beta=0.1).model_dump())
    assert look_at(loaded.folder).situation.fixed == {}
    loaded.kill()


def test_a_request_to_set_locks_on_what_the_look_saw_unless_told_otherwise(runs: Path):
    run = Run(runs)
    changed(run, 2e-6, 3)
    look = look_at(run.folder)
    request = ask_set(look, AGENT, {"learning_rate": 1e-6, "grad_clip": 2.0}, {"grad_clip": 1.5})
    assert request.patches == [
        KnobPatch(path="learning_rate", expect=2e-6, to=1e-6),
        KnobPatch(path="grad_clip", expect=1.5, to=2.0),
    ]
    assert (request.config_generation, request.attempt, request.idempotency_key) == (3, 1, request.id)
    assert request.created < request.expires
    with pytest.raises(Refused, match=r"`grad_clip` must be 1\.5 as expected, and is 1"):
        foresee(look, request)
    run.kill()


def test_a_silence_counts_from_the_step_of_the_look(runs: Path):
    run = Run(runs)
    run.step(7)
    request = ask_silence(look_at(run.folder), AGENT, "RWD001", 100)
    assert (request.code, request.until_step) == ("RWD001", 107)
    run.kill()


@pytest.mark.parametrize(
    ("asker", "reason"),
    [
        (Asker(actor="root"), "`actor`"),
        (Asker(actor="agent:a", note="two\nlines"), "`note`"),
        (Asker(actor="agent:a", idempotency_key=""), "`idempotency_key`"),
    ],
)
def test_an_asker_out_of_form_is_named(runs: Path, asker: Asker, reason: str):
    run = Run(runs)
    with pytest.raises(ValueError, match=reason):
        ask(look_at(run.folder), asker, "pause")
    run.kill()


def test_nobody_reads_the_requests_of_a_run_that_is_dead_or_has_ended(runs: Path):
    dead = look_at(Run(runs, "dead").kill().folder)
    with pytest.raises(NobodyReads, match="the run is dead: nobody would read the request"):
        foresee(dead, ask(dead, AGENT, "pause"))
    ended = look_at(Run(runs, "ended").end().folder)
    with pytest.raises(NobodyReads, match="the run has ended"):
        foresee(ended, ask(ended, AGENT, "pause"))


def test_a_run_that_is_starting_is_asked(runs: Path):
    Run(runs).end("interrupted")
    run = Run(runs, declared=2, started=False)
    look = look_at(run.folder)
    foresee(look, ask(look, AGENT, "pause"))
    run.kill()
    assert (look.writer.state, look.situation.attempt) == ("starting", 2)


def test_a_run_of_another_user_is_not_asked(runs: Path, monkeypatch: pytest.MonkeyPatch):
    run = Run(runs)
    look, owner = look_at(run.folder), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(Refused, match=f"must come from user {owner}, who owns the run, got user {owner + 1}"):
        foresee(look, ask(look, AGENT, "pause"))
    run.kill()


def test_the_actions_of_what_is_open_can_be_foreseen(runs: Path):
    run = Run(runs).firing()
    action = example(Diagnostic).actions[0]
    look = look_at(run.folder)
    effect = foresee(look, ask_act(look, AGENT, action.id)).effect
    assert effect == "group_size 8 -> 16 for the next step whose slots open"
    run.kill()


def test_a_request_arrives_whole_and_for_its_owner_only(runs: Path):
    run = Run(runs)
    request = ask(look_at(run.folder), AGENT, "pause")
    submit(run.folder, request)
    (path,) = (run.folder / "control").iterdir()
    assert path.name == f"{request.id}.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert ControlRequest.model_validate_json(path.read_bytes()) == request
    assert json.loads(path.read_bytes())["verb"] == "pause"
    run.kill()


def test_a_request_without_an_answer_is_withdrawn(runs: Path):
    run = Run(runs)
    request = ask(look_at(run.folder), AGENT, "pause")
    outcome = await_outcome(run.folder, request, submit(run.folder, request), timeout_s=0.1)
    assert (outcome.state, outcome.is_final) == ("unanswered", False)
    assert list((run.folder / "control").iterdir()) == []
    assert not withdraw(run.folder, request)
    run.kill()


def test_a_change_is_applied_when_every_patch_of_it_is(runs: Path):
    run = Run(runs)
    look = look_at(run.folder)
    request = ask_set(look, AGENT, {"learning_rate": 5e-7, "grad_clip": 2.0})
    tail = submit(run.folder, request)
    changed(run, 1.0, 1, request_id="f" * 16)
    answered(run, request)
    changed(run, 5e-7, 2, request_id=request.id)
    half = await_outcome(run.folder, request, tail, timeout_s=0.1)
    assert half.state == "accepted"
    changed(run, 2.0, 3, request_id=request.id, path="grad_clip")
    for event in tail.new():
        half.take(event, request)
    assert half.state == "applied"
    assert [event.config_generation for event in half.effects] == [2, 3]
    run.kill()


def test_a_request_that_fails_at_the_barrier_is_refused_by_its_second_answer(runs: Path):
    run = Run(runs)
    request = ask_set(look_at(run.folder), AGENT, {"learning_rate": 5e-7})
    tail = submit(run.folder, request)
    answered(run, request)
    answered(run, request, "refused", reason="at the barrier: ...", patches=[])
    outcome = await_outcome(run.folder, request, tail, timeout_s=5)
    assert outcome.answer is not None
    assert (outcome.state, outcome.answer.reason) == ("refused", "at the barrier: ...")
    run.kill()


@pytest.mark.parametrize(("verb", "kind"), [("pause", RunPaused), ("checkpoint", CheckpointSaved)])
def test_only_what_happens_after_the_answer_counts_as_its_effect(runs: Path, verb: Any, kind: Any):
    run = Run(runs)
    request, outcome = ask(look_at(run.folder), AGENT, verb), Outcome()
    tail = submit(run.folder, request)
    run.event(kind)
    answered(run, request)
    for event in tail.new():
        outcome.take(event, request)
    assert outcome.state == "accepted"
    run.event(kind)
    for event in tail.new():
        outcome.take(event, request)
    assert outcome.state == "applied"
    run.kill()


def test_a_silence_is_applied_by_its_answer_and_a_duplicate_is_final(runs: Path):
    run = Run(runs)
    look = look_at(run.folder)
    for request, state, result in (
        (ask_silence(look, AGENT, "RWD001", 5), "accepted", "applied"),
        (ask(look, AGENT, "stop"), "duplicate", "duplicate"),
    ):
        tail = submit(run.folder, request)
        answered(run, request, state, patches=[])
        assert await_outcome(run.folder, request, tail, timeout_s=5).state == result
    run.kill()


def test_the_verdict_is_the_one_on_this_action_after_the_cursor(runs: Path):
    run = Run(runs).firing()
    id = "zero-std-groups/trainer#1/raise-group-size"
    run.writer.record(example(ActionRecord, action_id=id, state="no_effect"))
    cursor = FeedReader(run.folder).page(limit=1).next_cursor
    run.writer.record(example(ActionRecord, action_id=id, state="applied"))
    run.writer.record(example(ActionRecord, action_id=f"{id}er", state="harmed"))
    run.writer.record(example(ActionRecord, action_id=id, state="target_met"))
    verdict = await_verdict(run.folder, id, cursor)
    assert verdict is not None
    assert verdict.state == "target_met"
    end = FeedReader(run.folder).page(limit=1).next_cursor
    run.end()
    assert await_verdict(run.folder, id, end) is None


def test_timestamps_of_requests_have_the_fixed_width_that_makes_them_comparable(runs: Path):
    run = Run(runs)
    request = ask(look_at(run.folder), AGENT, "pause")
    assert len(request.created) == len(request.expires) == len(utc_text())
    run.kill()
