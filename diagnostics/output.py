"""Standard output of the command line: rich text for a terminal, plain text for a file, JSON Lines for a program."""

import os
import sys
from collections.abc import Iterable
from typing import Final

import typer
from pydantic import BaseModel
from rich.console import Console, RenderableType

from tocsin.diagnostics.errors import PIPE_CLOSED

PLAIN_WIDTH: Final = 120
"""Columns when standard output is not a terminal."""


class StdoutConsole(Console):
    """A rich console on standard output that takes no markup from data and ends quietly when its reader goes away."""

    def __init__(self) -> None:
        terminal = sys.stdout.isatty()
        super().__init__(
            file=sys.stdout,
            width=None if terminal else PLAIN_WIDTH,
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=not terminal,
        )

    def on_broken_pipe(self) -> None:
        close_pipe()


def show(*items: RenderableType) -> None:
    """Print for people, each item on lines of its own."""
    if not items:
        return
    console = StdoutConsole()
    if console.is_terminal:
        console.print(*items, sep="\n")
        return
    with console.capture() as captured:
        console.print(*items, sep="\n")
    _write(line.rstrip() for line in captured.get().splitlines())


def show_raw(text: str) -> None:
    """Print a file as it is, whatever the width of the terminal."""
    _write(text.removesuffix("\n").split("\n"))


def show_json(*lines: BaseModel | str) -> None:
    """Print JSON, one object per line, in ASCII so that no byte of it means anything to a terminal.

    Absent values are left out, as in the files of a run.
    """
    _write(
        item if isinstance(item, str) else item.model_dump_json(exclude_none=True, ensure_ascii=True) for item in lines
    )


def _write(lines: Iterable[str]) -> None:
    try:
        for line in lines:
            sys.stdout.write(line + "\n")
    except BrokenPipeError:
        close_pipe()
    flush()


def flush() -> None:
    """Hand everything to the reader now. Raises `typer.Exit` when there is none."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        close_pipe()


def note(text: str) -> None:
    """Print a remark for people on standard error."""
    print(text, file=sys.stderr, flush=True)


def close_pipe() -> None:
    """End the command because nobody reads standard output. What is still buffered goes nowhere.

    Raises `typer.Exit`.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(PIPE_CLOSED)
