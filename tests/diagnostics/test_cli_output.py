"""What each command prints, for people and as JSON Lines."""

import re
import time

import pytest

from tests.diagnostics.run_folder import RUN, Run, example, lines
from tocsin.diagnostics.cli import main
from tocsin.diagnostics.clock import utc_text
from tocsin.schemas.base import NonFinite
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.events import EvaluationCompleted, RunContinued, RunPaused


def test_status_shows_writer_metrics_what_is_open_and_coverage(runs, capsys):
    run = Run(runs).firing()
    run.step(3)
    run.end()
    main(["status", "latest"])
    out, err = capsys.readouterr()
    assert err == ""
    for text in (
        RUN,
        "train.jsonl, reward exact; dapo, 16 x 8 completions a step, 400 steps",
        "ended: completed",
        "at step 3",
        "0.75, pass rate 0.75",
        "median 1, max 2, bound 1",
        "learner 14%, sampler 29% of the step",
        "1 warning open",
        "RWD001 zero-std-groups, since step 3",
        "52 of 64 groups",
        "-> Raise group_size from 8 to 16 [review]",
        f"tocsin get {RUN} zero-std-groups/trainer#1",
        "2 of 3 evaluated: POL015, RWD001",
        "not SYS001: not applicable: no accelerator",
    ):
        assert text in out


def test_status_json_is_a_status_line_the_open_diagnostics_and_coverage(runs, capsys):
    run = Run(runs).firing()
    run.step(3)
    run.end()
    assert main(["status", "latest", "--json"]) == 1
    status, diagnostic, coverage = lines(capsys)
    assert status["record"] == "status"
    assert status["writer"]["state"] == "ended"
    assert status["metrics"]["pass_rate"] == 0.75
    assert status["metrics"]["outcome"] == "completed"
    assert status["active"] == {"critical": 0, "warning": 1, "info": 0, "explained": 0}
    assert status["exit_code"] == 1
    assert diagnostic["code"] == "RWD001"
    assert coverage["evaluated"] == ["POL015", "RWD001"]


def test_status_shows_who_paused_a_run_and_for_how_long(runs, capsys):
    run = Run(runs).healthy()
    run.step(3)
    run.event(RunPaused, step=3, actor="person:ada", ts=utc_text(time.time() - 12))
    assert main(["status", "latest"]) == 0
    assert "alive: paused by person:ada for 12 s; last event " in capsys.readouterr().out
    main(["status", "latest", "--json"])
    assert lines(capsys)[0]["metrics"]["paused_by"] == "person:ada"
    run.event(RunContinued, step=3)
    main(["status", "latest"])
    run.kill()
    assert "paused" not in capsys.readouterr().out


def test_status_says_that_a_run_is_starting_and_not_how_the_attempt_before_ended(runs, capsys):
    Run(runs).healthy().end("failed", error="RuntimeError: the sampler died")
    run = Run(runs, declared=2, started=False)
    assert main(["status", "latest"]) == 0
    assert main(["feed", "latest"]) == 0
    run.kill()
    out = capsys.readouterr().out
    assert "starting: attempt 2; last event " in out
    assert "the sampler died" not in out


def test_status_says_that_a_new_run_is_starting_and_cannot_judge_it(runs, capsys):
    run = Run(runs, started=False)
    assert main(["status", "latest"]) == 3
    run.kill()
    assert "starting: attempt 1; no event yet" in capsys.readouterr().out


def test_status_names_the_step_of_an_older_held_out_result_and_caps_waits(runs, capsys):
    run = Run(runs).healthy()
    run.event(EvaluationCompleted, step=2, version=2, name="held-out", reward_mean=0.5, reward_se=0.125)
    run.step(2, sampler_wait_s=8.0, step_s=0.5)
    main(["status", "latest"])
    out = capsys.readouterr().out
    assert "reward 0.5 ± 0.125 (held-out)" in out
    assert "sampler 100% of the step" in out
    run.step(3)
    main(["status", "latest"])
    run.kill()
    assert "reward 0.5 ± 0.125 (held-out, step 2)" in capsys.readouterr().out


