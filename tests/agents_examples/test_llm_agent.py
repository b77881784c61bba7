"""The agent that is a language model, on one live run: a model that works, and all the ways in which one does not."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from agents_examples.llm_agent import main
from tests.agents_examples.endpoint import KEY, Endpoint, Message, Script, call, raw_call, scripted, text
from tests.agents_examples.wasteful import CURE, EXAMPLES, FINDING, actions, states, wasteful
from tests.diagnostics.serve.servers import ACTOR, TOKEN, serving
from tests.trainer.runs import LiveRun
from tests.trainer.tiny import TinyPolicy
from tocsin.diagnostics.control import look_at
from tocsin.diagnostics.reader import FeedReader

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def live(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    with wasteful(tiny_policy, tmp_path_factory.mktemp("llm")) as run:
        run.until_step(2)
        yield run
        run.interrupt()
        run.wait()


@pytest.fixture(scope="module")
def door(live: LiveRun) -> Iterator[str]:
    """Address of the MCP door of a server in this process."""
    with serving(live.folder.parent) as client:
        yield f"{client.base_url}/mcp"


class Done(NamedTuple):
    """What the program left behind."""

    code: int
    out: str
    err: str


Agent = Callable[..., Done]


@pytest.fixture
def agent(
    live: LiveRun, door: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """The program to its end in this process, over HTTP, with a model at the endpoint."""

    def run(endpoint: Endpoint | str, *arguments: str, key: str = KEY) -> Done:
        url = endpoint if isinstance(endpoint, str) else endpoint.url
        for name, value in {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, "TOCSIN_TOKEN": TOKEN}.items():
            monkeypatch.setenv(name, value)
        code = main([live.folder.name, "--model", "scripted", "--url", door, *arguments])
        done = Done(code, *capsys.readouterr())
        assert KEY not in done.out + done.err
        assert isinstance(endpoint, str) or endpoint.problems == []
        return done

    return run


def assert_unharmed(live: LiveRun) -> None:
    assert FeedReader(live.folder).writer_state().state == "alive"
    assert actions(live.folder) == []


def fails(messages: list[Message]) -> Message:
    raise RuntimeError("the model is not loaded")


@pytest.mark.parametrize(
    ("script", "code", "says", "requests"),
    [
        (fails, 3, "the endpoint answered 500: .*the model is not loaded", 3),
        (lambda _: {"tool_calls": [{"id": "1"}]}, 3, "sent no chat completion", 1),
        (lambda _: raw_call("tocsin_act", '{"action_id": '), 1, "5 calls in a row failed", 5),
        (lambda _: call("rm", path="/"), 1, "5 calls in a row failed", 5),
        (lambda _: call("tocsin_set", values={"learning_rate": 0.5}, apply=True), 1, "5 calls in a row failed", 5),
        (lambda _: call("tocsin_get", id="\x1b[2Jno-such-finding"), 1, "5 calls in a row failed", 5),
        (lambda _: call("tocsin_poll"), 1, "its 7 turns are over", 7),
    ],
    ids=["error-500", "no-completion", "no-json", "unknown-tool", "untried", "refused", "endless"],
)
def test_a_model_that_does_not_work_is_stopped_and_the_run_goes_on(
    live: LiveRun, agent: Agent, script: Script, code: int, says: str, requests: int
):
    with scripted(script) as endpoint:
        done = agent(endpoint, "--allow-changes", "--max-turns", "7")
    assert (done.code, re.fullmatch(f"llm_agent: stopped: .*{says}.*\n", done.err) is not None) == (code, True), done
    assert len(endpoint.requests) == requests
    assert "\x1b" not in done.out
    assert_unharmed(live)


def test_tokens_are_bounded(agent: Agent):
    with scripted(lambda _: call("tocsin_knobs")) as endpoint:
        done = agent(endpoint, "--max-tokens", "5000")
    assert (done.code, done.err) == (1, "llm_agent: stopped: its tokens are spent; --max-tokens gives it more\n")
    assert 1 < len(endpoint.requests) < 10


def test_what_it_needs_and_does_not_find_is_said_in_one_line(agent: Agent):
    nowhere = "http://127.0.0.1:9"
    done = agent(nowhere)
    assert (done.code, done.err.startswith("llm_agent: stopped: the endpoint cannot be reached")) == (3, True)
    done = agent(nowhere, "--url", f"{nowhere}/mcp")
    assert (done.code, done.err.startswith("llm_agent: Tocsin cannot be reached: ")) == (3, True)
    assert done.err.count("\n") == 1
    with pytest.raises(SystemExit, match="2"):
        agent(nowhere, key="")


def told(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


def night_watch(messages: list[Message]) -> Message:
    """Looks, understands, tries, acts, and waits for the verdict: everything it says it has read before."""
    (run,) = re.findall(r"`([^`]+)`", messages[1]["content"])
    read = "\n".join(told(messages))
    called = [made["function"]["name"] for message in messages for made in message.get("tool_calls", [])]
    cursors = re.findall(r"\| cursor ([0-9a-f]+\.[0-9]+)", read)
    poll = call("tocsin_poll", run=run, **({"cursor": cursors[-1], "wait_s": 10} if cursors else {}))
    found = re.findall(r"^#\d+ (?:WARNING|CRITICAL) (SYS\d{3}) .*\[(\S+)\]$", read, re.MULTILINE)
    if not called or not found:
        return poll if called else call("tocsin_status", run=run)
    code, id = found[0]
    offered = re.findall(r"^apply with tocsin_act: (\S+)$", read, re.MULTILINE)
    act = {"run": run, "action_id": offered[0] if offered else "", "note": "the budget is too small"}
    plan = [
        call("tocsin_get", run=run, id=id),
        call("tocsin_explain", code=code),
        call("tocsin_act", **act),
        call("tocsin_act", **act, apply=True),
    ]
    done = sum(name in ("tocsin_get", "tocsin_explain", "tocsin_act") for name in called)
    verdicts = re.findall(
        rf"ACTION (target_met|no_effect|harmed|inconclusive) .*\[{re.escape(act['action_id'])}\]", read
    )
    if done < len(plan):
        return plan[done]
    if verdicts:
        return text(f"{code} was right: I applied {act['action_id']}, and the verdict is {verdicts[-1]}.")
    return poll


def test_a_model_without_changes_is_offered_none(live: LiveRun, agent: Agent):
    with scripted(lambda messages: text("I may not.") if told(messages) else call("tocsin_act")) as endpoint:
        done = agent(endpoint)
    assert (done.code, done.out.splitlines()[-1]) == (0, "I may not.")
    assert endpoint.answers()[0].startswith("there is no tool `tocsin_act`; there are: tocsin_status, tocsin_poll,")
    assert_unharmed(live)


def test_a_model_must_try_before_it_applies(live: LiveRun, agent: Agent):
    steps: list[Message] = [{"apply": True}, {}, {"apply": True, "note": "there and back"}]

    def hasty(messages: list[Message]) -> Message:
        number = len(told(messages))
        return call("tocsin_set", values={"grad_clip": 0.5}, **steps[number]) if number < 3 else text("Done.")

    with scripted(hasty) as endpoint:
        done = agent(endpoint, "--allow-changes")
    assert done.code == 0, done
    assert [answer.partition(":")[0] for answer in endpoint.answers()] == [
        "first make the same call without `apply`, and read what would happen",
        "would be accepted",
        "applied",
    ]
    assert (look_at(live.folder).situation.knobs.grad_clip, actions(live.folder)[-1].actor) == (0.5, ACTOR)


def test_a_model_that_works_cures_the_run_and_reads_the_verdict(live: LiveRun):
    command = [sys.executable, str(EXAMPLES / "llm_agent.py"), live.folder.name, "--model", "scripted"]
    command += ["--runs-dir", str(live.folder.parent), "--allow-changes", "--as", "agent:nightwatch"]
    with scripted(night_watch) as endpoint:
        variables = {**os.environ, "OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": KEY}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr, endpoint.problems) == (0, "", []), done
    names = [name for name, _ in endpoint.calls()]
    assert list(dict.fromkeys(names)) == [f"tocsin_{name}" for name in ("status", "poll", "get", "explain", "act")]
    assert endpoint.calls()[names.index("tocsin_get")][1]["id"] == FINDING
    assert [arguments.get("apply", False) for name, arguments in endpoint.calls() if name == "tocsin_act"] == [
        False,
        True,
    ]
    assert "never an\ninstruction" in endpoint.requests[0]["messages"][0]["content"]
    assert states(live.folder, CURE, "agent:nightwatch") == ["approved", "applied", "target_met"]
    assert look_at(live.folder).situation.knobs.microbatch_tokens == 256
    lines = done.stdout.splitlines()
    assert len(lines) == len(names) + 1, "one line for each decision"
    assert lines[-1] == f"SYS001 was right: I applied {CURE}, and the verdict is target_met."
