import math

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, numbered, started, step
from tests.trainer.bench.faulty_runs import gap, stale
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked
from tocsin.trainer.bench.baselines.readings import readings


def reading(*events: BaseEvent) -> dict[str, float]:
    (found,) = readings(numbered([events]))
    return found.values


def test_spread_over_the_batch_is_that_of_all_its_completions():
    rewards = [[0.0, 1.0, 1.0, 0.25], [0.5, 0.5, 0.5, 0.5], [2.0, 0.0]]
    values = reading(batch(rewards, reward_range=None), step())
    everything = np.concatenate([np.array(group) for group in rewards])
    scaled = np.concatenate([(np.array(g) - np.mean(g)) / (np.std(g) + 1e-12) for g in rewards])
    assert values["reward_std"] == pytest.approx(everything.std())
    assert values["advantages_std"] == pytest.approx(scaled.std())
    assert (values["reward_min"], values["reward_max"]) == (0.0, 2.0)
    assert values["frac_reward_zero_std"] == pytest.approx(1 / 3)


def test_advantages_that_are_not_scaled_spread_as_the_rewards_do():
    values = [
        found.values
        for found in readings(numbered([[started(loss_variant="dr_grpo"), batch([[0.0, 2.0], [1.0, 5.0]]), step()]]))
    ]
    assert values[0]["advantages_std"] == pytest.approx(math.sqrt((1 + 4) / 2))


def test_what_was_not_measured_is_absent_and_what_was_not_finite_is_not_a_number():
    values = reading(step(loss=None, grad_norm=math.nan, entropy=None, outcome="nonfinite", nonfinite=["grad_norm"]))
    assert math.isnan(values["grad_norm"])
    assert {"loss", "entropy", "reward", "kl"}.isdisjoint(values)


def test_the_gap_to_the_sampler_is_a_policy_kl_only_where_the_sampler_was_behind():
    assert reading(step(logprob_gap=gap(1e-14), ratio=[]))["sampling/sampling_logp_difference/mean"] == 0.01
    assert "actor/ppo_kl" not in reading(step(logprob_gap=gap(1e-14), ratio=[]))
    assert reading(step(logprob_gap=gap(0.2), ratio=stale()))["actor/ppo_kl"] == 0.2


def test_a_batch_in_which_nothing_could_be_scored_has_no_reward():
    empty = batch([[1.0, 0.0]]).model_copy(deep=True)
    groups = empty.groups.model_copy(update={"size": [0], "num_failed": [2]})
    values = reading(empty.model_copy(update={"groups": groups}), step())
    assert "reward" not in values
    assert "frac_reward_zero_std" not in values


def test_time_that_passes_in_a_pause_is_not_idle():
    assert list(readings(numbered([[ClockTicked(idle_s=400.0, paused=True)]]))) == []
    assert len(list(readings(numbered([[ClockTicked(idle_s=400.0)]])))) == 1
