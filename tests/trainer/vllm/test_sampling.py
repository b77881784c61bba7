"""What a vLLM server samples, token by token, against the learner's own forward pass."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.trainer.tiny import TinyPolicy, tiny_prompts
from tests.trainer.vllm.launching import server_spec
from tests.trainer.vllm.office import Office, logprobs, move, office, request, serving
from tocsin.schemas.config import FaultConfig
from tocsin.trainer.data import Completion, GroupRequest
from tocsin.trainer.messages import Generate
from tocsin.trainer.vllm.interpreter import Interpreter

pytestmark = pytest.mark.vllm

TOLERANCE = 1e-4
PAD, EOS, SECOND_EOS = 0, 1, 11
"""Of the tiny policy; the second one is the digit 9, which only this model's generation settings call an end."""
KV_BLOCK = 32
"""Tokens that the prefix cache holds together; the least on a CPU."""
UPDATES = 40
"""At most, until a completion is caught under way by one."""


@pytest.fixture(scope="module")
def policy(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> TinyPolicy:
    """The tiny policy with two tokens that end a completion."""
    folder = tmp_path_factory.mktemp("two-ends") / "model"
    shutil.copytree(tiny_policy.model, folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": [EOS, SECOND_EOS]}))
    return TinyPolicy(folder, tiny_policy.train, tiny_policy.held_out)


@pytest.fixture(scope="module")
def url(policy: TinyPolicy, vllm_python: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose prefix cache works on prompts that the tiny policy can read."""
    spec = server_spec(vllm_python, policy.model, tmp_path_factory.mktemp("server"), "--block-size", str(KV_BLOCK))
    with serving(spec) as server:
        yield server.url


@pytest.fixture
def desk(policy: TinyPolicy, url: str) -> Iterator[Office]:
    """A learner whose first weights the server holds."""
    with office(policy, [url]) as desk:
        desk.send(0)
        yield desk


def flat(groups: list[list[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


def groups_of(policy: TinyPolicy, num: int, **changes: object) -> list[GroupRequest]:
    return [request(prompt.token_ids.tolist(), **changes) for prompt in tiny_prompts(policy, num)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_every_token_has_the_log_prob_that_the_learner_gives_it(desk: Office, policy: TinyPolicy, temperature: float):
    requests = groups_of(policy, 8, temperature=temperature)
    completions = desk.generate(requests)
    assert [len(group) for group in completions] == [4] * 8
    assert desk.worst(requests, completions) < TOLERANCE
    assert {completion.temperature for completion in flat(completions)} == {temperature}
    other = [
        np.abs(completion.logprobs - logprobs(desk.learner.model, asked, changed)).max()
        for asked, group in zip(requests, completions, strict=True)
        for completion in group
        for changed in [Completion(completion.token_ids, completion.logprobs, "stop", (), 1.7 - temperature)]
    ]
    assert max(other) > 0.05, "at the other temperature the same tokens have other log-probs"


def test_token_ids_are_those_that_were_sampled_and_never_come_from_a_text(desk: Office):
    move(desk.learner, seed=1, size=0.2)  # weights that sample anything, padding too
    desk.send(1)
    # Padding and ends in the midst of the prompt: no text would hold these.
    requests = [request([PAD, EOS, 5, PAD, 6, EOS, 12], size=16, max_tokens=40) for _ in range(4)]
    completions = desk.generate(requests)
    assert any(PAD in completion.token_ids for completion in flat(completions))
    assert desk.worst(requests, completions) < TOLERANCE


def test_a_completion_ends_with_any_of_the_end_tokens_or_at_its_limit(desk: Office, policy: TinyPolicy):
    assert desk.learner.eos_ids == [EOS, SECOND_EOS]
    completions = flat(desk.generate(groups_of(policy, 8, size=16, max_tokens=6)))
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    for completion in completions:
        *before, last = completion.token_ids.tolist()
        assert not {EOS, SECOND_EOS} & set(before)
        assert (completion.finish_reason == "stop") == (last in (EOS, SECOND_EOS))
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 6
    longer = flat(desk.generate(groups_of(policy, 8, size=16)))
    assert {c.token_ids.tolist()[-1] for c in longer if c.finish_reason == "stop"} == {EOS, SECOND_EOS}


def test_requests_that_are_in_flight_together_keep_their_own_temperature_and_length(desk: Office, policy: TinyPolicy):
    wanted = [(0.5, 2), (1.0, 3), (1.5, 5), (2.0, 8)]
    prompts = tiny_prompts(policy, len(wanted))
    requests = [
        request(prompt.token_ids.tolist(), size=8, temperature=temperature, max_tokens=limit)
        for prompt, (temperature, limit) in zip(prompts, wanted, strict=True)
    ]
    completions = desk.generate(requests)
    assert desk.worst(requests, completions) < TOLERANCE
    for (temperature, limit), group in zip(wanted, completions, strict=True):
        assert {completion.temperature for completion in group} == {temperature}
        assert {len(c.token_ids) for c in group if c.finish_reason == "length"} <= {limit}
        assert max(len(completion.token_ids) for completion in group) <= limit
    assert [max(len(c.token_ids) for c in group) for group in completions[:2]] == [2, 3]


def is_across(completion: Completion) -> bool:
    return len(completion.versions) > 1


async def generated(desk: Office) -> float:
    return (await desk.engine.client.counters()).generated_tokens


async def sync_while_generating(desk: Office, requests: list[GroupRequest]) -> list[list[Completion]]:
    """New weights, version after version, until completions were under way across an update: the answer with them."""
    for version in range(1, UPDATES):
        move(desk.learner, seed=version, size=0.003)
        message = desk.message(version)
        before = await generated(desk)
        answer = asyncio.create_task(desk.sampler.generate(Generate(requests)))
        while await generated(desk) < before + len(requests):
            await asyncio.sleep(0)
        await desk.sampler.sync(message)
        completions = (await answer).completions
        if any(is_across(completion) for completion in flat(completions)):
            return completions
    raise AssertionError("no completion was under way across an update")


def test_groups_in_flight_go_on_under_new_weights_and_say_which_token_is_whose(desk: Office, policy: TinyPolicy):
    requests = groups_of(policy, 24, size=8, max_tokens=40, temperature=1.5)
    completions = desk.ask(sync_while_generating(desk, requests))
    spans = [completion.versions for completion in flat(completions)]
    assert [sum(tokens for _, tokens in versions) for versions in spans] == [
        len(completion.token_ids) for completion in flat(completions)
    ]
    assert all([version for version, _ in versions] == sorted(version for version, _ in versions) for versions in spans)
    pairs = [(asked, c) for asked, group in zip(requests, completions, strict=True) for c in group if is_across(c)]
    assert desk.worst(requests, completions) < TOLERANCE
    # The spans tell weights apart: taken whole for those of its first token, a completion disagrees.
    one = [
        replace(completion, versions=((completion.versions[0][0], len(completion.token_ids)),))
        for _, completion in pairs
    ]
    assert desk.worst([asked for asked, _ in pairs], [[completion] for completion in one]) > 10 * TOLERANCE


LONG = [2 + position % 10 for position in range(KV_BLOCK + 8)]
"""A prompt longer than a block of the prefix cache, so that its first block is kept there."""


def hits(desk: Office, prompt: list[int]) -> tuple[int, float]:
    """Tokens of `prompt` that were found in the prefix cache, and the gap of what was sampled after it."""

    async def cached() -> float:
        return (await desk.engine.client.counters()).prefix_hit_tokens

    before = desk.ask(cached())
    asked = request(prompt, size=1)
    gap = desk.worst([asked], desk.generate([asked]))
    return int(desk.ask(cached()) - before), gap


def test_a_prefix_that_older_weights_computed_is_never_used(desk: Office):
    first, again = hits(desk, LONG), hits(desk, LONG)
    assert (first[0], again[0]) == (0, KV_BLOCK)
    move(desk.learner, seed=1)
    assert desk.send(1).prefix_cache == "reset"
    renewed = hits(desk, LONG)
    assert renewed[0] == 0
    assert max(gap for _, gap in (first, again, renewed)) < TOLERANCE


def test_the_planted_fault_uses_prefixes_of_older_weights(policy: TinyPolicy, url: str):
    fault = FaultConfig(name="stale-prefix-cache", onset_step=1)
    with office(policy, [url], fault=fault, sampler={"poll_s": 0.2}) as desk:
        assert desk.send(0).prefix_cache == "reset"
        move(desk.learner, seed=1)
        assert desk.send(1).prefix_cache == "kept"
        assert hits(desk, LONG)[0] == 0
        move(desk.learner, seed=2)
        answer = desk.send(2)
        assert answer.prefix_cache == "kept"
        assert desk.gap(answer) < TOLERANCE, "the probe is computed anew, and so does not see it"
        found, gap = hits(desk, LONG)
        assert found == KV_BLOCK
        assert gap > 100 * TOLERANCE
        desk.until(lambda: any(look.prefix_hit_tokens for look in desk.looks()))
    assert sum(look.prefix_hit_tokens for look in desk.looks()) == KV_BLOCK
    assert all(look.prefix_query_tokens >= look.prefix_hit_tokens for look in desk.looks())
