"""Many pollers at a time miss nothing. How fast they are is measured by `pollers`, not here."""

import argparse
import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.diagnostics.serve.servers import serving
from tocsin.diagnostics.feed import RunWriter
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.serve.pollers import RUN, Poller, poll_all, report, write_records


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
def test_a_hundred_pollers_get_every_record_once_and_in_order(runs: Path, capsys: Any, wait_s: float):
    with RunWriter(runs / RUN, RUN) as writer, serving(runs) as client:
        start = FeedReader(runs / RUN).page().next_cursor
        over = threading.Event()
        writing = threading.Thread(target=write_records, args=(writer, 50.0, 60, over))
        writing.start()
        options = argparse.Namespace(pollers=100, interval=0.5, wait=wait_s)
        pollers = asyncio.run(poll_all(client.base_url.port or 80, start, options, over))
        writing.join()
    assert report(pollers, 60) == 0
    assert "0 pollers missed a record" in capsys.readouterr().out


def test_a_record_that_is_missed_is_counted(capsys: Any):
    complete = Poller(seconds=[0.1, 0.2], seen=[1, 2, 3])
    assert report([complete, Poller(seconds=[0.1], seen=[1, 3])], 3) == 1
    assert report([complete, Poller(seconds=[0.1], seen=[1, 2, 2, 3])], 3) == 1
