"""The rollout data set: what was generated, readable as one Parquet data set over all attempts."""

import numpy as np
import pyarrow.dataset
import pyarrow.parquet
import pytest

from tocsin.trainer.data import Completion, Group, GroupRequest, Prompt
from tocsin.trainer.rollout_store import BUFFERED_STEPS, RolloutStore


def completion(text, *, tokens=2, versions=((3, 2),), reason="stop"):
    return Completion(
        token_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.full(tokens, -0.5, dtype=np.float32),
        finish_reason=reason,
        versions=versions,
        temperature=0.5,
        text=text,
    )


def group(completions, rewards, *, index=7, components=None):
    prompt = Prompt("4-abcd1234", "1+1=", np.array([1, 2], dtype=np.int32), {"answer": 2})
    return Group(
        request=GroupRequest(index, 4, prompt, len(completions), 0.5, 16, config_generation=2),
        completions=tuple(completions),
        rewards=np.array(rewards, dtype=np.float64),
        components={"r": np.array(rewards)} if components is None else components,
        num_failed=0,
        launched_at=0.0,
        generated_at=0.0,
        scored_at=1.0,
    )


def rows(folder):
    return pyarrow.dataset.dataset(folder).to_table().to_pylist()


def test_a_completion_is_one_row_with_everything_that_is_known_about_it(tmp_path):
    long = completion("3 日本 🙂\n", tokens=3, versions=((3, 1), (4, 2)), reason="length")
    store = RolloutStore(tmp_path / "rollouts", attempt=2)
    components = {"exact": np.array([1.0, 0.0]), "style": np.array([np.nan, 0.25])}
    store.add(5, [group([completion("2"), long], [1.0, 0.5], components=components)], [np.array([1.0, -1.0])])
    store.close()
    first, second = rows(tmp_path / "rollouts")
    assert first == {
        "attempt": 2,
        "step": 5,
        "group_index": 7,
        "prompt_id": "4-abcd1234",
        "prompt": "1+1=",
        "completion": "2",
        "reward": 1.0,
        "components": [("exact", 1.0), ("style", None)],
        "advantage": 1.0,
        "finish_reason": "stop",
        "num_tokens": 2,
        "version_first": 3,
        "version_last": 3,
        "versions": [3],
        "version_tokens": [2],
        "staleness": 2,
        "temperature": 0.5,
        "max_tokens": 16,
        "config_generation": 2,
        "logprob_mean": -0.5,
        "zero_spread": False,
    }
    assert second["completion"] == "3 日本 🙂\n"
    assert second["components"] == [("exact", 0.0), ("style", 0.25)]
    assert (second["version_first"], second["version_last"], second["staleness"]) == (3, 4, 2)
    assert (second["versions"], second["version_tokens"]) == ([3, 4], [1, 2])
    assert (second["finish_reason"], second["num_tokens"]) == ("length", 3)


def test_groups_without_spread_are_marked(tmp_path):
    store = RolloutStore(tmp_path)
    groups = [
        group([completion("a"), completion("b")], [1.0, 1.0]),
        group([completion("a"), completion("b")], [0.0, 1.0]),
    ]
    store.add(4, groups, [np.zeros(2), np.array([-1.0, 1.0])])
    store.close()
    assert [row["zero_spread"] for row in rows(tmp_path)] == [True, True, False, False]


def test_steps_are_written_together_and_files_are_named_by_their_steps(tmp_path):
    store = RolloutStore(tmp_path, attempt=1)
    for step in range(BUFFERED_STEPS + 2):
        store.add(step, [group([completion("a")], [1.0])], [np.zeros(1)])
    assert [path.name for path in tmp_path.iterdir()] == ["steps-00000000-00000019-attempt-001.parquet"]
    assert store.flush() == tmp_path / "steps-00000020-00000021-attempt-001.parquet"
    assert store.flush() is None
    assert sorted(row["step"] for row in rows(tmp_path)) == list(range(22))


def test_long_completions_are_not_kept_in_memory(tmp_path):
    store = RolloutStore(tmp_path)
    store.add(0, [group([completion("x" * 20_000_000), completion("y" * 20_000_000)], [0.0, 1.0])], [np.ones(2)])
    (path,) = tmp_path.iterdir()
    assert pyarrow.parquet.read_metadata(path).num_rows == 2


def test_a_resumed_attempt_adds_to_what_an_earlier_one_left(tmp_path):
    for attempt in (1, 2):
        store = RolloutStore(tmp_path, attempt=attempt)
        store.add(3, [group([completion(f"attempt {attempt}")], [1.0])], [np.zeros(1)])
        store.close()
    assert sorted((row["attempt"], row["completion"]) for row in rows(tmp_path)) == [(1, "attempt 1"), (2, "attempt 2")]


def test_a_file_that_a_killed_process_left_unfinished_is_never_read_and_is_cleared_away(tmp_path):
    unfinished = tmp_path / ".steps-00000000-00000019-attempt-001.parquet.tmp"
    unfinished.write_bytes(b"PAR1")
    store = RolloutStore(tmp_path, attempt=2)
    assert not unfinished.exists()
    unfinished.write_bytes(b"PAR1")
    store.add(0, [group([completion("a")], [1.0])], [np.zeros(1)])
    store.close()
    assert len(rows(tmp_path)) == 1


def test_text_that_is_no_valid_unicode_is_repaired_and_loses_nothing_else(tmp_path):
    store = RolloutStore(tmp_path)
    store.add(0, [group([completion("ok"), completion("\ud800!")], [0.0, 1.0])], [np.ones(2)])
    store.close()
    assert [row["completion"] for row in rows(tmp_path)] == ["ok", "?!"]


def test_steps_without_rows_write_nothing(tmp_path):
    store = RolloutStore(tmp_path)
    for step in range(BUFFERED_STEPS + 1):
        store.add(step, [], [])
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_a_group_without_components_or_tokens_has_empty_entries(tmp_path):
    store = RolloutStore(tmp_path)
    store.add(5, [group([completion("", tokens=0)], [1.0], components={})], [np.zeros(1)])
    store.close()
    (row,) = rows(tmp_path)
    assert (row["components"], row["logprob_mean"], row["num_tokens"]) == ([], None, 0)


def test_rows_stay_in_memory_when_they_cannot_be_written(tmp_path):
    folder = tmp_path / "rollouts"
    store = RolloutStore(folder)
    store.add(5, [group([completion("a")], [1.0])], [np.zeros(1)])
    folder.rmdir()
    with pytest.raises(OSError, match="rollouts"):
        store.flush()
    folder.mkdir()
    store.close()
    assert len(rows(folder)) == 1
