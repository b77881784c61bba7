"""Room for the run: disk for checkpoints and rollouts, shared memory for weights, host and device memory.

Every need is a lower bound (activations are not in it) except that of the rollouts, whose completions may end early.
So what does not fit will certainly fail, and only what is certain refuses a start.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import torch

from tocsin.diagnostics.proposals import look
from tocsin.diagnostics.render import plural
from tocsin.schemas.check import Gate
from tocsin.schemas.config import RunConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.trainer.checkpoint import FOLDER, size_of
from tocsin.trainer.devices import GIB
from tocsin.trainer.gates import fact, finding, gate, size
from tocsin.trainer.vllm.transfer import NCCL_BACKEND, backend_of
from tocsin.trainer.weights import SHARED_MEMORY

CHECKPOINT_COPIES: Final = 3
"""Weights and the two moments of AdamW, all in float32."""
SPARE: Final = 1.2
"""Free space that one checkpoint needs, by its size: the catalogue's limit for a critical finding."""
BYTES_PER_TOKEN: Final = 4
"""Text of a completion, before it is compressed."""
BYTES_PER_COMPLETION: Final = 200
"""Its other columns."""
WEIGHT_FILES: Final = 2
"""The one that is being sent, and the one before, from which a dead sampler is started again."""
DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Room:
    """What decides how much a run needs. Made when the learner holds the model and nothing else."""

    config: RunConfig
    folder: Path
    """The run's, which need not exist yet."""
    weights: int
    """Bytes of all trainable parameters in float32."""
    device: torch.device
    """The learner's."""
    steps_done: int = 0

    @property
    def checkpoint(self) -> int:
        """Bytes of one checkpoint."""
        return CHECKPOINT_COPIES * self.weights

    @property
    def checkpoints(self) -> int:
        """Most checkpoints that lie on disk at one time: those kept, the best one, and the one being written."""
        every, left = self.config.checkpoint.every, self.config.steps - self.steps_done
        taken = 1 + (left - 1) // every if every else 1
        best = self.config.data.evaluation is not None
        return min(taken, self.config.checkpoint.keep + 1 + best)

    @property
    def rollouts(self) -> int:
        """Bytes of all completions to come, if none ends early."""
        knobs = self.config.knobs
        completions = (self.config.steps - self.steps_done) * knobs.groups_per_step * knobs.group_size
        return completions * (knobs.max_completion_tokens * BYTES_PER_TOKEN + BYTES_PER_COMPLETION)

    @property
    def sampler(self) -> int:
        """Bytes of the local sampler's own copy; zero when somebody else's server samples."""
        own = self.config.sampler.kind == "local"
        return self.weights * DTYPE_BYTES[self.config.model.dtype] // 4 if own else 0

    @property
    def shares_host(self) -> bool:
        """Whether the local sampler's copy lies in the host's memory."""
        chosen = self.config.device.sampler
        return (self.device.type if chosen == "auto" else chosen) != "cuda"


def disk_gate(room: Room) -> Gate:
    """Free space where the run folder is, and where weights wait for the sampler."""
    place = _existing(room.folder)
    free = shutil.disk_usage(place).free
    there = size_of(room.folder / FOLDER)
    policy = 0 if (room.folder / "policy").exists() else room.weights
    first = int(SPARE * room.checkpoint) + policy
    needed = max(first, room.checkpoints * room.checkpoint - there + policy + room.rollouts)
    copies = plural(room.checkpoints, "checkpoint")
    found = []
    if free < needed:
        what = "one checkpoint" if free < first else f"{copies} and all rollouts"
        limit = first if free < first else needed
        found.append(
            finding(
                "SYS010",
                "critical" if free < first else "warning",
                f"{size(free)} are free for the run folder; {what} need {size(limit)}",
                fact("free bytes for the run folder", free, "<", limit, unit="bytes"),
                look("free-disk", "free space, lower checkpoint.keep, or give --runs-dir on a larger disk"),
                where="disk",
            )
        )
    shared, shared_free, files = _shared(room)
    found += _shared_finding(shared, shared_free, files)
    summary = (
        f"{size(needed)} needed for {copies} and at most {size(room.rollouts)} of rollouts, "
        f"{size(free)} free; {size(files)} for weights in {shared}, {size(shared_free)} free"
    )
    measured = {
        "free_bytes": free,
        "needed_bytes": needed,
        "checkpoint_bytes": room.checkpoint,
        "weights_free_bytes": shared_free,
        "weights_needed_bytes": files,
    }
    return gate("disk", summary, found, measured=measured)


