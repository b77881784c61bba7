"""Generation by hand: one prefill per group, then one cached forward pass per token, log-probs taken inline.

Random numbers are a function of (run seed, purpose, group index) alone, so that a lost group can be issued again.
Models whose cache cannot be expanded by rows go through `generate` with the same random numbers.

Shape letters: R rows (completions of all groups), N groups, P padded prompt, T completion tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from tocsin.trainer.data import Completion, Floats, GroupRequest

PURPOSES: Final = {"train": 0, "eval": 1}
CACHE_NAMES: Final = ("cache", "past_key_values")
"""What transformers calls it, newer releases first. vLLM 0.32 lives beside older ones only."""
EXPANDABLE: Final = (DynamicLayer, DynamicSlidingWindowLayer)
"""Cache layers whose whole state is keys and values by row. Subclasses may hold more, which would stay behind."""


def uniforms(seed: int, request: GroupRequest) -> Floats:
    """[G, T] random numbers in (0, 1] for one group."""
    rng = np.random.default_rng([seed, PURPOSES[request.purpose], request.index])
    return (1.0 - rng.random((request.size, request.max_tokens))).astype(np.float32)


def choose(logp_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """[R] token per row by inverse transform sampling. A token of probability zero is never chosen."""
    cdf_RV = logp_RV.exp().cumsum(-1)
    target_R1 = uniform_R[:, None] * cdf_RV[:, -1:]
    return (cdf_RV < target_R1).sum(-1).clamp(max=logp_RV.shape[-1] - 1)


class Sampling:
    """The per-row state of one batch: what was drawn so far, and which rows are finished."""

    def __init__(self, requests: Sequence[GroupRequest], *, seed: int, eos_ids: Sequence[int], device: torch.device):
        rows = [(request, u) for request in requests for u in uniforms(seed, request)]
        self.max_tokens = max(request.max_tokens for request in requests)
        padded_RT = np.zeros((len(rows), self.max_tokens), np.float32)
        for row, (_, uniform_T) in enumerate(rows):
            padded_RT[row, : len(uniform_T)] = uniform_T
        self.uniform_RT = torch.from_numpy(padded_RT).to(device)
        self.temperature_R1 = torch.tensor([[request.temperature] for request, _ in rows], device=device)
        self.limit_R = torch.tensor([request.max_tokens for request, _ in rows], device=device)
        self.eos = torch.tensor(list(eos_ids), device=device)
        self.tokens: list[Tensor] = []
        self.logprobs: list[Tensor] = []
        self.finished_R = torch.zeros(len(rows), dtype=torch.bool, device=device)

    def draw(self, logits_RV: Tensor) -> Tensor:
        """[R] next token of every row; rows that are finished get one that nobody reads."""
        step = len(self.tokens)
        logp_RV = torch.log_softmax(logits_RV.float() / self.temperature_R1, dim=-1)
        token_R = choose(logp_RV, self.uniform_RT[:, step])
        self.tokens.append(token_R)
        self.logprobs.append(logp_RV.gather(-1, token_R[:, None])[:, 0])
        self.finished_R |= torch.isin(token_R, self.eos) | (self.limit_R <= step + 1)
        return token_R

    @property
    def complete(self) -> bool:
        """Whether no row needs another token."""
        return len(self.tokens) >= self.max_tokens or bool(self.finished_R.all())

    def completions(self, requests: Sequence[GroupRequest], version: int) -> list[list[Completion]]:
        """Cut every row at its end-of-sequence token or limit."""
        token_RT = torch.stack(self.tokens, 1).cpu().numpy().astype(np.int32)
        logp_RT = torch.stack(self.logprobs, 1).cpu().numpy()
        ends_RT = np.isin(token_RT, self.eos.cpu().numpy())
        result, row = [], 0
        for request in requests:
            group = []
            for _ in range(request.size):
                ends = np.flatnonzero(ends_RT[row, : request.max_tokens])
                length = int(ends[0]) + 1 if len(ends) else min(request.max_tokens, token_RT.shape[1])
                group.append(
                    Completion(
                        token_ids=token_RT[row, :length].copy(),
                        logprobs=logp_RT[row, :length].copy(),
                        finish_reason="stop" if len(ends) else "length",
                        versions=((version, length),),
                        temperature=request.temperature,
                    )
                )
                row += 1
            result.append(group)
        return result


class _SeededChoice(LogitsProcessor):
    """Makes `generate` draw what the manual loop would draw."""

    def __init__(self, sampling: Sampling):
        self.sampling = sampling

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen_R = self.sampling.draw(scores)
        forced_RV = torch.full_like(scores, -torch.inf)
        return forced_RV.scatter(-1, chosen_R[:, None], 0.0)


@torch.inference_mode()
def generate(
    model: Any, requests: Sequence[GroupRequest], *, seed: int, version: int, eos_ids: Sequence[int], pad_id: int
) -> list[list[Completion]]:
    """Completions of each request, in order. All tokens come from the weights the model holds now, `version`."""
    device = model.device
    sampling = Sampling(requests, seed=seed, eos_ids=eos_ids, device=device)
    ids_NP, mask_NP = _left_padded(requests, pad_id, device)
    group_R = torch.repeat_interleave(
        torch.arange(len(requests), device=device), torch.tensor([request.size for request in requests], device=device)
    )
    position_NP = (mask_NP.cumsum(-1) - 1).clamp(min=0)
    out = model(input_ids=ids_NP, attention_mask=mask_NP, position_ids=position_NP, use_cache=True, logits_to_keep=1)
    name = _cache_name(out)
    if _expandable(out.get(name)):
        _decode(model, sampling, out, name, mask_NP, group_R)
    else:
        _generate(model, sampling, ids_NP[group_R], mask_NP[group_R], pad_id)
    return sampling.completions(requests, version)


def _cache_name(out: Any) -> str:
    """Name of the cache in a model's output and among its arguments; empty when it has none by these names."""
    return next((name for name in CACHE_NAMES if name in out), "")


