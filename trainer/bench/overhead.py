"""What the diagnostics cost: in real runs, and in replays of what they recorded.

Runs the embedded model at two sizes of a step, one after the other, and reads off what each measured of itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from tocsin.diagnostics.feed import EVENTS_FILE
from tocsin.diagnostics.measure import MIB, judge_endless, replay_s
from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.runs import read_manifest
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.manifest import DiagnosticsCost
from tocsin.trainer.bench.cases import Case
from tocsin.trainer.bench.material import Material
from tocsin.trainer.bench.trial import finished, import_libraries, run

REPLAYS: Final = 3
"""Times that a recording is replayed; the median counts."""
JUDGED: Final = 2_000
"""Steps of the endless run whose cost is taken."""
WARM: Final = 10_000
"""Steps after which memory is first looked at."""

SIZES: Final = {
    "demo scale, 128 completions a step": Case(
        name="overhead/demo", split="test", material=Material("sort", 0), changes={"steps": 200}
    ),
    "1,024 completions a step": Case(
        name="overhead/large",
        split="test",
        material=Material("sort", 0),
        changes={"steps": 40, "knobs": {"groups_per_step": 128, "in_flight_groups": 256}},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The cost at one size of a step."""

    size: str
    cost: DiagnosticsCost
    events_per_step: float
    bytes_per_step: float
    replayed_steps_s: float
    """Steps per second of `tocsin replay`: parsing and judging, on one core."""
    rules_us: float
    """Of one step in the replay, with warm caches."""

    @property
    def share(self) -> float:
        """All three costs together, of a step."""
        return (self.cost.rules_s + self.cost.events_s + self.cost.emit_s) / self.cost.step_s


def measure_sizes(root: Path, note: Callable[[str], None]) -> Iterator[Overhead]:
    """Run each size that was not run before, and measure. Raises `RuntimeError` for a run that fails."""
    for size, case in SIZES.items():
        note(f"training: {size}")
        trial = finished(case, root)
        if trial is None:
            import_libraries()
            trial = run(case, root)
        cost = read_manifest(trial.folder).attempts[-1].cost
        if cost is None:
            raise RuntimeError(
                f"{trial.folder} must say what its diagnostics cost, and the run ended with {trial.code}"
            )
        note(f"replaying: {size}")
        path = trial.folder / EVENTS_FILE
        lines = path.read_bytes().splitlines()[1:]
        steps = max(event.step for event in read_events(path))
        yield Overhead(
            size=size,
            cost=cost,
            events_per_step=len(lines) / steps,
            bytes_per_step=sum(map(len, lines)) / steps,
            replayed_steps_s=steps / median(replay_s(lines) for _ in range(REPLAYS)),
            rules_us=median(judge_endless(list(read_events(path)), JUDGED)) / 1e3,
        )


def memory_mib(recorded: list[BaseEvent], steps: int, note: Callable[[str], None]) -> tuple[float, float]:
    """Resident memory of this process after `WARM` steps of an endless run and after `steps`."""
    process, seen = psutil.Process(), list[float]()

    def look(done: int) -> None:
        if done in (WARM, steps):
            seen.append(process.memory_info().rss / MIB)
        if done % WARM == 0:
            note(f"memory: {done:,} of {steps:,} steps")

    judge_endless(recorded, steps, look)
    return seen[0], seen[-1]
