"""Commands of other packages, which load when they are called and at no other time, and the help texts."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.diagnostics.run_folder import Run, command
from tocsin.diagnostics import cli_docs
from tocsin.diagnostics.cli import main


def test_help_and_reading_import_no_machine_learning_library_and_no_trainer(runs):
    Run(runs).healthy().end()
    code = """
import sys
from tocsin.diagnostics.cli import main
codes = [main(["--help"]), main(["status", "latest"]), main(["feed", "latest"]), main(["rules"])]
heavy = ("torch", "transformers", "vllm", "pyarrow", "datasets")
loaded = [name for name in sys.modules if name.split(".")[0] in heavy or name.startswith("tocsin.trainer")]
print(codes, loaded, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[0, 0, 0, 0] []"


def test_help_lists_the_commands_of_the_trainer(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\n  train +Train a language model by asynchronous GRPO\.", out)
    assert re.search(r"\n  demo +Watch a small model learn in two minutes\.", out)


def test_training_without_its_libraries_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; from tocsin.diagnostics.cli import main; sys.exit(main(['train']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "tocsin: train: needs torch, which this environment lacks; install with: pip install 'tocsin[train]'\n"
    )


def plugin(folder: Path, body: str) -> dict[str, str]:
    """Environment in which a package below `folder` adds the command `greet`."""
    (folder / "greeter.py").write_text(body)
    info = folder / "greeter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tocsin.commands]\ngreet = greeter:greet\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_another_package_adds_a_command_with_its_own_options(tmp_path):
    body = """
from typing import Annotated
import typer

def greet(name: str, loud: Annotated[bool, typer.Option(help="Shout.")] = False) -> int:
    "Greet somebody."
    print(name.upper() if loud else name)
    return 1
"""
    environment = plugin(tmp_path, body)
    with command("--help", env=environment) as process:
        assert re.search(r"\n  greet +From the package greeter\.", process.communicate()[0])
    with command("greet", "--help", env=environment) as process:
        assert "Shout." in process.communicate()[0]
    with command("greet", "ada", "--loud", env=environment) as process:
        assert process.communicate() == ("ADA\n", "")
    assert process.returncode == 1


def test_another_package_adds_a_group_of_commands(tmp_path):
    body = """
import typer

greet = typer.Typer()

@greet.callback()
def about() -> None:
    "Greetings."

@greet.command()
def loudly(name: str) -> None:
    "Greet somebody from afar."
    print(name.upper())
"""
    environment = plugin(tmp_path, body)
    with command("greet", "--help", env=environment) as process:
        assert "loudly" in process.communicate()[0]
    with command("greet", "loudly", "ada", env=environment) as process:
        assert process.communicate() == ("ADA\n", "")


def test_a_command_that_cannot_be_imported_is_named_in_one_line(tmp_path):
    with command("greet", env=plugin(tmp_path, "import no_such_library")) as process:
        _, err = process.communicate()
    assert process.returncode == 2
    assert err == (
        "tocsin: greet: `greeter:greet` cannot be imported: No module named 'no_such_library'; reinstall its package\n"
    )


def test_every_command_has_a_help_text_with_an_example():
    page = cli_docs.document()
    sections = page.split("\n## tocsin ")[1:]
    names = [section.split("\n", 1)[0] for section in sections]
    reading = ["status", "feed", "watch", "get", "explain", "rules", "snapshot", "replay", "knobs"]
    changing = ["act", "set", "silence", "pause", "resume", "checkpoint", "stop", "send", "skill"]
    ours = ["train", "check", "demo", "bench detect", "bench overhead", "vllm serve", "serve", "mcp"]
    assert names == [*reading, *changing, *ours]
    for name, section in zip(names, sections, strict=True):
        assert re.search(rf"\n  Example:\n +tocsin {name}\b", section)


def test_the_committed_page_of_help_texts_is_fresh():
    assert cli_docs.main(["--check"]) == 0


def test_the_page_does_not_depend_on_the_terminal(monkeypatch):
    page = cli_docs.document()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cli_docs.document() == page
    assert page.isascii()
    assert all(line.isprintable() for line in page.splitlines())


def test_the_version_is_the_one_of_the_distribution(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tocsin 0.")


def test_no_arguments_print_the_help_and_are_a_usage_error(capsys):
    assert main([]) == 2
    assert "Usage: tocsin" in capsys.readouterr().out
