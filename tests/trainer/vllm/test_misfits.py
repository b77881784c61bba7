"""Servers that cannot be used: each fault is one line that says what, which rule, and the remedy."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.trainer.runs import Recording, tocsin, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tests.trainer.vllm.launching import server_spec
from tests.trainer.vllm.office import PATIENCE_S, office, serving
from tocsin.diagnostics.runs import list_runs
from tocsin.schemas.events import RunEnded
from tocsin.schemas.sampler import SamplerConfig
from tocsin.trainer.samplers import MisfitSampler
from tocsin.trainer.vllm.answers import ServerFacts
from tocsin.trainer.vllm.client import VllmClient
from tocsin.trainer.vllm.expected import Expected
from tocsin.trainer.vllm.interpreter import Interpreter
from tocsin.trainer.vllm.servers import ServerSpec, free_ports

FIT = ServerFacts(
    "hub/policy", 64, "float32", "processed_logprobs", prefix_caching=True, transfer_backend="tocsin-file"
)
URL = "http://a:8000"


def expected(policy: Path, **changes: object) -> Expected:
    known = Expected("hub/policy", policy, vocab_size=13, max_length=64, eos_ids=(1,), backend="tocsin-file")
    return replace(known, **changes)  # type: ignore[arg-type]


def other_model(policy: TinyPolicy, folder: Path) -> Path:
    """The policy with a larger vocabulary and fewer layers, as far as its configuration tells."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  seconds that most tests save

    shutil.copytree(policy.model, folder)
    config = LlamaConfig.from_pretrained(folder)
    config.vocab_size, config.num_hidden_layers = 20, 1
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_server_that_fits_is_accepted_whatever_it_calls_the_policy(tiny_policy: TinyPolicy, tmp_path: Path):
    expected(tiny_policy.model).check(FIT, URL)
    expected(tiny_policy.model).check(replace(FIT, model=str(tiny_policy.model)), URL)
    copy = tmp_path / "checkpoint"
    shutil.copytree(tiny_policy.model, copy)
    expected(tiny_policy.model).check(replace(FIT, model=str(copy), max_model_len=4096), URL)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"model": "hub/other"},
            "must run the model that is trained: start it with `hub/policy`, got `hub/other`",
        ),
        (
            {"logprobs_mode": "raw_logprobs"},
            "must state log-probs at the sampling temperature: start it with --logprobs-mode processed_logprobs, got "
            "raw_logprobs",
        ),
        (
            {"transfer_backend": None},
            "must take weights by `tocsin-file`: start it with --weight-transfer-config "
            '\'{"backend": "tocsin-file"}\', got none',
        ),
        (
            {"transfer_backend": "nccl"},
            "must take weights by `tocsin-file`: start it with --weight-transfer-config "
            '\'{"backend": "tocsin-file"}\', got nccl',
        ),
        (
            {"max_model_len": 63},
            "must take 64 tokens: start it with --max-model-len 64, or set `model.max_length`, got 63",
        ),
    ],
)
def test_each_misfit_is_one_line_with_its_remedy(tiny_policy: TinyPolicy, changes: dict[str, object], line: str):
    facts = replace(FIT, **changes)  # type: ignore[arg-type]
    with pytest.raises(MisfitSampler) as refused:
        expected(tiny_policy.model).check(facts, URL)
    assert str(refused.value) == f"{URL} {line}"


@dataclass(frozen=True, kw_only=True)
class PlainSpec(ServerSpec):
    """A server that somebody started the way vLLM's own documentation begins."""

    def environment(self) -> dict[str, str]:
        """Without the routes that a trainer needs."""
        return {name: value for name, value in super().environment().items() if name != "VLLM_SERVER_DEV_MODE"}


@dataclass(frozen=True, kw_only=True)
class UnfitSpec(ServerSpec):
    """A server with those routes that nobody told about weights and log-probs."""

    def command(self) -> list[str]:
        """Without what decides over log-probs and weights."""
        command = super().command()
        for option in ("--logprobs-mode", "--weight-transfer-config"):
            at = command.index(option)
            del command[at : at + 2]
        return command


