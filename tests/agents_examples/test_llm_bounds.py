"""What the agent that is a language model makes of odd endpoints, and what it lets a model do, without training."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.server.mcpserver import MCPServer

from agents_examples import llm_agent
from agents_examples.llm_agent import Model, Stopped, Tools, cause, main
from tests.agents_examples.endpoint import KEY, scripted, text
from tests.diagnostics.open_door import served
from tests.diagnostics.run_folder import RUN, Run, example
from tests.diagnostics.serve.servers import ACTOR, TOKEN, serving
from tocsin.diagnostics.serve.operations import Runs
from tocsin.diagnostics.serve.tools import create_server
from tocsin.schemas.diagnosis import Diagnostic

ACTION = "zero-std-groups/trainer#1/raise-group-size"
BUDGET = 10_000


def replied(answer: str) -> tuple[dict[str, Any], int]:
    """The message that an endpoint's answer becomes, and the tokens that are left after it."""

    async def ask() -> tuple[dict[str, Any], int]:
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, text=answer))
        async with httpx2.AsyncClient(transport=transport, base_url="http://model/v1") as http:
            model = Model(http, "scripted", BUDGET)
            return await model.reply([{"role": "user", "content": "?" * 400}], []), model.tokens_left

    return asyncio.run(ask())


def completion(message: str, usage: str = '{"total_tokens": 50}') -> str:
    return f'{{"choices": [{{"message": {message}}}], "usage": {usage}}}'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("null", ""),
        ('"All is well."', "All is well."),
        ('[{"type": "text", "text": "All is "}, {"type": "text", "text": "well."}]', "All is well."),
        ('[{"type": "thinking", "thinking": "?"}, {"type": "text", "text": "All is well."}]', "All is well."),
        ("[]", ""),
    ],
)
def test_the_content_of_a_message_may_come_in_parts(content: str, says: str):
    message, left = replied(completion(f'{{"role": "assistant", "content": {content}}}'))
    assert (message, left) == ({"role": "assistant", "content": says}, BUDGET - 50)


@pytest.mark.parametrize("content", ["7", '["All is well."]', '[{"type": "text"}]', '[{"type": "text", "text": 7}]'])
def test_content_that_is_no_text_is_no_chat_completion(content: str):
    with pytest.raises(Stopped, match="sent no chat completion"):
        replied(completion(f'{{"content": {content}}}'))


@pytest.mark.parametrize(
    "total", ["-5000", "0", "Infinity", "-Infinity", "NaN", "1e999", "true", '"many"', "null", "[]"]
)
def test_a_count_of_tokens_that_cannot_be_true_is_estimated(total: str):
    _, left = replied(completion('{"content": "ok"}', f'{{"total_tokens": {total}}}'))
    assert BUDGET - 400 < left < BUDGET - 100


@pytest.mark.parametrize("usage", ["null", "[]", "7", "{}"])
def test_a_usage_that_is_none_is_estimated(usage: str):
    _, left = replied(completion('{"content": "ok"}', usage))
    assert BUDGET - 400 < left < BUDGET - 100


def test_a_huge_count_of_tokens_spends_the_budget():
    _, left = replied(completion('{"content": "ok"}', f'{{"total_tokens": 1{"0" * 400}}}'))
    assert left < 0


@pytest.mark.parametrize("arguments", ['{"values": NaN}', '{"values": -Infinity}', "[" * 100_000])
def test_arguments_that_are_not_json_are_marked_as_such(arguments: str):
    function = {"name": "tocsin_set", "arguments": arguments}
    message, _ = replied(completion(json.dumps({"tool_calls": [{"id": "1", "function": function}]})))
    (call,) = message["tool_calls"]
    assert list(json.loads(call["function"]["arguments"])) == ["not_json"]


def offered(server: MCPServer, ask: Callable[[Tools], Awaitable[list[str]]], *, run: str = RUN) -> list[str]:
    """What a model is told by the tools of a server in this process."""

    async def go() -> list[str]:
        async with Client(server) as client:
            tools = Tools(client, run)
            await tools.look(allow_changes=True)
            return await ask(tools)

    return asyncio.run(go())


def heads(answers: list[str]) -> list[str]:
    return [answer.partition("\n")[0] for answer in answers]


def test_an_action_that_is_told_again_with_other_values_is_not_applied_unseen(tmp_path: Path):
    run = Run(tmp_path).firing()
    act = {"run": RUN, "action_id": ACTION}

    async def ask(tools: Tools) -> list[str]:
        first = await tools.call("tocsin_act", act)
        finding = example(Diagnostic, relations=[])
        (action,) = finding.actions
        other = action.model_copy(update={"patches": [action.patches[0].model_copy(update={"to": 12})]})
        run.writer.record(finding.model_copy(update={"actions": [other]}))
        return [first, *[await tools.call("tocsin_act", {**act, "apply": True}) for _ in range(3)]]

    with served(run) as loop:
        answers = offered(create_server(Runs(tmp_path), lambda _: ACTOR), ask)
        assert loop.knobs.group_size == 12
    would = "would be accepted: group_size 8 -> 12 for the next step whose slots open"
    assert heads(answers) == [
        "would be accepted: group_size 8 -> 16 for the next step whose slots open",
        f"nothing was changed, because by now something else would happen than you read: {would}",
        "applied: group_size 8 -> 12 for the next step whose slots open",
        "first make the same call without `apply`, and read what would happen",
    ]


