"""`python -m tocsin.diagnostics.measure RUN`: what the diagnostics cost, measured on the events of a recorded run.

Replays the steps of one run again and again, with rising numbers, as if the run were `--steps` long. Prints steps per
second, the cost of the rules per step, and the resident memory on the way, which must not grow.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

import psutil

from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.feed import EVENTS_FILE
from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.runs import find_run
from tocsin.schemas.base import read
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EVENT, RunEnded, RunResumed, RunStarted

MIB = 1 << 20


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


def measure_rules(recorded: list[BaseEvent], steps: int) -> None:
    """Print throughput, cost per step and memory of the engine over `steps` steps."""
    engine, process = Engine(), psutil.Process()
    costs: list[int] = []
    began, next_report = time.perf_counter(), 1_000
    done = 0
    for done, events in enumerate(endless(recorded, steps), start=1):
        start = time.perf_counter_ns()
        for event in events:
            engine.observe(event)
        if len(costs) < 100_000:
            costs.append(time.perf_counter_ns() - start)
        if done == next_report:
            print(f"after {done:>9,} steps: {process.memory_info().rss / MIB:.1f} MiB resident", flush=True)
            next_report *= 10
    seconds = time.perf_counter() - began
    centiles = quantiles(costs, n=100)
    print(f"rules: {done / seconds:,.0f} steps/s, {done:,} steps in {seconds:.1f} s, renumbering included")
    print(f"rules: {median(costs) / 1e3:.0f} µs a step (median), {centiles[98] / 1e3:.0f} µs (p99)")


def measure_reading(path: Path, recorded: list[BaseEvent]) -> None:
    """Print the speed of parsing and judging, which is what `tocsin replay` does."""
    lines = path.read_bytes().splitlines()[1:]
    engine = Engine()
    steps = max(event.step for event in recorded)
    began = time.perf_counter()
    for line in lines:
        engine.observe(read(EVENT, line))
    seconds = time.perf_counter() - began
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
    measure_reading(path, recorded)
    measure_rules(recorded, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
