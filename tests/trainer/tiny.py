"""A policy that is small enough to train in a test: pre-trained once per session, with a configuration that uses it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tocsin.schemas.config import (
    CheckpointConfig,
    DataConfig,
    DeviceConfig,
    EvaluationConfig,
    ModelConfig,
    RewardConfig,
    RunConfig,
)
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.data import Completion, Group, GroupRequest, Prompt
from tocsin.trainer.demo_task import ALPHABET, ANSWER_TOKENS, split, write_rows

SEED = 0
TRAIN_ROWS = 1024
HELD_OUT_ROWS = 128
PRETRAIN_STEPS = 250
"""Enough for a sampled pass rate between 0.3 and 0.5, so that groups have spread and rewards can rise."""


@dataclass(frozen=True)
class TinyPolicy:
    """Where the pre-trained model and its data lie."""

    model: Path
    """Folder with model and tokenizer, as `model.path` takes it."""
    train: Path
    """JSONL."""
    held_out: Path
    """JSONL."""


def make_tiny_policy(folder: Path) -> TinyPolicy:
    """Write data and a model that was pre-trained on them into `folder`; takes a few seconds."""
    # Imports torch and transformers, which tests that never ask for the policy must not wait for.
    from tocsin.trainer.demo_model import pretrain  # noqa: PLC0415
    from tocsin.trainer.models import silence_transformers  # noqa: PLC0415

    silence_transformers()
    policy = TinyPolicy(folder / "model", folder / "train.jsonl", folder / "held_out.jsonl")
    train, held_out = split(SEED, train=TRAIN_ROWS, held_out=HELD_OUT_ROWS)
    write_rows(train, policy.train)
    write_rows(held_out, policy.held_out)
    pretrain(policy.model, train, seed=SEED, steps=PRETRAIN_STEPS)
    return policy


def tiny_config(policy: TinyPolicy, **changes: Any) -> RunConfig:
    """A run of seconds on `policy`. `changes` are fields of `RunConfig`; `knobs` may be a dictionary of some knobs."""
    knobs = {
        "learning_rate": 3e-4,
        "groups_per_step": 4,
        "group_size": 4,
        "max_completion_tokens": ANSWER_TOKENS + 1,
    }
    given = changes.pop("knobs", {})
    fields: dict[str, Any] = {
        "steps": 12,
        "model": ModelConfig(path=str(policy.model)),
        "data": DataConfig(train=str(policy.train), evaluation=str(policy.held_out)),
        "rewards": [RewardConfig(function="exact")],
        "knobs": given if isinstance(given, Knobs) else Knobs(**{**knobs, **given}),
        "evaluation": EvaluationConfig(prompts=32),
        "checkpoint": CheckpointConfig(every=0),
        "device": DeviceConfig(learner="cpu", sampler="cpu", threads=1),
    }
    return RunConfig(**{**fields, **changes})


def tiny_prompts(policy: TinyPolicy, num: int) -> list[Prompt]:
    """The first training prompts. Ids 0 and 1 are padding and the end of sequence, then the alphabet."""
    rows = [json.loads(line) for line in policy.train.read_text().splitlines()[:num]]
    return [
        Prompt(
            id=f"{index}-0badcafe",
            text=row["prompt"],
            token_ids=np.array([ALPHABET.index(letter) + 2 for letter in row["prompt"]], dtype=np.int32),
            columns={"answer": row["answer"]},
        )
        for index, row in enumerate(rows)
    ]


def tiny_requests(policy: TinyPolicy, num: int, **changes: Any) -> list[GroupRequest]:
    """Requests for groups of four; `changes` are fields of `GroupRequest`."""
    fields: dict[str, Any] = {
        "target_step": 0,
        "size": 4,
        "temperature": 1.0,
        "max_tokens": ANSWER_TOKENS + 1,
        "config_generation": 0,
        **changes,
    }
    return [GroupRequest(index=i, prompt=prompt, **fields) for i, prompt in enumerate(tiny_prompts(policy, num))]


def scored(request: GroupRequest, completions: Sequence[Completion], rewards: Sequence[float]) -> Group:
    """A group with the rewards that a test wants."""
    return Group(
        request=request,
        completions=tuple(completions),
        rewards=np.array(rewards, dtype=np.float64),
        components={},
        num_failed=0,
        launched_at=0.0,
        generated_at=0.0,
        scored_at=0.0,
    )
