"""Every metric of every event around one step: what a reader wants to see beside a finding."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from tocsin.schemas.base import NonFinite
from tocsin.schemas.event import BaseEvent

Scalar = bool | int | float | str | NonFinite
Metrics = dict[str, Scalar]

ENVELOPE: Final = frozenset(BaseEvent.model_fields) | {"type"}
HISTOGRAM_KEYS: Final = {"edges", "counts"}

_JSON: Final[TypeAdapter[dict[str, Any]]] = TypeAdapter(dict[str, Any])


class NoSuchStep(ValueError):
    """The recording holds no event around a step."""


@dataclass(frozen=True, slots=True)
class Row:
    """The metrics of one event. `metrics` maps paths such as `logprob_gap.k1` to values."""

    seq: int
    attempt: int
    step: int
    ts: str
    type: str
    metrics: Metrics

    def json(self) -> str:
        """One line of `tocsin snapshot --json`."""
        content = {"record": "snapshot", "seq": self.seq, "attempt": self.attempt, "step": self.step, "ts": self.ts}
        content |= {"type": self.type, "metrics": self.metrics}
        return _JSON.dump_json(content, ensure_ascii=True).decode()


@dataclass(frozen=True, slots=True)
class Window:
    """Rows around a step, and the steps that the whole recording spans."""

    rows: list[Row]
    first_step: int
    last_step: int


def around(events: Iterable[BaseEvent], *, step: int, width: int) -> Window:
    """Rows of the events from `step - width` to `step + width`, in the order of the recording.

    Raises `NoSuchStep`.
    """
    rows: list[Row] = []
    first: int | None = None
    last = 0
    for event in events:
        first = event.step if first is None else min(first, event.step)
        last = max(last, event.step)
        if abs(event.step - step) <= width:
            rows.append(_row(event))
    if first is None:
        raise NoSuchStep(f"around step {step}: the run must have recorded an event, got none; wait for its first step")
    if not rows:
        raise NoSuchStep(
            f"around must be a recorded step, got {step} with window {width}; this run has steps {first} to {last}"
        )
    return Window(rows, first, last)


def _row(event: BaseEvent) -> Row:
    content = dict(event)
    kind = str(content.get("type", "unknown"))
    metrics = dict(_flatten("", {name: part for name, part in content.items() if name not in ENVELOPE}))
    return Row(event.seq, event.attempt, event.step, event.ts, kind, metrics)


def _flatten(path: str, item: Any) -> Iterator[tuple[str, Scalar]]:
    """Leaves of `item` by dotted path. Absent values are left out; columns become min, mean and max."""
    if isinstance(item, NonFinite | bool | int | float | str):
        yield path, item
    elif isinstance(item, Mapping):
        if item.keys() != HISTOGRAM_KEYS:
            for name, part in item.items():
                yield from _flatten(f"{path}.{name}" if path else str(name), part)
    elif isinstance(item, Sequence):
        yield from _column(path, item)
    elif item is not None:
        yield from _flatten(path, dict(item))


def _column(path: str, items: Sequence[Any]) -> Iterator[tuple[str, Scalar]]:
    """A column: numbers as `min`, `mean`, `max` and a count of `nonfinite`; flags as `frac`; models by index."""
    if not items:
        return
    if all(isinstance(item, bool) for item in items):
        yield f"{path}.frac", sum(items) / len(items)
    elif all(isinstance(item, int | float | NonFinite) for item in items):
        finite = [item for item in items if not isinstance(item, NonFinite)]
        if finite:
            yield f"{path}.min", min(finite)
            yield f"{path}.mean", sum(finite) / len(finite)
            yield f"{path}.max", max(finite)
        if len(finite) < len(items):
            yield f"{path}.nonfinite", len(items) - len(finite)
    elif all(isinstance(item, str) for item in items):
        yield f"{path}.distinct", len(set(items))
    else:
        for index, item in enumerate(items):
            yield from _flatten(f"{path}.{index}", item)


@dataclass(frozen=True, slots=True)
class Span:
    """Smallest and largest value of a column."""

    low: int | float
    high: int | float


Cell = Scalar | Span


@dataclass(frozen=True, slots=True)
class Grid:
    """Metrics in rows, steps in columns; `cells[metric][step]` is the last value of that step."""

    steps: list[int]
    cells: dict[str, dict[int, Cell]]
    counts: dict[str, dict[int, int]]
    """Events of each type by step."""


def grid(window: Window) -> Grid:
    """The window as a table. A step that a later attempt did over shows the later attempt."""
    newest: dict[int, int] = {}
    for row in window.rows:
        newest[row.step] = max(row.attempt, newest.get(row.step, 0))
    cells: dict[str, dict[int, Cell]] = {}
    counts: dict[str, dict[int, int]] = {}
    for row in window.rows:
        if row.attempt < newest[row.step]:
            continue
        by_step = counts.setdefault(row.type, {})
        by_step[row.step] = by_step.get(row.step, 0) + 1
        for path, leaf in _with_spans(row.metrics):
            cells.setdefault(f"{row.type}.{path}", {})[row.step] = leaf
    order = sorted(cells, key=lambda metric: list(counts).index(metric.split(".", 1)[0]))
    return Grid(sorted(newest), {metric: cells[metric] for metric in order}, counts)


def _with_spans(metrics: Metrics) -> Iterator[tuple[str, Cell]]:
    """`metrics` with the three numbers of a column as one span."""
    columns = {path.removesuffix(".min") for path in metrics if path.endswith(".min")}
    for path, leaf in metrics.items():
        stem, _, last = path.rpartition(".")
        if stem not in columns or last not in ("min", "mean", "max"):
            yield path, leaf
        elif last == "max" and isinstance(leaf, int | float):
            low = metrics[f"{stem}.min"]
            assert isinstance(low, int | float), "a column's ends are numbers"
            yield stem, Span(low, leaf)
