"""The gradient of a real transformers model: what it must equal, and what it must not depend on."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tocsin.schemas.config import LossConfig
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.advantages import samples
from tocsin.trainer.batching import TensorBatch, microbatches, to_tensors
from tocsin.trainer.data import Completion, Group, GroupRequest, Prompt, Sample
from tocsin.trainer.loss import policy_loss, token_logprobs

VARIANTS = ["grpo", "dapo", "dr_grpo", "cispo", "gspo"]
ONE_ROW = 1
EVERYTHING = 1_000_000
"""Token budgets."""
LIMIT = 12
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def plain_logps(model: LlamaForCausalLM, prompt: np.ndarray, completion: np.ndarray) -> Tensor:
    """[T] log-probs from one row without padding, mask or position ids."""
    ids = torch.from_numpy(np.concatenate([prompt, completion]).astype(np.int64))
    logits = model(input_ids=ids[None]).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
    return torch.log_softmax(logits, dim=-1).gather(-1, ids[len(prompt) :, None])[:, 0]


def batch_logps(model: LlamaForCausalLM, batch: TensorBatch) -> tuple[Tensor, Tensor]:
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        logits_to_keep=batch.num_logits,
        use_cache=False,
    ).logits
    return token_logprobs(logits[:, :-1], batch.completion_ids, batch.temperature)


def make_groups(model: LlamaForCausalLM, *, drift: float) -> list[Group]:
    """Four groups of four; sampler log-probs lie around the model's with standard deviation `drift`."""
    random = np.random.default_rng(1)
    rewards = [[1.0, 0.0, 0.0, 0.5], [1.0, 1.0, 1.0, 0.0], [0.3, 0.3, 0.3, 0.3], [0.0, 0.2, 0.9, 0.0]]
    groups = []
    for index, row in enumerate(rewards):
        prompt = random.integers(1, 20, size=index + 2).astype(np.int32)
        completions = []
        for _ in row:
            tokens = random.integers(1, 20, size=random.integers(1, LIMIT)).astype(np.int32)
            with torch.no_grad():
                logps = plain_logps(model, prompt, tokens).numpy()
            sampler = logps + random.normal(0.0, drift, len(tokens)).astype(np.float32)
            spans = ((0, len(tokens)),)
            completions.append(Completion(tokens, sampler, "stop", spans, TEMPERATURE))
        request = GroupRequest(index, 0, Prompt(str(index), "", prompt, {}), 4, TEMPERATURE, LIMIT, 0)
        groups.append(Group(request, tuple(completions), np.array(row), {}, 0, 0.0, 0.0, 0.0))
    return groups


def gradient(
    model: LlamaForCausalLM, rows: list[Sample], budget: int, *, variant: str, knobs: Knobs
) -> tuple[float, Tensor]:
    """Loss and gradient of the step over all parameters, in float64, accumulated over micro-batches in float32."""
    model.zero_grad()
    total = 0.0
    for batch in microbatches(rows, budget, pad_id=0):
        tensors = to_tensors(batch, "cpu")
        logp, entropy = batch_logps(model, tensors)
        ref = logp.detach() - 0.1 if knobs.kl_beta > 0 else None
        terms = policy_loss(logp, entropy, tensors, variant=variant, knobs=knobs, ref_logp_BT=ref)
        terms.loss.backward()
        total += terms.loss.item()
    return total, flat_gradient(model)


def flat_gradient(model: LlamaForCausalLM) -> Tensor:
    return torch.cat([parameter.grad.double().flatten() for parameter in model.parameters()])


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def test_padding_does_not_change_log_probs_or_entropies(model):
    step = samples(make_groups(model, drift=0.0), LossConfig(), Knobs(skip_zero_spread=False), step=0)
    (batch,) = microbatches(step.trained, EVERYTHING, pad_id=0)
    assert batch.padded_tokens > batch.tokens
    tensors = to_tensors(batch, "cpu")
    with torch.no_grad():
        logp, entropy = batch_logps(model, tensors)
        for i in range(len(batch.input_ids)):
            ids = batch.input_ids[i][batch.attention_mask[i] == 1]
            length = int(batch.completion_mask[i].sum())
            alone = plain_logps(model, ids[:-length], ids[-length:])
            torch.testing.assert_close(logp[i, :length], alone, rtol=0, atol=1e-5)
            logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0, -length - 1 : -1] / TEMPERATURE
            expected = torch.distributions.Categorical(logits=logits).entropy()
            torch.testing.assert_close(entropy[i, :length], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("knobs", [Knobs(), Knobs(kl_beta=0.1, entropy_coef=0.01)], ids=["plain", "kl-and-entropy"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 5e-6), (torch.float64, 1e-12)])
