"""Losses and their gradients against numbers worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from tocsin.schemas.knobs import Knobs
from tocsin.trainer import loss as loss_module
from tocsin.trainer.batching import TensorBatch
from tocsin.trainer.loss import policy_loss, token_logprobs

KNOBS = Knobs(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
LOGP = -1.0
"""Learner's log-prob of every token in the hand-computed cases."""


def tensor_batch(
    log_ratios: list[list[float]], advantages: list[float], *, weights: list[float] | None = None
) -> TensorBatch:
    """Rows whose learner log-probs are `LOGP` and lie `log_ratios` above the sampler's; shorter rows are padded."""
    rows, longest = len(log_ratios), max(len(row) for row in log_ratios)
    sampler, mask = torch.full((rows, longest), 77.0), torch.zeros(rows, longest, dtype=torch.bool)
    for i, row in enumerate(log_ratios):
        sampler[i, : len(row)] = LOGP - torch.tensor(row)
        mask[i, : len(row)] = True
    unused = torch.zeros(rows, longest, dtype=torch.int64)
    return TensorBatch(
        input_ids=unused,
        attention_mask=unused,
        position_ids=unused,
        completion_ids=unused,
        completion_mask=mask,
        sampler_logprobs=sampler,
        advantage=torch.tensor(advantages),
        weight=torch.tensor(weights or [1.0] * rows),
        temperature=torch.ones(rows),
        staleness=torch.arange(rows, dtype=torch.int32),
    )


def logps(batch: TensorBatch) -> Tensor:
    return torch.full(batch.sampler_logprobs.shape, LOGP, requires_grad=True)


# fmt: off
CLIPPED = [
    # log ratio, advantage, loss, gradient with respect to the log-prob
    (0.0,   1.0, -1.0,              -1.0),              # on-policy: plain policy gradient
    (0.0,  -2.0,  2.0,               2.0),
    (0.2,   1.0, -math.exp(0.2),    -math.exp(0.2)),    # inside the clip: ratio x advantage
    (0.5,   1.0, -1.3,               0.0),              # already raised past the upper clip: no more credit
    (-0.5,  1.0, -math.exp(-0.5),   -math.exp(-0.5)),   # moved the wrong way: the clip must not hide it
    (-0.5, -1.0,  0.8,               0.0),              # already lowered past the lower clip
    (0.5,  -1.0,  math.exp(0.5),     math.exp(0.5)),    # moved the wrong way
    (2.0,  -1.0,  3.0,               0.0),              # beyond the dual clip: loss and gradient are bounded
    (2.0,  -0.5,  1.5,               0.0),
    (2.0,   1.0, -1.3,               0.0),              # the dual clip is for negative advantages only
    (100.0, 1.0, -1.3,               0.0),              # e^100 overflows float32; the clip holds all the same
    (100.0, -1.0, 3.0,               0.0),
    (0.5,   0.0,  0.0,               0.0),
]
CISPO = [
    (0.0,   1.0,  1.0,       -1.0),    # -ratio x advantage x log-prob with log-prob -1
    (0.2,   1.0,  math.exp(0.2), -math.exp(0.2)),
    (0.5,   1.0,  1.3,       -1.3),    # clipped tokens keep a gradient
    (-0.5, -1.0, -0.8,        0.8),
    (100.0, -1.0, -1.3,       1.3),
]
# fmt: on


