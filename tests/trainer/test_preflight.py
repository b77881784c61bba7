"""What is refused before anything is loaded: models that are certainly not there."""

from pathlib import Path

import pytest

from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.trainer.preflight import check_inputs


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
