"""How weights reach the servers: what each back-end is told once, and what it is told at every sync.

`file`  learner -> safetensors file -> each server by itself, whenever it asks
`nccl`  learner and the workers of all servers in one group; a broadcast reaches all of them at once or none
"""

import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from tocsin.schemas.config import RunConfig
from tocsin.trainer.messages import Rendezvous, Sync

Backend = Literal["nccl", "tocsin-file"]
FILE_BACKEND: Final = "tocsin-file"
NCCL_BACKEND: Final = "nccl"


def backend_of(config: RunConfig, device: str) -> Backend:
    """Name of the back-end that a run uses, as `--weight-transfer-config` wants it. `device` is the learner's."""
    chosen = config.sampler.weight_transfer
    if chosen == "auto":
        # Servers that we start may share the learner's GPU, on which two members of one group cannot be.
        chosen = "nccl" if device == "cuda" and not config.sampler.launch else "file"
    return NCCL_BACKEND if chosen == "nccl" else FILE_BACKEND


class Transfer(Protocol):
    """One way for weights to travel."""

    backend: Backend
    """As `--weight-transfer-config` names it."""
    is_joint: bool
    """Whether all servers take part in one operation, so that none can be served alone."""

    def init_info(self, rank_offset: int) -> dict[str, Any]:
        """For a server's back-end. `rank_offset` is the rank of the server's first worker, from 1."""

    def update_info(self, message: Sync) -> dict[str, Any]:
        """For a server's back-end, at every sync."""


class FileTransfer:
    """A file in a folder that learner and servers share."""

    backend: Backend = FILE_BACKEND
    is_joint = False

    def __init__(self, folder: Path):
        self._folder = folder

    def init_info(self, rank_offset: int) -> dict[str, Any]:
        """The folder, the only one that the server reads."""
        return {"folder": str(self._folder)}

    def update_info(self, message: Sync) -> dict[str, Any]:
        """The file and its digest."""
        return {"name": message.path.name, "digest": message.digest}


class NcclTransfer:
    """Packed broadcasts from the learner, rank 0, to every worker of every server."""

    backend: Backend = NCCL_BACKEND
    is_joint = True

    def __init__(self) -> None:
        self.meeting: Rendezvous | None = None
        """Where the present group met."""

    def meet(self, url: str, world_sizes: Sequence[int]) -> tuple[Rendezvous, list[int]]:
        """A meeting point for the learner and servers of these sizes, and the rank offset of each server.

        `url` is the address of one of the servers: the learner's own address is the one that is reached from there.
        """
        self.meeting = Rendezvous(address_towards(url), free_port(), 1 + sum(world_sizes))
        offsets = [1 + sum(world_sizes[:i]) for i in range(len(world_sizes))]
        return self.meeting, offsets

    def init_info(self, rank_offset: int) -> dict[str, Any]:
        """Meeting point and rank."""
        assert self.meeting is not None, "`meet` comes first"
        return {
            "master_address": self.meeting.address,
            "master_port": self.meeting.port,
            "rank_offset": rank_offset,
            "world_size": self.meeting.world_size,
            "packed": True,
        }

    def update_info(self, message: Sync) -> dict[str, Any]:
        """Names, types and shapes in the order of the broadcast."""
        names, dtypes, shapes = zip(*message.layout, strict=True)
        return {"names": list(names), "dtype_names": list(dtypes), "shapes": [list(shape) for shape in shapes]}


def address_towards(url: str) -> str:
    """This machine's address as the host of `url` sees it; sends nothing. Raises `OSError` for an unknown host."""
    host = urlsplit(url).hostname or "127.0.0.1"
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    if ipaddress.ip_address(found[4][0]).is_loopback:
        return str(found[4][0])
    with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
        probe.connect(found[4])
        return str(probe.getsockname()[0])


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
