"""What vLLM's answers mean: completions, log-probs, configuration and metrics as types of our own.

An answer that lacks what a trainer needs raises `BadAnswer` with the remedy; nothing is guessed.
"""

import hashlib
import math
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from tocsin.trainer.data import Completion, FinishReason, GroupRequest

FINISH_REASONS: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length", "abort": "abort"}
EMPTY_CHECKSUM: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of nothing: what vLLM states for parameters that its CPU kernels have repacked."""


class BadAnswer(ValueError):
    """A server answered with something that cannot be trained on."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What runs on a server."""

    model: str
    """As it was started: folder or hub id."""
    max_model_len: int
    dtype: str
    logprobs_mode: str
    prefix_caching: bool
    transfer_backend: str | None
    """None when the server was started without one."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Gauges and ever-rising counters of an engine, summed over its data-parallel ranks; `kv_usage` is the largest."""

    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    preemptions: float = 0.0
    prompt_tokens: float = 0.0
    generated_tokens: float = 0.0
    prefix_hit_tokens: float = 0.0
    prefix_query_tokens: float = 0.0


METRICS: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generated_tokens",
    "vllm:prefix_cache_hits_total": "prefix_hit_tokens",
    "vllm:prefix_cache_queries_total": "prefix_query_tokens",
}
"""Field of `Counters` by sample name of vLLM 0.32."""


def completions_of(answer: dict[str, Any], request: GroupRequest) -> list[Completion]:
    """The choices of an answer of `/inference/v1/generate`, in order of their index."""
    choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    if len(choices) != request.size:
        raise BadAnswer(f"the server must answer with {request.size} completions, got {len(choices)}")
    return [_completion(choice, request.temperature) for choice in choices]


def _completion(choice: dict[str, Any], temperature: float) -> Completion:
    token_ids = choice["token_ids"] or []
    content = (choice.get("logprobs") or {}).get("content") or []
    if len(content) != len(token_ids) or [entry["token_id"] for entry in content] != token_ids:
        raise BadAnswer("the server must state the log-prob of every token that it sampled; it states others or none")
    reason = FINISH_REASONS.get(choice["finish_reason"])
    if reason is None:
        raise BadAnswer(f"finish reason must be one of {', '.join(FINISH_REASONS)}, got `{choice['finish_reason']}`")
    # A log-prob that is not a number comes as null. It is kept: the learner skips the step and says why.
    logprobs = [math.nan if entry["logprob"] is None else entry["logprob"] for entry in content]
    return Completion(
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=np.array(logprobs, dtype=np.float32),
        finish_reason=reason,
        versions=_spans(choice.get("weight_versions"), len(token_ids)),
        temperature=temperature,
    )


def _spans(stated: list[dict[str, Any]] | None, length: int) -> tuple[tuple[int, int], ...]:
    spans = [(str(span["version"]), int(span["end"]) - int(span["start"])) for span in stated or []]
    if sum(tokens for _, tokens in spans) != length or not all(version.isdigit() for version, _ in spans):
        raise BadAnswer(
            "the server must state which weights each token was sampled with, got "
            f"{spans} for {length} tokens; its weights were not set by this run"
        )
    return tuple((int(version), tokens) for version, tokens in spans)


def prompt_logprobs_of(answer: dict[str, Any], ids: list[int]) -> list[float]:
    """[L - 1] log-probs of the tokens of a prompt [L], without the first."""
    stated = answer.get("prompt_logprobs")
    if stated is None or len(stated) != len(ids):
        raise BadAnswer("the server must state log-probs of prompt tokens, and does not")
    values = [entry[str(token)]["logprob"] for entry, token in zip(stated[1:], ids[1:], strict=True)]
    return [math.nan if value is None else float(value) for value in values]


def facts_of(info: dict[str, Any]) -> ServerFacts:
    """The part of `/server_info` that decides whether a server can be trained with."""
    config = info["vllm_config"]
    model, transfer = config["model_config"], config.get("weight_transfer_config")
    return ServerFacts(
        model=str(model["model"]),
        max_model_len=int(model["max_model_len"]),
        dtype=str(model["dtype"]).removeprefix("torch."),
        logprobs_mode=str(model["logprobs_mode"]),
        prefix_caching=bool(config["cache_config"]["enable_prefix_caching"]),
        transfer_backend=None if transfer is None else str(transfer["backend"]),
    )


def counters_of(text: str) -> Counters:
    """The counters in an answer of `/metrics`. A metric that another version of vLLM lacks stays 0."""
    found = {item.name: 0.0 for item in fields(Counters)}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = METRICS.get(sample.name)
            if name == "kv_usage":
                found[name] = max(found[name], sample.value)
            elif name is not None:
                found[name] += sample.value
    return Counters(**found)


def digest_of_checksums(checksums: dict[str, str]) -> str:
    """One short digest over all parameters whose checksum says anything; empty when none does."""
    stated = sorted(item for item in checksums.items() if item[1] != EMPTY_CHECKSUM)
    if not stated:
        return ""
    return hashlib.blake2b(repr(stated).encode(), digest_size=8).hexdigest()
