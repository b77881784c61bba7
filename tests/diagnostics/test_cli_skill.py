"""`tocsin skill`: printed as it is, installed without loss, and right about every command, rule, state and tool."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from tests.diagnostics.serve.test_tools import CHANGING, READING
from tests.diagnostics.tuning import NAMES
from tocsin.diagnostics.cli import app, main
from tocsin.diagnostics.cli_skill import SKILL
from tocsin.schemas.actions import ActionState, Applicability
from tocsin.schemas.feed import WriterState

TEXT = SKILL.read_text()
COMMANDS = re.findall(r"^tocsin .+$", TEXT, re.MULTILINE) + re.findall(r"`(tocsin .+?)`", TEXT)
"""Every command line of the skill, in blocks and within sentences."""


def parsed(line: str) -> Any:
    """The context of a command line whose command, options and arguments exist. Raises what the command would."""
    _, *words = shlex.split(line)
    root = typer.main.get_group(app)
    context = typer.Context(root, info_name="tocsin")
    name, command, rest = root.resolve_command(context, words)
    assert command is not None
    return command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_in_the_skill_exists_with_its_options(line: str):
    assert parsed(line).params


def test_a_command_or_an_option_that_does_not_exist_would_be_noticed():
    assert len(COMMANDS) > 15
    for wrong in ("tocsin statsu latest", "tocsin status latest --jsn", "tocsin silence latest RWD001"):
        with pytest.raises(typer.TyperException):
            parsed(wrong)


def test_the_skill_is_short_and_has_the_front_matter_that_agents_look_for():
    lines = TEXT.splitlines()
    assert (lines[0], lines[1], lines[3]) == ("---", "name: tocsin", "---")
    assert re.fullmatch(r"description: [^:\n]{50,1000}", lines[2])
    assert len(lines) <= 120


def test_the_skill_names_every_exit_code_writer_state_verdict_applicability_and_tool():
    assert re.findall(r"^\| (\d) \|", TEXT, re.MULTILINE) == ["0", "1", "2", "3"]
    words = {*get_args(WriterState.model_fields["state"].annotation), *get_args(Applicability), *READING, *CHANGING}
    verdicts = {"target_met", "no_effect", "harmed", "inconclusive", "confounded", "reverted", "expired", "proposed"}
    assert verdicts <= set(get_args(ActionState))
    assert [word for word in sorted(words | verdicts) if f"`{word}`" not in TEXT] == []


def test_rules_that_the_skill_names_have_these_names():
    named = re.findall(r"\b([A-Z]{3}\d{3}) ([a-z]+-[a-z-]+)", TEXT)
    assert len(named) == 2
    assert [name for code, name in named if NAMES[code] != name] == []


def test_the_skill_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]):
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == TEXT


def test_a_narrow_terminal_does_not_wrap_the_skill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == TEXT


def test_the_skill_is_installed_and_another_text_is_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    target = tmp_path / "skills" / "tocsin" / "SKILL.md"
    for _ in range(2):
        assert main(["skill", "--install", str(tmp_path / "skills")]) == 0
        assert capsys.readouterr() == ("", f"wrote {target}\n")
        assert target.read_text() == TEXT
    target.write_text("mine")
    assert main(["skill", "--install", str(tmp_path / "skills")]) == 2
    assert "must not exist with another text" in capsys.readouterr().err
    assert target.read_text() == "mine"


def test_a_file_that_is_no_text_is_another_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = tmp_path / "tocsin" / "SKILL.md"
    target.parent.mkdir()
    target.write_bytes(b"caf\xe9")
    assert main(["skill", "--install", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"tocsin: `{target}` must not exist with another text; remove it to have the one of this release\n"
    )
    assert target.read_bytes() == b"caf\xe9"


@pytest.mark.parametrize("failing", ["write_text", "replace"])
def test_an_installation_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failing: str
):
    def fail(path: Path, *_: object, **__: object) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, failing, fail)
    assert main(["skill", "--install", str(tmp_path)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list((tmp_path / "tocsin").iterdir()) == []
