"""What is refused before anything starts: each message names the thing, the rule and the remedy."""

import re
from pathlib import Path

import pytest

from tocsin.diagnostics.cli import main
from tocsin.trainer.launch import ConfigError, parse_settings, read_config

GOOD = """
steps = 100
seed = 3
[model]
path = "some/model"
[data]
train = "train.jsonl"
[[rewards]]
function = "exact"
[[rewards]]
function = "my.module:score"
weight = 2
range = [0, 1]
[knobs]
learning_rate = 1
group_size = 4
[diagnostics]
disable = ["RWD001", "staleness-high"]
[diagnostics.thresholds.OFF001]
fire = 6
"""


def config_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "run.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(folder: Path, text: str | bytes, *settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(config_file(folder, text), list(settings))
    return str(caught.value)


def test_a_good_file_is_read_with_integers_where_floats_belong(tmp_path: Path):
    config = read_config(config_file(tmp_path, GOOD), ["learning_rate=1e-4", "skip_zero_spread=false"])
    assert (config.steps, config.seed, config.model.path) == (100, 3, "some/model")
    assert config.knobs.learning_rate == 1e-4, "--set beats the file"
    assert config.knobs.group_size == 4
    assert config.knobs.skip_zero_spread is False
    assert config.rewards[1].range == (0.0, 1.0)
    assert config.reward_range == (0.0, 3.0)
    assert config.diagnostics.thresholds == {"OFF001": {"fire": 6.0}}


def test_knobs_can_be_set_where_the_file_has_none(tmp_path: Path):
    text = GOOD.replace("[knobs]\nlearning_rate = 1\ngroup_size = 4\n", "")
    assert read_config(config_file(tmp_path, text), ["group_size=16"]).knobs.group_size == 16


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 100", 'steps = "10"', r"run\.toml: `steps`: Input should be a valid integer, got '10'"),
        ("steps = 100", "steps = 10.0", r"`steps`: Input should be a valid integer, got 10\.0"),
        ("steps = 100", "steps = 0", r"`steps`: Input should be greater than 0, got 0"),
        ("steps = 100", "", r"`steps`: is required and missing"),
        ("learning_rate = 1", "learning_rate = true", r"`knobs\.learning_rate`: .* valid number, got True"),
        ("learning_rate = 1", "learning_rate = nan", r"`learning_rate` must be between 0 and 1, got nan"),
        ("learning_rate = 1", 'learning_rate = "1e-4"', r"`knobs\.learning_rate`: Input should be a valid number"),
        ("group_size = 4", "group_size = 1", r"`group_size` must be between 2 and 1024, got 1"),
        ("group_size = 4", "groupsize = 4", r"`knobs\.groupsize`: unknown key; remove it or check its spelling"),
        ("seed = 3", "sede = 3", r"`sede`: unknown key; remove it or check its spelling"),
        ("weight = 2", "weight = inf", r"`rewards\.1\.weight`: Input should be a finite number, got inf"),
        ('"exact"', '"exakt"', r"`rewards.function` must be one of exact, numeric, regex, math or .*got `exakt`"),
        ("range = [0, 1]", "range = [1, 0]", r"`rewards.range` must rise, got \[1\.0, 0\.0\]"),
        ('path = "some/model"', "path = 3", r"`model\.path`: Input should be a valid string, got 3"),
        ('"RWD001"', '"RWD999"', r"`diagnostics`: rule must be a code or name .* got `RWD999`.*`tocsin rules`"),
        ("range = [0, 1]", 'range = ["0", 1]', r"`rewards\.1\.range\.0`: Input should be a valid number, got '0'"),
        ("range = [0, 1]", "range = [0, 1, 2]", r"`rewards\.1\.range`: .* at most 2 items"),
        ("fire = 6", "fir = 6", r"threshold of OFF001 must be one that exists, got `fir`. Thresholds: .*fire"),
        ("fire = 6", 'fire = "6"', r"`diagnostics\.thresholds\.OFF001\.fire`: Input should be a valid number, got '6'"),
        ("[knobs]", "[fault]\nname = 'x'\nonset_step = 1\n[knobs]", r"`fault\.name`: .* should be 'constant-reward'"),
    ],
)  # fmt: skip
def test_a_fault_in_the_file_is_named_with_its_rule(tmp_path: Path, old: str, new: str, message: str):
    assert old in GOOD
    text = refusal(tmp_path, GOOD.replace(old, new))
    assert re.search(message, text), text
    assert "\n" not in text