def test_a_knob_that_moved_since_the_dry_run_is_not_set_unseen(tmp_path: Path):
    run = Run(tmp_path).firing()

    async def ask(tools: Tools) -> list[str]:
        answers = []
        for values, apply in ((9, False), (10, False), (10, True), (9, True), (9, True)):
            arguments = {"run": RUN, "values": {"group_size": values}, "note": f"{values}, {apply}"}
            answers.append(await tools.call("tocsin_set", {**arguments, "apply": apply}))
        return answers

    with served(run) as loop:
        answers = offered(create_server(Runs(tmp_path), lambda _: ACTOR), ask)
        assert loop.knobs.group_size == 9
    assert [answer.partition(":")[0] for answer in answers] == [
        "would be accepted",
        "would be accepted",
        "applied",
        "nothing was changed, because by now something else would happen than you read",
        "applied",
    ]


def test_a_model_sees_no_run_but_the_one_that_was_newest_when_it_began(tmp_path: Path):
    run, knobs = Run(tmp_path).firing(), {"values": {"group_size": 9}}

    async def ask(tools: Tools) -> list[str]:
        Run(tmp_path, "sort-digits-2").firing()
        other = await tools.call("tocsin_set", {**knobs, "run": "latest"})
        return [other, await tools.call("tocsin_set", knobs), await tools.call("tocsin_set", {**knobs, "apply": True})]

    with served(run) as loop:
        answers = offered(create_server(Runs(tmp_path), lambda _: ACTOR), ask, run="latest")
        assert loop.knobs.group_size == 9
    assert [answer.partition(":")[0] for answer in answers] == [
        f"`run` must be {RUN}",
        "would be accepted",
        "applied",
    ]


def test_a_silence_is_applied_after_its_dry_run_however_far_the_run_got(tmp_path: Path):
    run = Run(tmp_path).firing()
    silence = {"run": RUN, "verb": "silence", "code": "RWD001", "steps": 100}

    async def ask(tools: Tools) -> list[str]:
        first = await tools.call("tocsin_control", silence)
        run.step(9)
        return [first, await tools.call("tocsin_control", {**silence, "apply": True})]

    with served(run):
        answers = offered(create_server(Runs(tmp_path), lambda _: ACTOR), ask)
    assert [answer.partition(":")[0] for answer in answers] == ["would be accepted", "applied"]


def test_a_tool_that_never_answers_is_a_call_that_failed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(llm_agent, "CALL_S", 0.2)
    server = MCPServer("slow")

    @server.tool()
    async def tocsin_status(run: str) -> dict[str, str]:
        return {"run": run}

    @server.tool()
    async def tocsin_knobs() -> str:
        await asyncio.sleep(60)
        return "late"

    async def ask(tools: Tools) -> list[str]:
        return [await asyncio.wait_for(tools.call("tocsin_knobs", {}), 30)]

    (answer,) = offered(server, ask)
    assert answer.startswith("the call failed: ")


def test_what_failed_is_named_and_not_the_connections_that_it_broke():
    away = ExceptionGroup("tasks", [ConnectionRefusedError("nobody there")])
    assert cause(away) == "Tocsin cannot be reached: nobody there"
    assert cause(MCPError(code=1, message="closed")) == "Tocsin cannot be reached: closed"
    bug = ExceptionGroup("tasks", [ExceptionGroup("inner", [httpx2.ReadError("closed"), KeyError("tools")])])
    assert cause(bug) == "it failed: KeyError: 'tools'"


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The program, on a run that somebody serves: `watched(endpoint url, options) -> code, out, err`."""

    def run(url: str, *arguments: str, name: str = RUN) -> tuple[int, str, str]:
        for variable, value in {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY, "TOCSIN_TOKEN": TOKEN}.items():
            monkeypatch.setenv(variable, value)
        with serving(tmp_path) as client:
            code = main([name, "--url", f"{client.base_url}/mcp", *arguments])
        return code, *capsys.readouterr()

    Run(tmp_path).kill()
    return run


def test_a_run_that_is_not_there_is_said_before_a_model_is_asked(watched: Any):
    code, out, err = watched("http://127.0.0.1:9", name="none-such")
    assert (code, out) == (3, "")
    assert re.fullmatch(f"llm_agent: stopped: .*`none-such`; there are: {RUN}.*\n", err), err


def test_a_bug_is_not_taken_for_a_server_that_is_away(watched: Any, monkeypatch: pytest.MonkeyPatch):
    async def converse(*_: Any) -> None:
        raise OverflowError("too much")

    monkeypatch.setattr(llm_agent, "converse", converse)
    assert watched("http://127.0.0.1:9/v1", "--model", "any") == (
        3,
        "",
        "llm_agent: it failed: OverflowError: too much\n",
    )


def test_without_a_name_it_takes_the_first_model_that_the_endpoint_lists(watched: Any):
    with scripted(lambda _: text("All is well.")) as endpoint:
        assert watched(endpoint.url) == (0, "the model is scripted\nAll is well.\n", "")
    assert endpoint.problems == []


@pytest.mark.parametrize("models", [None, {"data": []}, {"data": [{"name": "scripted"}]}, [], {"data": [{"id": ""}]}])
def test_an_endpoint_that_names_no_model_asks_for_a_name(watched: Any, models: Any):
    with scripted(lambda _: text("All is well.")) as endpoint:
        endpoint.models = models
        code, out, err = watched(endpoint.url)
    assert (code, out, endpoint.requests) == (3, "", [])
    assert err.startswith(
        f"llm_agent: stopped: the endpoint names no model at {endpoint.url}/models, --model NAME does"
    )
    assert err.count("\n") == 1
