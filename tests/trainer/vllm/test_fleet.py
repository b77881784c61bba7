"""Several servers of one run, played by the test: where work goes, who comes back, and who meets for a broadcast."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.tiny import TinyPolicy, tiny_config, tiny_requests
from tests.trainer.vllm.launching import stand_in
from tocsin.schemas.sampler import SamplerConfig
from tocsin.trainer.data import Completion, Floats, GroupRequest, Ints
from tocsin.trainer.messages import Generate, LearnerFacts, ProcessNews, ReadyForWeights, Rendezvous, Setup, Sync
from tocsin.trainer.sampler import SamplerDied
from tocsin.trainer.vllm import fleet as fleets
from tocsin.trainer.vllm.answers import Counters, ServerFacts
from tocsin.trainer.vllm.client import Refused, TimedOut, Unavailable
from tocsin.trainer.vllm.sampler import VllmSampler

VOCABULARY = 13
LAYOUT = (("model.norm.weight", "bfloat16", (96,)), ("lm_head.weight", "bfloat16", (13, 96)))
PATIENCE_S = 60.0


class PlayedServer:
    """One server, by its address: what it was told, and what it is told to do wrong."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: list[tuple[str, Any]] = []
        self.size = 1
        """Workers."""
        self.is_up = True
        self.is_paused = False
        self.fails: dict[str, list[Exception]] = {}
        """By call: what the next ones raise."""
        self.version = "none"
        self.groups: list[int] = []
        """Indices of the groups that it generated."""

    def took(self, name: str) -> list[Any]:
        """Arguments of the calls of one kind."""
        return [argument for call, argument in self.calls if call == name]


class PlayedClient:
    """Stands for `VllmClient`."""

    servers: dict[str, PlayedServer] = {}
    """By address; every test has its own."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.url = url
        self.server = self.servers.setdefault(url, PlayedServer(url))

    def _hear(self, name: str, argument: Any = None) -> None:
        self.server.calls.append((name, argument))
        if not self.server.is_up:
            raise Unavailable(f"{self.url} cannot be reached")
        if self.server.fails.get(name):
            raise self.server.fails[name].pop(0)

    async def close(self) -> None: ...

    async def healthy(self) -> bool:
        return self.server.is_up

    async def facts(self) -> ServerFacts:
        self._hear("facts")
        backend = "nccl" if "nccl" in self.url else "tocsin-file"
        return ServerFacts("model", 64, "float32", "processed_logprobs", prefix_caching=True, transfer_backend=backend)

    async def is_paused(self) -> bool:
        return self.server.is_paused

    async def prompt_logprobs(self, ids: Ints) -> Floats:
        if ids.max() >= VOCABULARY:
            raise Refused("out of vocabulary", 400)
        return np.zeros(len(ids) - 1, dtype=np.float32)

    async def world_size(self) -> int:
        return self.server.size

    async def init_transfer(self, info: dict[str, Any]) -> None:
        self._hear("init", info)

    async def pause(self, *, clear_cache: bool) -> None:
        self._hear("pause")

    async def update_weights(self, info: dict[str, Any], version: int) -> None:
        self._hear("update", info)
        await asyncio.sleep(0)
        self.server.version = str(version)

    async def weight_version(self) -> str:
        return self.server.version

    async def checksums(self) -> dict[str, str]:
        return {}

    async def resume(self) -> None:
        self._hear("resume")

    async def counters(self) -> Counters:
        return Counters()

    async def generate(self, request: GroupRequest, *, salt: str) -> list[Completion]:
        self._hear("generate", request.index)
        await asyncio.sleep(0.01)
        self.server.groups.append(request.index)
        ids, logprobs = np.ones(2, dtype=np.int32), np.zeros(2, dtype=np.float32)
        return [Completion(ids, logprobs, "stop", ((int(self.server.version), 2),), 1.0)] * request.size


class Desk:
    """A sampler over played servers."""

    def __init__(self, policy: TinyPolicy, runner: asyncio.Runner, settings: SamplerConfig, folder: Path) -> None:
        config = tiny_config(policy, sampler=settings)
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": "model"})})
        self.reports: list[Any] = []
        self.runner = runner
        self.policy = policy
        self.sampler = VllmSampler(config, self.reports.append)
        setup = Setup(
            config=config,
            model_path=policy.model,
            prompts=[],
            evaluation=[],
            knobs=config.knobs,
            config_generation=0,
            next_step=0,
            next_index=0,
            reissue=[],
            probe=np.ones((2, 4), dtype=np.int32),
            learner=LearnerFacts(VOCABULARY, 64, (1,), folder),
            logs=folder,
        )
        self.ask(self.sampler.load(setup))
        self.servers = list(PlayedClient.servers.values())

    def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(asyncio.wait_for(work, PATIENCE_S))

    def send(self, version: int) -> set[str]:
        """Send weights; names of the servers that took them."""
        return set(self.ask(self.sampler.sync(Sync(version, Path("weights"), layout=LAYOUT))).probes)

    def generate(self, num: int) -> dict[int, Any]:
        """Generate groups; the failures."""
        return self.ask(self.sampler.generate(Generate(tiny_requests(self.policy, num)))).errors

    def until(self, condition: Callable[[], Any]) -> None:
        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.01)

        self.ask(wait())

    def news(self) -> list[tuple[str, str]]:
        """State and server of everything that was said about servers."""
        return [(r.state, r.detail[:6]) for r in self.reports if isinstance(r, ProcessNews)]


Open = Callable[..., Desk]


@pytest.fixture
def opened(tiny_policy: TinyPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens a sampler over servers at the given addresses, or over one server of its own."""
    monkeypatch.setattr(fleets, "VllmClient", PlayedClient)
    monkeypatch.setattr(fleets, "RETURN_POLL_S", 0.01)
    monkeypatch.setattr(PlayedClient, "servers", {})
    desks: list[Desk] = []
    with asyncio.Runner() as runner:

        def open_desk(*hosts: str, **settings: Any) -> Desk:
            given: dict[str, Any] = {"urls": [f"http://{host}" for host in hosts], "poll_s": 3600.0, **settings}
            desks.append(Desk(tiny_policy, runner, SamplerConfig(kind="vllm", **given), tmp_path))
            return desks[-1]

        yield open_desk
        for desk in desks:
            desk.ask(desk.sampler.close())


