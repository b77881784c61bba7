"""What counts as a pass, and other rules of a configuration that the trainer relies on."""

from typing import Any

import pytest
from pydantic import ValidationError

from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.fault import FaultConfig, FaultName
from tocsin.schemas.sampler import SamplerConfig


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


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("stale-prefix-cache", {}, r"`stale-prefix-cache` needs `sampler\.kind = \"vllm\"`, got `local`"),
        (
            "same-seed",
            {"sampler": SamplerConfig(kind="vllm", launch=True)},
            r"`same-seed` needs `sampler\.kind = \"local\"`, got `vllm`",
        ),
        ("wrong-reference", {}, r"`wrong-reference` needs `knobs\.kl_beta` > 0"),
    ],
)
def test_a_fault_that_the_run_cannot_show_is_refused(name: FaultName, fields: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        RunConfig(
            steps=9,
            model=ModelConfig(path="x"),
            data=DataConfig(train="x"),
            rewards=[RewardConfig(function="exact")],
            fault=FaultConfig(name=name, onset_step=1),
            **fields,
        )


def test_the_range_of_the_reward_is_unknown_where_a_fault_adds_a_reward():
    def spanned(name: FaultName) -> tuple[float, float] | None:
        return RunConfig(
            steps=9,
            model=ModelConfig(path="x"),
            data=DataConfig(train="x"),
            rewards=[RewardConfig(function="exact")],
            fault=FaultConfig(name=name, onset_step=1),
        ).reward_range

    assert (spanned("proxy-reward"), spanned("nan")) == (None, (0.0, 1.0))
