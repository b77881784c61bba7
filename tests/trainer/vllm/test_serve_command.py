"""`tocsin vllm serve`: what it prints, how it ends, and what it refuses."""

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.trainer.runs import COMMAND, still_alive, tocsin
from tests.trainer.tiny import TinyPolicy
from tests.trainer.vllm.conftest import START_S
from tests.trainer.vllm.launching import stand_in
from tocsin.schemas.sampler import SamplerConfig
from tocsin.trainer.vllm.interpreter import Interpreter
from tocsin.trainer.vllm.servers import free_ports


@contextmanager
def serving(*arguments: str | Path, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """`tocsin vllm serve <arguments>` in `folder`, killed when the block ends."""
    process = subprocess.Popen(
        [*COMMAND, "vllm", "serve", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def sampler_section(process: "subprocess.Popen[str]") -> SamplerConfig:
    """What it prints for the configuration once the server is healthy; waits for it."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    return SamplerConfig.model_validate(tomllib.loads("".join(lines))["sampler"])


def below(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_what_a_run_needs_and_ends_on_request(tmp_path: Path, number: signal.Signals):
    (port,) = free_ports(1)
    python = stand_in(tmp_path).python
    with serving(tmp_path, "--port", str(port), "--python", python, folder=tmp_path) as process:
        section = sampler_section(process)
        assert (section.kind, section.urls) == ("vllm", [f"http://127.0.0.1:{port}"])
        children = below(process)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert f"http://127.0.0.1:{port} is healthy after" in err
    assert err.splitlines()[-1] == "[tocsin] ending the server"
    assert still_alive(children) == []


def test_a_server_that_ends_by_itself_is_an_error_with_its_reason(tmp_path: Path):
    python = stand_in(tmp_path).python
    (port,) = free_ports(1)
    with serving(tmp_path, "--port", str(port), "--python", python, folder=tmp_path) as process:
        sampler_section(process)
        (guard,) = psutil.Process(process.pid).children()
        guard.children()[0].kill()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.match(r"tocsin: vllm ended: the server ended with SIGKILL: .*; see .*/vllm\.log$", err.splitlines()[-1])


def test_a_start_that_fails_is_an_error_with_its_reason(tmp_path: Path):
    python = stand_in(tmp_path).python
    (port,) = free_ports(1)
    with serving(tmp_path, "--port", str(port), "--python", python, "--", "--fails", folder=tmp_path) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.splitlines()[-1].startswith("tocsin: vllm ended: RuntimeError: Cannot find any model weights; see ")


def test_a_port_that_is_taken_is_bad_input(tmp_path: Path):
    python = stand_in(tmp_path).python
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(tmp_path, "--port", str(port), "--python", python, folder=tmp_path) as process:
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == f"tocsin: vllm: port {port} must be free, and something listens there; choose another\n"
    assert list(tmp_path.glob("tocsin-vllm-*")) == []


def test_an_interpreter_without_vllm_is_bad_input(tmp_path: Path):
    done = tocsin("vllm", "serve", tmp_path, "--python", "/no/such/python", cwd=tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("tocsin: `sampler.python` must be a Python interpreter, got `/no/such/python`: ")
    assert len(done.stderr.splitlines()) == 1
    assert not done.imported_torch


def test_without_its_libraries_it_says_what_to_install():
    code = "import sys; sys.modules['httpx'] = None; from tocsin.diagnostics.cli import main; sys.exit(main(['vllm']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "tocsin: vllm: needs httpx, which this environment lacks; install with: pip install 'tocsin[train]'\n"
    )


@pytest.mark.vllm
def test_a_real_server_generates_until_ctrl_c(vllm_python: Interpreter, tiny_policy: TinyPolicy, tmp_path: Path):
    (port,) = free_ports(1)
    arguments = (tiny_policy.model, "--port", str(port), "--python", vllm_python.python, "--timeout", str(START_S))
    with serving(*arguments, "--", "--seed", "7", folder=tmp_path) as process:
        (url,) = sampler_section(process).urls
        children = below(process)
        body = {"token_ids": [2, 3, 4], "sampling_params": {"max_tokens": 2, "logprobs": 0, "detokenize": False}}
        answer = httpx.post(f"{url}/inference/v1/generate", json=body, timeout=120.0)
        assert answer.status_code == 200
        assert 1 <= len(answer.json()["choices"][0]["token_ids"]) <= 2
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(children) > 3
    assert still_alive(children) == []


@pytest.mark.vllm
def test_an_argument_that_vllm_does_not_know_is_named(
    vllm_python: Interpreter, tiny_policy: TinyPolicy, tmp_path: Path
):
    (port,) = free_ports(1)
    arguments = (tiny_policy.model, "--port", str(port), "--python", vllm_python.python)
    with serving(*arguments, "--", "--frobnicate", folder=tmp_path) as process:
        _, err = process.communicate(timeout=START_S)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("tocsin: vllm ended: unrecognized arguments: --frobnicate; see ")
