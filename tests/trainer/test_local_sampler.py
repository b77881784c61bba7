"""The local sampler: in a process of its own, with the learner's weights, and after it was killed."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.tiny import TinyPolicy, tiny_config, tiny_prompts, tiny_requests
from tocsin.schemas.config import RunConfig, SamplerConfig
from tocsin.schemas.fault import FaultConfig
from tocsin.trainer.data import Completion
from tocsin.trainer.learner import Learner
from tocsin.trainer.local_sampler import LocalSampler
from tocsin.trainer.messages import Generate, LearnerFacts, Load, Setup, Sync, Weights
from tocsin.trainer.sampler import LocalSamplerHandle, SamplerDied, sampler_device
from tocsin.trainer.sampling import generate
from tocsin.trainer.weights import Probe, WeightStore, probe_tokens


@dataclass(frozen=True)
class Office:
    """A learner and its sampler, and the loop in which the sampler is asked."""

    runner: asyncio.Runner
    handle: LocalSamplerHandle
    learner: Learner
    store: WeightStore
    probe: Any

    def ask(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def sync(self, version: int) -> Any:
        """Send the learner's weights."""
        return self.ask(self.handle.sync(Sync(version, self.store.write(version, self.learner.weights()))))

    def generate(self, policy: TinyPolicy, num: int = 3) -> Any:
        return self.ask(self.handle.generate(Generate(tiny_requests(policy, num))))


@pytest.fixture(scope="module")
def office(tiny_policy: TinyPolicy) -> Iterator[Office]:
    """One sampler process for all tests of this file: most of its start is imports."""
    config = tiny_config(tiny_policy)

    async def start() -> LocalSamplerHandle:
        handle = LocalSamplerHandle(threads=1)
        await handle.load(setup(tiny_policy, config))
        return handle

    store = WeightStore()
    with asyncio.Runner() as runner:
        handle = runner.run(start())
        try:
            learner = Learner(config, tiny_policy.model, config.knobs)
            yield Office(runner, handle, learner, store, probe_ids(tiny_policy))
        finally:
            handle.stop()
            store.close()
    assert not handle.process.is_alive()


def probe_ids(policy: TinyPolicy) -> Any:
    return probe_tokens(tiny_prompts(policy, 2), 13, 0, limit=64)


def setup(policy: TinyPolicy, config: RunConfig) -> Setup:
    return Setup(
        config=config,
        model_path=policy.model,
        prompts=[],
        evaluation=[],
        knobs=config.knobs,
        config_generation=0,
        next_step=0,
        next_index=0,
        reissue=[],
        probe=probe_ids(policy),
        learner=LearnerFacts(vocab_size=13, max_length=64, eos_ids=(1,), weights_folder=policy.model),
        logs=policy.model,
    )


def move(learner: Learner, seed: int) -> None:
    """Other weights, as an optimizer step would leave them; the tied embedding moves too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.01)


def in_process(learner: Learner, policy: TinyPolicy, version: int, num: int = 3) -> list[list[Completion]]:
    """What the learner's own model would sample."""
    return generate(
        learner.model,
        tiny_requests(policy, num),
        seed=learner.config.seed,
        version=version,
        eos_ids=learner.eos_ids,
        pad_id=learner.pad_id,
    )


def differences(one: list[list[Completion]], other: list[list[Completion]]) -> float:
    """Largest log-prob difference; infinite when tokens, ends or versions differ."""
    worst = 0.0
    for a, b in zip([c for g in one for c in g], [c for g in other for c in g], strict=True):
        same = (a.token_ids.tolist(), a.finish_reason, a.versions) == (
            b.token_ids.tolist(),
            b.finish_reason,
            b.versions,
        )
        worst = max(worst, float(np.abs(a.logprobs - b.logprobs).max()) if same else np.inf)
    return worst


def test_it_samples_what_the_same_weights_sample_in_this_process(office: Office, tiny_policy: TinyPolicy):
    answer = office.generate(tiny_policy)
    assert answer.version == 0
    assert [len(group) for group in answer.completions] == [4, 4, 4]
    assert differences(answer.completions, in_process(office.learner, tiny_policy, 0)) < 1e-5


def test_new_weights_arrive_whole_and_prove_it(office: Office, tiny_policy: TinyPolicy):
    before = in_process(office.learner, tiny_policy, 7)
    move(office.learner, seed=1)
    answer = office.sync(7)
    assert answer.version == 7
    expected = office.learner.probe(office.probe)
    assert float((torch.from_numpy(answer.probe_logprobs) - expected).abs().max()) < 1e-5
    sampled = office.generate(tiny_policy).completions
    # The output layer shares the embedding's tensor, so a stale copy of it would show here.
    assert differences(sampled, in_process(office.learner, tiny_policy, 7)) < 1e-5
    assert differences(sampled, before) > 0.01
    assert {completion.versions for group in sampled for completion in group} == {
        ((7, len(completion.token_ids)),) for group in sampled for completion in group
    }