def _existing(folder: Path) -> Path:
    """The nearest folder that is there already."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return place


def _shared(room: Room) -> tuple[Path, int, int]:
    """Where weights wait for the sampler, what is free there, and what they take."""
    usual = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    place = Path(room.config.sampler.weights_dir or usual)
    is_broadcast = room.config.sampler.kind == "vllm" and backend_of(room.config, room.device.type) == NCCL_BACKEND
    files = 0 if is_broadcast else WEIGHT_FILES * room.weights
    return place, shutil.disk_usage(_existing(place)).free, files


def _shared_finding(place: Path, free: int, files: int) -> list[Diagnostic]:
    if free >= files:
        return []
    return [
        finding(
            "SYS010",
            "critical",
            f"{size(free)} are free where weights wait for the sampler, and {WEIGHT_FILES} copies need {size(files)}",
            fact("free bytes for weight files", free, "<", files, unit="bytes"),
            look("enlarge-shared-memory", f"enlarge {place}; containers start with 64 MiB unless told --shm-size"),
            where="shared-memory",
        )
    ]


def memory_gate(room: Room) -> Gate:
    """Memory that is certainly needed besides the loaded model, on the host and on the learner's device."""
    memory = psutil.virtual_memory()
    available = memory.available + psutil.swap_memory().free
    training = CHECKPOINT_COPIES * room.weights  # gradients and the moments of AdamW
    on_host = 0 if room.device.type == "cuda" else training
    # A sampler reads a whole file of weights beside its own copy, and the files lie in memory as well.
    on_host += (room.sampler + room.weights) * room.shares_host + WEIGHT_FILES * room.weights
    found = []
    if on_host > available:
        found.append(
            finding(
                "CHK002",
                "critical",
                f"{size(available)} of host memory are available, and model copies and optimizer need {size(on_host)}",
                fact("bytes of host memory", available, "<", on_host, unit="bytes"),
                look("smaller-model", "use a smaller model, or a machine with more memory"),
                where="host",
            )
        )
    summary = f"{size(on_host)} of host memory needed, {size(available)} available"
    measured = {"host_available_bytes": available, "host_needed_bytes": on_host}
    device = _device(room, training)
    if device is not None:
        free, needed = device
        summary += f"; {size(needed)} of device memory needed, {size(free)} free"
        measured |= {"device_free_bytes": free, "device_needed_bytes": needed}
        found += _device_finding(free, needed)
    return gate("memory", summary, found, measured=measured)


def _device(room: Room, training: int) -> tuple[int, int] | None:
    """Bytes free and bytes needed on an accelerator; None without one."""
    simulated = room.config.device.simulated_memory_gib
    if simulated is not None:
        return int(simulated * GIB), room.weights + training
    if room.device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(room.device)
    return free, training + (0 if room.shares_host else room.sampler)


def _device_finding(free: int, needed: int) -> list[Diagnostic]:
    if free >= needed:
        return []
    return [
        finding(
            "SYS002",
            "critical",
            f"{size(free)} of device memory are free, and gradients, optimizer and sampler need {size(needed)}",
            fact("free bytes of device memory", free, "<", needed, unit="bytes"),
            look("smaller-model", "use a smaller model, or put the sampler on another device with device.sampler"),
            where="device",
        )
    ]
