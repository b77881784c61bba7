"""SYS004: preemptions together with a queue and work done twice, and never one of them alone."""

from typing import Any

import pytest

from tests.diagnostics.scenario import batch, diagnostics, numbered, polled, started, step, ticks, unevaluated
from tests.diagnostics.scenario import transitions as of_rule
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.kv_preemption import KvPreemption
from tocsin.schemas.batch import Quantiles
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged
from tocsin.schemas.generation import SamplerSampled

RULE = KvPreemption()


def opening(length: float = 200.0, **knobs: Any) -> list[BaseEvent]:
    """A run whose completions have `length` tokens."""
    spread = Quantiles(mean=length, p50=length, p95=length, max=length)
    return [started(**knobs), batch([[0.0, 1.0]] * 4).model_copy(update={"length": spread})]


def polls(n: int, since: float, engine: str = "vllm-0", **fields: Any) -> list[list[BaseEvent]]:
    """Steps with a look at a server and a tick each, every five seconds."""
    made: list[list[BaseEvent]] = []
    for i in range(n):
        at = since + 5.0 * i
        made.append([step(), polled(engine, mono=at, **fields), *ticks(at + 0.1, at + 0.1)])
    return made


def thrashing(n: int, since: float, **fields: Any) -> list[list[BaseEvent]]:
    """Four sequences of a hundred tokens on average are computed again at each look, beside 1600 tokens."""
    return polls(n, since, **{"preemptions": 4, "waiting": 6, "kv_usage": 0.95, **fields})


def reasons(*steps: list[list[BaseEvent]]) -> list[str]:
    return [reason for _, reason in of_rule(RULE, [opening(), *(one for part in steps for one in part)])]


def test_names_a_server_that_computes_its_work_twice() -> None:
    knobs = {"groups_per_step": 16, "max_staleness": 1, "in_flight_groups": 32}
    found = diagnostics(RULE, [opening(**knobs), *polls(6, 100), *thrashing(10, 130)])
    assert found[0].reason == "fired"
    assert {record.severity for record in found} == {"info"}
    assert found[0].summary == (
        "vllm-0 threw out 16 sequences in 4 of 6 polls, 4 waiting; about 14% of its tokens are computed again"
    )
    assert found[0].actions[0].title == "lower in_flight_groups 32 to 26"
    verify = found[0].actions[0].verify
    assert verify is not None
    assert (verify.metric, verify.threshold) == ("engine_sampled.preemptions / running", pytest.approx(1 / 6))


def test_a_few_preemptions_at_the_tail_of_a_batch_are_harmless() -> None:
    tail = polls(1, 130, preemptions=1, waiting=0, running=2)
    assert reasons(polls(6, 100), tail, polls(1, 135, preemptions=1, waiting=1), polls(10, 140)) == []


def test_work_done_twice_without_anybody_waiting_is_no_finding() -> None:
    assert reasons(thrashing(20, 100, waiting=0)) == []


def test_a_full_cache_and_a_queue_without_preemptions_are_a_cache_well_used() -> None:
    assert reasons(polls(30, 100, kv_usage=0.99, waiting=20)) == []


def test_one_look_out_of_six_is_not_enough() -> None:
    assert reasons(polls(6, 100), thrashing(1, 130, preemptions=40), polls(20, 135, waiting=6)) == []


def test_fires_at_a_tenth_of_the_work_and_not_below() -> None:
    # Two sequences of 100 tokens beside 1800 new ones are a tenth.
    assert reasons(thrashing(8, 100, preemptions=2, generated_tokens=1800)) == ["fired"]
    assert reasons(thrashing(8, 100, preemptions=2, generated_tokens=1801)) == []


def test_resolves_when_little_is_computed_again() -> None:
    assert reasons(thrashing(10, 100), polls(20, 150)) == ["fired", "resolved"]
    still = thrashing(20, 150, preemptions=1, generated_tokens=1600)
    assert reasons(thrashing(10, 100), still) == ["fired"]


def test_a_change_of_the_groups_in_flight_measures_anew() -> None:
    change = KnobChanged(path="in_flight_groups", before=32, after=26, actor="person:a", effective_step=11)
    run = [opening(), *thrashing(10, 100), [change], *polls(5, 150)]
    assert unevaluated(RULE, run) == ("warm_up", "fewer than 6 looks at any server")


def test_the_hard_limit_needs_every_look() -> None:
    jammed = {"preemptions": 4, "waiting": 5, "kv_usage": 0.95}
    run = [opening(), *polls(8, 100, **jammed)]
    assert severity_of(run) == "critical"
    assert severity_of([opening(), *polls(7, 100, **jammed), *polls(1, 135, **{**jammed, "waiting": 4})]) == "warning"
    assert severity_of([opening(), *polls(8, 100, **{**jammed, "kv_usage": None})]) == "warning"


def severity_of(run: list[list[BaseEvent]]) -> str:
    """Before the cap of rules whose fault was not planted."""
    features = Features()
    for event in numbered(run):
        features.update(event)
    answer = RULE.check(features, is_open=False)
    assert isinstance(answer, Finding)
    return answer.severity


def test_says_why_it_is_not_evaluated() -> None:
    local = SamplerSampled(sampler="local", version=1, groups=1, completions=8, tokens=80, seconds=0.1)
    assert unevaluated(RULE, [[*opening(), local, *ticks(5, 50)]]) == (
        "not_applicable",
        "the local sampler is no server",
    )
    silent = ("missing_input", "no `engine_sampled` event in the last ten minutes")
    assert unevaluated(RULE, [[*opening(), *ticks(5, 50)]]) == silent
    assert unevaluated(RULE, [opening(), *polls(10, 100), ticks(800, 830)]) == silent
    assert unevaluated(RULE, [[started()], *polls(10, 100)]) == (
        "warm_up",
        "no batch has said yet how long completions are",
    )
    assert reasons(thrashing(10, 100), [list(ticks(800, 900))]) == ["fired", "data_lost"]


def test_a_length_that_is_not_a_number_says_nothing() -> None:
    assert of_rule(RULE, [opening(float("nan")), *thrashing(20, 100)]) == []