def test_every_fault_gets_a_line(tmp_path: Path):
    text = refusal(tmp_path, GOOD.replace("steps = 100", 'steps = "x"').replace("seed = 3", "seed = -1"))
    assert [line.split("`")[1] for line in text.splitlines()] == ["steps", "seed"]


def test_knobs_that_are_not_a_table_are_refused(tmp_path: Path):
    text = refusal(
        tmp_path, "knobs = 3\n" + GOOD.replace("[knobs]\nlearning_rate = 1\ngroup_size = 4\n", ""), "group_size=4"
    )
    assert "`knobs`: Input should be" in text


def test_a_missing_file_a_folder_and_a_binary_file_are_not_toml_files(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"CONFIG must be a readable TOML file, got `.*absent\.toml`: .*No such file"):
        read_config(tmp_path / "absent.toml", [])
    with pytest.raises(ConfigError, match=r"CONFIG must be a readable TOML file, .*directory"):
        read_config(tmp_path, [])
    assert re.search("CONFIG must be a readable TOML file, .*decode", refusal(tmp_path, b"\x89PNG\xff\x00"))


def test_text_that_is_not_toml_is_located(tmp_path: Path):
    text = refusal(tmp_path, "steps = 1\nsteps 2\n")
    assert re.search(r"run\.toml: must be TOML: .*line 2", text), text


def test_settings_keep_the_types_that_toml_has():
    settings = parse_settings(["learning_rate=1e-4", " group_size = 16", "skip_zero_spread=true", "clip_low=0"])
    assert settings == {"learning_rate": 1e-4, "group_size": 16, "skip_zero_spread": True, "clip_low": 0}
    assert [type(value) for value in settings.values()] == [float, int, bool, int]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("learning_rate", "--set must be `knob=value`, got `learning_rate`; for instance"),
        ("learning_rate=", "--set must be `knob=value`, got `learning_rate=`"),
        ("=3", "--set: unknown knob ``; the knobs are: clip_high, clip_low"),
        ("lerning_rate=1", "--set: unknown knob `lerning_rate`; the knobs are:"),
        ("group_size=big", "--set: `group_size` must be a number or true/false, got `big`"),
        ('group_size="8"', "--set: `group_size` must be a number or true/false, got `\"8\"`"),
        ("group_size=[8]", "--set: `group_size` must be a number or true/false, got `[8]`"),
        ("group_size=8\nsteps=1", "--set: `group_size` must be a number or true/false"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_used_says_why(setting: str, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_settings([setting])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("group_size=8.5", r"`knobs\.group_size`: Input should be a valid integer, got 8\.5"),
        ("group_size=true", r"`knobs\.group_size`: Input should be a valid integer, got True"),
        ("skip_zero_spread=1", r"`knobs\.skip_zero_spread`: Input should be a valid boolean, got 1"),
        ("max_staleness=99", r"`max_staleness` must be between 0 and 64, got 99"),
        ("weight_sync_every=5", r"must be at most `max_staleness` \+ 1 = 2, got 5: .*Raise `max_staleness`"),
    ],
)  # fmt: skip
def test_a_setting_out_of_type_or_bounds_is_refused_like_the_file(tmp_path: Path, setting: str, message: str):
    text = refusal(tmp_path, GOOD, setting)
    assert re.search(message, text), text


def test_the_command_refuses_with_one_line_exit_code_2_and_no_run_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = config_file(tmp_path, GOOD.replace("steps = 100", 'steps = "10"'))
    runs = tmp_path / "runs"
    assert main(["train", str(path), "--runs-dir", str(runs)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "`steps`: Input should be a valid integer, got '10'" in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not runs.exists()