def test_requests_are_answered_in_order_one_at_a_time(office: Office, tiny_policy: TinyPolicy):
    versions = []
    for version in (8, 9):
        move(office.learner, seed=version)
        versions.append(office.sync(version).version)
        versions.append(office.generate(tiny_policy, 1).version)
    assert versions == [8, 8, 9, 9]


def test_a_killed_sampler_is_noticed_and_its_successor_holds_the_last_weights(office: Office, tiny_policy: TinyPolicy):
    move(office.learner, seed=20)
    office.sync(20)
    before = office.generate(tiny_policy).completions
    pid = office.handle.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SamplerDied, match="ended with exit code -9"):
        office.generate(tiny_policy)
    answer = office.ask(office.handle.restart())
    assert office.handle.restarts == 1
    assert office.handle.process.pid != pid
    assert answer.version == 20
    expected = office.learner.probe(office.probe)
    assert float((torch.from_numpy(answer.probe_logprobs) - expected).abs().max()) < 1e-5
    assert differences(office.generate(tiny_policy).completions, before) == 0.0


def test_a_sampler_that_hangs_counts_as_dead_after_its_timeout(office: Office, tiny_policy: TinyPolicy):
    """Last of the tests that share the process: it leaves it stopped, for `stop` to kill."""
    config = tiny_config(tiny_policy, sampler=SamplerConfig(timeout_s=0.5))
    office.ask(office.handle.load(setup(tiny_policy, config)))
    assert office.handle.process.pid is not None
    os.kill(office.handle.process.pid, signal.SIGSTOP)
    with pytest.raises(SamplerDied, match=r"did not answer within 0.5 s"):
        office.generate(tiny_policy)


def sampler(policy: TinyPolicy, **changes: Any) -> LocalSampler:
    """The same code without the process around it."""
    fields: dict[str, Any] = {
        "model_path": policy.model,
        "dtype": "float32",
        "attention": "sdpa",
        "device": "cpu",
        "threads": 1,
        "seed": 0,
        "probe": probe_ids(policy),
        "fault": None,
        **changes,
    }
    return LocalSampler(Load(**fields))


@pytest.mark.parametrize(
    ("fault", "verified"),
    [(None, [True] * 4), (FaultConfig(name="stale-weights", onset_step=1), [True, True, False, False])],
)
def test_the_probe_tells_weights_that_arrived_from_a_version_that_is_only_claimed(
    tiny_policy: TinyPolicy, fault: FaultConfig | None, verified: list[bool]
):
    config = tiny_config(tiny_policy)
    learner = Learner(config, tiny_policy.model, config.knobs)
    suspect = sampler(tiny_policy, fault=fault)
    probe, store, seen = Probe("float32"), WeightStore(), []
    for version in range(4):
        probe.expect(version, learner.probe(probe_ids(tiny_policy)))
        answer = suspect.answer(Weights(version, store.write(version, learner.weights())))
        assert answer.version == version, "the version comes back either way"
        gap, moved = probe.compare(version, [answer.probe_logprobs])
        assert probe.tolerance == 1e-4
        seen.append(gap <= probe.tolerance)
        assert version == 0 or moved > 0.01
        move(learner, seed=version)
    store.close()
    assert seen == verified


def test_a_fault_of_the_sampler_is_in_force_from_its_onset_on(tiny_policy: TinyPolicy):
    planted = sampler(tiny_policy, fault=FaultConfig(name="eos-ignored", onset_step=3))

    def reasons(step: int) -> set[str]:
        answer = planted.sample(Generate(tiny_requests(tiny_policy, 2, target_step=step, max_tokens=32)))
        return {completion.finish_reason for group in answer.completions for completion in group}

    assert "stop" in reasons(2)
    assert reasons(3) == {"length"}


def test_the_sampler_follows_the_learners_device_unless_told_otherwise(tiny_policy: TinyPolicy):
    config = tiny_config(tiny_policy)
    device = config.device.model_copy(update={"learner": "cuda", "sampler": "auto"})
    assert sampler_device(config.model_copy(update={"device": device})) == "cuda"
    apart = device.model_copy(update={"sampler": "cpu"})
    assert sampler_device(config.model_copy(update={"device": apart})) == "cpu"
