"""Logits to log-probs, and log-probs to the loss (pure).

Everything is a sum over tokens of weight x term. Weights come from `advantages.samples` and hold the division by the
step's denominator, so the losses of a step's micro-batches add up to the loss of the step.

The importance ratio is learner over sampler, on the sampler's own log-probs at the sampling temperature: policy
lag and numeric mismatch are one ratio. That is why no variant gets a truncated importance weight on top, the
ratio that such a weight would truncate is the one the clip bounds already:

`grpo` (arXiv 2402.03300), `dapo` (2503.14476), `dr_grpo` (2503.20783)
    -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token, bounded by -dual_clip A where A < 0 (dual-clip
    PPO, 1912.09729). They differ in weights and in the scale of advantages only. Bounded from both sides: a
    weight would count the same ratio twice.
`cispo` (2506.13585)
    -clip(r, 1 - clip_low, 1 + clip_high) A log p with the clipped ratio held constant: it is the truncated weight,
    and every token keeps a gradient. The paper leaves ratios unbounded below: that is `clip_low` = 1.
`gspo` (2507.18071)
    The clip of `grpo` on one ratio per completion, s = exp(mean over its tokens of log r). With the weight
    1 / (completions x T) on each of its T tokens, value and gradient are the paper's s A and s A mean(grad log p).
    The clip bounds the sequence ratio, which is the one that enters the loss.

Shape letters: B rows, T completion tokens, V vocabulary, N trained tokens (where `completion_mask` is true).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tocsin.schemas.knobs import Knobs
from tocsin.trainer.batching import TensorBatch

Variant = Literal["grpo", "dapo", "dr_grpo", "cispo", "gspo"]

CHUNK_ELEMENTS = 1 << 24
"""Logits that are held in float32 at one time: 64 MiB, in each of two or three copies."""

LOG_FLOOR = -200.0
"""Below it a float32 probability is exactly zero (it is from -104 on), so p log p is zero and never 0 x -inf."""

LOG_RATIO_CAP = 20.0
"""Ratios above e^20 count as e^20. Every clip lies far below (`clip_high` <= 10, `dual_clip` <= 100), so neither loss
nor gradient changes; without it a clipped token whose ratio overflows would turn the gradient into 0 x inf = NaN."""


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Loss of one micro-batch, and its trained tokens for the statistics of the step. Made by `policy_loss`."""

    loss: Tensor
    """Scalar with its graph: sum over tokens of weight x (policy + kl_beta x k3 - entropy_coef x entropy)."""
    logp_N: Tensor
    """Learner's log-probs. This and everything below is detached."""
    sampler_logp_N: Tensor
    clip_log_ratio_N: Tensor
    """Log of the ratio that the clip judges: the token's own, for `gspo` that of its completion."""
    advantage_N: Tensor
    entropy_N: Tensor
    staleness_N: Tensor
    kl_ref_N: Tensor | None
    """k3 to the reference model; None without one."""


def token_logprobs(logits_BTV: Tensor, tokens_BT: Tensor, temperature_B: Tensor) -> tuple[Tensor, Tensor]:
    """[B, T] log-probs of `tokens_BT` and entropies in nats, in float32, of softmax(logits / temperature).

    Both can be differentiated. Nothing of size B x T x V is kept besides the logits themselves in their own
    precision, and nothing is computed for the entropy's gradient unless the loss uses it. Logits of -inf are
    probabilities of zero.
    """
    logp_BT, entropy_BT = _TokenLogProbs.apply(logits_BTV, tokens_BT, temperature_B)  # type: ignore[no-untyped-call]
    return logp_BT, entropy_BT