def test_get_does_not_say_twice_that_a_finding_is_resolved(runs, capsys):
    run = Run(runs).firing()
    run.writer.record(example(Diagnostic, state="resolved", reason="resolved"))
    run.end()
    assert main(["get", "latest", "RWD001"]) == 0
    out = capsys.readouterr().out
    assert "resolved, warning, " in out
    assert "resolved (resolved)" not in out


def test_status_and_get_say_what_a_finding_has_cost_and_its_summary_does_not(runs, capsys):
    Run(runs).firing().end()
    spent = "36 s, 5,120 tokens (4,160 without gradient); learner idle 1.5 s, sampler idle 0.2 s, 1 device"
    for arguments in (["status", "latest"], ["get", "latest", "RWD001"]):
        assert main(arguments) == 1
        out = capsys.readouterr().out
        assert re.search(rf"since then\s+{re.escape(spent)}", " ".join(out.split()))
    main(["feed", "latest"])
    assert "5,120" not in capsys.readouterr().out


def test_status_without_a_manifest_still_reports(runs, capsys):
    run = Run(runs).healthy().end()
    (run.folder / "run.json").unlink()
    assert main(["status", str(run.folder)]) == 0
    assert RUN in capsys.readouterr().out


def test_a_measured_nan_is_shown_as_nan_and_not_as_nothing(runs, capsys):
    run = Run(runs).healthy()
    run.step(1, reward_mean=NonFinite(nonfinite="nan"))
    run.end()
    main(["status", "latest"])
    assert "reward     nan" in capsys.readouterr().out
    main(["status", "latest", "--json"])
    assert lines(capsys)[0]["metrics"]["reward_mean"] == {"nonfinite": "nan"}


def test_feed_ends_with_a_page_line_whose_cursor_goes_on_without_gap_or_repeat(runs, capsys):
    run = Run(runs).firing()
    main(["feed", "latest", "--json"])
    *records, page = lines(capsys)
    assert [record["record"] for record in records] == ["coverage", "diagnostic"]
    assert page["record"] == "page"
    assert (page["has_more"], page["reset"], page["active"]["warning"]) == (False, False, 1)
    assert page["writer"]["state"] == "alive"
    run.writer.record(example(Diagnostic, state="resolved", reason="resolved"))
    run.end()
    main(["feed", "latest", "--json", "--since", page["next_cursor"]])
    resolved, page = lines(capsys)
    assert (resolved["state"], page["active"]["warning"], page["writer"]["state"]) == ("resolved", 0, "ended")


def test_feed_for_people_keeps_the_cursor_off_standard_output(runs, capsys):
    Run(runs).firing().end()
    main(["feed", "latest"])
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith("[tocsin] WARNING RWD001 zero-std-groups: 52 of 64 groups")
    assert len(out.splitlines()) == 2
    assert err.startswith("next: tocsin feed latest --since ")


def test_min_severity_leaves_milder_diagnostics_out(runs, capsys):
    run = Run(runs).firing()
    run.writer.record(example(Diagnostic, id="nan-inf/learner#1", code="POL015", name="nan-inf", severity="critical"))
    run.end()
    main(["feed", "latest", "--json", "--min-severity", "critical"])
    assert [record.get("code") for record in lines(capsys)] == ["POL015", None]


def test_get_shows_evidence_causes_actions_and_history(runs, capsys):
    run = Run(runs).firing()
    run.end()
    for id in ("zero-std-groups/trainer#1", "RWD001", "zero-std-groups"):
        assert main(["get", "latest", id]) == 1
        out = capsys.readouterr().out
        assert "zero_spread_frac 0.8125 > 0.5 over 64 groups (n 64, expected 0.14)" in out
        assert "Prompts are too easy. (weight 0.6)" in out
        assert "group_size 8 -> 16, within 2 to 1024, effective next opened step" in out
        assert "[tocsin] WARNING RWD001" in out


