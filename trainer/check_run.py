"""The wiring of `tocsin check`: learner and sampler as a run would have them, without the run."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tocsin.schemas.check import Gate
from tocsin.schemas.config import RunConfig
from tocsin.trainer.data import Ints
from tocsin.trainer.gates import gate
from tocsin.trainer.gates_launch import Launch, launch_gates
from tocsin.trainer.gates_sampler import agreement_gate, prove, round_trip_gate, unreachable
from tocsin.trainer.learner import Learner
from tocsin.trainer.messages import SamplerFacts, Setup
from tocsin.trainer.models import silence_transformers
from tocsin.trainer.prompts import load_prompt_sets
from tocsin.trainer.sampler import SamplerDied
from tocsin.trainer.samplers import Sampler, make_sampler
from tocsin.trainer.vllm.transfer import NCCL_BACKEND, backend_of
from tocsin.trainer.weights import WeightStore, probe_tokens

Stage = Callable[[str], None]
PROOFS = ("log-probs", "weights")


def checked(config: RunConfig, runs_dir: Path, stage: Stage) -> Iterator[Gate]:
    """Every gate, as soon as it is known. Raises `ValueError` for bad input."""
    silence_transformers()
    folder = config.sampler.weights_dir
    store = WeightStore(None if folder is None else Path(folder))
    with contextlib.closing(store), asyncio.Runner() as runner:
        # Started first, so that its imports overlap with ours.
        sampler = runner.run(_started(config))
        try:
            stage("loading the model")
            learner = Learner(config, config.model.path, config.knobs)
            stage("reading the prompts")
            prompts = load_prompt_sets(config, learner.tokenizer, learner.max_length)
            stage("checking data, tokens, rewards and room")
            office = _Office(config, runner, sampler, learner, stage, store)
            probe_ids = probe_tokens(prompts[0].prompts, learner.vocab_size, config.seed, limit=learner.max_length - 1)
            seen: list[Gate] = []
            launch = Launch(config, runs_dir / "check", learner, prompts)
            for item in launch_gates(launch, lambda: office.facts(probe_ids, seen)):
                seen.append(item)
                yield item
            yield from office.proofs(probe_ids, seen)
        finally:
            runner.run(sampler.close())


async def _started(config: RunConfig) -> Sampler:
    # Nobody is told about restarts: here a sampler that dies is a finding of its own.
    once = config.sampler.model_copy(update={"max_restarts": 0})
    return make_sampler(config.model_copy(update={"sampler": once}), lambda news: None)


@dataclass
class _Office:
    """Learner and sampler, and the loop in which the sampler is asked."""

    config: RunConfig
    runner: asyncio.Runner
    sampler: Sampler
    learner: Learner
    stage: Stage
    store: WeightStore
    died: SamplerDied | None = None

    def facts(self, probe_ids: Ints, seen: list[Gate]) -> SamplerFacts | None:
        """What the sampler says about itself, once it is loaded; None when it cannot be, or had better not be."""
        if _blocked(seen):
            return None
        self.stage("loading the sampler")
        try:
            self.runner.run(self.sampler.load(self._setup(probe_ids)))
        except SamplerDied as error:
            self.died = error
        return self.sampler.facts

    def proofs(self, probe_ids: Ints, seen: list[Gate]) -> Iterator[Gate]:
        """Log-probs of both sides, and weights there and back."""
        is_broadcast = self.config.sampler.kind == "vllm" and (
            backend_of(self.config, self.learner.device.type) == NCCL_BACKEND
        )
        blocker = (
            "a broadcast, which needs the run itself: its first sync proves both" if is_broadcast else _blocked(seen)
        )
        if blocker:
            for name in PROOFS:
                yield gate(name, f"not tried, because of {blocker}", evaluated=False)
            return
        if self.died is None:
            self.stage("comparing learner and sampler")
            try:
                proof = self.runner.run(prove(self.sampler, self.learner, probe_ids, self.store))
                yield agreement_gate(proof)
                yield round_trip_gate(proof)
                return
            except SamplerDied as error:
                self.died = error
        yield unreachable(self.died)
        yield gate("weights", "not tried, because of log-probs", evaluated=False)

    def _setup(self, probe_ids: Ints) -> Setup:
        device = self.config.device.model_copy(update={"learner": self.learner.device.type})
        return Setup(
            config=self.config.model_copy(update={"device": device}),
            model_path=Path(self.config.model.path),
            prompts=[],
            evaluation=[],
            knobs=self.config.knobs,
            config_generation=0,
            next_step=0,
            next_index=0,
            reissue=[],
            probe=probe_ids,
            learner=self.learner.facts(self.store.folder),
            logs=self.store.folder,
        )


def _blocked(seen: list[Gate]) -> str:
    """The gate whose critical finding makes it dangerous or pointless to use the sampler; empty when none does."""
    needed = [item for item in seen if item.name in ("disk", "memory", "vocabulary")]
    return next((item.name for item in needed if any(found.severity == "critical" for found in item.findings)), "")
