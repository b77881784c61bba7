"""A learner in the test's process beside vLLM servers, which are asked the way the rollout process asks them.

with serving(spec) as server, office(policy, [server.url]) as desk:
    desk.send(0)
    completions = desk.generate(requests)
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tests.trainer.tiny import TinyPolicy, tiny_config, tiny_prompts
from tocsin.schemas.config import RunConfig
from tocsin.schemas.generation import EngineSampled
from tocsin.schemas.sampler import SamplerConfig
from tocsin.trainer.data import Completion, Floats, GroupRequest, Prompt
from tocsin.trainer.digest import digest_of
from tocsin.trainer.learner import Learner
from tocsin.trainer.messages import Generate, Generated, ProcessNews, ServerSampled, Setup, Sync, Synced
from tocsin.trainer.vllm.engine import Engine
from tocsin.trainer.vllm.sampler import VllmSampler
from tocsin.trainer.vllm.servers import ServerSpec, VllmServer
from tocsin.trainer.weights import Probe, WeightStore, probe_tokens

START_TIMEOUT_S = 600.0
PATIENCE_S = 300.0
"""For anything that a server is waited for. The first request of a server alone takes half a minute."""


@contextmanager
def serving(spec: ServerSpec) -> Iterator[VllmServer]:
    """A healthy server, ended with the block."""
    server = VllmServer(spec)
    server.start()
    try:
        asyncio.run(server.wait_until_healthy(START_TIMEOUT_S, lambda stage: None))
        yield server
    finally:
        asyncio.run(server.stop())


@dataclass
class Office:
    """A learner, the sampler that it sends weights to, and what the sampler had to say."""

    runner: asyncio.Runner
    config: RunConfig
    learner: Learner
    store: WeightStore
    probe: Probe
    setup: Setup
    sampler: VllmSampler
    reports: list[Any]
    models: dict[int, Any] = field(default_factory=dict)
    """The learner's model as it was, by version."""

    def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Wait for an answer."""
        return self.runner.run(asyncio.wait_for(work, PATIENCE_S))

    def until(self, condition: Callable[[], Any]) -> None:
        """Let the sampler's own tasks work until `condition` holds."""

        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.05)

        self.ask(wait())

    @property
    def engine(self) -> Engine:
        """The first server, as the sampler sees it."""
        fleet = self.sampler._fleet
        assert fleet is not None
        return fleet._members[0].engine

    def load(self) -> None:
        """Find the servers."""
        self.ask(self.sampler.load(self.setup))

    def message(self, version: int, *, is_aliased: bool = True) -> Sync:
        """The learner's weights as `version`, written and digested."""
        path = self.store.write(version, self.learner.weights(is_aliased=is_aliased))
        self.models[version] = deepcopy(self.learner.model)
        self.probe.expect(version, self.learner.probe(self.setup.probe))
        return Sync(version, path, digest_of(path))

    def send(self, version: int, *, is_aliased: bool = True) -> Synced:
        """Send the learner's weights as `version`."""
        answer = self.ask(self.sampler.sync(self.message(version, is_aliased=is_aliased)))
        assert isinstance(answer, Synced)
        return answer

    def gap(self, answer: Synced) -> float:
        """Largest difference of log-probs on the probe between the learner, as it was sent, and the servers."""
        return self.probe.compare(answer.version, answer.probes.values())[0]

    def answer(self, requests: Sequence[GroupRequest]) -> Generated:
        """What the sampler makes of requests, with the reasons for those that failed."""
        answer = self.ask(self.sampler.generate(Generate(list(requests))))
        assert isinstance(answer, Generated)
        return answer

    def generate(self, requests: Sequence[GroupRequest]) -> list[list[Completion]]:
        """Completions of requests, none of which may fail."""
        answer = self.answer(requests)
        assert answer.errors == {}
        return answer.completions

    def news(self) -> list[tuple[str, str]]:
        """State and detail of everything that was said about servers."""
        return [(report.state, report.detail) for report in self.reports if isinstance(report, ProcessNews)]

    def looks(self) -> list[EngineSampled]:
        """Every look at the servers' metrics."""
        return [report.event for report in self.reports if isinstance(report, ServerSampled)]

    def difference(self, request: GroupRequest, completion: Completion) -> Floats:
        """[T] how far each log-prob is from what the learner's model gave that token, as it was at its version."""
        known = {version: logprobs(self.models[version], request, completion) for version, _ in completion.versions}
        mine = [known[version] for version, tokens in completion.versions for _ in range(tokens)]
        expected = np.array([row[position] for position, row in enumerate(mine)], dtype=np.float32)
        return np.abs(completion.logprobs - expected)

    def worst(self, requests: Sequence[GroupRequest], completions: Sequence[Sequence[Completion]]) -> float:
        """The largest difference of all tokens of all completions."""
        pairs = [(r, c) for r, group in zip(requests, completions, strict=True) for c in group]
        return max(float(self.difference(request, completion).max()) for request, completion in pairs)


@contextmanager
def office(policy: TinyPolicy, urls: Sequence[str], *, is_loaded: bool = True, **changes: Any) -> Iterator[Office]:
    """An office with the servers at `urls`. `changes` are fields of `RunConfig`; `sampler` some of its section."""
    given = {"kind": "vllm", "urls": list(urls), "poll_s": 60.0, "timeout_s": PATIENCE_S, **changes.pop("sampler", {})}
    config = tiny_config(policy, sampler=SamplerConfig(**given), **changes)
    store, reports = WeightStore(), []
    learner = Learner(config, policy.model, config.knobs)
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
        probe=probe_tokens(tiny_prompts(policy, 2), learner.vocab_size, 0, limit=learner.max_length),
        learner=learner.facts(store.folder),
        logs=store.folder,
    )
    with asyncio.Runner() as runner:
        sampler = VllmSampler(config, reports.append)
        desk = Office(runner, config, learner, store, Probe("float32"), setup, sampler, reports)
        try:
            if is_loaded:
                desk.load()
            yield desk
        finally:
            desk.ask(sampler.close())
            store.close()


def move(learner: Learner, seed: int, size: float = 0.01) -> None:
    """Other weights, as an optimizer step would leave them; the tied embedding moves too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)


def logprobs(model: Any, request: GroupRequest, completion: Completion) -> Floats:
    """[T] what `model` gives the tokens of a completion in one forward pass, at the temperature of the completion."""
    ids = torch.from_numpy(np.concatenate([request.prompt.token_ids, completion.token_ids])).long()
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
    rows = torch.log_softmax(logits / completion.temperature, dim=-1).gather(-1, ids[1:, None])[:, 0]
    return rows[len(request.prompt.token_ids) - 1 :].numpy()


def request(token_ids: Sequence[int], **changes: Any) -> GroupRequest:
    """A request for a group of four from these tokens; `changes` are fields of `GroupRequest`."""
    prompt = Prompt(id="0-0badcafe", text="", token_ids=np.array(token_ids, dtype=np.int32), columns={})
    fields: dict[str, Any] = {
        "index": 0,
        "target_step": 0,
        "prompt": prompt,
        "size": 4,
        "temperature": 1.0,
        "max_tokens": 8,
        "config_generation": 0,
    }
    return GroupRequest(**{**fields, **changes})