def test_get_json_is_every_record_about_it_and_0_when_it_is_resolved(runs, capsys):
    run = Run(runs).firing()
    run.writer.record(example(Diagnostic, state="resolved", reason="resolved"))
    run.end()
    assert main(["get", "latest", "zero-std-groups/trainer#1", "--json"]) == 0
    assert [record["state"] for record in lines(capsys)] == ["firing", "resolved"]


def test_snapshot_shows_the_steps_around_in_columns(runs, capsys):
    run = Run(runs).healthy()
    for step in range(1, 9):
        run.step(step, reward_mean=step / 8)
    run.end()
    assert main(["snapshot", "latest", "--around", "5", "--window", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == ["metric", "step", "4", "step", "5", "step", "6"]
    assert ["reward_mean", "0.5", "0.625", "0.75"] in [row.split() for row in rows]
    assert ["groups.reward_mean", "0.5..1", "0.5..1", "0.5..1"] in [row.split() for row in rows]
    assert ["logprob_gap.k1", "0.01", "0.01", "0.01"] in [row.split() for row in rows]


def test_snapshot_json_is_one_line_per_event_with_flat_metrics(runs, capsys):
    run = Run(runs).healthy()
    run.step(1)
    run.step(2, grad_norm=NonFinite(nonfinite="inf"))
    run.end()
    main(["snapshot", "latest", "--around", "2", "--window", "0", "--json"])
    rows = lines(capsys)
    assert [(row["step"], row["type"]) for row in rows] == [
        (2, "batch_consumed"),
        (2, "step_completed"),
        (2, "queue_sampled"),
    ]
    assert rows[0]["metrics"]["groups.zero_spread.frac"] == 0.5
    assert rows[1]["metrics"]["grad_norm"] == {"nonfinite": "inf"}
    assert rows[2]["metrics"]["ledger.launched"] == 10


def test_snapshot_shows_the_later_attempt_of_a_step_that_was_done_over(runs, capsys):
    run = Run(runs).healthy()
    run.step(2, reward_mean=0.25)
    run.step(2, reward_mean=0.5, attempt=2)
    run.end()
    main(["snapshot", "latest", "--around", "2", "--window", "0"])
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert ["reward_mean", "0.5"] in rows
    assert ["reward_mean", "0.25"] not in rows


@pytest.mark.corrupt_files_expected
def test_lines_that_cannot_be_read_are_counted_on_standard_error(runs, capsys):
    run = Run(runs).healthy()
    run.step(1)
    run.end()
    with (run.folder / "events.jsonl").open("a") as file:
        file.write('garbage\n{"type": "step_comp')
    assert main(["snapshot", "latest", "--around", "1"]) == 0
    assert "2 lines left out: line 7: not an event; line 8: torn" in capsys.readouterr().err


def test_knobs_are_listed_with_their_bounds(capsys):
    assert main(["knobs"]) == 0
    assert "16,777,216" in capsys.readouterr().out
    assert main(["knobs", "--json"]) == 0
    by_path = {knob["path"]: knob for knob in lines(capsys)}
    assert (by_path["group_size"]["min"], by_path["group_size"]["max"]) == (2, 1024)


def test_hostile_text_in_a_feed_does_not_reach_the_terminal(runs, capsys):
    hostile = "\x1b]0;owned\x07 \x9b2J \u202e[red]x[/red]"
    run = Run(runs).firing(summary=hostile)
    run.step(1, finish_reasons={hostile: 1})
    run.end("failed", error=hostile)
    for arguments in (["status", RUN], ["feed", RUN], ["get", RUN, "RWD001"], ["snapshot", RUN, "--around", "1"]):
        main(arguments)
        out = capsys.readouterr().out
        assert "owned" in out
        assert "[red]x[/red]" in out
        assert all(line.isprintable() for line in out.splitlines())
    main(["feed", RUN, "--json"])
    assert all(line.isascii() and line.isprintable() for line in capsys.readouterr().out.splitlines())