def _expandable(cache: Any) -> bool:
    """Whether the rows of a prefilled cache can be repeated: a plain key-value cache in every layer."""
    return type(cache) is DynamicCache and all(type(layer) in EXPANDABLE for layer in cache.layers)


def _left_padded(requests: Sequence[GroupRequest], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(len(request.prompt.token_ids) for request in requests)
    ids = np.full((len(requests), width), pad_id, np.int64)
    mask = np.zeros((len(requests), width), np.int64)
    for row, request in enumerate(requests):
        length = len(request.prompt.token_ids)
        ids[row, width - length :] = request.prompt.token_ids
        mask[row, width - length :] = 1
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def _decode(model: Any, sampling: Sampling, prefill: Any, cache_name: str, mask_NP: Tensor, group_R: Tensor) -> None:
    """The manual loop, from the prefilled cache of each group to all its rows."""
    cache = prefill[cache_name]
    cache.batch_select_indices(group_R)
    mask_RL = mask_NP[group_R]
    position_R1 = mask_RL.sum(-1, keepdim=True)
    token_R = sampling.draw(prefill.logits[group_R, -1])
    while not sampling.complete:
        mask_RL = torch.cat([mask_RL, mask_RL.new_ones(len(mask_RL), 1)], dim=-1)
        out = model(
            input_ids=token_R[:, None],
            attention_mask=mask_RL,
            position_ids=position_R1,
            use_cache=True,
            **{cache_name: cache},
        )
        token_R = sampling.draw(out.logits[:, -1])
        position_R1 = position_R1 + 1


def _generate(model: Any, sampling: Sampling, ids_RP: Tensor, mask_RP: Tensor, pad_id: int) -> None:
    """`generate` for models whose state is not a plain key-value cache."""
    own = model.generation_config
    # `generate` fills in whatever the model's own settings say, and a repetition penalty or a list of suppressed
    # tokens would change the distribution behind the learner's back.
    model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    try:
        model.generate(
            input_ids=ids_RP,
            attention_mask=mask_RP,
            do_sample=False,
            num_beams=1,
            max_new_tokens=sampling.max_tokens,
            eos_token_id=sampling.eos.tolist(),
            pad_token_id=pad_id,
            logits_processor=LogitsProcessorList([_SeededChoice(sampling)]),
        )
    finally:
        model.generation_config = own


@torch.inference_mode()
def sequence_logprobs(model: Any, ids_BL: Tensor) -> Tensor:
    """[B, L - 1] log-probs of each token given those before it, at temperature 1, in float32."""
    logits_BLV = model(input_ids=ids_BL, use_cache=False).logits[:, :-1].float()
    return torch.log_softmax(logits_BLV, dim=-1).gather(-1, ids_BL[:, 1:, None])[..., 0]
