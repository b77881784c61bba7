"""Where the commands of a test look for runs."""

from pathlib import Path

import pytest


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands look in by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"
