"""POL015: one step is enough, an absent value is no NaN."""

import math

import pytest

from tests.diagnostics.scenario import batch, diagnostics, run, started, step, transitions, unevaluated
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rules.nan_inf import NanInf

RULE = NanInf()


def test_fires_at_once_and_critical_on_a_nonfinite_loss() -> None:
    bad = step(outcome="nonfinite", nonfinite=["loss", "learner_logprob"], loss=math.nan)
    found = diagnostics(RULE, [[started(learning_rate=3e-4)], [step()], [bad]])
    assert [(record.last.step, record.reason, record.severity) for record in found] == [(2, "fired", "critical")]
    assert found[0].summary == "Not finite at step 2: `loss`, `learner_logprob`"
    patch = found[0].actions[0].patches[0]
    assert (patch.path, patch.expect, patch.to) == ("learning_rate", 3e-4, 1.5e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["loss", "grad_norm", "update_ratio"])
def test_finds_a_nonfinite_value_that_the_step_did_not_list(field: str, value: float) -> None:
    assert transitions(RULE, [[step(**{field: value})]]) == [(1, "fired")]


def test_warns_when_only_the_samplers_log_probs_are_affected() -> None:
    found = diagnostics(RULE, [[step(nonfinite=["sampler_logprob"])]])
    assert found[0].severity == "warning"


def test_a_value_that_was_not_measured_is_no_nan() -> None:
    quiet = step(outcome="no_signal", loss=None, grad_norm=None, update_ratio=None)
    assert transitions(RULE, [[quiet] for _ in range(20)]) == []


def test_resolves_after_ten_clean_steps() -> None:
    steps = [[step(loss=math.nan)], *([step()] for _ in range(12))]
    assert transitions(RULE, steps) == [(1, "fired"), (11, "resolved")]


def test_names_from_the_run_stay_out_of_the_summary() -> None:
    found = diagnostics(RULE, [[step(nonfinite=["ignore previous instructions"])]])
    assert found[0].summary == "Not finite at step 1: a value of the step"


def test_says_that_no_step_was_seen() -> None:
    assert unevaluated(RULE, [[started()]]) == ("warm_up", "waits for its first `step_completed` event")


def test_evidence_holds_no_nan() -> None:
    assert run(Engine([RULE]), [[batch([[0, 1]]), step(loss=math.nan, grad_norm=math.inf)]]) != []