def test_gradient_does_not_depend_on_the_micro_batch_split_or_the_row_order(model, variant, knobs, dtype, limit):
    model = copy.deepcopy(model).to(dtype)
    step = samples(make_groups(model, drift=0.3), LossConfig(variant=variant), knobs, step=0)
    whole_loss, whole = gradient(model, step.trained, EVERYTHING, variant=variant, knobs=knobs)
    shuffled = [step.trained[i] for i in np.random.default_rng(2).permutation(len(step.trained))]
    assert len(microbatches(step.trained, ONE_ROW, pad_id=0)) == len(step.trained)
    assert len(microbatches(step.trained, 64, pad_id=0)) in range(3, len(step.trained))
    for rows, budget in ((step.trained, ONE_ROW), (step.trained, 64), (shuffled, 64), (shuffled, EVERYTHING)):
        loss, split = gradient(model, rows, budget, variant=variant, knobs=knobs)
        # A sum of terms of order one that nearly cancel, each rounded to float32.
        assert loss == pytest.approx(whole_loss, abs=3e-6)
        # Rounding of float32 alone comes to between 5e-7 and 2e-6, depending on the processor.
        assert relative_error(split, whole) < limit


def reference_gradient(model: LlamaForCausalLM, groups: list[Group], variant: str, eps: float) -> Tensor:
    """The on-policy gradient written down from the papers, one unpadded completion at a time.

    On-policy the ratio is 1, so each token contributes -A grad log p. `dapo`: over all tokens of the batch.
    `grpo`: token mean per completion, then mean over completions. `dr_grpo`: over completions x length limit, A
    without the division by the standard deviation.
    """
    model.zero_grad()
    num_tokens = sum(len(c.token_ids) for group in groups for c in group.completions)
    num_completions = sum(len(group.completions) for group in groups)
    loss = torch.zeros(())
    for group in groups:
        mean = math.fsum(group.rewards) / len(group.rewards)
        variance = math.fsum((r - mean) ** 2 for r in group.rewards) / len(group.rewards)
        for completion, reward in zip(group.completions, group.rewards, strict=True):
            advantage = (reward - mean) / (1.0 if variant == "dr_grpo" else math.sqrt(variance) + eps)
            score = plain_logps(model, group.request.prompt.token_ids, completion.token_ids).sum()
            divisor = {
                "dapo": num_tokens,
                "grpo": num_completions * len(completion.token_ids),
                "dr_grpo": num_completions * LIMIT,
            }[variant]
            loss = loss - advantage * score / divisor
    loss.backward()
    return flat_gradient(model)


@pytest.mark.parametrize("variant", ["grpo", "dapo", "dr_grpo"])
def test_on_policy_gradient_equals_the_published_formula(model, variant):
    groups = make_groups(model, drift=0.0)
    step = samples(groups, LossConfig(variant=variant, advantage_eps=1e-4), Knobs(), step=0)
    _, got = gradient(model, step.trained, 64, variant=variant, knobs=Knobs())
    assert relative_error(got, reference_gradient(model, groups, variant, eps=1e-4)) < 1e-5


def test_skipping_groups_without_spread_leaves_the_gradient_as_it_is(model):
    groups = make_groups(model, drift=0.3)
    skipped = samples(groups, LossConfig(), Knobs(), step=0)
    trained = samples(groups, LossConfig(), Knobs(skip_zero_spread=False), step=0)
    assert len(trained.trained) == len(skipped.trained) + 4
    _, lean = gradient(model, skipped.trained, 64, variant="dapo", knobs=Knobs())
    _, full = gradient(model, trained.trained, 64, variant="dapo", knobs=Knobs())
    assert relative_error(lean, full) < 1e-6
