"""GEN003: growth that pays is none of it, growth that does not is."""

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, diagnostics, judged, run, started, step, transitions, unevaluated
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rules.length_growth import LengthGrowth
from tocsin.diagnostics.rules.truncation_high import TruncationHigh
from tocsin.schemas.batch import Quantiles
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, KnobChanged

RULE = LengthGrowth()


def long(mean: float, *, n: int, passes: float = 0.5, cut: float = 0.0, seed: int = 0) -> list[list[BaseEvent]]:
    """Steps of 128 completions of this mean length, of which this share passes and another is cut."""
    rng = np.random.default_rng(seed)
    hit = round(128 * cut)
    fields = {
        "length": Quantiles(mean=mean, p50=mean, p95=mean, max=mean),
        "finish_reasons": {"stop": 128 - hit, "length": hit},
    }
    return [[batch((rng.random((16, 8)) < passes).astype(float).tolist(), **fields), step()] for _ in range(n)]


def evaluated(version: int, pass_rate: float) -> EvaluationCompleted:
    return EvaluationCompleted(
        name="held-out",
        version=version,
        n=512,
        failed=0,
        reward_mean=pass_rate,
        reward_se=0.01,
        pass_rate=pass_rate,
        pass_rate_se=0.01,
    )


def test_fires_when_completions_doubled_and_nothing_more_passes() -> None:
    found = diagnostics(RULE, [*long(100, n=40), *long(250, n=20, seed=1)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "warning")]
    assert 42 <= found[0].last.step <= 45
    assert found[0].summary.startswith("Completions grew to 2.5 times their first length, 250 tokens; the pass rate is")
    assert found[0].evidence[0].baseline == 1.0


def test_is_critical_once_half_of_them_reach_the_limit() -> None:
    assert judged(RULE, [*long(100, n=40), *long(250, n=20, cut=0.4, seed=1)]) == "warning"
    assert judged(RULE, [*long(100, n=40), *long(250, n=20, cut=0.6, seed=1)]) == "critical"


def test_growth_with_a_pass_rate_that_rises_is_reasoning_that_pays() -> None:
    grows = [item for i in range(40) for item in long(100 + 10 * i, n=1, passes=0.3 + 0.015 * i, seed=i)]
    assert transitions(RULE, [*long(100, n=30, passes=0.3), *grows, *long(500, n=40, passes=0.9, seed=99)]) == []


def test_growth_with_a_held_out_score_that_rises_pays_as_well() -> None:
    run = [*long(100, n=40), [evaluated(38, 0.5)], *long(180, n=5, seed=1), [evaluated(44, 0.6)]]
    assert transitions(RULE, [*run, *long(250, n=20, seed=2)]) == []


def test_a_fall_of_the_reward_does_not_make_it_pay() -> None:
    found = diagnostics(RULE, [*long(100, n=40, passes=0.9), *long(250, n=20, passes=0.0, seed=1)])
    assert found[0].evidence[1].baseline == pytest.approx(0.9, abs=0.05)


def test_just_below_twice_the_length_is_none() -> None:
    assert transitions(RULE, [*long(100, n=40), *long(199, n=40, seed=1)]) == []
    assert transitions(RULE, [*long(100, n=40), *long(200, n=40, seed=1)])[0][1] == "fired"


def test_resolves_below_one_and_a_half_times_only() -> None:
    run = [*long(100, n=40), *long(250, n=20, seed=1), *long(170, n=40, seed=2), *long(110, n=20, seed=3)]
    found = transitions(RULE, run)
    assert [reason for _, reason in found] == ["fired", "resolved"]
    assert found[1][0] > 100


def test_another_limit_starts_the_measure_over() -> None:
    change = KnobChanged(path="max_completion_tokens", before=256, after=512, actor="person:a", effective_step=41)
    assert transitions(RULE, [[started()], *long(100, n=40), [change], *long(250, n=60, seed=1)]) == []


def test_explains_that_completions_are_cut_even_when_both_begin_together() -> None:
    steps = [*long(100, n=40), *long(250, n=20, cut=0.6, seed=1)]
    found = [record for record in run(Engine([TruncationHigh(), RULE]), steps) if isinstance(record, Diagnostic)]
    assert [(record.code, record.suppressed) for record in found] == [("GEN003", False), ("GEN001", True)]


def test_is_ranked_first_among_the_causes_of_completions_that_are_cut() -> None:
    found = diagnostics(TruncationHigh(), [*long(100, n=40), *long(250, n=20, cut=0.6, seed=1)])
    assert found[-1].causes[0].code == "GEN003"


def test_needs_five_windows_to_know_the_usual_length() -> None:
    assert unevaluated(RULE, long(100, n=9)) == ("warm_up", "fewer than five windows of 256 completions have passed")
    assert unevaluated(RULE, long(100, n=12)) is None


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, [[step()] for _ in range(60)]) == (
        "missing_input",
        "no `batch_consumed` event in the last 50 steps",
    )


def test_a_length_that_is_no_number_is_no_growth() -> None:
    assert transitions(RULE, [*long(100, n=40), *long(float("nan"), n=20)]) == []