@pytest.mark.parametrize("variant", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize(("log_ratio", "advantage", "loss", "gradient"), CLIPPED)
def test_token_clip_is_one_sided_and_bounded_for_negative_advantages(variant, log_ratio, advantage, loss, gradient):
    batch = tensor_batch([[log_ratio]], [advantage])
    logp = logps(batch)
    terms = policy_loss(logp, torch.zeros(1, 1), batch, variant=variant, knobs=KNOBS)
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(loss, rel=1e-6)
    assert logp.grad.item() == pytest.approx(gradient, rel=1e-6)


@pytest.mark.parametrize(("log_ratio", "advantage", "loss", "gradient"), CISPO)
def test_cispo_weighs_the_log_prob_with_the_clipped_ratio_as_a_constant(log_ratio, advantage, loss, gradient):
    batch = tensor_batch([[log_ratio]], [advantage])
    logp = logps(batch)
    terms = policy_loss(logp, torch.zeros(1, 1), batch, variant="cispo", knobs=KNOBS)
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(loss, rel=1e-6)
    assert logp.grad.item() == pytest.approx(gradient, rel=1e-6)


def test_gspo_has_one_length_normalised_ratio_per_completion():
    # Mean log ratios 0.1 and -0.2 over 2 and 3 tokens; weights are 1 / (2 completions x length).
    batch = tensor_batch([[0.5, -0.3], [-0.1, -0.2, -0.3]], [1.0, -2.0], weights=[1 / 4, 1 / 6])
    logp = logps(batch)
    terms = policy_loss(logp, torch.zeros(2, 3), batch, variant="gspo", knobs=KNOBS)
    terms.loss.backward()
    first, second = math.exp(0.1), math.exp(-0.2)
    assert terms.loss.item() == pytest.approx((-first * 1.0 + second * 2.0) / 2, rel=1e-6)
    expected = torch.tensor([[-first / 4, -first / 4, 0.0], [2 * second / 6, 2 * second / 6, 2 * second / 6]])
    torch.testing.assert_close(logp.grad, expected, rtol=1e-6, atol=0)


def test_gspo_clips_a_whole_completion_though_only_one_of_its_tokens_moved():
    batch = tensor_batch([[0.9, 0.0]], [1.0], weights=[1 / 2])
    logp = logps(batch)
    terms = policy_loss(logp, torch.zeros(1, 2), batch, variant="gspo", knobs=KNOBS)
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(-1.3, rel=1e-6)
    assert logp.grad.tolist() == [[0.0, 0.0]]
    assert terms.clip_log_ratio_N.tolist() == pytest.approx([0.45, 0.45])


def test_reference_penalty_is_k3_times_beta():
    # d = log ref - log p = 0.4: k3 = e^0.4 - 1 - 0.4, and its derivative by log p is 1 - e^0.4.
    batch = tensor_batch([[0.0]], [0.0], weights=[0.5])
    logp = logps(batch)
    terms = policy_loss(
        logp,
        torch.zeros(1, 1),
        batch,
        variant="dapo",
        knobs=Knobs(kl_beta=0.1),
        ref_logp_BT=torch.full((1, 1), LOGP + 0.4),
    )
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(0.5 * 0.1 * (math.exp(0.4) - 1.4), rel=1e-5)
    assert logp.grad.item() == pytest.approx(0.5 * 0.1 * (1 - math.exp(0.4)), rel=1e-5)
    assert terms.kl_ref_N.tolist() == pytest.approx([math.exp(0.4) - 1.4], rel=1e-5)


def test_entropy_bonus_lowers_the_loss():
    batch = tensor_batch([[0.0, 0.0]], [0.0], weights=[0.5])
    entropy = torch.tensor([[0.3, 0.5]], requires_grad=True)
    terms = policy_loss(logps(batch), entropy, batch, variant="dapo", knobs=Knobs(entropy_coef=0.01))
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(-0.5 * 0.01 * 0.8, rel=1e-6)
    assert entropy.grad.tolist() == [pytest.approx([-0.005, -0.005])]


def test_loss_is_the_sum_over_tokens_of_weight_times_term():
    batch = tensor_batch([[0.0, 0.2], [0.5]], [1.0, -1.0], weights=[0.25, 0.125])
    terms = policy_loss(logps(batch), torch.zeros(2, 2), batch, variant="dapo", knobs=KNOBS)
    assert terms.loss.item() == pytest.approx(0.25 * (-1.0 - math.exp(0.2)) + 0.125 * math.exp(0.5), rel=1e-6)


@pytest.mark.parametrize("variant", ["dapo", "cispo", "gspo"])
def test_padding_adds_nothing_even_where_its_log_probs_are_infinite(variant):
    batch = tensor_batch([[0.1, 0.2], [0.3]], [1.0, -1.0], weights=[0.5, 0.5])
    logp, ref = logps(batch), torch.full((2, 2), LOGP)
    poisoned = torch.where(batch.completion_mask, logp, -math.inf)
    knobs = Knobs(kl_beta=0.1)
    terms = policy_loss(poisoned, torch.zeros(2, 2), batch, variant=variant, knobs=knobs, ref_logp_BT=ref)
    terms.loss.backward()
    clean = policy_loss(logp, torch.zeros(2, 2), batch, variant=variant, knobs=knobs, ref_logp_BT=ref)
    assert terms.loss.item() == clean.loss.item()
    assert logp.grad[1, 1].item() == 0.0
    assert torch.isfinite(logp.grad).all()


def test_token_statistics_cover_trained_tokens_only_and_hold_no_graph():
    batch = tensor_batch([[0.1, 0.2], [0.3]], [1.0, -1.0])
    entropy = torch.tensor([[0.5, 0.6], [0.7, 0.8]], requires_grad=True)
    terms = policy_loss(logps(batch), entropy, batch, variant="dapo", knobs=KNOBS)
    assert (terms.logp_N - terms.sampler_logp_N).tolist() == pytest.approx([0.1, 0.2, 0.3], rel=1e-5)
    assert terms.advantage_N.tolist() == [1.0, 1.0, -1.0]
    assert terms.entropy_N.tolist() == pytest.approx([0.5, 0.6, 0.7])
    assert terms.staleness_N.tolist() == [0, 0, 1]
    assert terms.kl_ref_N is None
    assert not terms.logp_N.requires_grad
    assert not terms.entropy_N.requires_grad


def test_a_log_prob_that_is_nan_makes_the_loss_nan():
    batch = tensor_batch([[0.1, 0.2]], [1.0])
    terms = policy_loss(torch.tensor([[LOGP, math.nan]]), torch.zeros(1, 2), batch, variant="dapo", knobs=KNOBS)
    assert math.isnan(terms.loss.item())


def test_log_probs_and_entropy_of_a_two_word_vocabulary():
    # softmax(log 3 / 1, 0) = 3/4, 1/4; at temperature 0.5 the odds are squared: 9/10, 1/10.
    logits = torch.tensor([[[math.log(3.0), 0.0]], [[math.log(3.0), 0.0]]])
    logp, entropy = token_logprobs(logits, torch.tensor([[0], [1]]), torch.tensor([1.0, 0.5]))
    assert logp.tolist() == [[pytest.approx(math.log(0.75))], [pytest.approx(math.log(0.1))]]
    expected = [-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))]
    assert entropy.tolist() == [[pytest.approx(expected[0])], [pytest.approx(expected[1])]]


