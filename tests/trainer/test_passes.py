"""What counts as a pass, and other rules of a configuration that the trainer relies on."""

import pytest
from pydantic import ValidationError

from tocsin.schemas.config import DataConfig, FaultConfig, ModelConfig, RewardConfig, RunConfig


def passing(*rewards: RewardConfig) -> dict[str, float] | None:
    return RunConfig(steps=1, model=ModelConfig(path="x"), data=DataConfig(train="x"), rewards=list(rewards)).pass_tops


def test_built_in_verifiers_decide_what_a_pass_is_and_without_one_the_callables_with_a_range():
    exact = RewardConfig(function="exact")
    brief = RewardConfig(function="m:brief", weight=0.1, range=(0.0, 2.0))
    bare = RewardConfig(function="m:bare")
    assert passing(exact, brief) == {"exact": 1.0}
    assert passing(brief, bare) == {"brief": 2.0}
    assert passing(bare) is None
    assert passing(exact.model_copy(update={"passes": False}), brief) == {"brief": 2.0}
    assert passing(exact, brief.model_copy(update={"passes": True})) == {"exact": 1.0, "brief": 2.0}
    assert passing(exact.model_copy(update={"passes": False})) is None
    assert passing(brief.model_copy(update={"weight": -1.0})) == {"brief": 0.0}


def test_a_callable_without_a_range_cannot_decide_what_a_pass_is():
    with pytest.raises(ValidationError, match=r"`rewards\.passes` needs `rewards\.range`"):
        RewardConfig(function="m:bare", passes=True)


def test_a_fault_that_would_begin_after_the_last_step_is_refused():
    with pytest.raises(ValidationError, match=r"`fault\.onset_step` must be below `steps` = 9, got 9"):
        RunConfig(
            steps=9,
            model=ModelConfig(path="x"),
            data=DataConfig(train="x"),
            rewards=[RewardConfig(function="exact")],
            fault=FaultConfig(name="nan", onset_step=9),
        )
