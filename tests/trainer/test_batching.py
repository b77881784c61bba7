"""Padding, budgets and determinism of micro-batches."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tocsin.trainer.batching import describe, microbatches, to_tensors
from tocsin.trainer.data import Sample


def sample(prompt: list[int], completion: list[int], **values: float) -> Sample:
    fields = {"advantage": 1.0, "weight": 0.5, "temperature": 1.0, "staleness": 0, **values}
    return Sample(
        prompt_ids=np.array(prompt, dtype=np.int32),
        completion_ids=np.array(completion, dtype=np.int32),
        sampler_logprobs=-np.array(completion, dtype=np.float32) / 10,
        advantage=fields["advantage"],
        weight=fields["weight"],
        temperature=fields["temperature"],
        staleness=int(fields["staleness"]),
    )


def test_prompts_are_padded_left_and_completions_right():
    rows = [sample([1, 2, 3], [4], advantage=-1.0, temperature=0.5, staleness=2), sample([5], [6, 7], weight=0.25)]
    (batch,) = microbatches(rows, 100, pad_id=9)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 9], [9, 9, 5, 6, 7]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 3], [0, 0, 0, 1, 2]]
    assert batch.completion_ids.tolist() == [[4, 9], [6, 7]]
    assert batch.completion_mask.tolist() == [[True, False], [True, True]]
    assert batch.sampler_logprobs == pytest.approx(np.array([[-0.4, 0.0], [-0.6, -0.7]]))
    assert batch.advantage.tolist() == [-1.0, 1.0]
    assert batch.weight.tolist() == [0.5, 0.25]
    assert batch.temperature.tolist() == [0.5, 1.0]
    assert batch.staleness.tolist() == [2, 0]
    assert (batch.tokens, batch.padded_tokens) == (7, 10)


def test_a_row_over_the_budget_gets_a_micro_batch_of_its_own():
    batches = microbatches([sample([1], [2]), sample([1] * 10, [2] * 10), sample([1], [3])], 8, pad_id=0)
    assert [batch.input_ids.shape for batch in batches] == [(1, 20), (2, 2)]


def test_rows_of_similar_length_share_a_micro_batch():
    rows = [sample([1], [2] * length) for length in (9, 1, 9, 1, 9, 1)]
    batches = microbatches(rows, 30, pad_id=0)
    assert [batch.input_ids.shape for batch in batches] == [(3, 10), (3, 2)]
    assert all(batch.tokens == batch.padded_tokens for batch in batches)


def test_rows_are_sorted_by_prompt_where_that_pads_less():
    rows = [sample([1] * prompt, [2] * completion) for prompt, completion in ((9, 1), (1, 2), (9, 2), (1, 1))]
    batches = microbatches(rows, 22, pad_id=0)
    assert [batch.input_ids.shape for batch in batches] == [(2, 11), (2, 3)]


lengths = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=25)


@given(lengths=lengths, budget=st.integers(16, 200))
def test_every_row_appears_once_and_no_shared_micro_batch_exceeds_the_budget(lengths, budget):
    rows = [sample([i + 1] * p, [i + 1] * t) for i, (p, t) in enumerate(lengths)]
    batches = microbatches(rows, budget, pad_id=0)
    seen = sorted(int(row.max()) - 1 for batch in batches for row in batch.input_ids)
    assert seen == list(range(len(rows)))
    assert sum(batch.tokens for batch in batches) == sum(p + t for p, t in lengths)
    assert all(batch.padded_tokens <= budget or len(batch.input_ids) == 1 for batch in batches)


def test_the_widest_micro_batch_comes_first():
    rows = [sample([1] * p, [2] * t) for p, t in ((2, 3), (8, 9), (4, 4), (3, 9), (7, 1))]
    widths = [batch.input_ids.shape[1] for batch in microbatches(rows, 20, pad_id=0)]
    assert widths == sorted(widths, reverse=True)


def test_the_cut_is_the_same_every_time():
    rows = [sample([i] * (i % 3 + 1), [i] * (i % 4 + 1)) for i in range(1, 20)]
    first, second = (microbatches(rows, 24, pad_id=0) for _ in range(2))
    assert [batch.input_ids.tolist() for batch in first] == [batch.input_ids.tolist() for batch in second]


def test_description_reports_number_budget_largest_and_padding():
    batches = microbatches([sample([1, 2, 3], [4]), sample([5], [6, 7]), sample([1] * 10, [2] * 10)], 10, pad_id=0)
    stats = describe(batches, 10)
    assert (stats.num, stats.token_budget, stats.max_tokens) == (2, 10, 20)
    assert stats.padded_frac == pytest.approx(3 / 30)


def test_nothing_to_train_on_is_no_micro_batch_and_no_padding():
    stats = describe(microbatches([], 10, pad_id=0), 10)
    assert (stats.num, stats.max_tokens, stats.padded_frac) == (0, 0, 0.0)


def test_tensors_hold_the_same_values_in_the_same_fields():
    (batch,) = microbatches([sample([1, 2], [3]), sample([4], [5, 6])], 100, pad_id=0)
    tensors = to_tensors(batch, "cpu")
    assert torch.equal(tensors.input_ids, torch.tensor([[1, 2, 3, 0], [0, 4, 5, 6]]))
    assert torch.equal(tensors.completion_mask, torch.tensor([[True, False], [True, True]]))
    assert torch.equal(tensors.position_ids, torch.tensor([[0, 1, 2, 2], [0, 0, 1, 2]]))
    assert tensors.weight.dtype == torch.float32
    assert tensors.num_logits == 3
