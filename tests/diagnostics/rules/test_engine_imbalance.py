"""SYS006: a sick server among healthy ones, apart from one that has more or less to do."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.diagnostics.scenario import diagnostics, polled, started, step, ticks, unevaluated
from tests.diagnostics.scenario import transitions as of_rule
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rules.engine_imbalance import EngineImbalance
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.generation import SamplerSampled

RULE = EngineImbalance()
HEALTHY: Mapping[str, Any] = {}


def rounds(n: int, *servers: Mapping[str, Any], since: float = 100.0) -> list[list[BaseEvent]]:
    """Steps with a look at every server and a tick each, every five seconds."""
    made: list[list[BaseEvent]] = []
    for i in range(n):
        at = since + 5.0 * i
        looks = [polled(f"vllm-{number}", mono=at, **fields) for number, fields in enumerate(servers)]
        made.append([step(), *looks, *ticks(at + 0.1, at + 0.1)])
    return made


def reasons(*steps: list[list[BaseEvent]]) -> list[str]:
    return [reason for _, reason in of_rule(RULE, [[started()], *(one for part in steps for one in part)])]


def tokens(per_sequence: float, running: int = 8) -> dict[str, Any]:
    """A server that generates so many tokens per second for each of so many sequences."""
    return {"running": running, "generated_tokens": round(5 * per_sequence * running)}


def test_names_a_server_that_is_slow_for_each_of_its_sequences() -> None:
    run = [[started()], *rounds(6, HEALTHY, HEALTHY, HEALTHY), *rounds(12, HEALTHY, tokens(10), HEALTHY, since=130)]
    found = diagnostics(RULE, run)
    assert [(record.reason, record.severity, record.kind) for record in found] == [("fired", "info", "fault")]
    assert found[0].summary == (
        "vllm-1 generates 10 tokens/s for each of its sequences, the other 2 40 (median of 6 polls)"
    )
    assert found[0].actions[0].title == "start vllm-1 again, or take it out of sampler.urls"


def test_uneven_load_by_routing_is_natural() -> None:
    # 64 sequences at 18 tokens/s against 8 at 40: slower for each, and far more in total.
    assert reasons(rounds(30, tokens(18, running=64), HEALTHY, HEALTHY)) == []
    assert reasons(rounds(30, tokens(60, running=1), HEALTHY, HEALTHY)) == []


def test_fires_below_half_of_the_median_and_not_at_it() -> None:
    assert reasons(rounds(30, tokens(20), HEALTHY, HEALTHY)) == []
    assert reasons(rounds(30, tokens(19.9), HEALTHY, HEALTHY)) == ["fired"]


def test_others_that_wait_for_the_slow_one_are_compared_while_they_work() -> None:
    run: list[list[BaseEvent]] = [[started()]]
    for i in range(12):
        idle = i % 3 != 0
        other = {"running": 0, "generated_tokens": 0} if idle else tokens(40)
        run += rounds(1, tokens(12), other, other, since=100.0 + 5 * i)
    assert [reason for _, reason in of_rule(RULE, run)] == ["fired"]


def test_idle_servers_are_not_slow() -> None:
    idle = {"running": 0, "generated_tokens": 0}
    assert reasons(rounds(30, idle, HEALTHY, HEALTHY)) == []
    assert reasons(rounds(30, idle, idle)) == []
    assert reasons(rounds(30, {"interval_s": 0.0}, HEALTHY)) == []


def test_a_sync_stops_all_of_them() -> None:
    stopped = {"generated_tokens": 0}
    assert reasons(rounds(30, stopped, stopped, stopped)) == []


def test_names_a_server_whose_requests_fail() -> None:
    failing = {"requests_failed": 2, "requests_finished": 18}
    found = diagnostics(RULE, [[started()], *rounds(12, HEALTHY, failing)])
    assert found[0].summary == "vllm-1 failed 12 of 120 requests in 6 polls, the other servers 0.0% of theirs"


@pytest.mark.parametrize(
    ("one", "rest"),
    [
        ({"requests_failed": 1, "requests_finished": 19}, {}),  # exactly the limit
        ({"requests_failed": 2, "requests_finished": 18}, {"requests_failed": 1, "requests_finished": 19}),  # both fail
        ({"requests_failed": 0, "requests_finished": 0}, {}),
    ],
)
def test_few_failures_and_those_that_all_share_are_not_its_own(one: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
    assert reasons(rounds(30, one, rest, rest)) == []


def test_two_failures_say_nothing() -> None:
    run = [*rounds(2, HEALTHY, {"requests_failed": 1, "requests_finished": 0}), *rounds(4, HEALTHY, HEALTHY, since=110)]
    assert reasons(run) == []


def test_resolves_when_it_keeps_up_and_not_halfway() -> None:
    sick = rounds(10, tokens(10), HEALTHY, HEALTHY)
    assert reasons(sick, rounds(20, tokens(24), HEALTHY, HEALTHY, since=150)) == ["fired"]
    assert reasons(sick, rounds(20, tokens(40), HEALTHY, HEALTHY, since=150)) == ["fired", "resolved"]


def test_says_why_it_is_not_evaluated() -> None:
    local = SamplerSampled(sampler="local", version=1, groups=1, completions=8, tokens=80, seconds=0.1)
    assert unevaluated(RULE, [[started(), local, *ticks(5, 50)]]) == (
        "not_applicable",
        "the local sampler is no server",
    )
    assert unevaluated(RULE, [[started(), *ticks(5, 50)]]) == (
        "missing_input",
        "no `engine_sampled` event in the last ten minutes",
    )
    alone = unevaluated(RULE, [[started()], *rounds(10, HEALTHY)])
    assert alone == ("not_applicable", "one server has nothing to be compared with")
    few = unevaluated(RULE, [[started()], *rounds(5, HEALTHY, HEALTHY)])
    assert few == ("warm_up", "fewer than 6 looks at two servers")
    lost = reasons(rounds(10, tokens(10), HEALTHY), [list(ticks(900, 1000))])
    assert lost == ["fired", "data_lost"]


def test_a_server_that_is_gone_is_forgotten_and_servers_are_bounded() -> None:
    run = [[started()], *rounds(6, HEALTHY, HEALTHY), *rounds(40, HEALTHY, since=130)]
    assert unevaluated(RULE, run) == ("not_applicable", "one server has nothing to be compared with")
    features = Features()
    for number in range(1000):
        features.update(polled(f"vllm-{number}"))
    assert len(features.engines.servers) <= 64