def spec(kind: type[ServerSpec], python: Interpreter, model: Path, folder: Path, *args: str) -> ServerSpec:
    """A specification of another kind."""
    known = server_spec(python, model, folder, *args)
    return kind(**{name: getattr(known, name) for name in known.__dataclass_fields__})


def trained(policy: TinyPolicy, url: str, folder: Path) -> list[str]:
    """The lines with which `tocsin train` fails with a server."""
    config = tiny_config(policy, sampler=SamplerConfig(kind="vllm", urls=[url]))
    done = tocsin("train", write_config(config, folder / "run.toml"), "--runs-dir", folder / "runs", cwd=folder)
    assert done.code == 1
    assert "Traceback" not in done.stderr
    (run,) = list_runs(folder / "runs")
    (ended,) = Recording(run).of(RunEnded)
    assert ended.error is not None
    shown = " ".join(done.stderr.split())
    lines = ended.error.splitlines()
    assert all(" ".join(line.split()) in shown for line in lines)
    return lines


@pytest.mark.vllm
def test_a_server_without_routes_for_weights_is_refused_with_the_variable_that_adds_them(
    tiny_policy: TinyPolicy, vllm_python: Interpreter, tmp_path: Path
):
    with serving(spec(PlainSpec, vllm_python, tiny_policy.model, tmp_path)) as server:
        assert trained(tiny_policy, server.url, tmp_path) == [
            f"{server.url} must offer vLLM's routes for reinforcement learning, and has none: start it with "
            "VLLM_SERVER_DEV_MODE=1 in its environment, or with `tocsin vllm serve`"
        ]


@pytest.fixture(scope="module")
def unfit(tiny_policy: TinyPolicy, vllm_python: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of another model that does everything else wrong, too."""
    folder = tmp_path_factory.mktemp("unfit")
    model = other_model(tiny_policy, folder / "other")
    with serving(spec(UnfitSpec, vllm_python, model, folder, "--max-model-len", "32")) as server:
        yield server.url


@pytest.mark.vllm
def test_a_run_names_every_fault_of_a_server_at_once(tiny_policy: TinyPolicy, unfit: str, tmp_path: Path):
    faults = trained(tiny_policy, unfit, tmp_path)
    assert [line.removeprefix(f"{unfit} ").partition(":")[0] for line in faults] == [
        "must run the model that is trained",
        "must state log-probs at the sampling temperature",
        "must take weights by `tocsin-file`",
        "must take 64 tokens",
    ]
    assert "with vocab_size 20 instead of 13, num_hidden_layers 1 instead of 3" in faults[0]
    assert faults[1].endswith(", got raw_logprobs")
    assert faults[2].endswith(", got none")
    assert faults[3].endswith(", got 32")


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("vocab_size", "fault"),
    [(20, None), (19, "got a larger one"), (21, "got a smaller one")],
)
def test_a_vocabulary_of_another_size_is_found_by_asking_for_its_last_token(
    tiny_policy: TinyPolicy, unfit: str, vocab_size: int, fault: str | None
):
    with office(tiny_policy, [unfit], is_loaded=False) as desk:
        client = VllmClient(unfit, timeout_s=PATIENCE_S)
        check = expected(tiny_policy.model, vocab_size=vocab_size).check_vocabulary(client)
        if fault is None:
            desk.ask(check)
        else:
            with pytest.raises(MisfitSampler) as refused:
                desk.ask(check)
            assert str(refused.value) == (
                f"{unfit} must have the learner's vocabulary of {vocab_size} tokens: start it with `hub/policy`, "
                f"{fault}"
            )
        desk.ask(client.close())


@pytest.mark.training
def test_a_server_that_is_not_there_is_named(tiny_policy: TinyPolicy, tmp_path: Path):
    (port,) = free_ports(1)
    (line,) = trained(tiny_policy, f"http://127.0.0.1:{port}", tmp_path)
    assert line.startswith(f"http://127.0.0.1:{port}/server_info cannot be reached: ConnectError")
