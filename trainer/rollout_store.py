"""Completions of the consumed steps, kept as Parquet in `rollouts/`: what was generated, and what it was worth.

Read them with any Parquet reader, all attempts together:

    pyarrow.dataset.dataset("runs/latest/rollouts").to_table().to_pandas()

A file appears whole or not at all. After a resume the files of steps that are done over stay, from an earlier
`attempt`; the highest attempt of a step is the one that the final weights come from.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from tocsin.trainer.data import Completion, Group

BUFFERED_STEPS: Final = 20
"""Steps per file, and the most that a killed process loses besides what follows its last checkpoint."""

BUFFERED_CHARACTERS: Final = 32_000_000
"""Text that is kept in memory; long completions are written earlier."""

SCHEMA: Final = pa.schema(
    [
        ("attempt", pa.int32()),
        ("step", pa.int32()),
        ("group_index", pa.int64()),
        ("prompt_id", pa.string()),
        ("prompt", pa.string()),
        ("completion", pa.string()),
        ("reward", pa.float64()),
        ("components", pa.map_(pa.string(), pa.float64())),
        ("advantage", pa.float32()),
        ("finish_reason", pa.string()),
        ("num_tokens", pa.int32()),
        ("version_first", pa.int32()),
        ("version_last", pa.int32()),
        ("versions", pa.list_(pa.int32())),
        ("version_tokens", pa.list_(pa.int32())),
        ("staleness", pa.int32()),
        ("temperature", pa.float32()),
        ("max_tokens", pa.int32()),
        ("config_generation", pa.int32()),
        ("logprob_mean", pa.float32()),
        ("zero_spread", pa.bool_()),
    ]
)
"""One row per completion. `components`: unweighted reward by function, null where it could not tell. `staleness`:
steps between the weights of its first token and the weights that trained on it. `versions`, `version_tokens`: the
weights that its tokens were sampled with, in token order, and how many tokens each. `temperature`, `max_tokens`: as its
group was asked for. `logprob_mean`: the sampler's, over its tokens, in nats. `zero_spread`: its group carried no
signal."""


class RolloutStore:
    """Writer of one attempt. `add` each consumed step, `flush` at checkpoints, `close` at the end."""

    def __init__(self, folder: Path, *, attempt: int = 1) -> None:
        self.folder = folder
        self.attempt = attempt
        self._columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
        self._steps: list[int] = []
        self._characters = 0
        # The first conversion imports pandas where it is installed: 0.2 s that belong to the start of the run.
        pa.array([0], from_pandas=True)
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(".*.tmp"):
            unfinished.unlink()

    def add(self, step: int, groups: Sequence[Group], advantages: Iterable[npt.NDArray[np.floating[Any]]]) -> None:
        """Keep the groups that optimizer step `step` (0-based: the version of its weights) consumed.

        `advantages` has one array [G] per group, exactly zero where the group has no spread. Raises `OSError` when
        a file cannot be written; its rows stay in memory for the next attempt.
        """
        for group, values in zip(groups, advantages, strict=True):
            self._add_group(step, group, values)
        self._steps.append(step)
        if len(self._steps) >= BUFFERED_STEPS or self._characters >= BUFFERED_CHARACTERS:
            self.flush()

    def flush(self) -> Path | None:
        """Write what is in memory; the new file, or None when there was nothing."""
        if not self._columns["step"]:
            self._steps.clear()
            return None
        name = f"steps-{self._steps[0]:08d}-{self._steps[-1]:08d}-attempt-{self.attempt:03d}.parquet"
        aside = self.folder / f".{name}.tmp"
        arrays = [_array(self._columns[field.name], field.type) for field in SCHEMA]
        pyarrow.parquet.write_table(pa.table(arrays, schema=SCHEMA), aside, compression="zstd")
        path = aside.replace(self.folder / name)
        for column in self._columns.values():
            column.clear()
        self._steps.clear()
        self._characters = 0
        return path

    def close(self) -> None:
        """Write the rest."""
        self.flush()

    def _add_group(self, step: int, group: Group, advantages: npt.NDArray[np.floating[Any]]) -> None:
        request, completions = group.request, group.completions
        size = len(completions)
        first = [completion.versions[0][0] for completion in completions]
        components = zip(*(values.tolist() for values in group.components.values()), strict=True)
        rows: dict[str, list[Any]] = {
            "attempt": [self.attempt] * size,
            "step": [step] * size,
            "group_index": [request.index] * size,
            "prompt_id": [request.prompt.id] * size,
            "prompt": [request.prompt.text] * size,
            "completion": [completion.text for completion in completions],
            "reward": group.rewards.tolist(),
            "components": [list(zip(group.components, values, strict=True)) for values in components] or [[]] * size,
            "advantage": advantages.tolist(),
            "finish_reason": [completion.finish_reason for completion in completions],
            "num_tokens": [len(completion.token_ids) for completion in completions],
            "version_first": first,
            "version_last": [completion.versions[-1][0] for completion in completions],
            "versions": [[version for version, _ in completion.versions] for completion in completions],
            "version_tokens": [[tokens for _, tokens in completion.versions] for completion in completions],
            "staleness": [step - version for version in first],
            "temperature": [completion.temperature for completion in completions],
            "max_tokens": [request.max_tokens] * size,
            "config_generation": [request.config_generation] * size,
            "logprob_mean": [_mean(completion) for completion in completions],
            "zero_spread": [not advantages.any()] * size,
        }
        assert all(len(values) == size for values in rows.values()), "one reward and one advantage per completion"
        for name, values in rows.items():
            self._columns[name] += values
        self._characters += len(request.prompt.text) + sum(len(completion.text) for completion in completions)


def _mean(completion: Completion) -> float | None:
    # A seventh of the time of `.mean()`, which matters at thousands of completions a step.
    size = len(completion.logprobs)
    return float(np.add.reduce(completion.logprobs)) / size if size else None


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """An Arrow array of `values`; NaN becomes null, and text that is no valid Unicode is repaired."""
    if kind == pa.string():
        try:
            return pa.array(values, kind)
        except UnicodeEncodeError:
            return pa.array([text.encode("utf-8", "replace").decode() for text in values], kind)
    if not pa.types.is_map(kind):
        return pa.array(values, kind, from_pandas=True)
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    pairs = [pair for row in values for pair in row]
    keys = pa.array([label for label, _ in pairs], pa.string())
    items = pa.array([value for _, value in pairs], pa.float64(), from_pandas=True)
    return pa.MapArray.from_arrays(offsets, keys, items)
