"""Commands that ask the rules: replay, what is pending, explanations and the list."""

import json

import pytest

from tests.diagnostics.run_folder import RUN, Run, lines
from tests.schemas.examples import MANIFEST
from tocsin.diagnostics.cli import main
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.runs import write_manifest
from tocsin.schemas.config import DiagnosticsConfig
from tocsin.schemas.events import DeviceInfo, ResourcesSampled
from tocsin.schemas.resources import DeviceMemory, PhasePeak
from tocsin.schemas.step import MicrobatchStats

NAN = {"outcome": "nonfinite", "nonfinite": ["grad_norm"]}
GIB = 2**30


def numerics(runs, *, nan_at, steps):
    """A finished run of so many steps, one of which was not finite, without any record yet."""
    run = Run(runs)
    for number in range(1, steps + 1):
        run.step(number, max_staleness=2, **(NAN if number == nan_at else {}))
    return run.end()


def test_replay_prints_the_records_of_the_live_run(runs, capsys):
    events = list(read_events(numerics(runs, nan_at=3, steps=4).folder / "events.jsonl"))
    live = Run(runs, "live")
    (live.folder / "events.jsonl").write_text((runs / RUN / "events.jsonl").read_text())
    engine = Engine()
    for event in events:
        for record in engine.observe(event):
            live.writer.record(record)
    live.kill()
    assert main(["replay", "live", "--json"]) == 1
    replayed = lines(capsys)
    _, *feed = map(json.loads, (live.folder / "feed.jsonl").read_text().splitlines())
    written = [{**record, "run_id": RUN} for record in feed]
    assert replayed == written
    assert [record["state"] for record in replayed if record.get("code") == "POL015"] == ["firing", "firing"]


def test_replay_takes_a_file_and_says_what_fired(runs, capsys):
    run = numerics(runs, nan_at=3, steps=4)
    assert main(["replay", str(run.folder / "events.jsonl")]) == 1
    out = capsys.readouterr().out
    assert "[tocsin] CRITICAL POL015 nan-inf: Not finite at step 3: `grad_norm` -> lower learning_rate" in out
    assert (run.folder / "feed.jsonl").read_text().count("\n") == 1


def test_replay_is_clear_when_what_fired_was_resolved(runs):
    numerics(runs, nan_at=3, steps=20)
    assert main(["replay", RUN]) == 0


def test_replay_of_a_run_without_steps_cannot_be_judged(runs):
    Run(runs).end()
    assert main(["replay", RUN]) == 3


def test_replay_switches_rules_off_as_the_run_did(runs, capsys):
    run = numerics(runs, nan_at=3, steps=4)
    config = MANIFEST.config.model_copy(update={"diagnostics": DiagnosticsConfig(disable=["nan-inf"])})
    write_manifest(run.folder, MANIFEST.model_copy(update={"config": config}))
    main(["replay", RUN, "--json"])
    records = lines(capsys)
    assert not [record for record in records if record.get("code") == "POL015"]
    assert records[-1]["not_evaluated"]["POL015"]["reason"] == "disabled"


def test_pending_is_shown_on_request_and_does_not_count_as_open(runs, capsys):
    run = Run(runs, devices=[DeviceInfo(name="cuda:0", kind="simulated", memory_bytes=24 * GIB)]).healthy()
    peak = {"forward_backward": PhasePeak(allocated_bytes=4 * GIB, reserved_bytes=4 * GIB)}
    memory = DeviceMemory(device="cuda:0", kind="simulated", total_bytes=24 * GIB, baseline_bytes=GIB, phases=peak)
    batches = MicrobatchStats(num=8, token_budget=4096, max_tokens=4000, padded_frac=0.1)
    for number in range(1, 12):
        run.event(ResourcesSampled, step=number, devices=[memory], microbatches=batches)
        run.step(number, max_staleness=2)
    run.end()
    assert main(["status", RUN, "--pending"]) == 0
    out = capsys.readouterr().out
    assert "1 pending" in out
    assert "PENDING    SYS001 vram-underused" in out
    assert main(["status", RUN, "--pending", "--json"]) == 0
    assert [(line["record"], line.get("state")) for line in lines(capsys)] == [
        ("status", None),
        ("diagnostic", "pending"),
        ("coverage", None),
    ]
    main(["status", RUN])
    assert "pending" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["RWD001", "zero-std-groups", "rwd001"])
def test_explain_prints_the_documentation_of_a_rule(capsys, name):
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# RWD001 zero-std-groups")
    for heading in ("What it means", "How it is detected", "Known false alarms", "What to do", "Sources"):
        assert f"## {heading}" in out


def test_explain_json_is_one_object_with_the_thresholds(capsys):
    assert main(["explain", "OFF001", "--json"]) == 0
    (rule,) = lines(capsys)
    assert (rule["code"], rule["name"]) == ("OFF001", "staleness-high")
    assert rule["thresholds"]


def test_an_unknown_rule_gets_the_nearest_one(capsys):
    assert main(["explain", "zero-std-group"]) == 2
    assert "`zero-std-groups`" in capsys.readouterr().err


def test_explain_says_why_a_mode_has_no_rule(capsys):
    assert main(["explain", "stale-drop-waste"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# OFF002 stale-drop-waste")
    assert "Cannot occur here. " in out
    assert main(["explain", "OFF002", "--json"]) == 0
    (mode,) = lines(capsys)
    assert mode["not_evaluated"]["reason"] == "cannot_occur"
    assert mode["not_evaluated"]["detail"] in out


def test_rules_lists_every_mode_with_or_without_a_rule(capsys):
    assert main(["rules"]) == 0
    out = capsys.readouterr().out
    assert main(["rules", "--json"]) == 0
    listed = lines(capsys)
    assert len(listed) == 81
    assert {"RWD001", "POL003", "POL015", "OFF001", "SYS001"} <= {mode["code"] for mode in listed if "kind" in mode}
    assert all(("kind" in mode) != ("not_evaluated" in mode) for mode in listed)
    assert all(mode["code"] in out and mode["name"] in out for mode in listed)