def test_groups_are_spread_over_the_servers_by_what_these_have_to_do(opened: Open):
    desk = opened("a", "b", "c")
    assert desk.send(0) == {"vllm-0", "vllm-1", "vllm-2"}
    assert desk.generate(12) == {}
    assert [len(server.groups) for server in desk.servers] == [4, 4, 4]


@pytest.mark.parametrize("error", [TimedOut("a did not answer"), Unavailable("a cannot be reached")])
def test_work_of_a_server_that_is_gone_or_deaf_moves_to_the_others_and_it_comes_back(opened: Open, error: Exception):
    desk = opened("a", "b")
    desk.send(0)
    gone, other = desk.servers
    gone.fails = {"generate": [error], "facts": [Unavailable("not yet")] * 1_000_000}
    gone.is_up = isinstance(error, TimedOut)
    assert desk.generate(6) == {}
    assert Counter(other.groups) >= Counter([0, 1, 3, 5]), "its first group, and those that had begun elsewhere"
    assert Counter(gone.groups + other.groups) == Counter(range(6))
    gone.is_up = True
    gone.fails.clear()
    desk.until(lambda: ("restarted", "vllm-0") in desk.news())
    assert desk.news() == [("started", "vllm-0"), ("started", "vllm-1"), ("died", "vllm-0"), ("restarted", "vllm-0")]
    assert len(gone.took("update")) == 2, "it holds the newest weights before it generates"
    gone.groups.clear()
    desk.generate(4)
    assert len(gone.groups) == 2


def test_weights_that_a_server_does_not_take_are_sent_again_and_then_it_is_brought_back(opened: Open):
    desk = opened("a", "b")
    first, _ = desk.servers
    first.fails["update"] = [Unavailable("lost on the way")]
    assert desk.send(0) == {"vllm-0", "vllm-1"}, "one resend at once"
    first.fails["update"] = [Unavailable("lost on the way")] * 2
    assert desk.send(1) == {"vllm-1"}
    desk.until(lambda: ("restarted", "vllm-0") in desk.news())
    assert first.version == "1"
    assert first.took("resume") == [None] * 2, "never after an update that failed"


def test_a_server_that_never_comes_back_is_given_up_and_the_last_one_ends_the_sampler(opened: Open):
    desk = opened("a", "b", retry_budget_s=0.05)
    desk.send(0)
    first, second = desk.servers
    first.is_up = False
    assert desk.generate(4) == {}
    desk.until(lambda: desk.news().count(("died", "vllm-0")) == 2)
    assert desk.send(1) == {"vllm-1"}
    second.is_up = False
    with pytest.raises(
        SamplerDied,
        match=r"^no vLLM server is left; the last one: vllm-1: http://b cannot be reached; it did not come back",
    ):
        desk.generate(4)


