"""`tocsin skill`: what an agent has to know to look after a run, as a skill that it can load."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from tocsin.diagnostics.output import note, show_raw

app = typer.Typer()

SKILL: Final = Path(__file__).with_name("SKILL.md")
"""Part of the package, so that it fits the installed commands."""


@app.command()
def skill(
    install: Annotated[
        Path | None, typer.Option("--install", metavar="DIR", help="Write it to DIR/tocsin/SKILL.md instead.")
    ] = None,
) -> None:
    """Print the skill for agents that look after runs, as Markdown.

    With --install it becomes a file where an agent looks for skills. A file that says something else is never
    overwritten.

    \b
    Example:
      tocsin skill --install .claude/skills
    """
    text = SKILL.read_text(encoding="utf-8")
    if install is None:
        show_raw(text)
        return
    target = install / "tocsin" / "SKILL.md"
    if target.exists() and target.read_bytes() != text.encode():
        raise ValueError(f"`{target}` must not exist with another text; remove it to have the one of this release")
    target.parent.mkdir(parents=True, exist_ok=True)
    _replace(target, text)
    note(f"wrote {target}")


def _replace(target: Path, text: str) -> None:
    """Write a file in one step, so that no agent loads half of it. Raises `OSError`, and leaves nothing behind then."""
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
