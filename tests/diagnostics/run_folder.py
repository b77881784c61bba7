"""Run folders that the real writer wrote, from the hand-written examples of every record, and the command on them."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.examples import CPU, EVENT_EXAMPLES, MANIFEST, RECORD_EXAMPLES
from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.feed import RunWriter
from tocsin.diagnostics.runs import write_manifest
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import DeviceInfo, QueueSampled, RunEnded, RunStarted
from tocsin.schemas.step import StepCompleted

RUN = "sort-digits-1"


def example(kind: type[Any], **changes: Any) -> Any:
    found = next(item for item in (*EVENT_EXAMPLES, *RECORD_EXAMPLES) if isinstance(item, kind))
    return found.model_copy(update=changes)


class Run:
    """A run folder below `runs_dir`, held open by its writer until `kill` or `end`.

    `declared` is the number of the newest attempt in the manifest; without `started` it has said nothing yet.
    """

    def __init__(
        self,
        runs_dir: Path,
        run_id: str = RUN,
        devices: Sequence[DeviceInfo] = (CPU,),
        *,
        declared: int = 1,
        started: bool = True,
    ) -> None:
        self.folder = runs_dir / run_id
        self.writer = RunWriter(self.folder, run_id)
        # No release: what is recorded here is written by hand, and no engine would say it.
        unknown = {"python": "3.11"}
        attempts = [MANIFEST.attempts[0].model_copy(update={"attempt": number + 1}) for number in range(declared)]
        changes = {"run_id": run_id, "versions": unknown, "attempts": attempts}
        write_manifest(self.folder, MANIFEST.model_copy(update=changes))
        if started:
            self.event(RunStarted, step=0, devices=list(devices), setup=None)

    def event(self, kind: type[BaseEvent], **changes: Any) -> None:
        self.writer.event(example(kind, **{"ts": utc_text(), "attempt": 1, **changes}))

    def step(self, number: int, **changes: Any) -> None:
        """A step of a run without filters and without a reference, in which nothing is wrong unless `changes` say."""
        groups = example(BatchConsumed).groups
        later = [index + number * len(groups.group_index) for index in groups.group_index]  # never one twice
        usual = {"kl_ref": None, "groups": groups.model_copy(update={"group_index": later})}
        for kind in (BatchConsumed, StepCompleted, QueueSampled):
            known = usual if kind is BatchConsumed else {"kl_ref": None}
            own = {name: part for name, part in {**known, **changes}.items() if name in kind.model_fields}
            self.event(kind, step=number, **own)

    def healthy(self) -> "Run":
        self.writer.record(example(Coverage))
        return self

    def firing(self, **changes: Any) -> "Run":
        self.healthy().writer.record(example(Diagnostic, relations=[], **changes))
        return self

    def end(self, outcome: str = "completed", error: str | None = None) -> "Run":
        self.event(RunEnded, step=3, outcome=outcome, error=error)
        return self.kill()

    def kill(self) -> "Run":
        self.writer.close()
        return self


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Standard output as JSON Lines; standard error must be empty."""
    out, err = capsys.readouterr()
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


def command(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tocsin.diagnostics.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