class _TokenLogProbs(torch.autograd.Function):
    """Log-prob and entropy with their analytic gradients, a chunk of positions at a time.

    With p = softmax(x), x = logits / temperature: d logp[a] / dx = 1[a] - p and dH / dx = -p (log p + H).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        logp = torch.empty(tokens.shape, dtype=torch.float32, device=logits.device)
        entropy = torch.empty_like(logp)
        for part in _chunks(logits):
            log_p = _log_softmax(logits[:, part], temperature)
            logp[:, part] = log_p.gather(-1, tokens[:, part, None]).squeeze(-1)
            p = log_p.exp()
            entropy[:, part] = -p.mul_(log_p.clamp_(min=LOG_FLOOR)).sum(-1)
        ctx.save_for_backward(logits, tokens, temperature, entropy)
        ctx.set_materialize_grads(False)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None, None]:
        logits, tokens, temperature, entropy = ctx.saved_tensors
        grad_logp, grad_entropy = grads
        grad = torch.empty_like(logits)
        for part in _chunks(logits):
            log_p = _log_softmax(logits[:, part], temperature)
            p = log_p.exp()
            slope = torch.zeros_like(p)
            if grad_entropy is not None:
                bent = log_p.clamp_(min=LOG_FLOOR).add_(entropy[:, part, None])
                slope -= bent.mul_(p).mul_(grad_entropy[:, part, None])
            if grad_logp is not None:
                picked = grad_logp[:, part, None]
                slope -= p.mul_(picked)
                slope.scatter_add_(-1, tokens[:, part, None], picked)
            grad[:, part] = slope.div_(temperature[:, None, None])
        return grad, None, None


def _chunks(logits_BTV: Tensor) -> list[slice]:
    """Ranges of T with at most `CHUNK_ELEMENTS` logits each, or single positions."""
    rows, length, vocabulary = logits_BTV.shape
    size = max(1, CHUNK_ELEMENTS // max(1, rows * vocabulary))
    return [slice(start, start + size) for start in range(0, length, size)]


def _log_softmax(logits_BTV: Tensor, temperature_B: Tensor) -> Tensor:
    return torch.log_softmax(logits_BTV.float() / temperature_B[:, None, None], dim=-1)


def policy_loss(
    logp_BT: Tensor,
    entropy_BT: Tensor,
    batch: TensorBatch,
    *,
    variant: Variant,
    knobs: Knobs,
    ref_logp_BT: Tensor | None = None,
) -> LossTerms:
    """The loss of one micro-batch, to be added up over the step without any further division.

    What each variant computes stands at the top of this file.

    The penalty is Schulman's k3 to the reference model, without importance weight. `ref_logp_BT` is taken at the
    same temperature. Values that are not finite come out as they are: the caller checks the loss.
    """
    mask_BT = batch.completion_mask
    # Padding is zeroed before anything is derived from it: 0 x inf in a backward pass is NaN.
    logp_BT = torch.where(mask_BT, logp_BT, 0.0)
    log_ratio_BT = torch.where(mask_BT, logp_BT - batch.sampler_logprobs, 0.0)
    if variant == "gspo":
        # A row without tokens cannot occur, so the division is safe.
        log_ratio_BT = (log_ratio_BT.sum(1) / mask_BT.sum(1))[:, None].expand_as(logp_BT)
    advantage_B1 = batch.advantage[:, None]
    if variant == "cispo":
        per_token_BT = _cispo(logp_BT, log_ratio_BT, advantage_B1, knobs)
    else:
        per_token_BT = _dual_clip(log_ratio_BT, advantage_B1, knobs)

    kl_ref_BT = None if ref_logp_BT is None else _k3(torch.where(mask_BT, ref_logp_BT, 0.0) - logp_BT)
    if kl_ref_BT is not None and knobs.kl_beta > 0:
        per_token_BT = per_token_BT + knobs.kl_beta * kl_ref_BT
    if knobs.entropy_coef > 0:
        per_token_BT = per_token_BT - knobs.entropy_coef * entropy_BT

    weight_BT = torch.where(mask_BT, batch.weight[:, None], 0.0)
    return LossTerms(
        loss=(weight_BT * torch.where(mask_BT, per_token_BT, 0.0)).sum(),
        logp_N=logp_BT.detach()[mask_BT],
        sampler_logp_N=batch.sampler_logprobs[mask_BT],
        clip_log_ratio_N=log_ratio_BT.detach()[mask_BT],
        advantage_N=advantage_B1.expand_as(logp_BT)[mask_BT],
        entropy_N=entropy_BT.detach()[mask_BT],
        staleness_N=batch.staleness[:, None].expand_as(logp_BT)[mask_BT],
        kl_ref_N=None if kl_ref_BT is None else kl_ref_BT.detach()[mask_BT],
    )


def _dual_clip(log_ratio_BT: Tensor, advantage_B1: Tensor, knobs: Knobs) -> Tensor:
    ratio_BT = log_ratio_BT.clamp(max=LOG_RATIO_CAP).exp()
    clipped_BT = ratio_BT.clamp(1 - knobs.clip_low, 1 + knobs.clip_high)
    objective_BT = torch.minimum(ratio_BT * advantage_B1, clipped_BT * advantage_B1)
    bounded_BT = torch.maximum(objective_BT, knobs.dual_clip * advantage_B1)
    return -torch.where(advantage_B1 < 0, bounded_BT, objective_BT)


def _cispo(logp_BT: Tensor, log_ratio_BT: Tensor, advantage_B1: Tensor, knobs: Knobs) -> Tensor:
    ratio_BT = log_ratio_BT.detach().clamp(max=LOG_RATIO_CAP).exp()
    return -ratio_BT.clamp(1 - knobs.clip_low, 1 + knobs.clip_high) * advantage_B1 * logp_BT


def _k3(log_ratio_BT: Tensor) -> Tensor:
    """exp(d) - 1 - d, never negative, an unbiased estimate of KL(policy || reference) on the policy's own samples."""
    return torch.expm1(log_ratio_BT) - log_ratio_BT
