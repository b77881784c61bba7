"""The example of a custom rule: short, installed by pip as any package, and heard in a replay and in a live run."""

import ast
import json
import lzma
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.diagnostics.recordings.record import FOLDER
from tests.schemas.examples import MANIFEST
from tocsin.diagnostics.runs import write_manifest
from tocsin.schemas.config import DiagnosticsConfig

EXAMPLE = Path(__file__).parents[2] / "agents_examples" / "custom_rule"
MOST_LINES = 25


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip installed the example, offline."""
    folder = tmp_path_factory.mktemp("custom_rule")
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    pip = [sys.executable, "-m", "pip", "install", *offline, "--target", folder / "site", source]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def tocsin(site: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command in `folder`, where the example is installed."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "tocsin.diagnostics.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def said(output: str) -> list[dict[str, Any]]:
    """Records of the example among those that were printed."""
    return [record for record in map(json.loads, output.splitlines()) if record.get("code") == "XEX001"]


def code_lines(path: Path) -> int:
    """Lines of a module without blank ones, comments and docstrings."""
    text = path.read_text()
    lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_the_whole_rule_is_a_screen_of_code():
    (module,) = EXAMPLE.glob("*.py")
    assert code_lines(module) <= MOST_LINES


def test_a_recorded_run_is_judged_by_the_bound_that_it_declares(site: Path, tmp_path: Path):
    (tmp_path / "events.jsonl").write_bytes(lzma.decompress((FOLDER / "demo.jsonl.xz").read_bytes()))
    usual = tocsin(site, tmp_path, "replay", "events.jsonl", "--json")
    assert (usual.stderr, said(usual.stdout)) == ("", [])

    section = DiagnosticsConfig(thresholds={"XEX001": {"fire": 8, "clear": 9}})
    config = MANIFEST.config.model_copy(update={"diagnostics": section})
    write_manifest(tmp_path, MANIFEST.model_copy(update={"config": config, "versions": {"tocsin": version("tocsin")}}))
    (first, *_) = said(tocsin(site, tmp_path, "replay", "events.jsonl", "--json").stdout)
    assert (first["severity"], first["state"]) == ("warning", "firing")
    assert first["summary"] == "Completions have 7.0 tokens on average, 8 are declared as the least"


def test_the_rule_is_listed_and_explained_with_its_package(site: Path, tmp_path: Path):
    listed = tocsin(site, tmp_path, "rules", "--json")
    assert json.loads(listed.stdout.splitlines()[-1])["package"] == "tocsin-short-answers 0.1.0"
    assert tocsin(site, tmp_path, "explain", "x-short-answers").stdout.startswith("# XEX001 x-short-answers")


@pytest.mark.training
def test_a_live_run_in_which_answers_are_cut_says_so(site: Path, tmp_path: Path):
    done = tocsin(site, tmp_path, "demo", "--fault", "truncated", "--onset", "20", "--steps", "40")
    assert done.returncode == 0, done.stderr
    feed = tocsin(site, tmp_path, "feed", "latest", "--json", "--limit", "1000")
    assert [(record["state"], record["severity"]) for record in said(feed.stdout)][:1] == [("firing", "warning")]
    assert tocsin(site, tmp_path, "status", "latest").returncode == 1
