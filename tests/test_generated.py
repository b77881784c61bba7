import re
import subprocess
import sys
from pathlib import Path

import pytest

from tocsin.diagnostics.rules import ALL_RULES
from tocsin.schemas.config import RunConfig
from tocsin.schemas.events import EVENT_TYPES
from tocsin.schemas.export import EXPORTED
from tocsin.schemas.feed import RECORD_KINDS
from tocsin.schemas.knobs import Knobs

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "module",
    [
        "tocsin.schemas",
        "tocsin.schemas.config_docs",
        "tocsin.diagnostics.catalogue",
        "tocsin.diagnostics.cli_docs",
        "tocsin.diagnostics.serve.openapi",
    ],
)
def test_what_is_generated_and_committed_is_fresh(module: str):
    done = subprocess.run(
        [sys.executable, "-m", module, "--check"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("document", ["README.md", "AGENTS.md", "agents_examples/README.md"])
def test_every_file_that_a_document_names_exists(document: str):
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    named = re.findall(r"`((?:schemas|diagnostics|trainer|tests|docs|agents_examples)/[\w./-]*|\.ci/\w+)`", text)
    missing = [f"{document}: {path}" for path in links if not (ROOT / document).parent.joinpath(path).exists()]
    missing += [f"{document}: {path}" for path in named if not (ROOT / path).exists()]
    assert not missing, "\n".join(missing)


def test_the_changelog_names_every_event_knob_schema_section_and_rule():
    text = (ROOT / "CHANGELOG.md").read_text()
    names = [*EVENT_TYPES, *RECORD_KINDS, *EXPORTED, *Knobs.model_fields, *RunConfig.model_fields]
    assert [name for name in names if f"`{name}`" not in text] == []
    assert [rule.code for rule in ALL_RULES if f"{rule.code} `{rule.name}`" not in " ".join(text.split())] == []
