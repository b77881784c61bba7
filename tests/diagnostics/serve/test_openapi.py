"""The OpenAPI document says what the server does: it is attacked with whatever the document allows and forbids."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.diagnostics.open_door import served
from tests.diagnostics.run_folder import Run
from tests.diagnostics.serve.servers import serving, with_token
from tocsin.diagnostics.serve.openapi import PATH, document
from tocsin.diagnostics.serve.routes import QUESTIONS, method


def attack(url: str, *options: str) -> None:
    """Run schemathesis with every check it has; it must find nothing."""
    (header, value), *_ = with_token().items()
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", "all", "--no-color"),
        *("--header", f"{header}: {value}", "--seed", "1", "--suppress-health-check", "all", *options),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr


def test_schemathesis_finds_nothing_in_what_is_read(runs: Path, tmp_path: Path):
    Run(runs, "ended").firing().end()
    Run(runs, "dead").firing().kill()
    with serving(runs) as client:
        attack(str(client.base_url), "--include-method", "GET", "--max-examples", "6")


def test_schemathesis_finds_nothing_in_what_changes_a_run(runs: Path, tmp_path: Path):
    run = Run(runs, "latest").firing()
    with served(run), serving(runs) as client:
        attack(str(client.base_url), "--include-method", "POST", "--exclude-path-regex", "stop$", "--max-examples", "6")


def test_every_question_is_in_the_document_and_nothing_else():
    asked = {(question.path, method(question)) for question in QUESTIONS}
    assert {(path, verb) for path, verbs in document()["paths"].items() for verb in verbs} == asked


def test_the_served_document_is_the_committed_one(runs: Path):
    with serving(runs) as client:
        assert client.get("/openapi.json").json() == json.loads(PATH.read_text())


@pytest.mark.parametrize("path", ["/runs", "/runs/loud/status", "/runs/loud/feed", "/rules/RWD001"])
def test_an_answer_fits_its_schema_also_when_a_later_version_adds_to_it(runs: Path, path: str):
    Run(runs, "loud").firing().end()
    name = path.replace("loud", "{run}").replace("RWD001", "{code}")
    answers = document()["paths"][name]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    schema = {**answers, "components": document()["components"]}
    with serving(runs) as client:
        answer = client.get(path).json()
    for found in (answer, {**answer, "added_in_1_9": True}):
        jsonschema.Draft202012Validator(schema).validate(found)
