"""Bad input at the command line: refused with exit code 2, one line per fault, and nothing left behind."""

import json
from pathlib import Path

import pytest

from tests.trainer.runs import Finished, tocsin, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.config import RunConfig
from tocsin.trainer.bench.trial import toml_of

pytestmark = pytest.mark.training


@pytest.fixture
def config(tiny_policy: TinyPolicy) -> RunConfig:
    """A configuration with nothing wrong in it."""
    return tiny_config(tiny_policy)


def refused(done: Finished, *parts: str, lines: int = 1) -> None:
    """Asserts that `done` was refused before torch was imported, in `lines` lines which contain `parts`."""
    assert done.code == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == lines
    assert all(line.startswith("tocsin: ") for line in done.stderr.splitlines())
    assert [part for part in parts if part not in done.stderr] == [], done.stderr
    assert not done.imported_torch


def nothing_left(folder: Path) -> None:
    """Asserts that no run was begun below `folder`."""
    runs = folder / "runs"
    assert not runs.exists() or list(runs.iterdir()) == []


def changed(config: RunConfig, folder: Path, *path: str, to: object) -> Path:
    """A file with one value of `config` replaced, valid or not."""
    document = config.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    table = document
    for key in path[:-1]:
        table = table.setdefault(key, {})
    table[path[-1]] = to
    file = folder / "run.toml"
    file.write_text(toml_of(document))
    return file


def trained(file: Path, *arguments: str) -> Finished:
    done = tocsin("train", file, *arguments, cwd=file.parent)
    nothing_left(file.parent)
    return done


def test_an_unknown_key_is_named(config: RunConfig, tmp_path: Path) -> None:
    done = trained(changed(config, tmp_path, "knobs", "learning_rat", to=1e-4))
    refused(done, "run.toml: `knobs.learning_rat`: unknown key; remove it or check its spelling")


def test_a_wrong_type_and_a_missing_key_are_two_lines(config: RunConfig, tmp_path: Path) -> None:
    file = changed(config, tmp_path, "steps", to="12")
    file.write_text(file.read_text().replace('train = "', 'prompt_column = "'))
    refused(trained(file), "`steps`: Input should be a valid integer, got '12'", "`data.train`: is required", lines=2)


def test_a_value_out_of_range_is_shown_with_its_range(config: RunConfig, tmp_path: Path) -> None:
    refused(
        trained(changed(config, tmp_path, "knobs", "group_size", to=1)),
        "`group_size` must be between 2 and 1024, got 1",
    )


def test_an_unknown_knob_lists_the_knobs(config: RunConfig, tmp_path: Path) -> None:
    file = write_config(config, tmp_path / "run.toml")
    refused(trained(file, "--set", "lr=1"), "--set: unknown knob `lr`; the knobs are: clip_high, ", "learning_rate")


def test_a_setting_without_a_number_is_refused(config: RunConfig, tmp_path: Path) -> None:
    file = write_config(config, tmp_path / "run.toml")
    refused(
        trained(file, "--set", "learning_rate=fast"),
        "--set: `learning_rate` must be a number or true/false, got `fast`",
    )


def test_an_unknown_fault_lists_the_faults(config: RunConfig, tmp_path: Path) -> None:
    file = changed(config, tmp_path, "fault", to={"name": "gremlins", "onset_step": 3})
    refused(trained(file), "`fault.name`", "'constant-reward'", "gremlins")
    refused(
        tocsin("demo", "--fault", "gremlins", cwd=tmp_path), "--fault must be one of constant-reward, ", "`gremlins`"
    )
    nothing_left(tmp_path)


def test_a_fault_that_would_begin_after_the_last_step_is_refused(tmp_path: Path) -> None:
    refused(
        tocsin("demo", "--fault", "nan", "--onset", "500", "--steps", "120", cwd=tmp_path),
        "--onset must be below --steps = 120, got 500",
    )
    nothing_left(tmp_path)


def test_a_fault_that_the_demo_cannot_show_is_refused(tmp_path: Path) -> None:
    refused(
        tocsin("demo", "--fault", "stale-prefix-cache", cwd=tmp_path),
        "--fault stale-prefix-cache needs --sampler vllm, got `local`",
    )
    refused(
        tocsin("demo", "--fault", "top-p", "--sampler", "vllm", cwd=tmp_path),
        "--fault top-p needs --sampler local, got `vllm`",
    )
    refused(tocsin("demo", "--fault", "lost-optimizer", cwd=tmp_path), "--fault must be one of constant-reward, ")
    nothing_left(tmp_path)


