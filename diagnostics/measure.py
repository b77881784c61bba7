"""`python -m tocsin.diagnostics.measure RUN`: what the diagnostics cost, measured on the events of a recorded run.

Says first what the run itself recorded of its weight syncs: how many were proved, and where their time went.

Replays the steps of one run again and again, with rising numbers, as if the run were `--steps` long. Prints steps per
second, the cost of the rules per step, and the resident memory on the way, which must not grow.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles

import psutil

from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.feed import EVENTS_FILE
from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.runs import find_run
from tocsin.schemas.base import as_float, read
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EVENT, RunEnded, RunResumed, RunStarted
from tocsin.schemas.generation import WeightsSynced

MIB = 1 << 20
REPORTED = frozenset(10**power for power in range(3, 10))
"""Steps after which memory is printed."""
KEPT = 100_000
"""Steps whose cost is kept."""


def endless(recorded: list[BaseEvent], steps: int) -> Iterator[list[BaseEvent]]:
    """The events of each step, over and over, numbered as one long run of `steps` steps."""
    opening = [event for event in recorded if isinstance(event, RunStarted)]
    body = [event for event in recorded if not isinstance(event, RunStarted | RunResumed | RunEnded)]
    length = max(event.step for event in body)
    seq = 0
    for lap in range(1 + steps // length):
        numbered: list[BaseEvent] = []
        for event in [*(opening if lap == 0 else []), *body]:
            seq += 1
            step = event.step + lap * length
            if numbered and numbered[-1].step != step:
                yield numbered
                numbered = []
            numbered.append(event.model_copy(update={"seq": seq, "step": step}))
        yield numbered


def judge_endless(recorded: list[BaseEvent], steps: int, look: Callable[[int], None] = lambda done: None) -> list[int]:
    """Nanoseconds that the engine took for each step of an endless run, of the first `KEPT` steps at most.

    `look` is told after each step how many are done.
    """
    engine, costs = Engine(), list[int]()
    for done, events in enumerate(endless(recorded, steps), start=1):
        start = time.perf_counter_ns()
        for event in events:
            engine.observe(event)
        if len(costs) < KEPT:
            costs.append(time.perf_counter_ns() - start)
        look(done)
    return costs


def measure_rules(recorded: list[BaseEvent], steps: int) -> None:
    """Print throughput, cost per step and memory of the engine over `steps` steps."""
    process, began, taken = psutil.Process(), time.perf_counter(), 0

    def look(done: int) -> None:
        nonlocal taken
        taken = done
        if done in REPORTED:
            print(f"after {done:>9,} steps: {process.memory_info().rss / MIB:.1f} MiB resident", flush=True)

    costs = judge_endless(recorded, steps, look)
    seconds = time.perf_counter() - began
    centiles = quantiles(costs, n=100)
    print(f"rules: {taken / seconds:,.0f} steps/s, {taken:,} steps in {seconds:.1f} s, renumbering included")
    print(f"rules: {median(costs) / 1e3:.0f} µs a step (median), {centiles[98] / 1e3:.0f} µs (p99)")


def describe_syncs(recorded: list[BaseEvent]) -> None:
    """Print the medians of the parts of all weight syncs, and the largest gap of a probe."""
    syncs = [event for event in recorded if isinstance(event, WeightsSynced)]
    if not syncs:
        return
    parts = {name: [event.seconds[name] for event in syncs if name in event.seconds] for name in syncs[-1].seconds}
    shown = ", ".join(f"{name} {median(values) * 1e3:.0f}" for name, values in parts.items())
    gap = max((as_float(event.probe_gap) for event in syncs), key=lambda value: (math.isnan(value), value))
    proved = sum(event.verified for event in syncs)
    print(f"syncs: {proved} of {len(syncs)} proved, largest gap {gap:.1e} nats; ms (medians): {shown}")


def replay_s(lines: Sequence[bytes]) -> float:
    """Seconds to parse and judge the lines of a recording, which is what `tocsin replay` does."""
    engine = Engine()
    began = time.perf_counter()
    for line in lines:
        engine.observe(read(EVENT, line))
    return time.perf_counter() - began


def measure_reading(path: Path, recorded: list[BaseEvent]) -> None:
    """Print the speed of a replay."""
    lines = path.read_bytes().splitlines()[1:]
    steps = max(event.step for event in recorded)
    seconds = replay_s(lines)
    print(f"replay: {steps / seconds:,.0f} steps/s, {len(lines)} events, {len(lines) / steps:.1f} events a step")


def main(arguments: list[str] | None = None) -> int:
    """Exit code 2 when the run cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m tocsin.diagnostics.measure", description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args(arguments)
    try:
        path = find_run(options.run, options.runs_dir) / EVENTS_FILE
        recorded = list(read_events(path))
    except (ValueError, OSError) as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 2
    if not any(event.step for event in recorded):
        print("tocsin: RUN must have at least one step; choose a longer run", file=sys.stderr)
        return 2
    describe_syncs(recorded)
    measure_reading(path, recorded)
    measure_rules(recorded, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
