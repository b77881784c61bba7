"""`tocsin check`: everything that a run would find out late. Importing this module imports no model library."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tocsin.diagnostics import render
from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.errors import BAD_INPUT, CLEAR, OPEN, error_line
from tocsin.diagnostics.options import RUNS, RunsDir
from tocsin.diagnostics.output import note, show, show_json
from tocsin.schemas.check import CheckReport, Gate
from tocsin.schemas.diagnosis import SEVERITIES
from tocsin.trainer.launch import read_config
from tocsin.trainer.preflight import check_inputs
from tocsin.trainer.processes import thread_environment

WORDS = {"passed": "pass", "failed": "FAIL", "not_evaluated": "skip"}
STYLES = {"passed": render.GOOD, "failed": "bold red", "not_evaluated": "yellow"}
NAME_WIDTH = 15
"""Columns for the name of a gate."""


def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Configuration of the run.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="Launch value of a knob; repeatable.")
    ] = None,
    runs_dir: RunsDir = RUNS,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check a configuration before compute hours are spent on it. Nothing is written to the runs folder.

    Loads the model and the sampler, then looks at the configuration, the prompts, free disk and memory, the chat
    template and BOS, the reward functions on a right and a wrong answer, end-of-sequence tokens and vocabulary of
    both sides, their log-probs on a probe, and weights sent to the sampler and back. `tocsin train` looks at all but
    the last two before its first step, and at those at its first weight sync.

    Exit code 0: every gate passed, 1: one failed, 2: bad input.

    \b
    Example:
        tocsin check run.toml
    """
    try:
        gates = _looked_at(config, settings or [], runs_dir, quiet=json)
    except ValueError as error:
        for line in str(error).splitlines():
            typer.echo(error_line(line), err=True)
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    passed = all(gate.outcome != "failed" for gate in gates)
    if json:
        show_json(CheckReport(ts=utc_text(), passed=passed, gates=gates))
    else:
        show(*(render.styled(found) for gate in gates for found in gate.findings), _verdict(gates))
    raise typer.Exit(CLEAR if passed else OPEN)


def _looked_at(path: Path, settings: list[str], runs_dir: Path, *, quiet: bool) -> list[Gate]:
    """The gates, each shown as soon as it is known unless `quiet`. Raises `ValueError` for bad input."""
    config = read_config(path, settings)
    check_inputs(config)
    os.environ.update(thread_environment(config.device.threads))
    with _Display() as display:
        display.stage("loading torch and transformers")
        from tocsin.trainer.check_run import checked  # noqa: PLC0415  seconds of imports, after what can be refused

        gates = []
        for gate in checked(config, runs_dir, display.stage):
            gates.append(gate)
            if not quiet:
                display.show(_line(gate))
    return gates


class _Display:
    """What goes on, on standard error: a spinner in a terminal, lines anywhere else."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("")

    def __enter__(self) -> "_Display":
        return self

    def __exit__(self, *error: object) -> None:
        self._status.stop()

    def stage(self, text: str) -> None:
        """Say what goes on."""
        if self._console.is_terminal:
            self._status.update(text)
            self._status.start()
        else:
            note(f"[tocsin] {text}")

    def show(self, line: RenderableType) -> None:
        """Print on standard output."""
        with self._aside():
            show(line)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Without the spinner, which may share the terminal."""
        self._status.stop()
        yield
        if self._console.is_terminal and sys.stdout.isatty():
            self._status.start()


def _line(gate: Gate) -> RenderableType:
    """One gate; in a terminal long summaries are folded below themselves."""
    word = Text(WORDS[gate.outcome], style=STYLES[gate.outcome])
    name, summary = f"{gate.name:<{NAME_WIDTH}}", render.clean(gate.summary)
    if not sys.stdout.isatty():
        return Text(f"{word.plain}  {name}  {summary}")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(word, Text(name), Text(summary))
    return grid


def _verdict(gates: list[Gate]) -> Text:
    failed = sum(gate.outcome == "failed" for gate in gates)
    found = [item.severity for gate in gates for item in gate.findings]
    counts = ", ".join(f"{found.count(severity)} {severity}" for severity in reversed(SEVERITIES) if severity in found)
    if not failed:
        return Text(f"{len(gates)} gates, none failed{f' ({counts})' if counts else ''}", style=render.GOOD)
    return Text(f"{failed} of {len(gates)} gates failed ({counts})", style="bold red")
