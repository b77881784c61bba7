"""Data sources: batches of rows out of files, folders and data sets, with one clear error for what cannot be used.

A source is a JSON Lines file (`.jsonl`, `.json`), a Parquet file (`.parquet`), a folder written by
`datasets.save_to_disk`, or the id of a `datasets` data set, with its configuration after a colon where it has
several (`openai/gsm8k:main`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tocsin.trainer.rewards import one_line

BATCH_ROWS: Final = 1000
FILES: Final = (".jsonl", ".json", ".parquet")
LOCAL: Final = (".", "/", "~")
"""How a source begins that can be no id of a data set."""

Row = tuple[int, dict[str, Any] | str]
"""Row number from 1, and the row or why it could not be read."""


class DataError(ValueError):
    """A data source cannot be used: what, which rule, and what to change, in one line."""


def read_rows(source: str, *, split: str, column: str) -> Iterator[tuple[list[Row], int, int]]:
    """Rows in batches, with how much of the source is done and how much there is. Raises `DataError`."""
    path = Path(source).expanduser()
    if path.is_dir():
        yield from _dataset_batches(_saved(path, split), source, column)
    elif path.suffix in (".jsonl", ".json"):
        yield from _json_batches(_existing(path))
    elif path.suffix == ".parquet":
        yield from _parquet_batches(_existing(path), column)
    elif path.is_file() or source.startswith(LOCAL):
        _existing(path)
        raise DataError(f"`{source}` must end in .jsonl, .json or .parquet, got `{path.suffix}`; convert it")
    else:
        yield from _dataset_batches(_from_hub(source, split), source, column)


def check_source(source: str, *, column: str) -> None:
    """Raises `DataError` for a file that is missing or holds no row, after a look at its first rows.

    Folders and data sets of a hub are left to `read_rows`: even a look at them takes seconds.
    """
    path = Path(source).expanduser()
    if path.is_dir() or not (path.suffix in FILES or path.is_file() or source.startswith(LOCAL)):
        return
    rows, _, _ = next(read_rows(source, split="", column=column))
    if not rows:
        raise DataError(empty(source))


def empty(source: str) -> str:
    """The message for a source without rows."""
    return f"`{source}` must hold at least one row, and it is empty; check `data.train` and `data.evaluation`"


def without_column(column: str, columns: list[str]) -> str:
    """The message for a prompt column that is not there."""
    present = ", ".join(f"`{name}`" for name in columns) or "none"
    return f"there is no column `{column}`; the columns are {present}: set `data.prompt_column`"


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(
            f"`{path}` must be a readable file, and there is none; check `data.train` and `data.evaluation`"
        )
    return path


def _json_batches(path: Path) -> Iterator[tuple[list[Row], int, int]]:
    rows: list[Row] = []
    done, total = 0, path.stat().st_size
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                done += len(line)
                content = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if number == 1 and path.suffix == ".json" and content.lstrip().startswith(b"["):
                    remedy = f"`jq -c '.[]' {path} > {path.with_suffix('.jsonl')}`"
                    raise DataError(f"`{path}` must hold one JSON object per line, got an array; convert it: {remedy}")
                if content.strip():
                    rows.append((number, _json_row(content)))
                if len(rows) == BATCH_ROWS:
                    yield rows, done, total
                    rows = []
    except OSError as error:
        raise DataError(f"`{path}` must be readable, got {one_line(error)}") from error
    yield rows, done, total


def _json_row(line: bytes) -> dict[str, Any] | str:
    try:
        row = json.loads(line.strip().decode(), parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        return f"must be a JSON object, got {one_line(error)}"
    return row if isinstance(row, dict) else f"must be a JSON object, got {type(row).__name__}"


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant}, which is not JSON")


def _parquet_batches(path: Path, column: str) -> Iterator[tuple[list[Row], int, int]]:
    import pyarrow  # noqa: PLC0415  # large; only read where the source is Parquet
    import pyarrow.parquet  # noqa: PLC0415

    done = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise DataError(f"`{path}`: {without_column(column, file.schema_arrow.names)}")
            for batch in file.iter_batches(BATCH_ROWS):
                rows = list(enumerate(batch.to_pylist(), start=done + 1))
                done += len(rows)
                yield rows, done, file.metadata.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"`{path}` must be a readable Parquet file, got {one_line(error)}") from error


def _dataset_batches(dataset: Any, source: str, column: str) -> Iterator[tuple[list[Row], int, int]]:
    if column not in dataset.column_names:
        raise DataError(f"`{source}`: {without_column(column, dataset.column_names)}")
    total, done = len(dataset), 0
    for columns in dataset.iter(BATCH_ROWS):
        values = zip(*columns.values(), strict=True)
        rows: list[Row] = [
            (number, dict(zip(columns, row, strict=True))) for number, row in enumerate(values, start=done + 1)
        ]
        done += len(rows)
        yield rows, done, total


def _saved(path: Path, split: str) -> Any:
    """One split of a folder written by `save_to_disk`; a folder that holds a single data set has no splits."""
    import datasets  # noqa: PLC0415  # over a second; only for sources that need it

    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # protects the start of the run: any file of the folder may be damaged
        raise DataError(f"`{path}` must be a folder written by `save_to_disk`, got {one_line(error)}") from error
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    if split not in loaded:
        present = ", ".join(f"`{name}`" for name in loaded)
        raise DataError(f"`{path}`: there is no split `{split}`; the splits are {present}: set `data.split`")
    return loaded[split]


def _from_hub(source: str, split: str) -> Any:
    import datasets  # noqa: PLC0415

    name, _, configuration = source.partition(":")
    try:
        return datasets.load_dataset(name, configuration or None, split=split)
    except Exception as error:  # protects the start of the run: the network, the hub and the data set's own files
        raise DataError(
            f"`{source}` must be a file, a folder or a data set that can be loaded (split `{split}`), "
            f"got {one_line(error)}"
        ) from error
