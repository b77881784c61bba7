"""A run for agents to look after: trained on a pretended device of which its small token budget leaves most unused.

SYS001 fires at step 53 and its action, a budget with room for a whole step, is what cures it. With the rule that is
wrong on purpose there is an action that harms as well: it doubles the temperature.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.trainer.runs import LiveRun, start, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.diagnostics.feed import FEED_FILE, parse_record
from tocsin.diagnostics.reader import FeedReader
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.config import DeviceConfig, DiagnosticsConfig, EvaluationConfig

EXAMPLES = Path(__file__).parents[2] / "agents_examples"
FINDING = "vram-underused/learner#1"
CURE = f"{FINDING}/raise-microbatch-tokens"
HARM = "identical-completions/sampler#1/raise-temperature"
WRONG_RULE = [sys.executable, "-m", "tocsin.trainer.bench.attempt"]


@contextmanager
def wasteful(policy: TinyPolicy, folder: Path, *, wrong_rule: bool = False) -> Iterator[LiveRun]:
    """The run, which goes on until it is interrupted, with more than the usual patience."""
    config = tiny_config(
        policy,
        steps=100_000,
        knobs={"groups_per_step": 5, "microbatch_tokens": 64, "skip_zero_spread": False},
        device=DeviceConfig(learner="cpu", sampler="cpu", threads=1, simulated_memory_gib=1.3),
        evaluation=EvaluationConfig(every=0, prompts=4),
        # Whether sampler or learner waits depends on the machine, and their findings move the same knob.
        diagnostics=DiagnosticsConfig(disable=["OFF016", "OFF017"]),
    )
    if wrong_rule:
        (folder / "config.json").write_text(config.model_dump_json(exclude_none=True))
        started = start(folder, "--wrong-rule", runs_dir=folder / "runs", command=WRONG_RULE)
    else:
        started = start("train", write_config(config, folder / "run.toml"), runs_dir=folder / "runs")
    with started as run:
        run.patience_s *= 3
        run.until((run.folder / FEED_FILE).exists)
        yield run


def actions(folder: Path) -> list[ActionRecord]:
    """What the feed says so far about actions, oldest first."""
    records = map(parse_record, (folder / FEED_FILE).read_bytes().splitlines()[1:])
    return [record for record in records if isinstance(record, ActionRecord)]


def states(folder: Path, action_id: str, actor: str) -> list[str]:
    """The life of one action in the hands of one actor."""
    return [record.state for record in actions(folder) if (record.action_id, record.actor) == (action_id, actor)]


def until_state(run: LiveRun, action_id: str, wanted: str) -> None:
    """Wait until the feed says that an action is in this state."""
    reader, cursor = FeedReader(run.folder), None

    def is_so() -> bool:
        nonlocal cursor
        page = reader.page(cursor, limit=1000)
        cursor = page.next_cursor
        records = [record for record in page.records if isinstance(record, ActionRecord)]
        return any((record.action_id, record.state) == (action_id, wanted) for record in records)

    run.until(is_so)


@contextmanager
def following(command: Sequence[str], said: Path, **variables: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A program that follows a run and ends with it; what it says goes to a file."""
    with said.open("wb") as file:
        environment = {**os.environ, **variables}
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
