"""Servers start, say why they do not, and leave no process behind, whatever ends them."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import httpx
import psutil
import pytest

from tests.trainer.runs import still_alive
from tests.trainer.tiny import TinyPolicy, tiny_config
from tests.trainer.vllm.conftest import START_S
from tests.trainer.vllm.launching import group, server_spec, stand_in
from tocsin.schemas.sampler import SamplerConfig
from tocsin.trainer.vllm.guard import GRACE_S
from tocsin.trainer.vllm.interpreter import Interpreter
from tocsin.trainer.vllm.servers import ServerFailed, ServerSpec, VllmServer, free_ports, specs

PARENT = """
import asyncio, json, signal, sys
from pathlib import Path
from tocsin.trainer.vllm.interpreter import Interpreter
from tocsin.trainer.vllm.servers import ServerSpec, VllmServer

given = json.loads(sys.argv[1])
given["interpreter"] = Interpreter(Path(given["interpreter"]["python"]), "0.32.0", "cpu")
server = VllmServer(ServerSpec(**{**given, "log": Path(given["log"])}))
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
server.start()
print(server.pid, flush=True)
asyncio.run(server.wait_until_healthy(600, lambda stage: print(stage, flush=True)))
print("healthy", flush=True)
asyncio.run(server.wait_until_ended())
"""


@contextmanager
def parent(spec: ServerSpec) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process in a session of its own that starts a server, and the leader of the server's group."""
    given = json.dumps(asdict(spec), default=str)
    command = [sys.executable, "-c", PARENT, given]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def read_until(process: "subprocess.Popen[str]", beginning: str) -> None:
    """Read what a process says up to a line that begins in this way."""
    assert process.stdout is not None
    while not (said := process.stdout.readline()).startswith(beginning):
        assert said, f"the process ended before it said `{beginning}`"


def healthy(spec: ServerSpec, timeout_s: float = 60.0) -> tuple[VllmServer, list[str]]:
    """A server that was started and waited for, and what it did meanwhile."""
    server, stages = VllmServer(spec), []
    server.start()
    try:
        asyncio.run(server.wait_until_healthy(timeout_s, stages.append))
    except BaseException:
        server.kill()
        raise
    return server, stages


def test_a_server_is_waited_for_and_stopped_with_all_its_processes(tmp_path: Path):
    server, stages = healthy(server_spec(stand_in(tmp_path), tmp_path, tmp_path))
    members = group(server.pid)
    assert len(members) == 3, "guard, server, and the child of the server"
    assert stages in ([], ["Resolved architecture: LlamaForCausalLM"])
    asyncio.run(server.stop())
    assert not server.is_running()
    assert still_alive(members) == []


def test_a_server_that_does_not_listen_is_killed(tmp_path: Path):
    server, _ = healthy(server_spec(stand_in(tmp_path), tmp_path, tmp_path, "--deaf"))
    members = group(server.pid)
    asyncio.run(server.stop(grace_s=0.5))
    assert still_alive(members) == []


def test_a_start_that_fails_says_why_in_one_line_and_leaves_nothing(tmp_path: Path):
    server = VllmServer(server_spec(stand_in(tmp_path), tmp_path, tmp_path, "--fails"))
    server.start()
    leader = server.pid
    with pytest.raises(ServerFailed) as error:
        asyncio.run(server.wait_until_healthy(60.0, lambda stage: None))
    assert str(error.value) == (
        f"vllm-0 ended: RuntimeError: Cannot find any model weights; see {tmp_path / 'vllm-0.log'}"
    )
    assert still_alive(group(leader)) == []


def test_a_server_that_is_not_healthy_in_time_is_ended(tmp_path: Path):
    server = VllmServer(server_spec(stand_in(tmp_path), tmp_path, tmp_path, "--never-healthy"))
    server.start()
    members = group(server.pid)
    with pytest.raises(
        ServerFailed, match=r"^vllm-0 must be healthy within 2 s, and was not; the last that it said: Re"
    ):
        asyncio.run(server.wait_until_healthy(2.0, lambda stage: None))
    assert still_alive(members) == []


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path: Path):
    spec = server_spec(stand_in(tmp_path), tmp_path, tmp_path)
    taken = rf"^vllm-0: port {spec.port} must be free, and something listens there"
    with socket.create_server(("127.0.0.1", spec.port)), pytest.raises(ServerFailed, match=taken):
        VllmServer(spec).start()
    assert not spec.log.exists()


def test_a_server_can_be_started_again_and_is_judged_by_its_new_log(tmp_path: Path):
    server, _ = healthy(server_spec(stand_in(tmp_path), tmp_path, tmp_path))
    server.spec.log.write_text("ValueError: from another start\n")
    server.kill()
    assert server.pid is None
    server.start()
    asyncio.run(server.wait_until_healthy(60.0, lambda stage: None))
    psutil.Process(server.pid).children()[0].kill()
    asyncio.run(server.wait_until_ended())
    assert "the server ended with SIGKILL" in str(server.failure())


