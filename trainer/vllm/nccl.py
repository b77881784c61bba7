"""The learner's end of a broadcast to the workers of vLLM servers, by vLLM's own packed transfer.

Needs GPUs on both sides and vLLM in the learner's environment (`pip install 'tocsin[train,vllm]'`).
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tocsin.trainer.endings import RolloutError
from tocsin.trainer.messages import Rendezvous


class NcclSender:
    """Rank 0 of the group that the latest `Rendezvous` made. Used from the learner's main thread only."""

    def __init__(self, timeout_s: float):
        self._timeout_s = timeout_s
        self._group: Any = None

    def meet(self, meeting: Rendezvous) -> None:
        """Join the workers. Raises `RolloutError` when they do not come or vLLM is not installed here."""
        try:
            from vllm.distributed.weight_transfer.nccl_common import trainer_init  # noqa: PLC0415  on GPUs only
        except ImportError as error:
            raise RolloutError(
                "`sampler.weight_transfer = nccl` must have vLLM in the learner's environment: "
                "pip install 'tocsin[train,vllm]', or set it to `file`"
            ) from error
        where = {
            "master_address": meeting.address,
            "master_port": meeting.port,
            "world_size": meeting.world_size,
        }
        self._group = self._in_time(lambda: trainer_init(where), "did not join the group for weights")

    def send(self, weights: Mapping[str, Tensor]) -> None:
        """Broadcast every tensor, in order. Raises `RolloutError` when the workers do not take them in time."""
        from vllm.distributed.weight_transfer.packed_tensor import (  # noqa: PLC0415  on GPUs only
            DEFAULT_PACKED_BUFFER_SIZE_BYTES,
            DEFAULT_PACKED_NUM_BUFFERS,
            packed_nccl_broadcast_producer,
        )

        def broadcast() -> None:
            items: Iterator[tuple[str, Tensor]] = iter(weights.items())
            packed_nccl_broadcast_producer(
                iterator=items,
                group=self._group,
                src=0,
                post_iter_func=lambda item: item[1],
                buffer_size_bytes=DEFAULT_PACKED_BUFFER_SIZE_BYTES,
                num_buffers=DEFAULT_PACKED_NUM_BUFFERS,
            )
            torch.cuda.current_stream().synchronize()

        self._in_time(broadcast, "did not take the weights")

    def _in_time(self, work: Any, failure: str) -> Any:
        """The result of `work`, done in a thread: a collective whose peers are gone never returns."""
        outcome: dict[str, Any] = {}
        device = torch.accelerator.current_device_index()

        def run() -> None:
            torch.accelerator.set_device_index(device)
            try:
                outcome["result"] = work()
            except Exception as error:  # whatever NCCL or vLLM raise, it is the learner that has to hear of it
                outcome["error"] = error

        thread = threading.Thread(target=run, name="nccl-weights", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        if thread.is_alive():
            raise RolloutError(f"the workers of the vLLM servers {failure} within {self._timeout_s:g} s")
        if "error" in outcome:
            raise RolloutError(f"weights could not be broadcast: {outcome['error']}") from outcome["error"]
        return outcome["result"]
