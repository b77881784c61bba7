"""vLLM servers that misbehave: what is tried again, what is not, and what a run makes of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.runs import start, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config, tiny_prompts, tiny_requests
from tests.trainer.vllm.office import PATIENCE_S, office, request
from tests.trainer.vllm.proxy import Proxy, Trouble, proxy
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.config import RunConfig
from tocsin.schemas.events import QueueSampled, RolloutFailed, RunEnded
from tocsin.schemas.generation import EngineSampled
from tocsin.schemas.sampler import SamplerConfig
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.vllm.client import VllmClient
from tocsin.trainer.vllm.servers import VllmServer

pytestmark = pytest.mark.vllm

TOLERANCE = 1e-4
SHORT_S = 8.0
"""Patience with a server that does not answer. A healthy one needs a fraction of a second."""


@pytest.fixture(scope="module")
def url(tiny_policy: TinyPolicy, vllm_server: VllmServer) -> str:
    """A server that has compiled what it compiles at its first prompt."""
    with office(tiny_policy, [vllm_server.url]) as desk:
        desk.send(0)
        desk.generate(tiny_requests(tiny_policy, 1))
    return vllm_server.url


@pytest.fixture
def between(url: str) -> Iterator[Proxy]:
    """The proxy that a desk or a run has to do with."""
    with proxy(url) as between:
        yield between


@pytest.mark.parametrize("trouble", ["reset", "unavailable", "broken-off"])
def test_a_prompt_that_failed_for_reasons_of_the_server_is_sent_again_and_counted(
    tiny_policy: TinyPolicy, between: Proxy, trouble: Trouble
):
    with office(tiny_policy, [between.url], sampler={"poll_s": 0.1}) as desk:
        desk.send(0)
        between.misbehave(trouble, times=3)
        asked = between.prompts
        requests = tiny_requests(tiny_policy, 2)
        assert desk.worst(requests, desk.generate(requests)) < TOLERANCE
        assert between.prompts - asked == 2 + 3
        assert between.troubles == [trouble] * 3
        desk.until(lambda: sum(look.requests_finished for look in desk.looks()) == 2)
        assert sum(look.requests_failed for look in desk.looks()) == 3
        assert [state for state, _ in desk.news()] == ["started"], "the server is healthy"


def test_a_prompt_that_is_refused_is_sent_once(tiny_policy: TinyPolicy, between: Proxy):
    with office(tiny_policy, [between.url]) as desk:
        desk.send(0)
        asked = between.prompts
        requests = [request([3] * 70), *tiny_requests(tiny_policy, 1)]
        answer = desk.answer(requests)
        assert between.prompts - asked == 2
    failure = answer.errors[0]
    assert list(answer.errors) == [0]
    assert (failure.cause, failure.whole_group, failure.completions) == ("sampler_refused", True, 4)
    assert "answered 400" in failure.error
    assert "64" in failure.error, "it names the limit"
    assert len(failure.error.splitlines()) == 1
    assert [len(group) for group in answer.completions] == [0, 4]


def test_a_prompt_that_keeps_failing_is_given_up_when_its_budget_is_spent(tiny_policy: TinyPolicy, between: Proxy):
    with office(tiny_policy, [between.url], sampler={"retry_budget_s": 1.0}) as desk:
        desk.send(0)
        between.misbehave("unavailable")
        failure = desk.answer(tiny_requests(tiny_policy, 1)).errors[0]
        assert between.troubles[1:], "it was sent more than once"
        between.behave()
        assert desk.answer(tiny_requests(tiny_policy, 1)).errors == {}
    assert (failure.cause, failure.whole_group) == ("sampler_error", True)
    assert failure.error.endswith("answered 503: the proxy says so")


def test_a_server_that_does_not_answer_is_looked_for_and_given_its_work_again(tiny_policy: TinyPolicy, between: Proxy):
    with office(tiny_policy, [between.url], sampler={"timeout_s": SHORT_S}) as desk:
        desk.send(0)
        between.misbehave("deaf", times=2)  # the prompt, and the first one that looks whether the server is back
        requests = tiny_requests(tiny_policy, 1)
        assert desk.worst(requests, desk.generate(requests)) < TOLERANCE
        news = desk.news()
    assert between.troubles == ["deaf"] * 2
    assert [state for state, _ in news] == ["started", "died", "restarted"]
    assert f"did not answer within {SHORT_S:g} s" in news[1][1]


def test_a_server_that_somebody_else_paused_is_sent_all_weights_and_resumed(tiny_policy: TinyPolicy, url: str):
    with office(tiny_policy, [url], sampler={"poll_s": 0.2}) as desk:
        desk.send(0)
        desk.ask(pause(url))
        requests = tiny_requests(tiny_policy, 4)
        assert desk.worst(requests, desk.generate(requests)) < TOLERANCE
        assert ("alive", "vllm-0 was paused by somebody else; resumed") in desk.news()
        assert not desk.ask(desk.engine.client.is_paused())


async def pause(url: str) -> None:
    client = VllmClient(url, timeout_s=PATIENCE_S)
    await client.pause(clear_cache=False)
    await client.close()


def run_config(policy: TinyPolicy, train: Path, url: str, *, steps: int, budget_s: float) -> RunConfig:
    """A run with the server at `url` on prompts of `train`."""
    sampler = SamplerConfig(kind="vllm", urls=[url], poll_s=0.5, retry_budget_s=budget_s)
    config = tiny_config(policy, steps=steps, sampler=sampler)
    return config.model_copy(update={"data": config.data.model_copy(update={"evaluation": None, "train": str(train)})})


def some_rows(policy: TinyPolicy, path: Path, num: int) -> Path:
    path.write_text("\n".join(policy.train.read_text().splitlines()[:num]) + "\n")
    return path


def test_a_run_replaces_groups_that_a_server_refuses_or_never_answers_and_completes(
    tiny_policy: TinyPolicy, between: Proxy, tmp_path: Path
) -> None:
    train, steps = some_rows(tiny_policy, tmp_path / "train.jsonl", 16), 10
    refused, failing = (prompt.token_ids.tolist() for prompt in tiny_prompts(tiny_policy, 5)[3:])
    between.misbehave("refused", matches=lambda ids: ids == refused)
    between.misbehave("unavailable", matches=lambda ids: ids == failing)
    config = run_config(tiny_policy, train, between.url, steps=steps, budget_s=1.0)
    with start("train", write_config(config, tmp_path / "run.toml"), runs_dir=tmp_path / "runs") as run:
        assert run.wait() == 0, run.stderr
        recording = run.recording()
    assert [event.step for event in recording.of(StepCompleted)] == list(range(1, steps + 1))
    lost = recording.of(RolloutFailed)
    ids = {"sampler_refused": 3, "sampler_error": 4}
    assert {event.cause: event.prompt_id.partition("-")[0] for event in lost} == {
        cause: str(number + 1) for cause, number in ids.items()
    }
    assert all(event.whole_group and event.completions == 4 for event in lost)
    assert between.troubles.count("refused") == sum(event.cause == "sampler_refused" for event in lost)
    ledgers = [event.ledger for event in recording.of(QueueSampled)]
    assert {ledger.balance() for ledger in ledgers} == {0}
    assert ledgers[-1].consumed == 4 * steps
    batches = recording.of(BatchConsumed)
    assert [len(event.groups.size) for event in batches] == [4] * steps
    consumed = [index for event in batches for index in event.groups.group_index]
    assert len(set(consumed)) == len(consumed)
    assert not {event.group_index for event in lost} & set(consumed)
    assert sum(event.requests_failed for event in recording.of(EngineSampled)) > 0


def test_a_run_whose_servers_are_all_gone_ends_with_the_cause(
    tiny_policy: TinyPolicy, between: Proxy, tmp_path: Path
) -> None:
    config = run_config(tiny_policy, tiny_policy.train, between.url, steps=100_000, budget_s=1.0)
    with start("train", write_config(config, tmp_path / "run.toml"), runs_dir=tmp_path / "runs") as run:
        run.until_step(2)
        between.vanish()
        assert run.wait() == 1
        recording, stderr = run.recording(), run.stderr
    (ended,) = recording.of(RunEnded)
    assert ended.outcome == "failed"
    assert ended.error is not None
    assert f"no vLLM server is left; the last one: vllm-0: {between.url}/" in ended.error
    assert "; it did not come back within the retry budget" in ended.error
    assert "no vLLM server is left" in " ".join(stderr.split())
    assert "Traceback" not in stderr
