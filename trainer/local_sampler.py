"""The local sampler: a transformers model in a process of its own.

It answers one message at a time, so weights are swapped between batches and every token of a batch has one version.
"""

import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tocsin.trainer.data import Floats
from tocsin.trainer.faults import batch_delay_s, faulty_generate, ignores_weights, weights_delay_s
from tocsin.trainer.messages import (
    Generate,
    Generated,
    Load,
    Loaded,
    Probed,
    SamplerFacts,
    Stop,
    TakeProbe,
    Weights,
    WeightsLoaded,
)
from tocsin.trainer.models import eos_ids, load_model, load_tokenizer, pad_id, silence_transformers
from tocsin.trainer.processes import keep_freed_memory
from tocsin.trainer.sampling import generate, sequence_logprobs


class LocalSampler:
    """Model, tokenizer facts and the version of the weights."""

    def __init__(self, load: Load):
        torch.set_num_threads(load.threads)
        keep_freed_memory()
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
        self.batches = 0
        self.parameters = dict(self.model.named_parameters())

    @property
    def facts(self) -> SamplerFacts:
        """What the model is, for comparison with the learner's."""
        rows = int(self.model.get_output_embeddings().weight.shape[0])
        return SamplerFacts(str(self.load.model_path), tuple(self.eos_ids), rows)

    def answer(self, message: Weights | Generate | TakeProbe) -> WeightsLoaded | Generated | Probed:
        """The reply to one message."""
        if isinstance(message, TakeProbe):
            return Probed(self._probe())
        return self.swap(message) if isinstance(message, Weights) else self.sample(message)

    @torch.no_grad()
    def swap(self, message: Weights) -> WeightsLoaded:
        """Take over new weights and prove what is held by the log-probs of the probe."""
        started = time.monotonic()
        time.sleep(weights_delay_s(self.load.fault, message.version))
        if not ignores_weights(self.load.fault, message.version):
            for name, value in load_file(message.path).items():
                self.parameters[name].copy_(value)
        self.version = message.version
        loaded = time.monotonic()
        logprobs = self._probe()
        return WeightsLoaded(message.version, loaded - started, time.monotonic() - loaded, logprobs)

    def _probe(self) -> Floats:
        return sequence_logprobs(self.model, self.probe).cpu().numpy()

    def sample(self, message: Generate) -> Generated:
        """Generate one batch."""
        started = time.monotonic()
        self.batches += 1
        completions = faulty_generate(
            self.load.fault,
            generate,
            self.model,
            message.requests,
            seed=self.load.seed,
            version=self.version,
            eos_ids=self.eos_ids,
            pad_id=self.pad_id,
        )
        step = message.requests[0].target_step
        time.sleep(batch_delay_s(self.load.fault, step, self.batches, time.monotonic() - started))
        return Generated(completions, self.version, time.monotonic() - started)


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
            connection.send(Loaded(sampler.facts))
        else:
            assert sampler is not None, "the first message must be `Load`"
            connection.send(sampler.answer(message))
