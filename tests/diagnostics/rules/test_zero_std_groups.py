"""RWD001: a constant reward is named, a run that learns or has arrived is left alone."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rewards import expected_share, natural_share
from tocsin.diagnostics.rules.zero_std_groups import ZeroStdGroups
from tocsin.diagnostics.streaks import Streak, is_sudden
from tocsin.schemas.base import NonFinite
from tocsin.schemas.event import BaseEvent

RULE = ZeroStdGroups()
Rewards = npt.NDArray[np.float64]
MIXED = [[0, 1, 0, 1, 0, 1, 0, 1]] * 11 + [[1] * 8] * 5
SOLVED = [[1] * 8] * 16


def sampled(
    rng: np.random.Generator, pass_rate: float, *, groups: int = 16, size: int = 8, spread: float = 2
) -> Rewards:
    """Binary rewards of prompts whose difficulty has a Beta distribution of concentration `spread`."""
    solve = rng.beta(pass_rate * spread, (1 - pass_rate) * spread, groups)
    return (rng.random((groups, size)) < solve[:, None]).astype(float)


def learning(seed: int, *, steps: int, start: float = 0.45, end: float = 0.99, size: int = 8) -> Iterator[Rewards]:
    """Rewards of a healthy run whose pass rate approaches `end`."""
    rng = np.random.default_rng(seed)
    for t in range(steps):
        yield sampled(rng, end - (end - start) * np.exp(-t / 60), size=size)


def steps_of(rewards: Iterator[Rewards], **fields: object) -> Iterator[list[BaseEvent]]:
    for values in rewards:
        yield [batch(values.tolist(), **fields), step()]  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "severity"), [(0.0, "critical"), (0.5, "critical"), (1.0, "warning")])
@pytest.mark.parametrize("onset", [10, 60])
def test_names_a_constant_reward_within_thirty_steps(value: float, severity: str, onset: int) -> None:
    healthy = list(learning(1, steps=onset))
    broken = [np.full((16, 8), value)] * 30
    found = diagnostics(RULE, steps_of(iter([*healthy, *broken])))
    assert found[0].started.step >= onset
    assert found[0].state == "firing"
    assert found[-1].severity == severity
    assert f"got reward {value:.4g} in every completion" in found[-1].summary


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_stays_quiet_from_a_pass_rate_of_045_to_the_ceiling(size: int, seed: int) -> None:
    assert transitions(RULE, steps_of(learning(seed, steps=250, size=size))) == []


@pytest.mark.parametrize("reward_range", [(0.0, 1.0), None])
def test_stays_quiet_with_partial_credit_and_without_a_declared_range(reward_range: tuple[float, float] | None) -> None:
    rng = np.random.default_rng(3)
    rewards = (rng.binomial(6, np.full((16, 8), 0.5 + 0.45 * t / 150)) / 6 for t in range(150))
    assert transitions(RULE, steps_of(rewards, reward_range=reward_range)) == []


def test_stays_quiet_when_a_run_arrives_at_all_pass() -> None:
    shares = [11, 8, 6, 5, 4, 3, 2, 2, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    rewards = [[[0, 1] * 4] * mixed + [[1] * 8] * (16 - mixed) for mixed in shares]
    assert transitions(RULE, ([batch(groups), step()] for groups in rewards)) == []


def test_a_run_that_starts_solved_is_info_and_never_grows_more_severe() -> None:
    rewards = [SOLVED] * 8 + [[*SOLVED[:15], [1] * 7 + [0]]] + [SOLVED] * 40
    found = diagnostics(RULE, ([batch(groups), step()] for groups in rewards))
    assert {record.severity for record in found} == {"info"}


def test_fires_on_an_excess_at_a_pass_rate_of_one_third_and_tells_pass_from_fail() -> None:
    groups = [[1] * 8] * 5 + [[0] * 8] * 10 + [[0, 1] * 4]
    found = diagnostics(RULE, [[started(group_size=8)], *([batch(groups), step()] for _ in range(12))])
    assert [(record.reason, record.severity) for record in found] == [("fired", "warning")]
    assert found[0].summary.startswith("90 of 96 groups had no reward spread over steps 0-5 (expected ")
    assert "30 all-pass, 60 all-fail" in found[0].summary
    assert found[0].actions[0].title == "raise group_size 8 to 16"
    assert found[0].actions[0].patches[0].expect == 8
    tokens = next(item for item in found[0].evidence if item.metric == "zero_spread_tokens")
    assert (tokens.observed, tokens.unit) == (90 * 80, "tokens")


def ranked(groups: list[list[float]], **fields: object) -> list[tuple[str | None, float]]:
    """Code and weight of the causes of what fires on these groups."""
    found = diagnostics(RULE, [[batch(groups, **fields), step()] for _ in range(12)])  # type: ignore[arg-type]
    return [(cause.code, cause.weight) for cause in found[0].causes]


def test_ranks_its_causes_by_what_the_groups_are() -> None:
    fails = [[1] * 8] * 5 + [[0] * 8] * 10 + [[0, 1] * 4]
    assert ranked(fails)[:2] == [("RWD002", 0.67), ("RWD003", 0.33)]
    neither = [[0.5] * 8] * 9 + [[1] * 8] * 5 + [[0] * 8] + [[0, 1] * 4]
    assert ranked(neither)[0][0] is None
    assert ranked(fails, truncated=[8] * 16)[:2] == [("RWD002", 0.67), ("GEN001", 0.6)]
    assert ranked(fails, distinct=[1] * 16)[:2] == [("RWD002", 0.67), ("RWD006", 0.6)]
    assert ("GEN011", 0.3) in ranked(fails, num_failed=[1] * 16)


def test_a_constant_reward_between_the_ends_is_the_reward_function_and_at_an_end_perhaps_not() -> None:
    assert ranked([[0.5] * 8] * 16)[0] == (None, 0.9)
    assert ranked([[0.0] * 8] * 16)[:2] == [(None, 0.5), ("RWD002", 0.4)]


def test_says_how_many_groups_pass_fail_or_do_neither() -> None:
    groups = [[1] * 8] * 4 + [[0] * 8] * 9 + [[0.5] * 8] * 2 + [[0, 1] * 4]
    found = diagnostics(RULE, [[batch(groups), step()] for _ in range(12)])
    shares = {
        item.metric: item.observed for item in found[0].evidence if item.metric in ("all_pass_share", "other_share")
    }
    assert shares == {"all_pass_share": 4 / 16, "other_share": 2 / 16}


def test_resolves_when_spread_returns() -> None:
    rewards = [MIXED] * 8 + [[[0.5] * 8] * 16] * 10 + [MIXED] * 20
    found = transitions(RULE, ([batch(groups), step()] for groups in rewards))
    assert [reason for _, reason in found] == ["fired", "resolved"]
    assert 8 < found[0][0] < 16
    assert 18 < found[1][0] < 30


def test_needs_sixty_four_groups_in_a_row() -> None:
    rule = ZeroStdGroups()
    flat = [[0.5] * 8] * 16
    assert transitions(rule, [[batch(flat), step()] for _ in range(5)]) == []
    assert transitions(rule, [[batch(flat), step()] for _ in range(6)]) == [(5, "fired")]


def test_leaves_out_groups_of_one_completion() -> None:
    single = [[1.0]] * 20
    assert unevaluated(RULE, [[batch(single), step()] for _ in range(10)]) == (
        "warm_up",
        "fewer than 64 groups with two completions were seen",
    )


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, [[step()] for _ in range(60)]) == (
        "missing_input",
        "no `batch_consumed` event in the last 50 steps",
    )


def test_leaves_out_groups_whose_reward_is_not_a_number() -> None:
    healthy = batch(MIXED)
    columns = healthy.groups.model_copy(update={"reward_mean": [NonFinite(nonfinite="nan")] * 16})
    broken = healthy.model_copy(update={"groups": columns})
    answer = unevaluated(RULE, [[broken, step()] for _ in range(10)])
    assert answer is not None
    assert answer[0] == "warm_up"


def test_expected_share_is_the_binomial_bound_and_natural_share_lies_above_it() -> None:
    assert expected_share(0.5, 4) == pytest.approx(0.125)
    # Beta(1/4, 1/4), G = 2: E[q^2] = a (a + 1) / (2a (2a + 1)) = 0.25 * 1.25 / (0.5 * 1.5), twice.
    assert natural_share(0.5, 2) == pytest.approx(2 * 0.25 * 1.25 / (0.5 * 1.5))
    for pass_rate in (0.05, 0.3, 0.8, 0.99):
        assert expected_share(pass_rate, 8) < natural_share(pass_rate, 8) <= 1


@pytest.mark.parametrize(
    ("groups", "before_same", "sudden"),
    [
        (64, 0, True),  # nothing passed before, now everything
        (64, 64, False),  # half passed before: too short a streak
        (160, 64, True),
        (100_000, 120, False),  # close to the ceiling before, perfect ever since
        (4096, 128, False),  # everything passed before: the ceiling, however long it lasts
    ],
)
def test_a_streak_at_the_top_is_sudden_only_beside_what_came_before(
    groups: int, before_same: int, sudden: bool
) -> None:
    assert is_sudden(Streak(value=1, groups=groups, before_groups=128, before_same=before_same)) is sudden
