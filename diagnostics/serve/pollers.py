"""`python -m tocsin.diagnostics.serve.pollers`: many pollers at a time, how long a poll takes, and what is missed.

Starts `tocsin serve` in a process of its own on a run folder that a thread writes, polls it over sockets that stay
open, and prints the times of all polls. Each poller asks every `--interval` seconds, out of step with the others.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Final

import psutil

from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.feed import RunWriter
from tocsin.schemas.diagnosis import At, Coverage

RUN: Final = "polled-1"


@dataclass
class Poller:
    """One poller and what it got."""

    seconds: list[float] = field(default_factory=list)
    """Of every poll, from the first byte sent to the last one received."""
    seen: list[int] = field(default_factory=list)
    """Numbers of the records, in the order of their coming."""
    cursor: str = ""
    wait_s: float = 0.0

    async def poll(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Ask once; whether there is more."""
        address = f"/runs/{RUN}/feed?limit=100&wait_s={self.wait_s}&cursor={self.cursor}"
        began = time.perf_counter()
        writer.write(f"GET {address} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head)
        assert head.startswith(b"HTTP/1.1 200"), head.decode()
        assert found is not None, head.decode()
        page = json.loads(await reader.readexactly(int(found[1])))
        self.seconds.append(time.perf_counter() - began)
        self.seen += [record["seq"] for record in page["records"]]
        self.cursor = page["next_cursor"]
        return bool(page["has_more"])

    async def go_on(self, port: int, interval_s: float, over: threading.Event) -> None:
        """Poll until the writer has ended and everything is read."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(random.uniform(0, interval_s))
        is_last = False
        while not is_last:
            is_last = over.is_set()
            while await self.poll(reader, writer):
                pass
            await asyncio.sleep(0 if is_last else interval_s)
        writer.close()


def write_records(writer: RunWriter, rate: float, num: int, over: threading.Event) -> None:
    """Append `num` records, at most `rate` a second, then set `over`."""
    for number in range(1, num + 1):
        at = At(step=number, policy_version=number, ts=utc_text())
        writer.record(Coverage(event_seq=number, at=at, evaluated=["POL015"], not_evaluated={}, health="ok"))
        time.sleep(1 / rate)
    over.set()


async def poll_all(port: int, cursor: str, options: argparse.Namespace, over: threading.Event) -> list[Poller]:
    """All pollers, when they are done."""
    pollers = [Poller(cursor=cursor, wait_s=options.wait) for _ in range(options.pollers)]
    await asyncio.gather(*(poller.go_on(port, options.interval, over) for poller in pollers))
    return pollers


def report(pollers: list[Poller], written: int) -> int:
    """Print what was measured; how many records were missed or came twice."""
    seconds = sorted(second for poller in pollers for second in poller.seconds)
    centiles = quantiles(seconds, n=100)
    wrong = sum(poller.seen != list(range(1, written + 1)) for poller in pollers)
    print(
        f"{len(pollers)} pollers, {len(seconds):,} polls, {written:,} records: "
        f"p50 {1e3 * centiles[49]:.1f} ms, p99 {1e3 * centiles[98]:.1f} ms, largest {1e3 * seconds[-1]:.1f} ms; "
        f"{wrong} pollers missed a record or got one twice"
    )
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 when anything was missed."""
    parser = argparse.ArgumentParser(prog="python -m tocsin.diagnostics.serve.pollers", description=__doc__)
    parser.add_argument("--pollers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two polls of one poller")
    parser.add_argument(
        "--wait", type=float, default=0.0, help="seconds that a poll waits for news, as part of its time"
    )
    parser.add_argument("--rate", type=float, default=5.0, help="records a second")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, RunWriter(Path(folder) / RUN, RUN) as writer:
        command = [sys.executable, "-m", "tocsin.diagnostics.cli", "serve", folder, "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            try:
                return _measure(server, writer, options)
            finally:
                server.terminate()


def _measure(server: "subprocess.Popen[str]", writer: RunWriter, options: argparse.Namespace) -> int:
    assert server.stderr is not None
    ports = (re.search(r"at http://127\.0\.0\.1:(\d+)", line) for line in server.stderr)
    port = int(next(found[1] for found in ports if found))
    first = json.loads((writer.folder / "feed.jsonl").read_text().splitlines()[0])["epoch"]
    over, process = threading.Event(), psutil.Process(server.pid)
    before = process.cpu_times()
    num = round(options.rate * options.seconds)
    writing = threading.Thread(target=write_records, args=(writer, options.rate, num, over))
    writing.start()
    pollers = asyncio.run(poll_all(port, f"{first}.0", options, over))
    writing.join()
    used = process.cpu_times()
    polls = sum(len(poller.seconds) for poller in pollers)
    busy_s = used.user + used.system - before.user - before.system
    print(f"server: {1e3 * busy_s / polls:.2f} ms of processor time a poll, {process.memory_info().rss >> 20} MiB")
    return min(1, report(pollers, num))


if __name__ == "__main__":
    sys.exit(main())
