import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tocsin.schemas.config import LossConfig, RewardConfig, RunConfig, describe_errors

README = Path(__file__).parents[2] / "README.md"


def minimal(**sections: Any) -> dict[str, Any]:
    """The smallest configuration, with some of its keys replaced or added."""
    return {
        "steps": 10,
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "rewards": [{"function": "exact"}],
        **sections,
    }


def refusal(config: dict[str, Any]) -> str:
    """What a person is told about a wrong configuration."""
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(config)
    return describe_errors(caught.value.errors(), source="run.toml")


def test_four_lines_are_enough():
    config = RunConfig.model_validate(minimal())
    assert (config.steps, config.model.path, config.data.train) == (10, "model", "train.jsonl")
    assert config.rewards[0].label == "exact"


def test_the_examples_in_the_readme_are_valid_configurations():
    blocks = re.findall(r"```toml\n(.*?)```", README.read_text(), flags=re.DOTALL)
    (whole,) = [block for block in blocks if "[model]" in block]
    sections = [block for block in blocks if block != whole]
    config = RunConfig.model_validate(tomllib.loads(whole))
    assert config.reward_range is not None
    assert len(sections) >= 2
    for section in sections:
        RunConfig.model_validate(tomllib.loads(whole + section))


def test_an_unknown_key_is_named_with_its_section():
    assert refusal(minimal(modle={})) == "run.toml: `modle`: unknown key; remove it or check its spelling"
    assert refusal(minimal(knobs={"learning_rte": 1e-4})) == (
        "run.toml: `knobs.learning_rte`: unknown key; remove it or check its spelling"
    )


def test_a_missing_key_is_named():
    assert refusal(minimal(model={})) == "run.toml: `model.path`: is required and missing"


def test_a_wrong_type_is_shown_with_what_was_given():
    assert refusal(minimal(steps="many")) == (
        "run.toml: `steps`: Input should be a valid integer, unable to parse string as an integer, got 'many'"
    )
    assert refusal(minimal(rewards="exact")) == "run.toml: `rewards`: Input should be a valid list, got 'exact'"


def test_a_value_out_of_range_is_shown_with_its_range():
    assert refusal(minimal(steps=0)) == "run.toml: `steps`: Input should be greater than 0, got 0"
    assert refusal(minimal(knobs={"learning_rate": 2.0})) == (
        "run.toml: `knobs`: `learning_rate` must be between 0 and 1, got 2.0"
    )


def test_a_word_outside_a_choice_is_shown_with_the_choices():
    assert refusal(minimal(model={"path": "model", "dtype": "int8"})) == (
        "run.toml: `model.dtype`: Input should be 'float32', 'bfloat16' or 'float16', got 'int8'"
    )


def test_an_unknown_fault_is_refused_with_the_names_of_the_known_ones():
    message = refusal(minimal(fault={"name": "gremlin", "onset_step": 5}))
    assert message.startswith("run.toml: `fault.name`: Input should be 'constant-reward', ")
    assert message.endswith(", got 'gremlin'")


def test_every_mistake_gets_its_own_line():
    lines = refusal(minimal(steps=0, seed=-1, modle={})).splitlines()
    assert [line.split("`")[1] for line in lines] == ["steps", "seed", "modle"]


def test_a_message_never_repeats_a_long_value():
    message = refusal(minimal(seed="9" * 5_000 + "x"))
    assert len(message) < 200


def test_a_function_that_is_neither_built_in_nor_an_import_path_is_refused():
    assert refusal(minimal(rewards=[{"function": "exat"}])) == (
        "run.toml: `rewards.0`: `rewards.function` must be one of exact, numeric, regex, math or "
        "`package.module:callable`, got `exat`"
    )


@pytest.mark.parametrize("reward", [{"function": "regex"}, {"function": "exact", "pattern": "x"}])
def test_a_pattern_goes_with_the_regex_verifier_and_only_with_it(reward: dict[str, str]):
    assert '`rewards.pattern` goes with `function = "regex"` and only with it' in refusal(minimal(rewards=[reward]))


def test_a_reward_range_that_does_not_rise_is_refused():
    reward = {"function": "my.rewards:brevity", "range": [1, 1]}
    assert "`rewards.range` must rise, got [1.0, 1.0]" in refusal(minimal(rewards=[reward]))


def test_two_rewards_of_one_name_are_refused_and_a_name_tells_them_apart():
    twice: list[dict[str, str]] = [{"function": "exact"}, {"function": "exact", "answer_column": "other"}]
    assert "`rewards` need distinct names, got ['exact', 'exact']: set `name`" in refusal(minimal(rewards=twice))
    named = [twice[0], {**twice[1], "name": "other"}]
    assert [reward.label for reward in RunConfig.model_validate(minimal(rewards=named)).rewards] == ["exact", "other"]


def test_a_reward_is_called_after_its_function():
    assert RewardConfig(function="my.rewards:brevity").label == "brevity"
    assert RewardConfig(function="numeric").label == "numeric"


def test_the_total_reward_has_a_range_when_every_reward_has_one():
    penalty = {"function": "my.rewards:brevity", "weight": -0.5, "range": [0, 2]}
    known = RunConfig.model_validate(minimal(rewards=[{"function": "exact"}, penalty]))
    assert known.reward_range == (-1.0, 1.0)
    unknown = RunConfig.model_validate(minimal(rewards=[{"function": "exact"}, {"function": "my.rewards:brevity"}]))
    assert unknown.reward_range is None


def test_a_warm_up_as_long_as_the_run_is_refused():
    assert "`optimizer.warmup_steps` must be below `steps` = 10, got 10" in refusal(
        minimal(optimizer={"warmup_steps": 10})
    )


def test_a_completion_limit_that_leaves_no_room_for_a_prompt_is_refused():
    message = refusal(minimal(model={"path": "model", "max_length": 64}, knobs={"max_completion_tokens": 64}))
    assert "`knobs.max_completion_tokens` must be below `model.max_length` = 64, got 64" in message


def test_a_system_prompt_without_a_chat_template_is_refused():
    message = refusal(minimal(data={"train": "train.jsonl", "system_prompt": "Be brief."}))
    assert "`data.system_prompt` needs `data.chat_template = true`" in message


def test_only_dr_grpo_leaves_advantages_unscaled_unless_it_is_told_to():
    assert [LossConfig(variant=name).scales for name in ("grpo", "dapo", "dr_grpo")] == [True, True, False]
    assert LossConfig(variant="dr_grpo", scale_advantages=True).scales is True
    assert LossConfig(variant="dapo", scale_advantages=False).scales is False
