"""The command line on run folders that the real writer wrote: exit codes, bad input, following, pipes and signals."""

import json
import signal

import pytest

from tests.diagnostics.run_folder import RUN, Run, command, example
from tocsin.diagnostics.cli import main
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.step import StepCompleted


def test_a_healthy_run_is_clear(runs):
    run = Run(runs).healthy()
    run.step(1)
    assert main(["status", "latest"]) == 0
    assert main(["feed", "latest"]) == 0
    run.kill()


def test_a_firing_diagnostic_is_open(runs):
    run = Run(runs).firing()
    run.step(1)
    assert main(["status", "latest"]) == 1
    assert main(["feed", "latest"]) == 1
    run.kill()


def test_a_diagnostic_without_data_is_open(runs):
    Run(runs).firing(state="no_data", reason="data_lost").end()
    assert main(["status", "latest"]) == 1


def test_a_resolved_diagnostic_is_clear(runs):
    run = Run(runs).firing()
    run.writer.record(example(Diagnostic, state="resolved", reason="resolved"))
    run.end()
    assert main(["status", "latest"]) == 0


def test_a_dead_run_is_never_clear_and_never_merely_open(runs, capsys):
    run = Run(runs).firing()
    run.step(1)
    run.kill()
    assert main(["status", "latest"]) == 3
    assert "dead: no process holds the run" in capsys.readouterr().out
    assert main(["feed", "latest"]) == 3
    assert main(["get", "latest", "RWD001"]) == 3


def test_an_ended_run_is_judged_by_what_was_open_at_its_end(runs):
    Run(runs, "one").healthy().end()
    Run(runs, "two").firing().end()
    assert main(["status", "one"]) == 0
    assert main(["status", "two"]) == 1


def test_a_failed_run_is_not_clear(runs, capsys):
    Run(runs).healthy().end("failed", error="RuntimeError: the sampler died")
    assert main(["status", "latest"]) == 1
    assert "failed" in capsys.readouterr().out
    assert main(["feed", "latest"]) == 1


def test_a_run_without_an_evaluated_rule_cannot_be_judged(runs, capsys):
    Run(runs).end()
    assert main(["status", "latest"]) == 3
    assert "nothing evaluated yet" in capsys.readouterr().out


def test_a_stalled_run_with_nothing_open_cannot_be_judged(runs):
    run = Run(runs).healthy()
    run.event(StepCompleted, step=1, ts="2026-01-31T12:00:00.000Z")
    assert main(["status", "latest"]) == 3
    run.kill()


def test_a_run_that_does_not_exist_cannot_be_judged(runs, capsys):
    assert main(["status", "latest"]) == 3
    assert main(["feed", "nowhere", "--runs-dir", "elsewhere"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["tocsin", "tocsin"]
    assert "start one with `tocsin demo`" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats"], "Did you mean 'status'?; see `tocsin --help`"),
        (["feed"], "Missing argument 'RUN'; see `tocsin feed --help`"),
        (["feed", "latest", "--limit", "0"], "'--limit'"),
        (["feed", "latest", "--min-severity", "grave"], "'--min-severity'"),
        (["feed", "latest", "--since", "yesterday"], "`cursor` must be a `next_cursor` as a page returned it"),
        (["get", "latest", "kl-runaway#1"], "there are: zero-std-groups/trainer#1"),
        (["explain", "XYZ999"], "XYZ999"),
        (["snapshot", "latest", "--around", "900"], "this run has steps 0 to 3"),
        (["snapshot", "latest"], "Missing option '--around'; see `tocsin snapshot --help`"),
        (["replay", "nowhere/events.jsonl"], "nowhere/events.jsonl"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(runs, capsys, arguments, message):
    Run(runs).firing().end()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tocsin: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.corrupt_files_expected
@pytest.mark.parametrize("content", [b"", b"not json\n", b'{"record": "header"}\n', b"\x00\xff\n"])
def test_a_file_that_is_no_feed_is_named_in_one_line(runs, capsys, content):
    run = Run(runs).healthy().end()
    (run.folder / "feed.jsonl").write_bytes(content)
    (run.folder / "events.jsonl").write_bytes(content)
    for arguments in (["feed", RUN], ["get", RUN, "x"], ["snapshot", RUN, "--around", "1"], ["replay", RUN]):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("tocsin: `")
        assert err.count("\n") == 1
        assert ".jsonl` must begin with a header line" in err


def test_follow_streams_until_the_run_ends_and_tells_by_its_exit_code(runs):
    run = Run(runs).healthy()
    with command("feed", RUN, "--follow", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["record"] == "coverage"
        assert json.loads(process.stdout.readline())["record"] == "page"
        run.writer.record(example(Diagnostic))
        assert json.loads(process.stdout.readline())["code"] == "RWD001"
        run.end()
        *_, last = process.stdout.read().splitlines()
        assert json.loads(last)["writer"]["state"] == "ended"
    assert process.returncode == 1


def test_follow_ends_with_3_when_the_run_dies(runs):
    run = Run(runs).healthy()
    with command("feed", RUN, "--follow", "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        run.kill()
        *_, last = process.stdout.read().splitlines()
        assert json.loads(last)["writer"]["state"] == "dead"
    assert process.returncode == 3


def test_ctrl_c_ends_following_quietly(runs):
    run = Run(runs).healthy()
    with command("feed", RUN, "--follow") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "")
    run.kill()


def test_a_reader_that_goes_away_ends_the_command_quietly(runs):
    run = Run(runs).healthy()
    for number in range(1, 400):
        run.writer.record(example(Diagnostic, id=f"zero-std-groups/trainer#{number}", episode=number))
    run.end()
    for flags in (["--json"], []):
        with command("feed", RUN, "--limit", "1000", *flags) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == ""
        assert process.returncode == 141