def test_an_unknown_rule_names_the_nearest_ones(config: RunConfig, tmp_path: Path) -> None:
    refused(trained(changed(config, tmp_path, "diagnostics", "disable", to=["RWD999"])), "RWD999", "RWD009")


def test_an_unknown_threshold_lists_the_thresholds(config: RunConfig, tmp_path: Path) -> None:
    file = changed(config, tmp_path, "diagnostics", "thresholds", to={"OFF001": {"fier": 3.0}})
    refused(trained(file), "OFF001", "fier", "fire")


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    refused(trained(tmp_path / "none.toml"), "CONFIG must be a readable TOML file", "none.toml")


def test_a_configuration_that_is_no_toml_is_named_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("steps = = 3\n")
    refused(trained(file), "run.toml: must be TOML: Invalid value (at line 1, column 9)")


@pytest.mark.parametrize("key", ["train", "evaluation"])
def test_a_missing_data_file_is_named(config: RunConfig, tmp_path: Path, key: str) -> None:
    refused(
        trained(changed(config, tmp_path, "data", key, to="nowhere.jsonl")),
        "`nowhere.jsonl` must be a readable file",
        "`data.train`",
    )


def test_an_empty_data_file_is_refused(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    refused(
        trained(changed(config, tmp_path, "data", "train", to="empty.jsonl")),
        "`empty.jsonl` must hold at least one row",
        "check",
    )


@pytest.mark.parametrize("path", ["./no/such/model", "/no/such/model", "here"])
def test_a_folder_without_a_model_is_refused(config: RunConfig, tmp_path: Path, path: str) -> None:
    (tmp_path / "here").mkdir()
    done = trained(changed(config, tmp_path, "model", "path", to=path))
    refused(done, f"`model.path` must be a model folder or hub id, got `{path}`", "correct the path")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("nowhere:score", "be in a module that can be imported, got ModuleNotFoundError: No module named 'nowhere'"),
        ("here:nothing", "exist: `here` has no `nothing`"),
        ("here:NUMBER", "be callable, got int"),
        ("broken:score", "be in a module that can be imported, got ZeroDivisionError: division by zero"),
    ],
)
def test_a_reward_function_that_cannot_be_loaded_is_refused(
    config: RunConfig, tmp_path: Path, function: str, problem: str
) -> None:
    (tmp_path / "here.py").write_text("NUMBER = 3\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    done = trained(changed(config, tmp_path, "rewards", to=[{"function": function}]))
    assert f"reward function `{function}` must {problem}; correct `rewards.function`" in done.stderr
    assert (done.code, len(done.stderr.splitlines())) == (2, 1)
    assert not done.imported_torch


def test_a_reward_function_that_the_data_cannot_satisfy_is_refused(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("def brevity(*, completion, **columns):\n    return [1.0]\n")
    done = trained(changed(config, tmp_path, "rewards", to=[{"function": "here:brevity"}]))
    assert done.code == 2
    assert "Traceback" not in done.stderr
    line = (
        "reward function `brevity` must take `completions`, `prompts` and columns of the data by name, got `completion`"
    )
    assert line in done.stderr


def test_neither_a_configuration_nor_a_run_to_resume_is_usage(tmp_path: Path) -> None:
    refused(tocsin("train", cwd=tmp_path), "give either CONFIG.toml or --resume RUN", "tocsin demo")


def test_a_step_to_go_back_to_needs_a_run(config: RunConfig, tmp_path: Path) -> None:
    refused(trained(write_config(config, tmp_path / "run.toml"), "--from", "3"), "--from goes with --resume RUN")


def test_a_run_that_does_not_exist_cannot_be_resumed(tmp_path: Path) -> None:
    refused(tocsin("train", "--resume", "ghost", cwd=tmp_path), "got `ghost`", "tocsin demo")


def test_a_model_that_cannot_be_read_is_refused_in_one_line_and_leaves_no_folder(
    config: RunConfig, tmp_path: Path
) -> None:
    broken = tmp_path / "model"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps({"model_type": "llama"}))
    done = trained(changed(config, tmp_path, "model", "path", to=str(broken)))
    assert done.code == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("tocsin: ")]
    assert len(errors) == 1
    assert f"`{broken}`" in errors[0]
    assert "`model.path` must" in errors[0]
    assert "Traceback" not in done.stderr
