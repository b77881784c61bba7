"""`tocsin send`: alerts and telemetry of a run from its files, whoever writes them and wherever.

events.jsonl --> EventTail --+--> Outlets --> receivers of alerts, OpenTelemetry
feed.jsonl  ---> FeedReader -+
lock, age   ---> writer state `--> a run that is dead is an alert, which the run itself cannot send
"""

import importlib.util
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from pydantic import ValidationError

from tocsin.diagnostics.feed import EVENTS_FILE, FEED_FILE
from tocsin.diagnostics.jsonl import read_header
from tocsin.diagnostics.options import RUNS, RunArgument, RunsDir
from tocsin.diagnostics.otel.environment import start_export
from tocsin.diagnostics.outlets import Outlet, Outlets
from tocsin.diagnostics.output import note
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.runs import find_run
from tocsin.diagnostics.status import gather, recent
from tocsin.diagnostics.watch import MAX_PAGE, OVER, EventTail
from tocsin.schemas.alerts import AlertConfig
from tocsin.schemas.config import describe_errors
from tocsin.schemas.diagnosis import Severity
from tocsin.schemas.feed import Page, UnknownRecord

if TYPE_CHECKING:
    from tocsin.diagnostics.alerts.delivery import Alerts

app = typer.Typer()

POLL_S: Final = 1.0
FROM_ENVIRONMENT: Final = "env:"


@app.command()
def send(
    run: RunArgument,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to", metavar="KIND=URL", help="Receiver: webhook, slack or alertmanager; URL or env:NAME; repeatable."
        ),
    ] = None,
    min_severity: Annotated[Severity, typer.Option("--min-severity", help="Leave out milder findings.")] = "warning",
    everything: Annotated[
        bool, typer.Option("--all", help="Send the telemetry of what is on file already, too.")
    ] = False,
    runs_dir: RunsDir = RUNS,
) -> None:
    """Send alerts and telemetry of a run, from its files.

    Goes on until the run ends or is dead. Alerts go to the receivers of --to: what is open now, what fires and
    resolves from now on, and that the run failed or died. Spans, metrics and log events go where the OTEL_* variables
    say. A run that delivers its own `[[alerts]]` or telemetry need not be sent again. Exit code as for `status`.

    \b
    Example:
      tocsin send latest --to alertmanager=http://127.0.0.1:9093
    """
    folder = find_run(run, runs_dir)
    configs = [_receiver(text, min_severity) for text in to or []]
    alerts = _alerts(configs) if configs else None
    export = start_export(folder.name, note)
    outlets: list[Outlet] = [outlet for outlet in (alerts, export) if outlet is not None]
    if not outlets:
        raise ValueError("send: needs a receiver, --to KIND=URL, or OTEL_EXPORTER_OTLP_ENDPOINT in the environment")
    following = Following(folder)
    try:
        if alerts is not None:
            following.tell_state(alerts)
        if export is not None and everything:
            following.catch_up(Outlets([export], note))
        else:
            following.skip()
        following.go_on(Outlets(outlets, note))
        if alerts is not None and following.has_died:
            following.tell_death(alerts)
    finally:
        for outlet in outlets:
            outlet.close()
    raise typer.Exit(gather(folder).exit_code)


def _receiver(text: str, min_severity: Severity) -> AlertConfig:
    """`KIND=URL` or `KIND=env:NAME`. Raises `ValueError` that does not repeat the address."""
    kind, _, address = text.partition("=")
    where = {"url": address}
    if address.startswith(FROM_ENVIRONMENT):
        where = {"url_env": address.removeprefix(FROM_ENVIRONMENT)}
    try:
        return AlertConfig.model_validate({"kind": kind, "min_severity": min_severity, **where})
    except ValidationError as error:
        raise ValueError(describe_errors(error.errors(), source="--to")) from error


def _alerts(configs: Sequence[AlertConfig]) -> "Alerts":
    missing = [name for name in ("httpx", "tenacity") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"send: needs {', '.join(missing)}; install with: pip install 'tocsin[alerts]'")
    from tocsin.diagnostics.alerts.delivery import Alerts  # noqa: PLC0415  httpx is in an extra

    return Alerts(configs, os.environ, note)


class Following:
    """A run as its files grow."""

    def __init__(self, folder: Path) -> None:
        self.has_died = False
        self._events, self._feed = folder / EVENTS_FILE, folder / FEED_FILE
        self._tail, self._reader = EventTail(self._events), FeedReader(folder)
        self._cursor = self._reader.page().next_cursor

    def tell_state(self, alerts: "Alerts") -> None:
        """What is open now, and that the run failed."""
        for record in self._reader.active():
            alerts.record(record)
        for newest in recent(self._events).events[:1]:
            alerts.observe(newest)

    def tell_death(self, alerts: "Alerts") -> None:
        """That nobody writes any more."""
        for newest in recent(self._events).events[:1]:
            alerts.died(newest)

    def skip(self) -> None:
        """Pass over what is on file."""
        self._tail.skip()

    def catch_up(self, outlets: Outlets) -> None:
        """Hand over what is on file."""
        self._hand_over_events(outlets)
        cursor = f"{read_header(self._feed, 'feed')[0].epoch}.0"
        while (page := self._reader.page(cursor, limit=MAX_PAGE)).records:
            _hand_over(page, outlets)
            cursor = self._cursor = page.next_cursor

    def go_on(self, outlets: Outlets) -> None:
        """Hand over what is written from now on, until the run ends or is dead."""
        while True:
            self._hand_over_events(outlets)
            page = self._reader.page(self._cursor, limit=MAX_PAGE)
            _hand_over(page, outlets)
            if page.writer.state in OVER and page.next_cursor == self._cursor:
                self.has_died = page.writer.state == "dead"
                return
            self._cursor = page.next_cursor
            if not page.has_more:
                time.sleep(POLL_S)

    def _hand_over_events(self, outlets: Outlets) -> None:
        for event in self._tail.new():
            outlets.observe(event)


def _hand_over(page: Page, outlets: Outlets) -> None:
    for record in page.records:
        if not isinstance(record, UnknownRecord):
            outlets.record(record)
