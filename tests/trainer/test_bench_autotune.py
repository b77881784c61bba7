"""The auto-tuning experiment: its plan, its table, and the arm in which nothing is done."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, numbered, started, step
from tests.schemas.examples import MANIFEST
from tocsin.diagnostics import added_rules
from tocsin.diagnostics.rule import Rule
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.schemas.config import RunConfig
from tocsin.schemas.event import BaseEvent
from tocsin.trainer.bench import attempt
from tocsin.trainer.bench.autotune import CASES, Result, arms, table
from tocsin.trainer.bench.wrong_actions import WRONG_CODE, WrongOnPurpose, crossings, verdict

PATH = "step_completed.update_ratio"


def noisy(seed: int, *, num: int = 400, drop_at: int | None = None) -> Iterator[list[BaseEvent]]:
    """A healthy run whose update ratio is autocorrelated noise, with a real fall where one is asked for."""
    rng, level = np.random.default_rng(seed), 0.0
    yield [started()]
    for t in range(num):
        level = 0.7 * level + rng.normal()
        ratio = 1.0 + 0.1 * level - (0.8 if drop_at is not None and t > drop_at else 0.0)
        passes = 4 + t % 2
        rewards = [[1.0] * passes + [0.0] * (8 - passes)] * 4
        yield [batch(rewards), step(update_ratio=max(0.01, ratio))]


def test_every_planted_case_has_its_three_arms_and_the_plan_has_no_run_twice():
    names = [name for name, _ in arms(3, 10)]
    assert len(names) == len(set(names)) == 3 * (3 * len(CASES) + 1) + 10
    for name, config in arms(1, 1):
        assert (config.autotune is not None) == name.endswith("-on")


def test_the_table_says_what_was_shown_and_what_was_not(tmp_path: Path):
    def result(reward: float, *verdicts: str) -> Result:
        return Result(
            reward=reward, throughput=1.0, changes=["learning_rate 0.003 -> 0.0003 @71"], verdicts=[*verdicts]
        )

    found = {
        "lr-too-high-0-healthy": result(0.98),
        "lr-too-high-0-off": result(0.1),
        "lr-too-high-0-on": result(0.95),
        "lr-too-high-1-healthy": result(0.98),
        "lr-too-high-1-off": result(0.1),
        "lr-too-high-1-on": result(0.5),
        "wrong-rule-0-on": result(0.9, "applied", "harmed", "reverted", "applied", "harmed", "reverted", "proposed"),
        "wrong-rule-1-on": result(0.9, "applied", "harmed", "reverted"),
    }
    text = table(found, tmp_path)
    first, second = text.splitlines()[1:3]
    assert first.split()[:2] == ["lr-too-high", "0"]
    assert first.endswith("  ok: learning_rate 0.003 -> 0.0003 @71")
    assert second.endswith("  NOT SHOWN: learning_rate 0.003 -> 0.0003 @71")
    assert "wrong-rule-0-on: ok" in text
    assert "wrong-rule-1-on: NOT SHOWN" in text


def test_an_action_that_does_nothing_succeeds_on_noise_at_most_once_in_ten_times():
    states = []
    for seed in range(12):
        events = numbered(noisy(seed))
        states += [verdict(events, crossing) for crossing in crossings(events, PATH)]
    judged = [state for state in states if state is not None]
    assert len(judged) >= 10
    assert judged.count("target_met") <= len(judged) / 10


def test_a_real_fall_at_the_crossing_is_seen():
    events = numbered(noisy(0))
    crossing = next(crossings(events, PATH))
    cured = numbered(noisy(0, drop_at=crossing.step))
    assert verdict(cured, crossing) == "target_met"


def test_the_wrong_rule_takes_the_place_of_the_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    judging: list[type[Rule]] = []

    def engine(rules: Sequence[Rule], **_: object) -> None:
        judging.extend(type(rule) for rule in rules if rule.code == WRONG_CODE)

    def new_run(config: RunConfig, *_: object) -> int:
        added_rules.engine_for(config.diagnostics, added_rules.Added())
        return 0

    monkeypatch.setattr(added_rules, "ALL_RULES", ALL_RULES)
    monkeypatch.setattr(added_rules, "Engine", engine)
    monkeypatch.setattr(attempt, "new_run", new_run)
    (tmp_path / "config.json").write_text(MANIFEST.config.model_dump_json())
    assert attempt.main([str(tmp_path), "--wrong-rule"]) == 0
    assert judging == [WrongOnPurpose]
