"""The learner against independent computations, and on the days when something goes wrong."""

import copy
import math
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import MambaConfig, MambaForCausalLM

from tests.trainer.tiny import TinyPolicy, scored, tiny_config, tiny_requests
from tocsin.schemas.base import NonFinite, as_float
from tocsin.schemas.config import DeviceConfig, ModelConfig, OptimizerConfig
from tocsin.schemas.fault import FaultConfig
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.advantages import samples
from tocsin.trainer.data import Completion, Group
from tocsin.trainer.learner import Learner, OutOfMemory
from tocsin.trainer.models import ModelError, max_length
from tocsin.trainer.sampling import generate

WITH_SPREAD = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]]
WITHOUT_SPREAD = [[0.5] * 4] * 4
SMOOTH = OptimizerConfig(beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1)
"""A large eps: with a small one the first update of a gradient that is only rounding is as large as any other."""
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def completions(tiny_policy: TinyPolicy) -> list[list[Completion]]:
    """Four groups of four, sampled by the policy as it was pre-trained."""
    learner = make(tiny_policy)
    requests = tiny_requests(tiny_policy, 4)
    return generate(learner.model, requests, seed=0, version=0, eos_ids=learner.eos_ids, pad_id=learner.pad_id)


@pytest.fixture
def groups(tiny_policy: TinyPolicy, completions: list[list[Completion]]) -> list[Group]:
    """The same, with rewards that differ in every group."""
    return rewarded(tiny_policy, completions, WITH_SPREAD)


def make(policy: TinyPolicy, **changes: Any) -> Learner:
    config = tiny_config(policy, **changes)
    return Learner(config, policy.model, config.knobs)


def rewarded(policy: TinyPolicy, sampled: list[list[Completion]], rewards: list[list[float]]) -> list[Group]:
    return [
        scored(request, group, values)
        for request, group, values in zip(tiny_requests(policy, len(sampled)), sampled, rewards, strict=True)
    ]


def shifted(groups: list[Group], spread: float) -> list[Group]:
    """As if older weights had sampled them: log-probs moved by noise of this standard deviation, in nats."""
    moved, rng = copy.deepcopy(groups), np.random.default_rng(0)
    for group in moved:
        for completion in group.completions:
            completion.logprobs[:] += rng.normal(0, spread, len(completion.logprobs)).astype(np.float32)
    return moved


def snapshot(learner: Learner) -> Weights:
    return {name: value.clone() for name, value in learner.weights().items()}


def identical(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 9: 1.0, 11: 1.0}),
        ("linear", {0: 0.25, 3: 1.0, 4: 1.0, 6: 0.75, 8: 0.5, 11: 0.125}),
        ("cosine", {0: 0.25, 4: 1.0, 6: 0.5 + math.sqrt(0.125), 8: 0.5, 10: 0.5 - math.sqrt(0.125)}),
    ],
)
def test_the_learning_rate_warms_up_and_decays_to_zero_after_the_last_step(
    tiny_policy: TinyPolicy, schedule: Any, expected: dict[int, float]
):
    learner = make(tiny_policy, steps=12, optimizer=OptimizerConfig(schedule=schedule, warmup_steps=4))
    knobs = Knobs(learning_rate=2e-3)
    got = {step: learner.learning_rate(step, knobs) for step in expected}
    assert got == pytest.approx({step: 2e-3 * factor for step, factor in expected.items()})


def test_without_warm_up_the_first_update_has_the_peak_rate(tiny_policy: TinyPolicy):
    learner = make(tiny_policy, steps=10, optimizer=OptimizerConfig(schedule="linear"))
    rates = [learner.learning_rate(step, Knobs(learning_rate=1.0)) for step in (0, 1, 9)]
    assert rates == pytest.approx([1.0, 0.9, 0.1])