def test_a_server_ends_with_its_parent(tmp_path: Path):
    with parent(server_spec(stand_in(tmp_path), tmp_path, tmp_path)) as (process, leader):
        read_until(process, "healthy")
        members = group(leader)
        process.kill()
        process.wait()
        assert len(members) == 3
        assert still_alive(members) == []


def test_a_server_goes_on_when_the_terminal_of_its_parent_sends_ctrl_c(tmp_path: Path):
    with parent(server_spec(stand_in(tmp_path), tmp_path, tmp_path)) as (process, leader):
        read_until(process, "healthy")
        os.killpg(process.pid, signal.SIGINT)
        read_until(process, "interrupted")
        assert len(group(leader)) == 3


def test_a_server_whose_guard_is_killed_is_ended_by_its_parent(tmp_path: Path):
    server, _ = healthy(server_spec(stand_in(tmp_path), tmp_path, tmp_path))
    members = group(server.pid)
    os.kill(members[0].pid, signal.SIGKILL)
    asyncio.run(server.wait_until_ended())
    assert still_alive(members) == []


def test_the_command_line_fits_the_device_and_ends_with_the_users_arguments(tmp_path: Path):
    on_cpu = server_spec(Interpreter(Path("python"), "0.32.0", "cpu"), tmp_path, tmp_path, "--seed", "1")
    command = on_cpu.command()
    assert command[-2:] == ["--seed", "1"]
    assert command[command.index("--gpu-memory-utilization") + 1] == "0.2"
    assert "--enforce-eager" in command
    assert on_cpu.environment()["OMP_NUM_THREADS"] == "1"
    on_gpu = replace(on_cpu, interpreter=Interpreter(Path("python"), "0.32.0", "cuda"), extra_args=())
    assert "--enforce-eager" not in on_gpu.command()
    assert "--gpu-memory-utilization" not in on_gpu.command()
    assert "VLLM_CPU_OMP_THREADS_BIND" not in on_gpu.environment()


def test_the_model_hub_is_asked_for_ids_and_never_for_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    local = server_spec(Interpreter(Path("python"), "0.32.0", "cpu"), tmp_path, tmp_path)
    assert local.environment()["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in replace(local, model="owner/name").environment()
    assert "owner/name" in replace(local, model="owner/name").command()


def test_the_servers_of_a_run_have_distinct_names_ports_and_logs(tmp_path: Path):
    python = stand_in(tmp_path).python
    sampler = SamplerConfig(kind="vllm", launch=True, num_servers=3, python=str(python), server_args=["--seed", "1"])
    config = tiny_config(TinyPolicy(tmp_path, tmp_path, tmp_path), sampler=sampler)
    found = specs(config, model=tmp_path, max_length=64, weight_transfer="tocsin-file", folder=tmp_path)
    assert [spec.name for spec in found] == ["vllm-0", "vllm-1", "vllm-2"]
    assert len({spec.port for spec in found}) == len({spec.log for spec in found}) == 3
    assert found[0].command()[-2:] == ["--seed", "1"]


def test_free_ports_differ_and_can_be_listened_on():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.vllm
def test_a_vllm_server_offers_what_a_sampler_needs_and_stops_completely(
    vllm_python: Interpreter, tiny_policy: TinyPolicy, tmp_path: Path
):
    server, stages = healthy(server_spec(vllm_python, tiny_policy.model, tmp_path), START_S)
    members = group(server.pid)
    try:
        assert any("load" in stage.lower() for stage in stages)
        info = httpx.get(f"{server.url}/server_info", params={"config_format": "json"}, timeout=60.0).json()
        assert info["vllm_config"]["weight_transfer_config"]["backend"] == "tocsin-file"
        paths = httpx.get(f"{server.url}/openapi.json", timeout=60.0).json()["paths"]
        assert {"/inference/v1/generate", "/update_weights", "/finish_weight_update", "/pause"} <= set(paths)
    finally:
        asyncio.run(server.stop())
    assert len(members) >= 3
    assert still_alive(members) == []


@pytest.mark.vllm
def test_a_vllm_server_that_is_starting_ends_with_its_parent(
    vllm_python: Interpreter, tiny_policy: TinyPolicy, tmp_path: Path
):
    with parent(server_spec(vllm_python, tiny_policy.model, tmp_path)) as (process, leader):
        # Not by a stage that it tells: they are looked at now and then, and a short one may never be seen.
        deadline = time.monotonic() + START_S
        while len(members := group(leader)) <= 3:
            assert time.monotonic() < deadline, "guard, API server, engine, worker"
            time.sleep(0.1)
        process.kill()
        process.wait()
        psutil.wait_procs(members, timeout=GRACE_S)
        assert still_alive(group(leader)) == []


@pytest.mark.vllm
def test_a_folder_without_a_model_is_refused_by_vllm_in_one_line(vllm_python: Interpreter, tmp_path: Path):
    with pytest.raises(ServerFailed) as error:
        healthy(server_spec(vllm_python, tmp_path, tmp_path), START_S)
    assert str(error.value) == (
        f"vllm-0 ended: Invalid repository ID or local directory specified: '{tmp_path}'.; "
        f"see {tmp_path / 'vllm-0.log'}"
    )
