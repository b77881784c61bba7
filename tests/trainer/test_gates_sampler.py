"""A sampler that is what the learner believes it to be passes; one with any other weights does not."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.tiny import TinyPolicy, tiny_config, tiny_prompts
from tocsin.schemas.fault import FaultConfig, FaultName
from tocsin.trainer.data import Floats
from tocsin.trainer.gates_sampler import Proof, agreement_gate, prove, round_trip_gate
from tocsin.trainer.learner import Learner
from tocsin.trainer.local_sampler import LocalSampler
from tocsin.trainer.messages import Load, Probed, Sync, Synced, TakeProbe, Weights, WeightsLoaded
from tocsin.trainer.weights import WeightStore, probe_tokens


class InProcess:
    """The local sampler without its process. `skipped` tensors never arrive, `skew` is added to every answer."""

    def __init__(self, load: Load, *, skipped: Callable[[str], bool] = lambda name: False, skew: float = 0.0):
        self.inner = LocalSampler(load)
        self.inner.parameters = {
            name: torch.empty_like(value) if skipped(name) else value for name, value in self.inner.parameters.items()
        }
        self.skew = skew

    async def probe(self) -> dict[str, Floats]:
        answer = self.inner.answer(TakeProbe())
        assert isinstance(answer, Probed)
        return {"local": answer.probe_logprobs + np.float32(self.skew)}

    async def sync(self, message: Sync) -> Synced:
        answer = self.inner.answer(Weights(message.version, message.path))
        assert isinstance(answer, WeightsLoaded)
        return Synced(message.version, {}, {"local": answer.probe_logprobs + np.float32(self.skew)})


@pytest.fixture(scope="module")
def learner(tiny_policy: TinyPolicy) -> Learner:
    config = tiny_config(tiny_policy)
    return Learner(config, tiny_policy.model, config.knobs)


@pytest.fixture
def store() -> Iterator[WeightStore]:
    made = WeightStore()
    yield made
    made.close()


@pytest.fixture
def probed(tiny_policy: TinyPolicy, learner: Learner, store: WeightStore) -> Callable[..., Proof]:
    """Proof for an in-process sampler; `fault` and `disturb` plant defects."""
    ids = probe_tokens(tiny_prompts(tiny_policy, 2), learner.vocab_size, 0, limit=learner.max_length)

    def proof(*, fault: FaultName | None = None, disturb: float = 0.0, **defect: Any) -> Proof:
        load = Load(
            model_path=tiny_policy.model,
            dtype="float32",
            attention="sdpa",
            device="cpu",
            threads=1,
            seed=0,
            probe=ids,
            fault=None if fault is None else FaultConfig(name=fault, onset_step=0),
        )
        sampler = InProcess(load, **defect)
        with torch.no_grad():
            for parameter in sampler.inner.model.parameters():
                parameter.add_(disturb)
        return asyncio.run(prove(sampler, learner, ids, store))

    return proof


def judged(proof: Proof) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    gates = (agreement_gate(proof), round_trip_gate(proof))
    return {gate.name: (gate.outcome, [(found.code, found.severity) for found in gate.findings]) for gate in gates}


def test_the_same_model_agrees_and_takes_weights_there_and_back(probed: Callable[..., Proof], learner: Learner):
    before = {name: value.clone() for name, value in learner.weights().items()}
    proof = probed()
    assert judged(proof) == {"log-probs": ("passed", []), "weights": ("passed", [])}
    assert max(proof.at_start, proof.disturbed, proof.restored) < 1e-5
    assert proof.moved >= 4 * proof.tolerance
    assert proof.followed == pytest.approx(proof.moved, abs=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in learner.weights().items())


def test_other_weights_at_the_start_are_a_warning_since_a_run_replaces_them(probed: Callable[..., Proof]):
    proof = probed(disturb=0.05)
    assert judged(proof) == {"log-probs": ("failed", [("OFF004", "warning")]), "weights": ("passed", [])}
    assert "The sampler held other weights than model.path" in agreement_gate(proof).findings[0].summary


def test_a_sampler_that_ignores_new_weights_is_refused(probed: Callable[..., Proof]):
    proof = probed(fault="stale-weights")
    assert judged(proof) == {"log-probs": ("passed", []), "weights": ("failed", [("OFF010", "critical")])}
    assert proof.followed == 0.0


def test_one_tensor_that_does_not_arrive_is_enough(probed: Callable[..., Proof]):
    proof = probed(skipped=lambda name: name == "model.layers.0.mlp.down_proj.weight")
    assert judged(proof)["weights"] == ("failed", [("OFF010", "critical")])
    assert proof.followed > 0


def test_other_weights_that_stay_are_refused(probed: Callable[..., Proof]):
    found = judged(probed(fault="stale-weights", disturb=0.05))
    assert found["log-probs"] == ("failed", [("OFF004", "critical")])
    assert found["weights"] == ("failed", [("OFF010", "critical")])


def test_a_sampler_that_computes_differently_is_refused_and_weights_are_not_judged(probed: Callable[..., Proof]):
    proof = probed(skew=0.1)
    assert judged(proof) == {"log-probs": ("failed", [("OFF004", "critical")]), "weights": ("not_evaluated", [])}
    assert agreement_gate(proof).findings[0].evidence[0].threshold == 0.01


def test_log_probs_that_are_not_numbers_are_refused(probed: Callable[..., Proof]):
    found = judged(probed(skew=float("nan")))
    assert found["log-probs"] == ("failed", [("OFF004", "critical")])
    assert found["weights"] == ("failed", [("OFF010", "critical")])