def hand_gradient(learner: Learner, groups: list[Group], knobs: Knobs) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradient of the clipped objective (DAPO weights), one unpadded row at a time."""
    model = copy.deepcopy(learner.model)
    num_tokens = sum(len(completion.token_ids) for group in groups for completion in group.completions)
    total = torch.zeros(())
    for group in groups:
        advantages = (group.rewards - group.rewards.mean()) / (group.rewards.std() + 1e-4)
        for completion, advantage in zip(group.completions, advantages.tolist(), strict=True):
            start = len(group.request.prompt.token_ids)
            ids = torch.from_numpy(np.concatenate([group.request.prompt.token_ids, completion.token_ids])).long()
            logits = model(input_ids=ids[None], use_cache=False).logits[0, start - 1 : -1]
            logp = torch.log_softmax(logits / completion.temperature, -1).gather(-1, ids[start:, None])[:, 0]
            ratio = (logp - torch.from_numpy(completion.logprobs)).exp()
            clipped = ratio.clamp(1 - knobs.clip_low, 1 + knobs.clip_high)
            total = total - torch.minimum(ratio * advantage, clipped * advantage).sum() / num_tokens
    total.backward()
    return float(total.detach()), {name: parameter.grad for name, parameter in model.named_parameters()}


def test_one_step_is_the_clipped_gradient_through_adamw(tiny_policy: TinyPolicy, groups: list[Group]):
    learner = make(tiny_policy, optimizer=SMOOTH, knobs={"learning_rate": 1e-2, "grad_clip": 0.3})
    moved = shifted(groups, 0.3)
    before = snapshot(learner)
    loss, gradient = hand_gradient(learner, moved, learner.config.knobs)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradient.values()))
    assert norm > 0.3, "the gradient must be one that is clipped"
    event = learner.step(moved, learner.config.knobs, step=0)

    assert event.outcome == "updated"
    assert as_float(event.clip_low_frac) > 0.05
    assert as_float(event.clip_high_frac) > 0.05
    assert as_float(event.loss) == pytest.approx(loss, rel=1e-4)
    assert as_float(event.grad_norm) == pytest.approx(norm, rel=1e-4)
    assert as_float(event.learning_rate) == 1e-2
    after = learner.weights()
    assert "lm_head.weight" not in after, "a tied weight travels once"
    for name, old in before.items():
        g = gradient[name] * (0.3 / norm)
        # First step: bias correction turns both moments into the gradient itself.
        wanted = old * (1 - 1e-2 * 0.1) - 1e-2 * g / (g.abs() + 1e-3)
        torch.testing.assert_close(after[name], wanted, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_update_ratio_is_the_measured_change_of_the_parameters(
    tiny_policy: TinyPolicy, groups: list[Group], decay: float
):
    learner = make(tiny_policy, optimizer=OptimizerConfig(weight_decay=decay))
    for step in range(3):
        before = snapshot(learner)
        event = learner.step(shifted(groups, 0.05 * step), learner.config.knobs, step)
        after = learner.weights()
        change = math.sqrt(sum(float((after[n].double() - before[n].double()).square().sum()) for n in before))
        size = math.sqrt(sum(float(after[n].double().square().sum()) for n in before))
        assert as_float(event.update_ratio) == pytest.approx(change / size, rel=1e-4)


def test_on_policy_the_ratios_are_one_and_nothing_is_clipped(tiny_policy: TinyPolicy, groups: list[Group]):
    learner = make(tiny_policy)
    event = learner.step(groups, learner.config.knobs, step=0)
    assert [bucket.staleness for bucket in event.ratio] == [0]
    assert as_float(event.ratio[0].mean) == pytest.approx(1.0, abs=1e-5)
    assert event.logprob_gap is not None
    assert as_float(event.logprob_gap.abs_max) < 1e-5
    assert as_float(event.clip_low_frac) == as_float(event.clip_high_frac) == 0.0
    tokens = sum(len(completion.token_ids) for group in groups for completion in group.completions)
    assert (event.groups, event.groups_trained, event.tokens, event.tokens_trained) == (4, 4, tokens, tokens)


def test_groups_without_spread_change_nothing_and_are_no_signal(
    tiny_policy: TinyPolicy, completions: list[list[Completion]]
):
    learner = make(tiny_policy, optimizer=OptimizerConfig(weight_decay=0.1))
    before = snapshot(learner)
    event = learner.step(rewarded(tiny_policy, completions, WITHOUT_SPREAD), learner.config.knobs, step=0)
    assert event.outcome == "no_signal"
    assert (event.groups, event.groups_trained, event.tokens_trained) == (4, 0, 0)
    assert event.loss is None
    assert event.grad_norm is None
    assert identical(before, learner.weights())
    assert not learner.optimizer.state


def test_a_loss_that_is_not_finite_leaves_weights_and_moments_as_they_were(
    tiny_policy: TinyPolicy, groups: list[Group]
):
    learner = make(tiny_policy, fault=FaultConfig(name="nan", onset_step=3))
    assert learner.step(groups, learner.config.knobs, step=2).outcome == "updated"
    before, moments = snapshot(learner), copy.deepcopy(learner.optimizer.state_dict())
    event = learner.step(groups, learner.config.knobs, step=3)
    assert event.outcome == "nonfinite"
    assert event.nonfinite == ["loss", "grad_norm"]
    assert event.loss == NonFinite(nonfinite="nan")
    assert event.update_ratio is None
    assert identical(before, learner.weights())
    for number, state in learner.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            assert torch.equal(value, moments["state"][number][key])
    assert learner.step(groups, learner.config.knobs, step=5).outcome == "updated"


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_sampler_logprob_that_is_not_finite_skips_the_update_and_is_named(
    tiny_policy: TinyPolicy, groups: list[Group], bad: float
):
    learner = make(tiny_policy)
    spoiled = copy.deepcopy(groups)
    spoiled[1].completions[2].logprobs[0] = bad
    before = snapshot(learner)
    event = learner.step(spoiled, learner.config.knobs, step=0)
    assert event.outcome == "nonfinite"
    assert "sampler_logprob" in event.nonfinite
    assert "learner_logprob" not in event.nonfinite
    assert identical(before, learner.weights())


def small_device(policy: TinyPolicy, *, room_for_tokens: int, **knobs: Any) -> Learner:
    """On a pretended accelerator that holds the weights, Adam and the activations of so many padded tokens."""
    parameter_bytes = 4 * sum(value.numel() for value in make(policy).weights().values())
    total = 4 * parameter_bytes + room_for_tokens * 1_000_000 + 500_000
    device = DeviceConfig(learner="cpu", simulated_memory_gib=total / (1 << 30), simulated_bytes_per_token=1_000_000)
    return make(policy, device=device, knobs=knobs, optimizer=SMOOTH)


def test_running_out_of_memory_halves_the_budget_and_gives_the_same_step(tiny_policy: TinyPolicy, groups: list[Group]):
    plenty, tight = make(tiny_policy, optimizer=SMOOTH), small_device(tiny_policy, room_for_tokens=70)
    moved = shifted(groups, 0.1)
    whole = plenty.step(moved, plenty.config.knobs, step=0)
    cut = tight.step(moved, tight.config.knobs, step=0)
    assert whole.oom_retries == 0
    assert whole.microbatches is not None
    assert whole.microbatches.num == 1
    # 240 padded tokens or a little less in one pass, then 120, then 60.
    assert cut.oom_retries == 2
    assert cut.microbatches is not None
    assert cut.microbatches.token_budget == whole.microbatches.max_tokens // 2 // 2
    assert cut.microbatches.max_tokens <= 70
    assert cut.outcome == "updated"
    assert as_float(cut.grad_norm) == pytest.approx(as_float(whole.grad_norm), rel=1e-5)
    assert as_float(cut.entropy) == pytest.approx(as_float(whole.entropy), rel=1e-5)
    assert cut.tokens_trained == whole.tokens_trained
    other = plenty.weights()
    for name, value in tight.weights().items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=1e-6)
    peaks = tight.meter.sample()[0].phases
    assert peaks["forward_backward"].allocated_bytes > peaks["optimizer"].allocated_bytes


def test_the_budget_never_falls_below_the_knobs_bound(tiny_policy: TinyPolicy, completions: list[list[Completion]]):
    short = [
        [Completion(c.token_ids[:2], c.logprobs[:2], "length", ((0, 2),), 1.0) for c in group] for group in completions
    ]
    learner = small_device(tiny_policy, room_for_tokens=16, microbatch_tokens=20)
    event = learner.step(rewarded(tiny_policy, short, WITH_SPREAD), learner.config.knobs, step=0)
    assert event.microbatches is not None
    # A row is 9 tokens wide, half of the 18 in a pass; a knob of less than 16 would be refused.
    assert event.microbatches.token_budget == 16
    assert event.microbatches.max_tokens == 9
    assert event.oom_retries == 1


def test_a_completion_that_does_not_fit_alone_ends_the_run_with_its_size(tiny_policy: TinyPolicy, groups: list[Group]):
    learner = small_device(tiny_policy, room_for_tokens=5)
    before = snapshot(learner)
    longest = max(
        sample.num_tokens for sample in samples(groups, learner.config.loss, learner.config.knobs, step=0).trained
    )
    with pytest.raises(OutOfMemory, match=f"a single completion of {longest} tokens .* lower `max_completion_tokens`"):
        learner.step(groups, learner.config.knobs, step=0)
    assert identical(before, learner.weights())


def test_a_penalty_to_the_reference_keeps_groups_without_spread(
    tiny_policy: TinyPolicy, completions: list[list[Completion]]
):
    learner = make(tiny_policy, knobs={"kl_beta": 0.05, "learning_rate": 1e-3})
    flat = rewarded(tiny_policy, completions, WITHOUT_SPREAD)
    first = learner.step(flat, learner.config.knobs, step=0)
    assert (first.outcome, first.groups_trained) == ("updated", 4)
    assert as_float(first.kl_ref) == pytest.approx(0.0, abs=1e-6)
    learner.step(rewarded(tiny_policy, completions, WITH_SPREAD), learner.config.knobs, step=1)
    later = learner.step(flat, learner.config.knobs, step=2)
    assert as_float(later.kl_ref) > 1e-5
    # Without spread the loss is the penalty alone.
    assert as_float(later.loss) == pytest.approx(0.05 * as_float(later.kl_ref), rel=1e-3)


def test_a_restored_learner_goes_on_bit_for_bit(tiny_policy: TinyPolicy, groups: list[Group], tmp_path: Path):
    settings = OptimizerConfig(schedule="linear", warmup_steps=2, weight_decay=0.01)
    one = make(tiny_policy, optimizer=settings)
    for step in range(2):
        one.step(shifted(groups, 0.05), one.config.knobs, step)
    one.save(tmp_path)
    other = Learner(one.config, tmp_path, one.config.knobs)
    other.restore(tmp_path)
    assert identical(one.weights(), other.weights())
    for step in (2, 3):
        events = [learner.step(groups, one.config.knobs, step) for learner in (one, other)]
        assert events[0].model_dump(exclude={"seconds"}) == events[1].model_dump(exclude={"seconds"})
    assert identical(one.weights(), other.weights())


@pytest.mark.parametrize("limit", [20_000, 2_000_000])
def test_a_disk_that_is_full_is_an_error_of_the_system_for_model_and_optimizer(
    tiny_policy: TinyPolicy, groups: list[Group], tmp_path: Path, limit: int
):
    learner = make(tiny_policy)
    learner.step(groups, Knobs(), 0)
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="must be a folder that can be written"):
            learner.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_the_probe_gives_the_logprobs_of_the_weights_held_now(tiny_policy: TinyPolicy, groups: list[Group]):
    learner = make(tiny_policy)
    ids = np.array([[3, 4, 5, 12, 6], [7, 7, 2, 12, 9]], dtype=np.int32)
    before = learner.probe(ids)
    with torch.no_grad():
        logits = learner.model(input_ids=torch.from_numpy(ids).long()).logits[:, :-1]
    wanted = torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(ids).long()[:, 1:, None])[..., 0]
    torch.testing.assert_close(before, wanted, atol=1e-5, rtol=0)
    learner.step(groups, learner.config.knobs, step=0)
    assert float((learner.probe(ids) - before).abs().max()) > 1e-3


def test_a_model_without_positions_needs_a_stated_length():
    model = MambaForCausalLM(MambaConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, state_size=2))
    with pytest.raises(ModelError, match=r"`model.max_length` must be set"):
        max_length(model, ModelConfig(path="x"))
    assert max_length(model, ModelConfig(path="x", max_length=100)) == 100


def test_a_stated_length_shortens_what_the_model_allows_and_never_extends_it(tiny_policy: TinyPolicy):
    assert make(tiny_policy).max_length == 64
    assert make(tiny_policy, model=ModelConfig(path=str(tiny_policy.model), max_length=20)).max_length == 20
    assert make(tiny_policy, model=ModelConfig(path=str(tiny_policy.model), max_length=500)).max_length == 64
