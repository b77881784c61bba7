"""What holds for every test: one thread per process, no model hub, and every record left on disk is valid."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.records import problems

if TYPE_CHECKING:
    from tests.trainer.tiny import TinyPolicy

# Read once, when numpy or torch is first imported, and inherited by the processes that tests start.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    OMP_WAIT_POLICY="PASSIVE",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
)

JUDGED = pytest.StashKey[set[Path]]()


def pytest_configure(config: pytest.Config) -> None:
    """Starts the set of folders whose records were judged with the test that wrote them."""
    config.stash[JUDGED] = set()


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> "TinyPolicy":
    """A policy that is small enough to train in a test, pre-trained; nothing may write into its folder."""
    from tests.trainer.tiny import make_tiny_policy  # noqa: PLC0415  imports numpy, before which the variables are set

    return make_tiny_policy(tmp_path_factory.mktemp("tiny-policy"))


@pytest.fixture(autouse=True)
def _records_of_a_test_are_valid(request: pytest.FixtureRequest) -> Iterator[None]:
    """Judges `events.jsonl`, `feed.jsonl` and `run.json` below the test's `tmp_path` when it is over."""
    if "tmp_path" not in request.fixturenames:
        yield
        return
    folder: Path = request.getfixturevalue("tmp_path")
    request.config.stash[JUDGED].add(folder)
    yield
    if request.node.get_closest_marker("corrupt_files_expected") is None:
        _fail_on(problems(folder))


@pytest.fixture(autouse=True, scope="session")
def _records_of_shared_fixtures_are_valid(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Judges what fixtures of wider scope wrote, when the session is over."""
    yield
    shared = set(tmp_path_factory.getbasetemp().iterdir()) - request.config.stash[JUDGED]
    for folder in sorted(path for path in shared if path.is_dir() and not path.is_symlink()):
        _fail_on(problems(folder))


def _fail_on(found: Iterator[str]) -> None:
    first = [problem for problem, _ in zip(found, range(10), strict=False)]
    if first:
        pytest.fail("records on disk break the published schemas:\n" + "\n".join(first), pytrace=False)
