"""Recorded feeds to learn from: one run of each kind of fault and a healthy one, as the rules of today judge them.

    python -m tocsin.trainer.bench.feeds BENCH_DIR OUT_DIR

reads what `tocsin bench detect --out BENCH_DIR` trained and writes `OUT_DIR/<fault>.jsonl` and `OUT_DIR/healthy.jsonl`.
The same folder gives the same files again, byte for byte, until a rule changes.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tocsin.diagnostics.added_rules import Added
from tocsin.diagnostics.engine import Record
from tocsin.diagnostics.errors import BAD_INPUT, error_line
from tocsin.diagnostics.jsonl import read_header
from tocsin.diagnostics.output import note
from tocsin.diagnostics.recording import judge_again
from tocsin.schemas.diagnosis import Coverage
from tocsin.schemas.feed import Header
from tocsin.trainer.bench.cases import FAULTS, FaultKind, Split, cases
from tocsin.trainer.bench.detect import judge_all
from tocsin.trainer.bench.judge import Judged
from tocsin.trainer.bench.trial import finished

HEALTHY: Final = "healthy"


def chosen(kind: FaultKind, runs: Sequence[Judged]) -> Judged | None:
    """The run that shows a fault: at its last dose, or at its first where the last did no harm or has no first cause.

    Where no dose has both, the last one; None when there is no run of this kind.
    """
    found = [run for dose in reversed(kind.doses) for run in runs if run.case.kind is kind and run.case.dose == dose]
    shown = [run for run in found if run.harm and run.first is not None]
    return next(iter(shown or found), None)


def feed(events: Path) -> Iterator[Header | Record]:
    """The feed that this recording gives today, its header first, with the last of its coverage records only.

    Header and numbers come from the recording, so that they stay the same. Raises `NotAFeed`.
    """
    header, _ = read_header(events, "events")
    yield header.model_copy(update={"contents": "feed"})
    records = judge_again(events, Added()).records
    last = max((record.seq for record in records if isinstance(record, Coverage)), default=0)
    yield from (record for record in records if record.seq == last or not isinstance(record, Coverage))


def write_feeds(root: Path, out: Path, split: Split = "test") -> list[str]:
    """Write the feeds of the first material; returns the faults for which there is no run.

    Raises `ValueError` and `OSError`.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"OUT_DIR must be a folder, got the file `{out}`")
    everything = cases(split)
    faults = [case for case in everything if case.kind and case.material == everything[0].material]
    twins = {case.twin for case in faults}
    known = [case for case in everything if case.name in twins] + faults
    trials = {case.name: trial for case in known if (trial := finished(case, root)) is not None}
    healthy = known[0].name
    if healthy not in trials:
        raise ValueError(
            f"BENCH_DIR must hold the finished run `{healthy}`, got `{root}` without it; "
            f"train it with `tocsin bench detect --set {split} --out {root}`"
        )
    runs = judge_all(known, root, [], lambda _, name: note(f"judging {name}")).runs["tocsin"]
    places = {HEALTHY: trials[healthy].events_path}
    for kind in FAULTS:
        run = chosen(kind, runs)
        if run is not None:
            places[kind.name] = trials[run.case.name].events_path
    out.mkdir(parents=True, exist_ok=True)
    for name, events in places.items():
        lines = [record.model_dump_json(exclude_none=True) for record in feed(events)]
        (out / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [kind.name for kind in FAULTS if kind.name not in places]


def main(arguments: list[str] | None = None) -> int:
    """Exit code 2 when nothing can be written, with one line that says why."""
    parser = argparse.ArgumentParser(
        prog="python -m tocsin.trainer.bench.feeds", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("bench_dir", metavar="BENCH_DIR", type=Path, help="what `tocsin bench detect --out` wrote")
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path, help="folder of the feeds, made when it is not there")
    parser.add_argument("--set", dest="split", choices=("test", "tuning"), default="test", help="runs to take")
    options = parser.parse_args(arguments)
    try:
        missing = write_feeds(options.bench_dir, options.out_dir, options.split)
    except (ValueError, OSError) as error:
        print(error_line(str(error)), file=sys.stderr)
        return BAD_INPUT
    if missing:
        note(f"no feed of {', '.join(missing)}: `{options.bench_dir}` has no finished run of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
