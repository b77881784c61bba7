"""Generation: the same random numbers give the same tokens, and log-probs are those of a full forward pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    DynamicCache,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from tocsin.trainer import sampling
from tocsin.trainer.data import Completion, Floats, GroupRequest, Prompt
from tocsin.trainer.sampling import Sampling, choose, generate, sequence_logprobs, uniforms

VOCABULARY = 20
EOS = 1
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    # Wide enough that tokens differ, so that a wrong position or mask cannot hide.
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": EOS,
}
ATTENTION: dict[str, Any] = {
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **ATTENTION)).eval()


def sliding_window() -> Any:
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**SIZES, **ATTENTION, sliding_window=4)).eval()


def recurrent() -> Any:
    """State instead of keys and values in every layer."""
    torch.manual_seed(0)
    return MambaForCausalLM(MambaConfig(**SIZES, state_size=4)).eval()


def hybrid() -> Any:
    """One convolution, one attention layer."""
    torch.manual_seed(0)
    return Lfm2ForCausalLM(Lfm2Config(**SIZES, **ATTENTION, layer_types=["conv", "full_attention"])).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return llama()


def request(index: int, prompt: list[int], **changes: Any) -> GroupRequest:
    fields: dict[str, Any] = {"size": 3, "temperature": 1.0, "max_tokens": 6, **changes}
    token_ids = np.array(prompt, dtype=np.int32)
    prompt_of = Prompt(id=f"{index}-0badcafe", text="", token_ids=token_ids, columns={})
    return GroupRequest(index=index, target_step=0, prompt=prompt_of, config_generation=0, **fields)


MIXED = [
    request(0, [5, 6, 7], size=2),
    request(1, [9], size=4, temperature=0.6),
    request(2, [3, 14, 15, 9, 2, 6, 5], size=1, temperature=1.7, max_tokens=9),
    request(3, [8, 8], size=3, max_tokens=2),
]
"""Prompts, group sizes, temperatures and limits that all differ."""


def run(model: Any, requests: list[GroupRequest], **changes: Any) -> list[list[Completion]]:
    settings: dict[str, Any] = {"seed": 7, "version": 4, "eos_ids": [EOS], "pad_id": 0, **changes}
    return generate(model, requests, **settings)


def uncached_logprobs(model: Any, prompt: np.ndarray, completion: Completion) -> np.ndarray:
    """Log-probs of the completion's tokens from one forward pass over the whole row, alone and without padding."""
    ids = torch.from_numpy(np.concatenate([prompt, completion.token_ids]).astype(np.int64))
    with torch.inference_mode():
        logits = model(input_ids=ids[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
    logp = torch.log_softmax(logits / completion.temperature, dim=-1)
    return logp.gather(-1, ids[len(prompt) :, None])[:, 0].numpy()


def largest_error(model: Any, requests: list[GroupRequest], groups: list[list[Completion]]) -> float:
    return max(
        float(np.abs(uncached_logprobs(model, request.prompt.token_ids, completion) - completion.logprobs).max())
        for request, group in zip(requests, groups, strict=True)
        for completion in group
    )


def flat(groups: list[list[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


def tokens(groups: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.token_ids.tolist() for completion in group] for group in groups]


def test_random_numbers_depend_on_seed_purpose_and_index_alone():
    one = uniforms(3, request(11, [5, 6], size=2, max_tokens=4))
    assert np.array_equal(one, uniforms(3, request(11, [9], size=2, max_tokens=4, temperature=0.5)))
    for other in (
        uniforms(4, request(11, [5, 6], size=2, max_tokens=4)),
        uniforms(3, request(12, [5, 6], size=2, max_tokens=4)),
        uniforms(3, request(11, [5, 6], size=2, max_tokens=4, purpose="eval")),
    ):
        assert not np.isin(other, one).any()


def test_random_numbers_are_never_zero_and_spread_evenly():
    numbers = uniforms(0, request(0, [5], size=100, max_tokens=100))
    assert numbers.min() > 0
    assert numbers.max() <= 1
    counts, _ = np.histogram(numbers, bins=10, range=(0, 1))
    # Chi-square with 9 degrees of freedom: 27.9 is its 0.999 quantile.
    assert ((counts - 1000) ** 2 / 1000).sum() < 27.9


def test_a_group_that_is_issued_again_gets_the_same_completions_in_other_company(model: Any):
    together = run(model, MIXED)
    for position in (2, 0, 3, 1):
        alone = run(model, [MIXED[position]])
        assert tokens(alone) == tokens([together[position]])
        for before, after in zip(together[position], alone[0], strict=True):
            np.testing.assert_allclose(after.logprobs, before.logprobs, atol=1e-5)


def test_the_same_batch_is_sampled_bit_for_bit_again(model: Any):
    first = run(model, MIXED)
    torch.manual_seed(123)
    second = run(model, MIXED)
    assert tokens(first) == tokens(second)
    for before, after in zip(flat(first), flat(second), strict=True):
        assert np.array_equal(before.logprobs, after.logprobs)


def test_another_seed_or_purpose_samples_something_else(model: Any):
    wide = [request(0, [5, 6, 7], size=8)]
    assert tokens(run(model, wide, seed=7)) != tokens(run(model, wide, seed=8))
    assert tokens(run(model, wide)) != tokens(run(model, [request(0, [5, 6, 7], size=8, purpose="eval")]))


@pytest.mark.parametrize("build", [llama, sliding_window, recurrent, hybrid])
def test_logprobs_are_those_of_an_uncached_pass_over_each_row_alone(build: Callable[[], Any]):
    model = build()
    groups = run(model, MIXED)
    assert [len(group) for group in groups] == [2, 4, 1, 3]
    assert largest_error(model, MIXED, groups) < 1e-5


@pytest.mark.parametrize(
    ("build", "expandable"), [(llama, True), (sliding_window, True), (recurrent, False), (hybrid, False)]
)
def test_only_plain_key_value_caches_are_expanded_by_hand(build: Callable[[], Any], expandable: bool):
    out = build()(input_ids=torch.tensor([[5, 6]]), use_cache=True)
    cache = out[sampling._cache_name(out)]
    assert type(cache) is DynamicCache
    assert sampling._expandable(cache) is expandable


@pytest.mark.parametrize("build", [llama, sliding_window])
def test_generate_draws_the_same_as_the_loop_by_hand(build: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    model = build()
    by_hand = run(model, MIXED)
    monkeypatch.setattr(sampling, "EXPANDABLE", ())
    by_generate = run(model, MIXED)
    assert tokens(by_generate) == tokens(by_hand)
    for one, other in zip(flat(by_hand), flat(by_generate), strict=True):
        assert one.finish_reason == other.finish_reason
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_the_models_own_generation_settings_do_not_bend_the_distribution():
    model = recurrent()
    plain = run(model, MIXED)
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.suppress_tokens = list(range(2, 12))
    model.generation_config.min_new_tokens = 6
    bent = run(model, MIXED)
    assert tokens(bent) == tokens(plain)
    assert largest_error(model, MIXED, bent) < 1e-5
    assert model.generation_config.repetition_penalty == 5.0


def test_sampled_frequencies_match_the_models_probabilities(model: Any):
    n = 4000
    wide = request(0, [5, 6, 7], size=n, max_tokens=1, temperature=1.5)
    drawn = np.array([completion.token_ids[0] for completion in run(model, [wide])[0]])
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1] / 1.5
    expected = torch.softmax(logits, dim=-1).double().numpy() * n
    counts = np.bincount(drawn, minlength=VOCABULARY)
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    kept = wanted > 0
    # 0.999 quantile of chi-square by Wilson and Hilferty, for as many degrees of freedom as there are bins less one.
    degrees = int(kept.sum()) - 1
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * np.sqrt(2 / (9 * degrees))) ** 3
    assert degrees >= 5
    assert ((observed - wanted)[kept] ** 2 / wanted[kept]).sum() < limit


def drawn(requests: list[GroupRequest], rows: list[list[int]], *, eos_ids: list[int]) -> list[list[Completion]]:
    """What `Sampling` makes of a model that is certain of the tokens in `rows`, one row per completion."""
    state = Sampling(requests, seed=0, eos_ids=eos_ids, device=torch.device("cpu"))
    step = 0
    while not state.complete:
        logits = torch.full((len(rows), VOCABULARY), -torch.inf)
        for row, wanted in enumerate(rows):
            logits[row, wanted[step]] = 0.0
        state.draw(logits)
        step += 1
    return state.completions(requests, 9)


def test_a_completion_ends_with_any_end_token_or_at_its_own_limit():
    requests = [request(0, [5], size=2, max_tokens=5), request(1, [5], size=2, max_tokens=3)]
    rows = [[4, 1, 6, 6, 6], [4, 5, 6, 7, 2], [4, 5, 1, 6, 6], [4, 5, 6, 2, 6]]
    groups = drawn(requests, rows, eos_ids=[1, 2])
    assert tokens(groups) == [[[4, 1], [4, 5, 6, 7, 2]], [[4, 5, 1], [4, 5, 6]]]
    assert [[c.finish_reason for c in group] for group in groups] == [["stop", "stop"], ["stop", "length"]]
    assert groups[0][0].versions == ((9, 2),)
    assert groups[1][1].versions == ((9, 3),)
    assert groups[0][1].logprobs.tolist() == [0.0] * 5


def test_sampling_stops_when_every_row_is_finished():
    requests = [request(0, [5], size=2, max_tokens=50)]
    groups = drawn(requests, [[4, 1], [1, 4]], eos_ids=[1])
    assert tokens(groups) == [[[4, 1], [1]]]


def test_every_end_token_stops_the_model_and_is_kept(model: Any):
    ends = [EOS, 3, 12]
    groups = run(model, [request(i, [4 + i, 6], size=8, max_tokens=12) for i in range(4)], eos_ids=ends)
    reasons = set()
    for completion in flat(groups):
        reasons.add(completion.finish_reason)
        finished = completion.token_ids[-1] in ends
        assert completion.finish_reason == ("stop" if finished else "length")
        assert not np.isin(completion.token_ids[:-1], ends).any()
        assert finished or len(completion.token_ids) == 12
    assert reasons == {"stop", "length"}


def test_each_request_keeps_its_own_limit_and_temperature(model: Any):
    requests = [request(0, [5], max_tokens=1), request(1, [6], max_tokens=9, temperature=0.3)]
    short, long = run(model, requests, eos_ids=[VOCABULARY + 5])
    assert {len(completion.token_ids) for completion in short} == {1}
    assert {len(completion.token_ids) for completion in long} == {9}
    assert {completion.temperature for completion in long} == {0.3}


@pytest.mark.parametrize(
    ("uniform", "token"),
    [
        (1e-30, 1),  # token 0 has probability zero
        (0.25, 1),
        (0.2500001, 3),  # and so has token 2 between them
        (0.5, 3),
        (0.75, 4),
        (1.0, 4),  # the last token has none either
    ],
)
def test_inverse_transform_picks_by_cumulated_probability_and_never_an_impossible_token(uniform: float, token: int):
    logp = torch.tensor([[0.0, 0.25, 0.0, 0.25, 0.5, 0.0]]).log()
    assert choose(logp, torch.tensor([uniform])).tolist() == [token]


def test_the_largest_number_stays_within_a_vocabulary_whose_sum_is_rounded():
    vocabulary = 50_000
    logp = torch.log_softmax(torch.linspace(-3.0, 3.0, vocabulary), -1)[None].repeat(3, 1)
    logp[:, -10:] = -torch.inf
    top: Floats = np.array([1.0, np.nextafter(np.float32(1), np.float32(0)), 0.9999], np.float32)
    picked = choose(logp, torch.from_numpy(top))
    assert picked.max() < vocabulary - 10
    assert torch.isfinite(logp.gather(-1, picked[:, None])).all()


def test_sequence_logprobs_are_those_of_each_token_after_its_prefix(model: Any):
    ids = torch.tensor([[5, 6, 7, 8], [9, 3, 3, 4]])
    got = sequence_logprobs(model, ids)
    for row in range(2):
        for position in range(3):
            logits = model(input_ids=ids[row : row + 1, : position + 1]).logits[0, -1].detach()
            wanted = torch.log_softmax(logits, -1)[ids[row, position + 1]]
            assert got[row, position] == pytest.approx(float(wanted), abs=1e-5)
