"""Both doors of a run that really trains, on rows whose text gives orders, with a reward function that quotes it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.diagnostics.serve.servers import ACTOR, serving, with_token
from tests.diagnostics.serve.test_tools import data
from tests.diagnostics.serve.test_untrusted import PLANT, assert_nothing_is_quoted, everything_told
from tests.trainer.runs import LiveRun, start, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.recording import judge_again
from tocsin.diagnostics.render import line
from tocsin.schemas.config import DataConfig, EvaluationConfig, RewardConfig, RunConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.events import KnobChanged, RolloutFailed

pytestmark = pytest.mark.training

QUOTING = f"""
def quoting(completions, prompts, lesson):
    scores = []
    for completion, prompt, text in zip(completions, prompts, lesson):
        if len(set(completion)) % 4 == 1:
            raise ValueError(f"cannot score {{completion}}: {PLANT} {{prompt}} {{text}}")
        scores.append(len(set(completion)) / 8)
    return scores
"""


def quoting_config(policy: TinyPolicy, folder: Path) -> RunConfig:
    """A run on rows with planted text: in a column of each, and instead of the prompt of every tenth."""
    rows = [json.loads(text) for text in policy.train.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["lesson"] = PLANT
        row["prompt"] = PLANT if number % 10 == 0 else row["prompt"]
    train = folder / "planted.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "quoting_rewards.py").write_text(QUOTING)
    return tiny_config(
        policy,
        steps=100_000,
        data=DataConfig(train=str(train)),
        rewards=[RewardConfig(function="quoting_rewards:quoting")],
        evaluation=EvaluationConfig(every=0, prompts=4),
    )


@pytest.fixture(scope="module")
def live(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    folder = tmp_path_factory.mktemp("quoting")
    config = quoting_config(tiny_policy, folder)
    with start("train", write_config(config, folder / "run.toml"), runs_dir=folder / "runs") as run:
        run.until_step(6)
        yield run
        run.interrupt()
        run.wait()


async def halve_and_double(client: Client) -> None:
    """Look, poll, and move a knob of the run there and back: tried first, then done."""
    status = data(await client.call_tool("tocsin_status", {}))
    assert status["writer"]["state"] == "alive"
    page = data(await client.call_tool("tocsin_poll", {}))
    before = data(await client.call_tool("tocsin_knobs", {}))["knobs"]["grad_clip"]["value"]
    for to in (before / 2, before):
        arguments = {"values": {"grad_clip": to}, "note": "a test"}
        trial = data(await client.call_tool("tocsin_set", arguments))
        assert (trial["state"], trial["applied"]) == ("would_be_accepted", False)
        assert data(await client.call_tool("tocsin_set", {**arguments, "apply": True}))["applied"] is True
    cursor, seen = page["next_cursor"], []
    while len(seen) < 2:
        page = data(await client.call_tool("tocsin_poll", {"cursor": cursor, "wait_s": 10}))
        cursor = page["next_cursor"]
        seen += [r for r in page["records"] if r.get("path") == "grad_clip" and r["state"] == "applied"]
    assert {record["actor"] for record in seen} == {ACTOR}


def test_an_agent_changes_the_run_over_standard_input_and_output(live: LiveRun):
    arguments = ["-m", "tocsin.diagnostics.cli", "mcp", "--runs-dir", str(live.folder.parent)]
    server = StdioServerParameters(command=sys.executable, args=[*arguments, "--allow-changes", "--as", ACTOR])

    async def ask() -> None:
        async with Client(server) as client:
            await halve_and_double(client)

    anyio.run(ask)


def test_an_agent_changes_the_run_over_http(live: LiveRun):
    async def ask(url: str) -> None:
        async with (
            httpx2.AsyncClient(headers=with_token(), timeout=60) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
        ):
            await halve_and_double(client)

    with serving(live.folder.parent) as client:
        anyio.run(ask, str(client.base_url))
        answer = client.post("/runs/latest/set", json={"values": {"learning_rate": 2.0}}, headers=with_token())
        assert (answer.status_code, "must be between 0 and 1" in answer.json()["detail"]) == (409, True)
    changes = [event for event in read_events(live.folder / "events.jsonl") if isinstance(event, KnobChanged)]
    assert {(change.path, change.actor) for change in changes} == {("grad_clip", ACTOR)}


def test_what_the_run_reads_and_writes_is_told_by_neither_door(live: LiveRun):
    events = list(read_events(live.folder / "events.jsonl"))
    failures = [event.error for event in events if isinstance(event, RolloutFailed)]
    assert any(PLANT in error for error in failures), "the plant must be on file"
    assert_nothing_is_quoted(everything_told(live.folder.parent, live.folder.name, 6))
    records = judge_again(live.folder / "events.jsonl").records
    assert any(isinstance(record, Diagnostic) for record in records), "something must be found, or nothing is proved"
    for record in records:
        assert_nothing_is_quoted(line(record) + record.model_dump_json())
