"""The local sampler: a transformers model in a process of its own.

It answers one message at a time, so weights are swapped between batches and every token of a batch has one version.
"""

import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tocsin.trainer.messages import Generate, Generated, Load, Loaded, Stop, Weights, WeightsLoaded
from tocsin.trainer.models import eos_ids, load_model, load_tokenizer, pad_id, silence_transformers
from tocsin.trainer.sampling import generate, sequence_logprobs

SLOW_SAMPLER_S = 0.6
"""What the fault `slow-sampler` adds to a batch: several times a step of the embedded task."""


class LocalSampler:
    """Model, tokenizer facts and the version of the weights."""

    def __init__(self, load: Load):
        torch.set_num_threads(load.threads)
        silence_transformers()
        self.load = load
        tokenizer = load_tokenizer(load.model_path)
        self.model = load_model(
            load.model_path, dtype=load.dtype, attention=load.attention, device=torch.device(load.device)
        )
        self.eos_ids = eos_ids(self.model, tokenizer)
        self.pad_id = pad_id(tokenizer)
        self.probe = torch.from_numpy(load.probe.astype(np.int64)).to(self.model.device)
        self.version = 0
        self.parameters = dict(self.model.named_parameters())

    def answer(self, message: Weights | Generate) -> WeightsLoaded | Generated:
        """The reply to one message."""
        return self.swap(message) if isinstance(message, Weights) else self.sample(message)

    @torch.no_grad()
    def swap(self, message: Weights) -> WeightsLoaded:
        """Take over new weights and prove what is held by the log-probs of the probe."""
        started = time.monotonic()
        if not self._ignores(message.version):
            for name, value in load_file(message.path).items():
                self.parameters[name].copy_(value)
        self.version = message.version
        loaded = time.monotonic()
        logprobs = sequence_logprobs(self.model, self.probe).cpu().numpy()
        return WeightsLoaded(message.version, loaded - started, time.monotonic() - loaded, logprobs)

    def sample(self, message: Generate) -> Generated:
        """Generate one batch."""
        started = time.monotonic()
        step = message.requests[0].target_step
        if self.load.fault == "slow-sampler" and step >= self.load.fault_onset:
            time.sleep(SLOW_SAMPLER_S)
        completions = generate(
            self.model,
            message.requests,
            seed=self.load.seed,
            version=self.version,
            eos_ids=self.eos_ids,
            pad_id=self.pad_id,
        )
        return Generated(completions, self.version, time.monotonic() - started)

    def _ignores(self, version: int) -> bool:
        """The fault `stale-weights`: claim the new version and keep the old weights."""
        return self.load.fault == "stale-weights" and version > self.load.fault_onset


def serve(connection: Connection) -> None:
    """Answer messages until `Stop` or until the other side is gone."""
    sampler: LocalSampler | None = None
    while True:
        try:
            message: Any = connection.recv()
        except EOFError:
            return
        if isinstance(message, Stop):
            return
        if isinstance(message, Load):
            sampler = LocalSampler(message)
            connection.send(Loaded())
        else:
            assert sampler is not None, "the first message must be `Load`"
            connection.send(sampler.answer(message))
