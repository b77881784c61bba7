"""GEN004: brevity that costs, never brevity alone or a limit."""

import numpy as np

from tests.diagnostics.scenario import batch, diagnostics, judged, step, transitions, unevaluated
from tocsin.diagnostics.rules.length_collapse import LengthCollapse
from tocsin.schemas.batch import Histogram, Quantiles
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted

RULE = LengthCollapse()


def long(
    mean: float, *, n: int, passes: float = 0.8, cut: float = 0.0, empty: int = 0, seed: int = 0
) -> list[list[BaseEvent]]:
    """Steps of 128 completions of this mean length, of which `empty` hold an end token only."""
    rng = np.random.default_rng(seed)
    hit = round(128 * cut)
    fields = {
        "length": Quantiles(mean=mean, p50=mean, p95=mean, max=mean),
        "length_histogram": Histogram(edges=[0, 1, 2, 4, 128], counts=[0, empty, 0, 128 - empty]),
        "finish_reasons": {"stop": 128 - hit, "length": hit},
    }
    return [[batch((rng.random((16, 8)) < passes).astype(float).tolist(), **fields), step()] for _ in range(n)]


def test_warns_when_completions_shrink_and_less_passes() -> None:
    found = diagnostics(RULE, [*long(100, n=40), *long(40, n=20, passes=0.1, seed=1)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "warning")]
    assert found[0].summary.startswith("Completions shrank to 0.40 of their first length, 40.0 tokens; the pass rate")


def test_is_critical_when_next_to_nothing_is_left() -> None:
    assert judged(RULE, [*long(100, n=40), *long(40, n=10, passes=0.1, seed=1)]) == "warning"
    assert judged(RULE, [*long(100, n=40), *long(20, n=10, passes=0.1, seed=1)]) == "critical"


def test_is_critical_when_a_tenth_is_empty() -> None:
    assert judged(RULE, [*long(100, n=40), *long(40, n=10, passes=0.1, empty=12, seed=1)]) == "warning"
    assert judged(RULE, [*long(100, n=40), *long(40, n=10, passes=0.1, empty=20, seed=1)]) == "critical"


def test_learned_brevity_with_a_steady_pass_rate_is_information() -> None:
    assert judged(RULE, [*long(100, n=40), *long(20, n=40, seed=1)]) == "info"


def test_a_held_out_score_that_falls_is_a_loss_as_well() -> None:
    scores = [
        EvaluationCompleted(
            name="held-out", version=v, n=512, failed=0, reward_mean=p, reward_se=0.02, pass_rate=p, pass_rate_se=0.02
        )
        for v, p in ((39, 0.8), (44, 0.5))
    ]
    run = [*long(100, n=40), [scores[0]], *long(40, n=5, seed=1), [scores[1]], *long(40, n=20, seed=2)]
    assert judged(RULE, run) == "warning"


def test_completions_that_a_limit_makes_short_are_another_finding() -> None:
    assert transitions(RULE, [*long(100, n=40), *long(20, n=30, passes=0.0, cut=0.9)]) == []


def test_just_above_half_the_length_is_none() -> None:
    assert transitions(RULE, [*long(100, n=40), *long(51, n=30, passes=0.1)]) == []
    assert transitions(RULE, [*long(100, n=40), *long(50, n=30, passes=0.1)])[0][1] == "fired"


def test_resolves_above_the_clear_threshold_only() -> None:
    run = [*long(100, n=40), *long(40, n=20, passes=0.1), *long(65, n=30, passes=0.1), *long(90, n=20)]
    found = transitions(RULE, run)
    assert [reason for _, reason in found][:1] == ["fired"]
    assert found[-1][1] == "resolved"
    assert found[-1][0] > 90


def test_needs_five_windows_and_batches() -> None:
    assert unevaluated(RULE, long(100, n=9)) == ("warm_up", "fewer than five windows of 256 completions have passed")
    assert unevaluated(RULE, [[step()] for _ in range(5)]) == ("warm_up", "waits for its first `batch_consumed` event")


def test_lengths_and_rewards_that_are_no_numbers_say_nothing() -> None:
    assert transitions(RULE, [*long(100, n=40), *long(float("nan"), n=20)]) == []
    broken = [
        [batch([[float("nan")] * 8] * 16, length=Quantiles(mean=20, p50=20, p95=20, max=20)), step()] for _ in range(20)
    ]
    assert judged(RULE, [*long(100, n=40), *broken]) == "info"
