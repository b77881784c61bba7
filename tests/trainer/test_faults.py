"""Each planted fault does what it says, and nothing before its onset."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests.trainer.tiny import TinyPolicy, tiny_config, tiny_requests
from tests.trainer.tiny import scored as scored_group
from tocsin.schemas.base import as_float
from tocsin.schemas.events import Ledger
from tocsin.schemas.fault import REWARDING, FaultConfig, FaultName
from tocsin.schemas.knobs import LIMITS, Knobs
from tocsin.schemas.resources import ResourcesSampled
from tocsin.schemas.step import StepCompleted
from tocsin.trainer import faults
from tocsin.trainer.data import Completion, GroupRequest, Prompt, Scored
from tocsin.trainer.demo import demo_config
from tocsin.trainer.learner import Learner
from tocsin.trainer.models import load_model
from tocsin.trainer.sampling import generate

ONSET = 5
NAMES: tuple[FaultName, ...] = get_args(FaultName)


def fault(name: FaultName, dose: float = 1.0) -> FaultConfig:
    return FaultConfig(name=name, onset_step=ONSET, dose=dose)


def request(index: int = 1, step: int = ONSET) -> GroupRequest:
    prompt = Prompt("1-0badcafe", "402917>", np.zeros(7, dtype=np.int32), {"answer": "012479"})
    return GroupRequest(
        index=index, target_step=step, prompt=prompt, size=4, temperature=1.0, max_tokens=8, config_generation=0
    )


def completion(text: str = "", tokens: int = 7) -> Completion:
    zeros = np.zeros(tokens, dtype=np.int32)
    return Completion(zeros, zeros.astype(np.float32), "stop", ((0, tokens),), 1.0, text)


def scored(
    name: FaultName,
    *,
    step: int = ONSET,
    index: int = 1,
    texts: tuple[str, ...] = ("1", "2", "3", "4"),
    dose: float = 1.0,
) -> Scored:
    """Rewards 1, 0, 1, 0 after the fault had its way."""
    values = np.array([1.0, 0.0] * (len(texts) // 2))
    result = Scored(values, np.ones(len(texts), dtype=np.bool_), [], {"exact": values.copy()})
    completions = [completion(text, tokens=3 + position) for position, text in enumerate(texts)]
    faults.spoil_scores(fault(name, dose), 0, request(index, step), completions, result)
    return result


def test_a_fault_is_in_force_from_its_onset_on():
    assert [faults.planted(fault("nan"), step) for step in (4, 5, 6)] == [None, "nan", "nan"]
    assert faults.planted(None, 9) is None


def test_truncated_requests_have_a_short_limit():
    assert faults.faulty_request(fault("truncated"), request()).max_tokens == faults.TRUNCATED_TOKENS
    assert faults.faulty_request(fault("truncated"), request(step=4)).max_tokens == 8


def test_hard_prompts_ask_four_of_five_groups_for_the_answer_reversed():
    asked = [faults.faulty_request(fault("hard-prompts"), request(index)) for index in range(10)]
    answers = [one.prompt.columns["answer"] for one in asked]
    assert answers == ["012479", *["974210"] * 4] * 2
    asked = [faults.faulty_request(fault("hard-prompts", 0.5), request(index)) for index in range(10)]
    assert [one.prompt.columns["answer"] for one in asked].count("974210") == 4
    assert faults.faulty_request(fault("hard-prompts"), request(step=4)).prompt.columns["answer"] == "012479"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REWARDING])
def test_before_the_onset_rewards_are_left_alone(name: FaultName):
    result = scored(name, step=ONSET - 1)
    assert (result.rewards.tolist(), result.valid.tolist()) == ([1.0, 0.0, 1.0, 0.0], [True] * 4)
    assert list(result.components) == ["exact"]


def test_constant_rewards_are_all_the_same():
    result = scored("constant-reward")
    assert result.rewards.tolist() == result.components["exact"].tolist() == [faults.CONSTANT_REWARD] * 4


def test_an_outlier_hits_one_completion_in_fifty():
    hits = sum((scored("reward-outlier", index=index).rewards == faults.OUTLIER).sum() for index in range(500))
    assert 20 <= hits <= 60


def test_noise_moves_every_reward_a_little_and_differs_between_groups():
    one, other = scored("noisy-reward", index=1), scored("noisy-reward", index=2)
    moved = one.rewards - [1.0, 0.0, 1.0, 0.0]
    assert 0 < np.abs(moved).max() <= faults.NOISE
    assert len(set(moved.tolist())) == 4
    assert one.rewards.tolist() != other.rewards.tolist()
    assert one.components["exact"].tolist() == [1.0, 0.0, 1.0, 0.0]


def test_an_outage_fails_every_second_group_as_a_whole():
    up, down = scored("verifier-outage", index=2), scored("verifier-outage", index=3)
    assert up.valid.all()
    assert not down.valid.any()
    (failure,) = down.failures
    assert (failure.cause, failure.completions, failure.whole_group) == ("reward_error", 4, True)


def test_a_planted_reward_counts_descents_or_tokens_and_is_there_from_the_start():
    proxy = scored("proxy-reward", texts=("012345", "021345", "543210", ""))
    assert proxy.components["planted"].tolist() == [0.0, 2.0, 10.0, 0.0]
    assert proxy.rewards.tolist() == [1.0, 2.0, 11.0, 0.0]
    assert scored("length-reward").components["planted"].tolist() == pytest.approx([0.6, 0.8, 1.0, 1.2])
    assert scored("short-reward").rewards.tolist() == pytest.approx([0.4, -0.8, 0.0, -1.2])
    for name in REWARDING:
        before = scored(name, step=ONSET - 1)
        assert before.components["planted"].tolist() == [0.0] * 4
        assert before.rewards.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_scoring_and_batches_take_longer():
    assert faults.scoring_delay_s(fault("slow-reward"), ONSET) == faults.SLOW_REWARD_S
    assert faults.scoring_delay_s(fault("slow-reward"), ONSET - 1) == 0.0

    def delay_s(planted: FaultConfig | None, number: int, step: int = ONSET) -> float:
        return faults.batch_delay_s(planted, step, number, 0.1)

    assert [delay_s(fault("straggler"), number) for number in (5, 6, 12)] == pytest.approx([0.0, 0.9, 0.9])
    assert delay_s(fault("straggler", 0.01), 12) == 0.0
    assert delay_s(fault("slow-sampler"), 1) == faults.SLOW_S
    assert delay_s(fault("slow-sampler", 0.25), 1) == faults.SLOW_S / 4
    assert delay_s(fault("slow-sampler"), 1, ONSET - 1) == 0.0
    assert delay_s(fault("hung-sampler"), 1) == faults.HUNG_S
    assert delay_s(None, 6) == 0.0


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.8, 1.0])
def test_a_share_of_a_row_is_hit_evenly(share: float):
    hits = [faults.is_hit(number, share) for number in range(200)]
    assert sum(hits) == pytest.approx(200 * share, abs=1)
    gaps = [b - a for a, b in pairwise(number for number, hit in enumerate(hits) if hit)]
    assert max(gaps) - min(gaps) <= 1


def test_half_a_dose_hits_half_of_the_steps_and_no_dose_more_than_all():
    assert sum(faults.poisons_loss(fault("nan", 0.5), ONSET + step) for step in range(12)) == 4
    assert sum(faults.poisons_loss(fault("nan", 9.0), ONSET + step) for step in range(12)) == 12
    assert [faults.ignores_weights(fault("stale-weights", 0.5), 10 + version) for version in range(4)].count(True) == 2
    assert faults.faulty_knob(fault("lr-too-low", 0.5), ONSET, Knobs(learning_rate=3e-4)) == ("learning_rate", 3e-6)
    half = [scored("constant-reward", index=index, dose=0.5).rewards.std() == 0 for index in range(8)]
    assert half.count(True) == 4


def test_the_last_weights_that_arrive_are_those_of_the_onset():
    delays = [faults.weights_delay_s(fault("slow-sync"), version) for version in (ONSET, ONSET + 1)]
    assert delays == [0.0, faults.SLOW_SYNC_S]
    assert faults.weights_delay_s(fault("hung-sync"), ONSET + 1) == faults.HUNG_S
    assert [faults.ignores_weights(fault("stale-weights"), version) for version in (5, 6)] == [False, True]


@pytest.fixture(scope="module")
def model(tiny_policy: TinyPolicy) -> Any:
    return load_model(tiny_policy.model, dtype="float32", attention="sdpa", device=torch.device("cpu"))


def sampled(model: Any, policy: TinyPolicy, name: FaultName | None, dose: float = 1.0) -> list[list[Completion]]:
    requests = tiny_requests(policy, 3, size=8, max_tokens=16)
    planted = None if name is None else FaultConfig(name=name, onset_step=0, dose=dose)
    return faults.faulty_generate(planted, generate, model, requests, seed=0, version=0, eos_ids=[1], pad_id=0)


def test_without_a_fault_sampling_is_sampling(model: Any, tiny_policy: TinyPolicy):
    requests = tiny_requests(tiny_policy, 3, size=8, max_tokens=16)
    plain = generate(model, requests, seed=0, version=0, eos_ids=[1], pad_id=0)
    for group, same in zip(sampled(model, tiny_policy, None), plain, strict=True):
        assert [c.token_ids.tolist() for c in group] == [c.token_ids.tolist() for c in same]


def test_with_the_same_seed_the_completions_of_a_group_are_one(model: Any, tiny_policy: TinyPolicy):
    groups = sampled(model, tiny_policy, "same-seed")
    assert [len(group) for group in groups] == [8, 8, 8]
    assert [len({c.token_ids.tobytes() for c in group}) for group in groups] == [1, 1, 1]
    healthy = sampled(model, tiny_policy, None)
    assert [group[0].token_ids.tolist() for group in groups] == [group[0].token_ids.tolist() for group in healthy]


def test_noise_on_log_probs_leaves_the_tokens_alone(model: Any, tiny_policy: TinyPolicy):
    noisy, clean = sampled(model, tiny_policy, "logprob-noise"), sampled(model, tiny_policy, None)
    pairs = [pair for group in zip(noisy, clean, strict=True) for pair in zip(*group, strict=True)]
    assert all(one.token_ids.tolist() == other.token_ids.tolist() for one, other in pairs)
    added = np.concatenate([one.logprobs - other.logprobs for one, other in pairs])
    assert added.std() == pytest.approx(faults.LOGPROB_NOISE, rel=0.2)
    assert abs(added.mean()) < 0.2


def test_the_nucleus_reports_more_probability_than_the_model_gives(model: Any, tiny_policy: TinyPolicy):
    requests = tiny_requests(tiny_policy, 3, size=8, max_tokens=16)
    found = sampled(model, tiny_policy, "top-p")
    within, whole = [], []
    for asked, group in zip(requests, found, strict=True):
        for one in group:
            ids = torch.tensor([[*asked.prompt.token_ids.tolist(), *one.token_ids.tolist()]])
            logp = model(input_ids=ids).logits[0, len(asked.prompt.token_ids) - 1 : -1].log_softmax(-1)
            whole += logp.gather(-1, ids[0, len(asked.prompt.token_ids) :, None])[:, 0].tolist()
            within += one.logprobs.tolist()
    gap = np.array(whole) - np.array(within)
    assert gap.max() < 1e-4
    # A nucleus holds at least 0.8, so its log-probs are at most -log 0.8 above those of the whole distribution.
    assert math.log(faults.TOP_P) - 1e-4 <= gap.min() < -0.05
    assert not model._forward_hooks


def test_the_narrowest_nucleus_leaves_the_likeliest_token(model: Any, tiny_policy: TinyPolicy):
    groups = sampled(model, tiny_policy, "top-p", dose=99.0)
    assert [len({c.token_ids.tobytes() for c in group}) for group in groups] == [1, 1, 1]
    assert all(np.isfinite(c.logprobs).all() for group in groups for c in group)


def test_an_ignored_end_of_sequence_lets_completions_run_to_their_limit(model: Any, tiny_policy: TinyPolicy):
    completions = [c for group in sampled(model, tiny_policy, "eos-ignored") for c in group]
    assert {(len(c.token_ids), c.finish_reason) for c in completions} == {(16, "length")}
    assert np.mean([1 in c.token_ids for c in completions]) > 0.9


def test_a_wrong_reference_is_another_model_from_the_start_on():
    reference, right = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    right.load_state_dict(reference.state_dict())
    faults.spoil_reference(fault("nan"), reference, seed=0)
    assert torch.equal(reference.weight, right.weight)
    faults.spoil_reference(fault("wrong-reference"), reference, seed=0)
    change = (reference.weight - right.weight).norm() / right.weight.norm()
    assert float(change.detach()) == pytest.approx(faults.REFERENCE_NOISE, rel=0.1)


def test_two_of_three_losses_are_poisoned():
    assert [faults.poisons_loss(fault("nan"), step) for step in range(3, 9)] == [False, False, False, True, True, False]


def test_frozen_gradients_are_zero():
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    faults.disturb_update(fault("frozen"), ONSET - 1, [parameter])
    assert parameter.grad.tolist() == [1.0] * 3
    faults.disturb_update(fault("frozen"), ONSET, [parameter])
    assert parameter.grad.tolist() == [0.0] * 3


def test_a_leak_keeps_memory_and_lets_a_simulated_device_fill(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(faults, "_LEAKED", [])
    growth = [faults.disturb_update(fault("memory-leak"), step, [torch.ones(1)]) for step in (4, 5, 6)]
    assert growth == [1.0, 1 + faults.DEVICE_LEAK, 1 + faults.DEVICE_LEAK]
    assert sum(kept.nbytes for kept in faults._LEAKED) == 16 << 20


def test_knobs_are_turned_once_and_within_their_bounds():
    launched = Knobs(learning_rate=3e-4)
    turned = {name: faults.faulty_knob(fault(name), ONSET, launched) for name in faults.KNOBS}
    assert turned == {
        "lr-too-high": ("learning_rate", 3e-3),
        "lr-too-low": ("learning_rate", 3e-8),
        "entropy-bonus": ("entropy_coef", 0.3),
    }
    assert all(LIMITS[path].low <= value <= LIMITS[path].high for path, value in turned.values())
    for name, (path, _) in faults.KNOBS.items():
        turned_far = faults.faulty_knob(fault(name, 1e3), ONSET, launched)
        assert turned_far is not None
        assert LIMITS[path].low <= turned_far[1] <= LIMITS[path].high
    assert faults.faulty_knob(fault("lr-too-high"), ONSET + 1, launched) is None
    assert faults.faulty_knob(fault("nan"), ONSET, launched) is None


def test_every_tenth_step_has_a_spike_of_the_rate():
    rates = [faults.step_knobs(fault("lr-spike"), step, Knobs(learning_rate=1e-3)).learning_rate for step in range(16)]
    assert [step for step, rate in enumerate(rates) if rate != 1e-3] == [5, 15]
    assert rates[5] == pytest.approx(3e-2)


def test_lost_events_are_an_entropy_and_a_group():
    completed = StepCompleted(
        outcome="updated", learning_rate=0.1, entropy=0.5, groups=1, groups_trained=1, tokens=2, tokens_trained=2,
        seconds={},
    )  # fmt: skip
    ledger = Ledger(launched=3, in_flight=1, queued=1, consumed=1, dropped={}, failed={})
    assert faults.lost_events(fault("lost-events"), ONSET - 1, completed, ledger) == (completed, ledger)
    told, books = faults.lost_events(fault("lost-events"), ONSET, completed, ledger)
    assert (told.entropy, books.balance()) == (None, 1)


def test_a_disk_fills_by_a_checkpoint_a_step():
    event = ResourcesSampled(devices=[], host_rss_bytes={}, host_memory_frac=0.1, disk_free_bytes=10**9)
    free = [faults.filling_disk(fault("disk-filling"), step, event, 1000).disk_free_bytes for step in (4, 5, 6, 90)]
    assert free == [10**9, 50_000, 49_000, 0]


def test_the_learner_takes_its_own_log_probs_for_the_samplers(tiny_policy: TinyPolicy, model: Any):
    requests = [replace(one, target_step=0) for one in tiny_requests(tiny_policy, 2)]
    groups = generate(model, requests, seed=0, version=0, eos_ids=[1], pad_id=0)
    # Samples of a sampler that is off by 0.3 nat.
    off = [[replace(c, logprobs=c.logprobs - np.float32(0.3)) for c in group] for group in groups]

    def max_ratio(name: FaultName) -> float:
        config = tiny_config(tiny_policy, fault=FaultConfig(name=name, onset_step=0))
        learner = Learner(config, tiny_policy.model, config.knobs)
        batch = [scored_group(r, g, [1.0, 0.0, 1.0, 0.0]) for r, g in zip(requests, off, strict=True)]
        (bucket,) = learner.step(batch, config.knobs, 0).ratio
        return as_float(bucket.max)

    assert max_ratio("truncated") == pytest.approx(math.exp(0.3), rel=1e-3)
    assert max_ratio("recomputed-logprobs") == 1.0


def test_the_demo_gives_a_fault_what_it_needs_to_be_seen(tmp_path: Any):
    def config(name: FaultName) -> Any:
        return demo_config(tmp_path, seed=0, steps=300, fault=fault(name))

    assert config("stale-weights").sampler.on_mismatch == "continue"
    assert config("nan").sampler.on_mismatch == "pause"
    assert [config(name).knobs.max_completion_tokens for name in ("eos-ignored", "nan")] == [32, 8]
    assert config("wrong-reference").knobs.kl_beta > 0
