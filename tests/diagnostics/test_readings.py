"""Metrics by path: every path that a rule names can be read."""

import ast
import math
import re
from pathlib import Path

import pytest

from tests.diagnostics.scenario import batch, memory, step
from tocsin.diagnostics import rules
from tocsin.diagnostics.readings import metric
from tocsin.schemas.base import NonFinite
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EVENT_TYPES, Ledger, QueueSampled

QUEUE = QueueSampled(
    ledger=Ledger(launched=1, in_flight=0, queued=1, consumed=0, dropped={}, failed={}),
    learner_wait_s=0.3,
    sampler_wait_s=0.0,
    step_s=1.2,
)


@pytest.mark.parametrize(
    ("path", "event", "expected"),
    [
        ("batch_consumed.reward_mean", batch([[0, 1], [1, 1]]), 0.75),
        ("batch_consumed.groups.zero_spread", batch([[0, 1], [1, 1], [0, 0], [1, 1]]), 0.75),
        ("batch_consumed.staleness.p95", batch([[0, 1]], staleness=(1, 3, 4)), 3.0),
        ("batch_consumed.finish_reasons.length", batch([[0, 1]]), math.nan),
        ("step_completed.clip_low_frac + step_completed.clip_high_frac", step(clip_low_frac=0.1), 0.101),
        ("step_completed.nonfinite", step(nonfinite=["loss", "grad_norm"]), 2.0),
        ("step_completed.nonfinite", step(), 0.0),
        ("step_completed.kl_ref", step(), math.nan),
        ("step_completed.grad_norm", step(grad_norm=NonFinite(nonfinite="nan")), math.inf),
        ("step_completed.logprob_gap.k3", step(), math.nan),
        ("queue_sampled.learner_wait_s / step_s", QUEUE, 0.25),
        ("resources_sampled.devices.phases.reserved_bytes / total_bytes", memory(0.25), 0.25),
        ("step_completed.tokens / seconds.total", step(tokens=50, seconds={"total": 0.5}), 100.0),
    ],
)
def test_reads_one_number_from_an_event(path: str, event: BaseEvent, expected: float) -> None:
    assert metric(path).read(event) == pytest.approx(expected, nan_ok=True)
    assert isinstance(event, metric(path).event)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("moon.phase", "must begin with the type of an event, got `moon.phase`"),
        ("step_completed.los", "got `step_completed.los`: there is no `los`"),
        ("batch_consumed.staleness.p96", "there is no `p96`"),
        ("step_completed.loss.x", "there is no `x`"),
    ],
)
def test_a_path_that_names_nothing_is_refused(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metric(path)


def named_metrics() -> set[str]:
    """Every text in the rules that begins like the path of a metric; those of `Verify` are among them."""
    found = set()
    for folder in rules.__path__:
        for path in Path(folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
                if is_text and re.fullmatch(r"[a-z_]+\.[a-z0-9_.]+( [+/] [a-z0-9_.]+)*", node.value):
                    found.add(node.value)
    return {path for path in found if path.split(".")[0] in EVENT_TYPES}


def test_every_metric_that_a_rule_names_can_be_read() -> None:
    named = named_metrics()
    assert "step_completed.nonfinite" in named
    for path in named:
        assert metric(path).path == path