def test_policy_gradient_on_logits_is_weight_times_advantage_times_probability_minus_one_hot():
    # d loss / d logits = -w A (onehot - p) / temperature = -0.5 x 2 x ([1, 0] - [0.9, 0.1]) / 0.5.
    logits = torch.tensor([[[math.log(3.0), 0.0]]], requires_grad=True)
    logp, entropy = token_logprobs(logits, torch.tensor([[0]]), torch.tensor([0.5]))
    batch = tensor_batch([[0.0]], [2.0], weights=[0.5])
    batch.sampler_logprobs.copy_(logp.detach())
    policy_loss(logp, entropy, batch, variant="dapo", knobs=KNOBS).loss.backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[[-0.2, 0.2]]]))


@pytest.mark.parametrize("chunk", [1, 40, 1 << 24], ids="chunk={}".format)
def test_gradients_of_log_prob_and_entropy_equal_those_of_the_plain_formulae(monkeypatch, chunk):
    monkeypatch.setattr(loss_module, "CHUNK_ELEMENTS", chunk)
    generator = torch.Generator().manual_seed(0)
    values = 3 * torch.randn(2, 6, 7, generator=generator)
    tokens = torch.randint(7, (2, 5), generator=generator)
    temperature = torch.tensor([0.7, 1.4])
    towards_logp, towards_entropy = torch.randn(2, 2, 5, generator=generator)

    ours, plain = values.clone().requires_grad_(), values.clone().requires_grad_()
    logp, entropy = token_logprobs(ours[:, :-1], tokens, temperature)
    ((logp * towards_logp).sum() + (entropy * towards_entropy).sum()).backward()
    everything = torch.log_softmax(plain[:, :-1] / temperature[:, None, None], dim=-1)
    plain_logp = everything.gather(-1, tokens[..., None])[..., 0]
    plain_entropy = -(everything.exp() * everything).sum(-1)
    ((plain_logp * towards_logp).sum() + (plain_entropy * towards_entropy).sum()).backward()

    torch.testing.assert_close(logp, plain_logp)
    torch.testing.assert_close(entropy, plain_entropy)
    torch.testing.assert_close(ours.grad, plain.grad)


def test_impossible_words_add_neither_nan_to_the_entropy_nor_to_its_gradient():
    logits = torch.tensor([[[0.0, 0.0, -math.inf]]], requires_grad=True)
    logp, entropy = token_logprobs(logits, torch.tensor([[0]]), torch.ones(1))
    (logp.sum() + entropy.sum()).backward()
    assert entropy.item() == pytest.approx(math.log(2))
    assert logits.grad.tolist() == [[[0.5, -0.5, 0.0]]]


def test_log_probs_of_bfloat16_logits_are_taken_in_float32_and_the_gradient_is_bfloat16():
    logits = torch.tensor([[[8.0, 0.0]]], dtype=torch.bfloat16, requires_grad=True)
    logp, entropy = token_logprobs(logits, torch.tensor([[0]]), torch.ones(1))
    (logp.sum() + 0 * entropy.sum()).backward()
    assert logp.dtype == torch.float32
    assert logp.item() == pytest.approx(-math.log1p(math.exp(-8.0)), rel=1e-3)
    assert logits.grad.dtype == torch.bfloat16
