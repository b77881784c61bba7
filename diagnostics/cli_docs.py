"""`python -m tocsin.diagnostics.cli_docs [--check]`: write `docs/cli.md`, or fail when it is stale."""

import sys
from pathlib import Path
from typing import Final

import typer

from tocsin.diagnostics.cli import app

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
        inner = typer.Context(command, info_name=name, parent=context, color=False)
        sections.append(f"## tocsin {name}\n\n{_block(command.get_help(inner))}")
    return "\n".join(sections)


def _block(text: str) -> str:
    lines = (line.rstrip() for line in text.strip().splitlines())
    return "```text\n" + "\n".join(lines) + "\n```\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` compare it. Exit code 1 when it is stale, 2 for anything else given."""
    if arguments not in ([], ["--check"]):
        print(f"arguments must be none or `--check`, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    if not PATH.parent.is_dir():
        print(f"{PATH.parent} must be a folder; run this in a checkout of the repository", file=sys.stderr)
        return 2
    page = document()
    if not arguments:
        PATH.write_text(page, encoding="utf-8")
        return 0
    if not PATH.exists() or PATH.read_text(encoding="utf-8") != page:
        print(f"{PATH} is not fresh; run `make generate`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
