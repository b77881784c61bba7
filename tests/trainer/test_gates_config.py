"""Advice about a configuration, and rows that cannot become prompts."""

from typing import Any

import pytest

from tests.trainer.prompts import prompt
from tocsin.schemas.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    LossConfig,
    ModelConfig,
    RewardConfig,
    RunConfig,
)
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.gates_config import configuration_gate, prompts_gate
from tocsin.trainer.prompts import PromptSet, Refused


def config(**changes: Any) -> RunConfig:
    """A configuration that needs no advice."""
    fields: dict[str, Any] = {
        "steps": 200,
        "model": ModelConfig(path="x"),
        "data": DataConfig(train="train.jsonl", evaluation="held_out.jsonl"),
        "rewards": [RewardConfig(function="exact")],
        "evaluation": EvaluationConfig(every=50),
    }
    return RunConfig(**{**fields, **changes})


def test_a_sound_configuration_gets_no_advice():
    gate = configuration_gate(config())
    assert (gate.outcome, gate.findings) == ("passed", [])
    assert gate.summary == "200 steps of 16 x 8 completions"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"knobs": Knobs(group_size=2)}, "RWD005"),
        ({"loss": LossConfig(zero_spread_tokens="ignore")}, "RWD014"),
        ({"data": DataConfig(train="train.jsonl")}, "SYS013"),
        ({"data": DataConfig(train="train.jsonl", evaluation="train.jsonl")}, "SYS013"),
        ({"evaluation": EvaluationConfig(every=150)}, "SYS013"),
        ({"evaluation": EvaluationConfig(every=0)}, "SYS013"),
        ({"checkpoint": CheckpointConfig(every=0)}, "SYS011"),
    ],
)
def test_advice_has_the_code_of_what_may_happen_and_fails_nothing(changes: dict[str, Any], code: str):
    gate = configuration_gate(config(**changes))
    assert [(found.code, found.severity, found.kind) for found in gate.findings] == [(code, "info", "lint")]
    assert gate.outcome == "passed"


@pytest.mark.parametrize(
    "changes",
    [
        {"knobs": Knobs(group_size=4)},
        {"knobs": Knobs(group_size=2), "rewards": [RewardConfig(function="my:score")]},
        {"data": DataConfig(train="owner/data", evaluation="owner/data")},
        {"steps": 100, "checkpoint": CheckpointConfig(every=0), "evaluation": EvaluationConfig(every=0)},
    ],
)
def test_what_only_looks_alike_gets_no_advice(changes: dict[str, Any]):
    assert configuration_gate(config(**changes)).findings == []


def test_small_groups_are_answered_by_a_patch_that_keeps_the_completions():
    (found,) = configuration_gate(config(knobs=Knobs(group_size=2, groups_per_step=16))).findings
    assert "50%" in found.summary
    patches = {patch.path: (patch.expect, patch.to) for patch in found.actions[0].patches}
    assert patches == {"group_size": (2, 8), "groups_per_step": (16, 4)}


def test_rows_that_cannot_be_used_fail_when_they_are_more_than_an_accident():
    def judged(num: int, causes: list[Any]) -> Any:
        refused = [Refused(row, cause, "no text") for row, cause in enumerate(causes, start=1)]
        return prompts_gate(PromptSet([prompt(i, [1]) for i in range(num)], refused), PromptSet([], []))

    assert judged(100, []).outcome == "passed"
    one = judged(99, ["bad_row"])
    assert (one.outcome, one.findings) == ("passed", [])
    assert "row 1: no text" in one.summary
    many = judged(98, ["bad_row", "prompt_too_long"])
    assert (many.outcome, [found.code for found in many.findings]) == ("failed", ["GEN014"])
    assert many.findings[0].summary == "2 of 100 rows cannot become prompts, 1 of them are too long"
    assert many.findings[0].evidence[0].observed == 0.02