def test_servers_of_a_run_are_started_again_as_often_as_it_may_and_none_is_left_over(
    opened: Open, tiny_policy: TinyPolicy, tmp_path: Path
):
    desk = opened(launch=True, urls=[], python=str(stand_in(tmp_path).python), max_restarts=2)
    desk.send(0)
    (server,) = desk.servers
    (member,) = desk.sampler._fleet._members  # type: ignore[union-attr]
    first = member.server
    server.fails["generate"] = [TimedOut("deaf")]
    server.fails["facts"] = [Unavailable("not yet")]
    assert desk.generate(1) == {}
    assert desk.news() == [("started", "vllm-0"), ("died", "vllm-0"), ("started", "vllm-0"), ("restarted", "vllm-0")]
    assert first is not None
    assert not first.is_running()
    assert member.server is not None
    assert member.server.is_running()
    server.fails["generate"] = [TimedOut("deaf again")]
    with pytest.raises(
        SamplerDied, match=r"^no vLLM server is left; the last one: vllm-0: deaf again, after 2 restarts$"
    ):
        desk.generate(1)
    assert not member.server.is_running()


def test_servers_meet_once_for_broadcasts_and_each_has_ranks_of_its_own(opened: Open):
    for host, size in (("nccl-a", 1), ("nccl-b", 4), ("nccl-c", 2)):
        PlayedClient.servers[f"http://{host}"] = PlayedServer(f"http://{host}")
        PlayedClient.servers[f"http://{host}"].size = size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tocsin.trainer.vllm.transfer.address_towards", lambda url: "10.0.0.7")
        desk = opened("nccl-a", "nccl-b", "nccl-c", weight_transfer="nccl")
        assert [server.took("init") for server in desk.servers] == [[], [], []], "not before the learner is there"
        desk.send(0)
    meeting, ready = [r for r in desk.reports if isinstance(r, Rendezvous | ReadyForWeights)]
    assert (meeting.address, meeting.world_size) == ("10.0.0.7", 1 + 1 + 4 + 2)
    assert ready == ReadyForWeights(0)
    told = [server.took("init") for server in desk.servers]
    assert [info["rank_offset"] for (info,) in told] == [1, 2, 6]
    assert [{**info, "rank_offset": 0} for (info,) in told] == [
        {
            "master_address": "10.0.0.7",
            "master_port": meeting.port,
            "rank_offset": 0,
            "world_size": meeting.world_size,
            "packed": True,
        }
    ] * 3
    update = {
        "names": ["model.norm.weight", "lm_head.weight"],
        "dtype_names": ["bfloat16", "bfloat16"],
        "shapes": [[96], [13, 96]],
    }
    assert [server.took("update") for server in desk.servers] == [[update]] * 3
    desk.send(1)
    assert [len(server.took("init")) for server in desk.servers] == [1, 1, 1]
    assert [r for r in desk.reports if isinstance(r, ReadyForWeights)] == [ReadyForWeights(0), ReadyForWeights(1)]


def test_servers_meet_again_when_one_was_lost_and_again_when_it_is_back(opened: Open):
    patience = {"weight_transfer": "nccl", "retry_budget_s": 3600.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tocsin.trainer.vllm.transfer.address_towards", lambda url: "127.0.0.1")
        desk = opened("nccl-a", "nccl-b", **patience)
        desk.send(0)
        _, second = desk.servers
        second.is_up = False
        assert desk.generate(4) == {}
        assert desk.send(1) == {"vllm-0"}
        second.is_up = True
        desk.until(lambda: ("restarted", "vllm-1") in desk.news())
        assert desk.generate(4) == {}
        assert len(second.groups) == 0, "weights that are broadcast reach it with the next sync only"
        assert desk.send(2) == {"vllm-0", "vllm-1"}
        # Lost and back before the next sync: the same servers, and yet one of them has never met the others.
        second.fails["generate"] = [TimedOut("deaf")]
        assert desk.generate(4) == {}
        desk.until(lambda: desk.news().count(("restarted", "vllm-1")) == 2)
        desk.send(3)
    meetings = [report for report in desk.reports if isinstance(report, Rendezvous)]
    assert [meeting.world_size for meeting in meetings] == [3, 2, 3, 3]
    assert [len(server.took("init")) for server in desk.servers] == [4, 3]


def test_a_broadcast_that_a_server_did_not_take_is_not_asked_for_again(opened: Open):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tocsin.trainer.vllm.transfer.address_towards", lambda url: "127.0.0.1")
        desk = opened("nccl-a", "nccl-b", weight_transfer="nccl")
        first, _ = desk.servers
        first.fails["update"] = [Unavailable("lost on the way")]
        assert desk.send(0) == {"vllm-1"}
    assert len(first.took("update")) == 1
    assert first.took("resume") == []


def test_a_check_does_not_wait_for_a_server_that_another_run_left_paused(opened: Open):
    desk = opened("a")
    assert set(desk.ask(desk.sampler.probe())) == {"vllm-0"}
    desk.servers[0].is_paused = True
    with pytest.raises(SamplerDied, match=r"^http://a must not be paused, and is: .* start it again"):
        desk.ask(desk.sampler.probe())
