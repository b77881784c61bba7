import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("module", ["tocsin.schemas", "tocsin.diagnostics.catalogue", "tocsin.diagnostics.cli_docs"])
def test_what_is_generated_and_committed_is_fresh(module: str):
    done = subprocess.run(
        [sys.executable, "-m", module, "--check"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
