"""What is refused before anything is loaded: models that are certainly not there."""

from pathlib import Path

import numpy as np
import pytest

from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.trainer.data import Prompt
from tocsin.trainer.preflight import check_arguments, check_inputs


def config(folder: Path, model: str) -> RunConfig:
    rows = folder / "train.jsonl"
    rows.write_text('{"prompt": "a", "answer": "b"}\n')
    return RunConfig(
        steps=1,
        model=ModelConfig(path=model),
        data=DataConfig(train=str(rows)),
        rewards=[RewardConfig(function="exact")],
    )


@pytest.mark.parametrize("name", ["my-modle", "my modle", "..", "no/such/folder"])
def test_a_name_that_is_neither_a_folder_nor_a_hub_id_is_refused_without_asking_the_network(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match=r"`model\.path` must be a model folder or hub id, got `.*`owner/name`|config"):
        check_inputs(config(tmp_path, name))


def test_a_hub_id_with_an_owner_is_left_to_the_loader(tmp_path: Path):
    check_inputs(config(tmp_path, "owner/name"))


def test_a_reward_function_that_needs_what_no_row_has_is_shown_the_right_form():
    rows = [
        Prompt(f"{i}", "a", np.array([1], np.int32), columns) for i, columns in enumerate([{"answer": 1}, {"x": 2}])
    ]
    check_arguments({"score": frozenset({"completions", "prompts", "answer", "x"}), "exact": frozenset()}, rows)
    with pytest.raises(ValueError, match="reward function") as caught:
        check_arguments({"brevity": frozenset({"completion"})}, rows)
    assert str(caught.value) == (
        "reward function `brevity` must take `completions`, `prompts` and columns of the data by name, got "
        "`completion`; write it as `def brevity(completions, prompts, answer, x, **kwargs) -> list[float]`"
    )


def test_without_a_prompt_no_argument_is_refused():
    check_arguments({"brevity": frozenset({"completion"})}, [])
