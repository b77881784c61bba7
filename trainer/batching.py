"""Samples to padded micro-batches under a token budget (pure).

Prompts are padded on the left and completions on the right, so every completion starts in the same column and its
logits are one slice. Rows of similar lengths share a micro-batch. The budget changes memory and speed, never the
gradient: weights already hold the division by the step's denominator.

Shape letters: B rows, P widest prompt, T longest completion, L = P + T.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tocsin.schemas.step import MicrobatchStats
from tocsin.trainer.data import Floats, Ints, Sample

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of one forward pass. Made by `microbatches`, read by `to_tensors`."""

    input_ids: Ids
    """[B, L]"""
    attention_mask: Ids
    """[B, L] 1 on real tokens."""
    position_ids: Ids
    """[B, L] 0 on a row's first real token."""
    completion_ids: Ids
    """[B, T]"""
    completion_mask: Mask
    """[B, T] true on tokens that are trained."""
    sampler_logprobs: Floats
    """[B, T] 0 on padding."""
    advantage: Floats
    """[B]"""
    weight: Floats
    """[B] of each of the row's tokens."""
    temperature: Floats
    """[B]"""
    staleness: Ints
    """[B]"""

    @property
    def padded_tokens(self) -> int:
        """B x L: what the forward pass costs."""
        return int(self.input_ids.size)

    @property
    def tokens(self) -> int:
        """Real tokens, prompts included."""
        return int(self.attention_mask.sum())


@dataclass(frozen=True, slots=True)
class TensorBatch:
    """A `MicroBatch` on a device; same fields, same shapes."""

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    sampler_logprobs: Tensor
    advantage: Tensor
    weight: Tensor
    temperature: Tensor
    staleness: Tensor

    @property
    def num_logits(self) -> int:
        """T + 1: logits to keep at the end of each row; all but the last one predict the completion."""
        return self.completion_ids.shape[1] + 1


def microbatches(samples: Sequence[Sample], token_budget: int, *, pad_id: int) -> list[MicroBatch]:
    """`samples` cut so that B x (P + T) is at most `token_budget` in each micro-batch, widest rows first.

    A row that is over the budget by itself gets a micro-batch of its own. Widest first, because a budget that does
    not fit into memory then fails at once. Of three ways to sort the rows the one with the least padding is taken.
    """
    lengths = [(len(sample.prompt_ids), len(sample.completion_ids)) for sample in samples]
    orders = (
        sorted(range(len(samples)), key=lambda i: lengths[i], reverse=True),
        sorted(range(len(samples)), key=lambda i: lengths[i][::-1], reverse=True),
        sorted(range(len(samples)), key=lambda i: (sum(lengths[i]), lengths[i]), reverse=True),
    )
    cuts = [_cut(order, lengths, token_budget) for order in orders]
    best = min(cuts, key=lambda cut: (sum(_padded(rows, lengths) for rows in cut), len(cut)))
    best.sort(key=lambda rows: -_padded(rows[:1], lengths))
    return [_padded_batch([samples[i] for i in rows], pad_id) for rows in best]


def to_tensors(batch: MicroBatch, device: torch.device | str) -> TensorBatch:
    """`batch` on `device`."""
    return TensorBatch(
        input_ids=torch.from_numpy(batch.input_ids).to(device),
        attention_mask=torch.from_numpy(batch.attention_mask).to(device),
        position_ids=torch.from_numpy(batch.position_ids).to(device),
        completion_ids=torch.from_numpy(batch.completion_ids).to(device),
        completion_mask=torch.from_numpy(batch.completion_mask).to(device),
        sampler_logprobs=torch.from_numpy(batch.sampler_logprobs).to(device),
        advantage=torch.from_numpy(batch.advantage).to(device),
        weight=torch.from_numpy(batch.weight).to(device),
        temperature=torch.from_numpy(batch.temperature).to(device),
        staleness=torch.from_numpy(batch.staleness).to(device),
    )


def describe(batches: Sequence[MicroBatch], token_budget: int) -> MicrobatchStats:
    """How a step was cut under `token_budget`."""
    padded = [batch.padded_tokens for batch in batches]
    real = sum(batch.tokens for batch in batches)
    return MicrobatchStats(
        num=len(batches),
        token_budget=token_budget,
        max_tokens=max(padded, default=0),
        padded_frac=1.0 - real / sum(padded) if batches else 0.0,
    )


def _padded(rows: Sequence[int], lengths: Sequence[tuple[int, int]]) -> int:
    return len(rows) * (max(lengths[i][0] for i in rows) + max(lengths[i][1] for i in rows))


def _cut(order: Sequence[int], lengths: Sequence[tuple[int, int]], budget: int) -> list[list[int]]:
    """Consecutive rows of `order`, as many at a time as fit into `budget`."""
    cut: list[list[int]] = []
    prompt = completion = 0
    for i in order:
        wider = max(prompt, lengths[i][0]), max(completion, lengths[i][1])
        if cut and (len(cut[-1]) + 1) * sum(wider) <= budget:
            prompt, completion = wider
            cut[-1].append(i)
        else:
            prompt, completion = lengths[i]
            cut.append([i])
    return cut


def _padded_batch(rows: Sequence[Sample], pad_id: int) -> MicroBatch:
    prompt = max(len(row.prompt_ids) for row in rows)
    completion = max(len(row.completion_ids) for row in rows)
    input_ids = np.full((len(rows), prompt + completion), pad_id, dtype=np.int64)
    attention_mask = np.zeros_like(input_ids)
    sampler_logprobs = np.zeros((len(rows), completion), dtype=np.float32)
    for i, row in enumerate(rows):
        start, end = prompt - len(row.prompt_ids), prompt + len(row.completion_ids)
        input_ids[i, start:prompt] = row.prompt_ids
        input_ids[i, prompt:end] = row.completion_ids
        attention_mask[i, start:end] = 1
        sampler_logprobs[i, : len(row.completion_ids)] = row.sampler_logprobs
    return MicroBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(axis=1) - 1).clip(min=0),
        completion_ids=input_ids[:, prompt:],
        completion_mask=attention_mask[:, prompt:].astype(np.bool_),
        sampler_logprobs=sampler_logprobs,
        advantage=np.array([row.advantage for row in rows], dtype=np.float32),
        weight=np.array([row.weight for row in rows], dtype=np.float32),
        temperature=np.array([row.temperature for row in rows], dtype=np.float32),
        staleness=np.array([row.staleness for row in rows], dtype=np.int32),
    )
