"""How weights reach servers: which way, what each back-end is told, and the learner's end of a broadcast."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.sampler import SamplerConfig
from tocsin.trainer.endings import RolloutError
from tocsin.trainer.messages import Rendezvous, Sync
from tocsin.trainer.vllm.interpreter import Interpreter
from tocsin.trainer.vllm.nccl import NcclSender
from tocsin.trainer.vllm.transfer import FileTransfer, NcclTransfer, address_towards, backend_of, free_port

MEETING = Rendezvous("127.0.0.1", 29500, 3)
LAYOUT = (("model.embed_tokens.weight", "bfloat16", (13, 96)), ("model.norm.weight", "float32", (96,)))

ASK_VLLM = """
import inspect, json, sys
from dataclasses import asdict
from vllm.distributed.weight_transfer import nccl_common, packed_tensor
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine as Engine

given = json.load(sys.stdin)
print(json.dumps({
    "init": asdict(Engine.init_info_cls(**given["init"])),
    "update": asdict(Engine.update_info_cls(**given["update"])),
    "trainer_init": inspect.getsource(nccl_common.trainer_init),
    "producer": list(inspect.signature(packed_tensor.packed_nccl_broadcast_producer).parameters),
    "constants": [packed_tensor.DEFAULT_PACKED_BUFFER_SIZE_BYTES, packed_tensor.DEFAULT_PACKED_NUM_BUFFERS],
}))
"""
"""Run by the interpreter that has vLLM."""


@pytest.mark.parametrize(
    ("device", "settings", "backend"),
    [
        ("cpu", {"launch": True}, "tocsin-file"),
        ("cpu", {"urls": ["http://a"]}, "tocsin-file"),
        ("cuda", {"urls": ["http://a"]}, "nccl"),
        ("cuda", {"launch": True}, "tocsin-file"),
        ("cuda", {"urls": ["http://a"], "weight_transfer": "file"}, "tocsin-file"),
        ("cuda", {"launch": True, "weight_transfer": "nccl"}, "nccl"),
    ],
)
def test_weights_go_by_broadcast_where_both_sides_have_gpus_of_their_own(
    tiny_policy: TinyPolicy, device: str, settings: dict[str, Any], backend: str
):
    config = tiny_config(tiny_policy, sampler=SamplerConfig(kind="vllm", **settings))
    assert backend_of(config, device) == backend


def test_a_file_is_named_within_its_folder_and_digested():
    transfer = FileTransfer(Path("/dev/shm/weights"))
    assert transfer.init_info(1) == {"folder": "/dev/shm/weights"}
    message = Sync(3, Path("/dev/shm/weights/3.safetensors"), digest="0a")
    assert transfer.update_info(message) == {"name": "3.safetensors", "digest": "0a"}


def test_the_learners_address_is_one_that_the_servers_can_reach():
    assert address_towards("http://127.0.0.1:8000") == "127.0.0.1"
    assert address_towards("http://localhost:8000") in ("127.0.0.1", "::1")


def test_a_free_port_can_be_listened_on():
    with socket.create_server(("127.0.0.1", free_port())):
        pass


@pytest.mark.vllm
def test_vllm_takes_what_its_own_back_end_is_told_and_has_what_the_learner_calls(vllm_python: Interpreter):
    transfer = NcclTransfer()
    meeting, offsets = transfer.meet("http://127.0.0.1:8000", [2, 1])
    given = {
        "init": transfer.init_info(offsets[1]),
        "update": transfer.update_info(Sync(0, Path(), layout=LAYOUT)),
    }
    done = subprocess.run(
        [vllm_python.python, "-c", ASK_VLLM], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    init = found["init"]
    assert (init["master_address"], init["master_port"]) == (meeting.address, meeting.port)
    assert (init["rank_offset"], init["world_size"], init["packed"]) == (3, 4, True)
    # Sizes of the packed buffers are not sent: both sides take the defaults of vLLM.
    assert [init["packed_buffer_size_bytes"], init["packed_num_buffers"]] == found["constants"]
    assert found["update"] == {
        "names": ["model.embed_tokens.weight", "model.norm.weight"],
        "dtype_names": ["bfloat16", "float32"],
        "shapes": [[13, 96], [96]],
    }
    assert all(
        f'init_info["{key}"]' in found["trainer_init"] for key in ("master_address", "master_port", "world_size")
    )
    assert found["producer"] == ["iterator", "group", "src", "post_iter_func", "buffer_size_bytes", "num_buffers"]


def play_vllm(monkeypatch: pytest.MonkeyPatch, trainer_init: Any, producer: Any = None) -> None:
    """Modules of vLLM with these two functions, and a device, in this process."""
    common, packed = ModuleType("nccl_common"), ModuleType("packed_tensor")
    vars(common).update(trainer_init=trainer_init)
    vars(packed).update(
        packed_nccl_broadcast_producer=producer, DEFAULT_PACKED_BUFFER_SIZE_BYTES=7, DEFAULT_PACKED_NUM_BUFFERS=2
    )
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.nccl_common", common)
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.packed_tensor", packed)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)


def test_a_learner_without_vllm_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(RolloutError, match=r"must have vLLM in the learner's environment: pip install 'tocsin\[train,"):
        NcclSender(1.0).meet(MEETING)


def test_the_learner_meets_as_rank_0_and_broadcasts_every_tensor_in_order(monkeypatch: pytest.MonkeyPatch):
    told: list[Any] = []

    def producer(*, iterator: Any, post_iter_func: Callable[[Any], Any], **settings: Any) -> None:
        told.append([post_iter_func(item) for item in iterator])
        told.append(settings)

    def trainer_init(where: dict[str, Any]) -> str:
        told.append(where)
        return "the group"

    play_vllm(monkeypatch, trainer_init, producer)
    monkeypatch.setattr(torch.cuda, "current_stream", _Stream)
    sender = NcclSender(60.0)
    sender.meet(MEETING)
    sender.send({"b": torch.ones(2), "a": torch.zeros(1)})
    where, tensors, settings = told
    assert where == {"master_address": "127.0.0.1", "master_port": 29500, "world_size": 3}
    assert [tensor.tolist() for tensor in tensors] == [[1.0, 1.0], [0.0]]
    assert settings == {"group": "the group", "src": 0, "buffer_size_bytes": 7, "num_buffers": 2}


class _Stream:
    def synchronize(self) -> None: ...


def test_workers_that_never_come_are_given_up_after_the_time_out(monkeypatch: pytest.MonkeyPatch):
    never = threading.Event()
    play_vllm(monkeypatch, lambda where: never.wait())
    with pytest.raises(RolloutError, match=r"^the workers of the vLLM servers did not join the group .* within 0.1 s$"):
        NcclSender(0.1).meet(MEETING)
    never.set()


def test_whatever_the_transfer_raises_reaches_the_learner_as_one_line(monkeypatch: pytest.MonkeyPatch):
    def trainer_init(where: dict[str, Any]) -> None:
        raise RuntimeError("NCCL error: unhandled system error")

    play_vllm(monkeypatch, trainer_init)
    with pytest.raises(RolloutError, match=r"^weights could not be broadcast: NCCL error: unhandled system error$"):
        NcclSender(60.0).meet(MEETING)
