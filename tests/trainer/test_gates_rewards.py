"""Reward functions on trial: right answers pass, wrong ones do not, and what a trial cannot prove refuses nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.prompts import prompt
from tocsin.schemas.check import Gate
from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RewardWorkerConfig, RunConfig
from tocsin.trainer.data import Prompt
from tocsin.trainer.gates_rewards import rewards_gate
from tocsin.trainer.verifiers import RewardError

ANSWERS = ("4", "72", "1,000")
MINE = """
import os
import time

seen = []


def right(completions, answer):
    return [float(c == a) for c, a in zip(completions, answer)]


def backwards(completions, answer):
    return [float(c != a) for c, a in zip(completions, answer)]


def constant(completions):
    return [0.5 for _ in completions]


def picky(completions):
    return [float(c[c.index("<answer>") + 8:].startswith("4")) for c in completions]


def not_a_number(completions):
    return [float("nan") for _ in completions]


def silent(completions):
    return [None for _ in completions]


def hangs(completions):
    time.sleep(600)


def dies(completions):
    os._exit(3)


def per_group(completions, answer):
    assert len(completions) == 2 and len(set(answer)) == 1
    return [float(c == answer[0]) for c in completions]
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)


def tried(*rewards: RewardConfig, prompts: list[Prompt] | None = None, timeout_s: float = 30.0) -> Gate:
    config = RunConfig(
        steps=1,
        model=ModelConfig(path="x"),
        data=DataConfig(train="x"),
        rewards=list(rewards),
        reward_workers=RewardWorkerConfig(timeout_s=timeout_s),
    )
    rows = [prompt(i, [1], "what", answer=answer) for i, answer in enumerate(ANSWERS)]
    return rewards_gate(config, rows if prompts is None else prompts)


def reward(function: str, **changes: Any) -> RewardConfig:
    return RewardConfig(function=function, **changes)


def codes(gate: Gate) -> list[tuple[str, str]]:
    return [(found.code, found.severity) for found in gate.findings]


@pytest.mark.parametrize("function", ["exact", "numeric", "math"])
def test_a_verifier_passes_the_answers_of_the_data_and_fails_wrong_ones(function: str):
    gate = tried(reward(function))
    assert (gate.outcome, gate.findings) == ("passed", [])
    assert gate.summary == f"{function}: 3 of 3 right answers pass, 0 of 3 wrong ones"
    assert gate.measured[f"{function}.right"] == 3


def test_several_functions_are_tried_at_once_each_with_what_suits_it():
    gate = tried(reward("math"), reward("mine:right", weight=-1.0), reward("mine:per_group"))
    assert (gate.outcome, gate.findings) == ("passed", [])
    assert "right: finite for 6 completions, 3 of 3 pairs differ" in gate.summary


def test_a_column_without_answers_is_refused_with_its_name():
    gate = tried(reward("exact", answer_column="solution"))
    assert codes(gate) == [("GEN011", "critical")]
    assert "column `solution` is missing, the row has `answer`" in gate.summary
    assert "answer" not in gate.findings[0].summary, "what comes from the data stays out of summaries"


def test_some_answers_that_a_verifier_cannot_use_are_a_warning():
    rows = [prompt(i, [1], "", answer=answer) for i, answer in enumerate(("4", "none"))]
    gate = tried(reward("numeric"), prompts=rows)
    assert codes(gate) == [("GEN011", "warning")]
    assert gate.findings[0].evidence[0].observed == 2


def test_a_pattern_is_tried_with_the_examples_that_the_configuration_states():
    pattern = r"<answer>(.*?)</answer>"
    bare = tried(reward("regex", pattern=pattern))
    assert bare.outcome == "not_evaluated"
    assert "without `rewards.good` and `rewards.bad`" in bare.summary
    good = tried(reward("regex", pattern=pattern, good="so <answer>{answer}</answer>", bad="so {answer}"))
    assert (good.outcome, good.findings) == ("passed", [])
    wrong = tried(reward("regex", pattern=pattern, good=r"\boxed{{answer}}", bad="none"))
    assert codes(wrong) == [("GEN012", "critical")]


@pytest.mark.parametrize(
    ("function", "good", "code"),
    [
        ("mine:right", "{answer}", []),
        ("mine:backwards", "{answer}", [("GEN012", "critical")]),
        ("mine:constant", "{answer}", [("GEN012", "critical")]),
        ("mine:picky", "{answer}", [("GEN011", "critical")]),
        ("mine:picky", "<answer>4", [("GEN011", "warning")]),
    ],
)
def test_a_callable_with_stated_examples_is_held_to_them(function: str, good: str, code: list[tuple[str, str]]):
    assert codes(tried(reward(function, good=good, bad="nothing of the kind"))) == code


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("mine:constant", [("RWD010", "info")]),
        ("mine:backwards", []),
        ("mine:silent", []),
        ("mine:picky", [("GEN011", "warning")]),
        ("mine:not_a_number", [("GEN011", "warning")]),
        ("mine:dies", [("GEN011", "warning")]),
    ],
)
def test_a_callable_without_examples_is_never_refused(function: str, code: list[tuple[str, str]]):
    assert codes(tried(reward(function))) == code


def test_a_function_that_hangs_is_tried_once():
    gate = tried(reward("mine:hangs"), timeout_s=0.5)
    assert codes(gate) == [("GEN011", "warning")]
    assert "2 of 2 completions not scored (scoring must take at most" in gate.summary


def test_a_function_that_the_data_cannot_satisfy_is_bad_input():
    with pytest.raises(ValueError, match="reward function `right` must take"):
        tried(reward("mine:right"), prompts=[prompt(0, [1], "", solution="4")])
    with pytest.raises(RewardError, match="reward function `mine:missing` must exist"):
        tried(reward("mine:missing"))
