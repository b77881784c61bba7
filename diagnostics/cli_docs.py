"""`python -m tocsin.diagnostics.cli_docs [--check]`: write `docs/cli.md`, or fail when it is stale."""

import sys
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from tocsin.diagnostics.cli import app
from tocsin.schemas.page import write_or_check

PATH: Final = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
WIDTH: Final = 88
"""Columns of the help texts, whatever terminal the generator runs in."""

INTRODUCTION: Final = """\
# The `tocsin` command

Generated from the help texts by `make generate`; do not edit.

`RUN` is the path of a run folder, a run id, a unique prefix of one, or `latest`. Data goes to standard output,
everything else to standard error. Every command that prints data takes `--json`: one JSON object per line, absent
values left out.
"""


def document() -> str:
    """The whole page. Raises `ValueError` when a command's libraries are not installed."""
    root = typer.main.get_group(app)
    context = typer.Context(root, info_name="tocsin", terminal_width=WIDTH, max_content_width=WIDTH, color=False)
    sections = [INTRODUCTION, _block(root.get_help(context))]
    for name in root.list_commands(context):
        _, command, _ = root.resolve_command(context, [name])
        assert command is not None, "every listed command resolves"
        sections += _sections(command, typer.Context(command, info_name=name, parent=context, color=False))
    return "\n".join(sections)


def _sections(command: Any, context: typer.Context) -> list[str]:
    """One section for a command; one for each command of a group. `command` is `Any`: typer exports no name for it."""
    if not isinstance(command, TyperGroup):
        return [f"## {context.command_path}\n\n{_block(command.get_help(context))}"]
    inner = [typer.Context(one, info_name=name, parent=context, color=False) for name, one in command.commands.items()]
    return [section for one in inner for section in _sections(one.command, one)]


def _block(text: str) -> str:
    lines = (line.rstrip() for line in text.strip().splitlines())
    return "```text\n" + "\n".join(lines) + "\n```\n"


def main(arguments: list[str]) -> int:
    """The exit code of `write_or_check`."""
    return write_or_check(PATH, document, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
