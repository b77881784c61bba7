"""`python -m tocsin.diagnostics.otel.cost RUN`: what exporting a recorded run over OTLP costs a step.

The events and records of the run are handed over again at the pace at which they were made, first to nobody and then to
the exporters of the SDK as the `OTEL_*` variables set them, which send to a receiver in a process of its own. What is
counted is the processor time of all threads of this process, the encoding and sending of spans, metrics and log events
included, less that of the replay that exports nothing; and apart from it the time of the thread that hands over.
"""

import argparse
import contextlib
import multiprocessing
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from tocsin.diagnostics.errors import BAD_INPUT, CANNOT_TELL, error_line
from tocsin.diagnostics.feed import EVENTS_FILE, FEED_FILE, Record, readable_records
from tocsin.diagnostics.otel.environment import ENDPOINT, start_export
from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.runs import RunNotFound, find_run
from tocsin.diagnostics.variables import environment_variables
from tocsin.schemas.base import as_float
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.feed import UnknownRecord
from tocsin.schemas.step import StepCompleted

WAIT_S: Final = 30.0


class Spent(NamedTuple):
    """Of a whole replay."""

    processor_s: float
    """Of all threads."""
    handing_s: float
    """Wall-clock time in which the calling thread was held up."""
    sent: int = 0
    """Bytes that the receiver got, compressed if the variables say so."""


class Recording(NamedTuple):
    """What a run wrote, in the order in which its monitor said it."""

    events: list[BaseEvent]
    records: dict[int, list[Record]]
    """By the number of the event that gave rise to them."""

    def replay(self, observe: Callable[[BaseEvent], None], record: Callable[[Record], None]) -> float:
        """Hand everything over at the pace of the run; seconds that handing it over took."""
        began, first, handing_s = time.monotonic(), self.events[0].mono, 0.0
        for event in self.events:
            if (early := event.mono - first - (time.monotonic() - began)) > 0:
                time.sleep(early)
            start = time.perf_counter()
            observe(event)
            for said in self.records.get(event.seq, ()):
                record(said)
            handing_s += time.perf_counter() - start
        return handing_s


def read_recording(folder: Path) -> Recording:
    """The events and records of a run. Raises `ValueError` when there is nothing to hand over."""
    records = defaultdict[int, list[Record]](list)
    for record in readable_records((folder / FEED_FILE).read_bytes().splitlines()):
        if not isinstance(record, UnknownRecord):
            records[record.event_seq].append(record)
    events = list(read_events(folder / EVENTS_FILE))
    if len({event.attempt for event in events}) != 1 or not any(isinstance(e, StepCompleted) for e in events):
        raise ValueError(f"the run must have steps and must not have been resumed: {folder}")
    return Recording(events, records)


def _receive(answer: Connection) -> None:
    """Take whatever is posted until a word comes, and answer with the number of bytes."""
    sizes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        """Answers 200 to everything."""

        def do_POST(self) -> None:
            """Read the body and throw it away."""
            sizes.append(len(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answer.send(server.server_port)
    answer.recv()
    answer.send(sum(sizes))


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, Callable[[], int]]]:
    """Address of a receiver in a process of its own, and what ends it and says how many bytes it got."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()

    def received() -> int:
        ours.send("over")
        return int(ours.recv())

    process = context.Process(target=_receive, args=(theirs,), daemon=True)
    process.start()
    try:
        if not ours.poll(WAIT_S):
            raise RuntimeError(f"the receiver did not start within {WAIT_S:g} s")
        yield f"http://127.0.0.1:{ours.recv()}", received
    finally:
        process.terminate()
        process.join()


def replay_alone(recording: Recording) -> Spent:
    """The cost of the replay itself."""
    began = time.process_time()
    handing_s = recording.replay(lambda event: None, lambda record: None)
    return Spent(time.process_time() - began, handing_s)


def replay_exporting(recording: Recording) -> Spent:
    """The cost of the replay with all three signals exported. Once a process: the SDK's providers are global.

    Raises `RuntimeError` when the SDK cannot be started.
    """
    with receiver() as (url, received), environment_variables({ENDPOINT: url}):
        complaints: list[str] = []
        export = start_export(recording.events[0].run_id, complaints.append)
        if export is None:
            raise RuntimeError(complaints[0])
        began = time.process_time()
        handing_s = recording.replay(export.observe, export.record)
        export.close()
        spent = Spent(time.process_time() - began, handing_s, received())
    if complaints:
        raise RuntimeError(complaints[0])
    return spent


def main(arguments: list[str] | None = None) -> int:
    """Exit code 2 or 3 when the run cannot be read or exported."""
    parser = argparse.ArgumentParser(prog="python -m tocsin.diagnostics.otel.cost", description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    options = parser.parse_args(arguments)
    try:
        recording = read_recording(find_run(options.run, options.runs_dir))
        alone, exporting = replay_alone(recording), replay_exporting(recording)
    except (ValueError, OSError, RuntimeError) as error:
        print(error_line(str(error)), file=sys.stderr)
        return CANNOT_TELL if isinstance(error, RunNotFound) else BAD_INPUT
    steps = [as_float(event.seconds["total"]) for event in recording.events if isinstance(event, StepCompleted)]
    step_s = median(steps)
    all_s = (exporting.processor_s - alone.processor_s) / len(steps)
    held_s = (exporting.handing_s - alone.handing_s) / len(steps)
    print(
        f"export: {all_s * 1e3:.2f} ms of processor time a step in all threads ({all_s / step_s:.2%} of its "
        f"{step_s * 1e3:.0f} ms), {held_s * 1e3:.2f} ms of it where events are handed over; "
        f"{exporting.sent / len(steps) / 1024:.1f} KiB a step sent, {len(steps)} steps"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
