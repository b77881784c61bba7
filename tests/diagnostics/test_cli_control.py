"""The commands that change a run, against a real control door whose loop is a small stand-in."""

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.diagnostics.open_door import served
from tests.diagnostics.run_folder import RUN, Run, command, example
from tocsin.diagnostics import cli_control
from tocsin.diagnostics.cli import main
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.events import ControlAnswered

ACTION = "zero-std-groups/trainer#1/raise-group-size"


def out(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_without_yes_nothing_is_asked_and_what_would_happen_is_said(runs: Path, capsys: Any):
    run = Run(runs).firing()
    for arguments, effect in (
        (["set", RUN, "learning_rate=5e-7"], "learning_rate 1e-06 -> 5e-07 from the next step on"),
        (["act", RUN, ACTION], "group_size 8 -> 16 for the next step whose slots open"),
        (["silence", RUN, "rwd001", "--steps", "100"], "records of RWD001 zero-std-groups are held back until step"),
        (["pause", RUN], "training pauses at the next step barrier"),
        (["checkpoint", RUN], "a checkpoint is written at the next step barrier"),
        (["stop", RUN], "the run writes a checkpoint at the next step barrier and ends"),
    ):
        assert main(arguments) == 0
        said, err = out(capsys)
        assert said.startswith(f"would be accepted: {effect}")
        assert err == "dry run, nothing was changed; add --yes to do it\n"
    assert list((run.folder / "control").iterdir()) == []
    run.kill()


def test_a_dry_run_says_why_it_would_be_refused(runs: Path, capsys: Any):
    run = Run(runs)
    for arguments, reason in (
        (["set", RUN, "learning_rate=1.5"], "`learning_rate` must be between 0 and 1, got 1.5"),
        (["set", RUN, "learning_rate=5e-7", "--expect", "learning_rate=1e-3"], "`learning_rate` must be 0.001 as exp"),
        (["set", RUN, "grad_clip=2", "weight_sync_every=3"], "`weight_sync_every` must be between 1 and 2 after one"),
        (["act", RUN, "no/such#1/action"], "`action_id` must be an action of an open diagnostic"),
        (["silence", RUN, "POL015", "--steps", "5"], "POL015 nan-inf must not be silenced"),
        (["resume", RUN], "the run must be paused to go on"),
    ):
        assert main(arguments) == 2
        said, err = out(capsys)
        assert (said, err.count("\n")) == ("", 1)
        assert err.startswith(f"tocsin: would be refused: {reason}")
    run.kill()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["set", RUN, "lr=1"], "unknown knob `lr`; the knobs are: "),
        (["set", RUN, "learning_rate"], "KNOB=VALUE must be `knob=value` with a number or true/false, got `learning"),
        (["set", RUN, "learning_rate=fast"], "must be `knob=value` with a number"),
        (["set", RUN, "learning_rate=nan"], "must be `knob=value` with a number"),
        (["set", RUN, "grad_clip=1", "grad_clip=2"], "KNOB=VALUE must name each knob once, got `grad_clip` twice"),
        (
            ["set", RUN, "grad_clip=2", "--expect", "clip_low=0.2"],
            "--expect must name a knob that is set, got clip_low",
        ),
        (["pause", RUN, "--as", "root"], "--as must be agent:NAME or person:NAME, got `root`"),
        (["pause", RUN, "--note", "a\tb"], "`note`"),
        (["silence", RUN, "RWD001"], "Missing option '--steps'"),
        (["act", RUN], "Missing argument 'ACTION_ID'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(runs: Path, capsys: Any, arguments: list[str], message: str):
    run = Run(runs)
    assert main(arguments) == 2
    said, err = out(capsys)
    assert (said, err.count("\n")) == ("", 1)
    assert message in err
    run.kill()


@pytest.mark.parametrize("yes", [[], ["--yes"]])
def test_a_run_that_is_dead_or_over_is_not_asked(runs: Path, capsys: Any, yes: list[str]):
    Run(runs, "dead").kill()
    assert main(["pause", "dead", *yes]) == 3
    assert "the run is dead: nobody would read the request" in out(capsys)[1]
    Run(runs, "over").end()
    assert main(["set", "over", "grad_clip=2", *yes]) == 3
    assert "the run has ended: nobody would read the request" in out(capsys)[1]
    assert main(["stop", "nowhere", *yes]) == 3
    assert list((runs / "dead" / "control").iterdir()) == []


def test_a_dry_run_as_json_is_one_record_with_the_request(runs: Path, capsys: Any):
    run = Run(runs)
    assert main(["set", RUN, "learning_rate=5e-7", "--as", "agent:nightwatch", "--note", "why", "--json"]) == 0
    record = json.loads(out(capsys)[0])
    assert (record["record"], record["state"]) == ("dry_run", "accepted")
    assert record["request"]["patches"] == [{"path": "learning_rate", "expect": 1e-06, "to": 5e-07}]
    assert (record["request"]["actor"], record["request"]["note"]) == ("agent:nightwatch", "why")
    assert main(["set", RUN, "learning_rate=5", "--json"]) == 2
    assert json.loads(out(capsys)[0])["state"] == "refused"
    run.kill()


def test_with_yes_the_change_is_made_and_reported(runs: Path, capsys: Any):
    run = Run(runs)
    with served(run) as loop:
        assert main(["set", RUN, "learning_rate=5e-7", "grad_clip=2", "--yes"]) == 0
        assert loop.knobs.learning_rate == 5e-7
        said, err = out(capsys)
        assert said.splitlines() == [
            "accepted: learning_rate 1e-06 -> 5e-07 from the next step on; grad_clip 1 -> 2 from the next step on",
            "applied at step 3: learning_rate 1e-06 -> 5e-07",
            "applied at step 3: grad_clip 1 -> 2",
        ]
        assert err == ""
        assert main(["set", RUN, "learning_rate=0.5", "--yes"]) == 2
        assert out(capsys)[1].startswith("tocsin: refused: `learning_rate` must be between")


def test_with_json_the_answer_and_its_effects_are_the_events_themselves(runs: Path, capsys: Any):
    run = Run(runs)
    with served(run):
        assert main(["set", RUN, "grad_clip=2", "--yes", "--json", "--idempotency-key", "k"]) == 0
        answer, effect = map(json.loads, out(capsys)[0].splitlines())
        assert (answer["type"], answer["state"], answer["idempotency_key"]) == ("control_answered", "accepted", "k")
        assert (effect["type"], effect["after"], effect["request_id"]) == ("knob_changed", 2.0, answer["request_id"])
        assert main(["set", RUN, "grad_clip=2", "--yes", "--json", "--idempotency-key", "k"]) == 0
        (answer,) = map(json.loads, out(capsys)[0].splitlines())
        assert answer["state"] == "duplicate"


def test_pause_resume_checkpoint_and_stop_wait_for_what_they_asked_for(runs: Path, capsys: Any):
    run = Run(runs)
    with served(run):
        for verb, said in (
            ("pause", "paused at step 3"),
            ("checkpoint", "saved at step 3: checkpoints/step-000040"),
            ("resume", "went on at step 3 after "),
            ("stop", "ended at step 3: interrupted"),
        ):
            assert main([verb, RUN, "--yes"]) == 0
            assert out(capsys)[0].splitlines()[1].startswith(said)


def test_a_silence_is_done_when_it_is_answered(runs: Path, capsys: Any):
    run = Run(runs)
    with served(run):
        assert main(["silence", RUN, "RWD001", "--steps", "50", "--yes"]) == 0
        assert out(capsys)[0] == "accepted: records of RWD001 zero-std-groups are held back until step 50\n"


def test_an_action_ends_with_its_verdict_when_that_is_waited_for(runs: Path, capsys: Any):
    run = Run(runs).firing()
    with served(run) as loop:
        timer = threading.Timer(
            1.0, lambda: run.writer.record(example(ActionRecord, action_id=ACTION, state="target_met"))
        )
        timer.start()
        assert main(["act", RUN, ACTION, "--yes", "--wait", "--as", "agent:nightwatch"]) == 0
        timer.join()
        assert loop.knobs.group_size == 16
        said = out(capsys)[0].splitlines()
        assert said[1] == "applied at step 3: group_size 8 -> 16"
        assert "target_met" in said[2]


def test_a_verdict_that_is_not_the_target_is_exit_code_1(runs: Path):
    run = Run(runs).firing()
    with served(run):
        timer = threading.Timer(
            1.0, lambda: run.writer.record(example(ActionRecord, action_id=ACTION, state="no_effect"))
        )
        timer.start()
        assert main(["act", RUN, ACTION, "--yes", "--wait"]) == 1
        timer.join()


def test_a_placeholder_takes_its_value_from_the_command_line(runs: Path, capsys: Any):
    action = example(Diagnostic).actions[0]
    open_patch = action.patches[0].model_copy(update={"to": None})
    open_action = action.model_copy(update={"applicability": "placeholder", "patches": [open_patch]})
    run = Run(runs).firing(actions=[open_action])
    assert main(["act", RUN, ACTION]) == 2
    assert "for instance --value group_size=8" in out(capsys)[1]
    assert main(["act", RUN, ACTION, "--value", "group_size=12"]) == 0
    assert "group_size 8 -> 12" in out(capsys)[0]
    run.kill()


def test_a_run_that_does_not_answer_is_not_changed_later(runs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli_control, "ANSWER_S", 0.2)
    run = Run(runs)
    assert main(["pause", RUN, "--yes"]) == 3
    assert "no answer within 0.2 s; the request was withdrawn" in out(capsys)[1]
    assert list((run.folder / "control").iterdir()) == []
    run.kill()


def test_of_two_agents_in_two_processes_exactly_one_changes_the_knob(runs: Path):
    run = Run(runs)
    with served(run) as loop:
        agents: list[subprocess.Popen[str]] = [
            command("set", RUN, f"learning_rate={value}", "--expect", "learning_rate=1e-6", "--yes", "--json")
            for value in ("5e-7", "2e-6")
        ]
        outputs = [agent.communicate(timeout=60) for agent in agents]
        codes = [agent.returncode for agent in agents]
        assert sorted(codes) == [0, 2], outputs
        assert loop.position.config_generation == 1
        winner = json.loads(outputs[codes.index(0)][0].splitlines()[1])
        assert loop.knobs.learning_rate == winner["after"]
        refused = ControlAnswered.model_validate_json(outputs[codes.index(2)][0])
        assert refused.state == "refused"
        assert "must be" in refused.reason


def test_an_action_can_be_got_by_its_id(runs: Path, capsys: Any):
    run = Run(runs).firing()
    run.writer.record(example(ActionRecord, action_id=ACTION, state="applied"))
    main(["get", RUN, ACTION])
    assert "applied" in out(capsys)[0]
    main(["get", RUN, "zero-std-groups/trainer#1", "--json"])
    assert [json.loads(line)["record"] for line in out(capsys)[0].splitlines()][-1] in ("action", "diagnostic")
    run.kill()
