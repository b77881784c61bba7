"""Where a run's events and records go beside its files: OpenTelemetry, and the receivers of alerts.

They are called in the monitor's thread and only take note there; sending is done by threads of their own. One that
raises is switched off and said, and neither the run nor the other one notices.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tocsin.diagnostics.feed import EVENTS_FILE, Record
from tocsin.diagnostics.jsonl import NotAFeed
from tocsin.diagnostics.otel.environment import start_export
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.status import recent
from tocsin.schemas.alerts import AlertConfig
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunEnded

Say = Callable[[str], None]
"""Prints one line for people."""


class Outlet(Protocol):
    """Something that takes what a run says. No method waits for a network."""

    def observe(self, event: BaseEvent) -> None:
        """Take in an event that has its number."""

    def record(self, record: Record) -> None:
        """Take in a new record of the feed."""

    def close(self) -> None:
        """Send what is left, within a few seconds."""


class Outlets:
    """The outlets of one run. Its methods never raise."""

    def __init__(self, outlets: Sequence[Outlet], say: Say) -> None:
        self._outlets = list(outlets)
        self._say = say

    def observe(self, event: BaseEvent) -> None:
        """Hand an event to all."""
        self._each(lambda outlet: outlet.observe(event))

    def record(self, record: Record) -> None:
        """Hand a record to all."""
        self._each(lambda outlet: outlet.record(record))

    def close(self) -> None:
        """Close all."""
        self._each(lambda outlet: outlet.close())

    def _each(self, call: Callable[[Outlet], None]) -> None:
        for outlet in list(self._outlets):
            try:
                call(outlet)
            except Exception as error:  # the boundary around outlets: one that fails costs itself, never a record
                self._outlets.remove(outlet)
                self._say(f"{type(outlet).__name__} failed and is off, the run goes on: {type(error).__name__}")


def open_outlets(folder: Path, run_id: str, configs: Sequence[AlertConfig], say: Say) -> Outlets:
    """The outlets that the configuration and the `OTEL_*` variables ask for, for a run that starts or goes on.

    What earlier attempts told is not told again. Raises `ValueError` for alerts that cannot be delivered.
    """
    outlets: list[Outlet] = []
    if configs:
        from tocsin.diagnostics.alerts.delivery import Alerts  # noqa: PLC0415  httpx is in an extra

        alerts = Alerts(configs, os.environ, say)
        with contextlib.suppress(NotAFeed):  # a run without files has told nothing
            alerts.recall(FeedReader(folder).active(), recent(folder / EVENTS_FILE).newest(RunEnded))
        outlets.append(alerts)
    export = start_export(run_id, say)
    return Outlets([*outlets, *([export] if export else [])], say)


def check_alerts(configs: Sequence[AlertConfig], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Why alerts could not be delivered: variables that are not set, addresses that are none. One line per fault."""
    from tocsin.diagnostics.alerts.address import resolve  # noqa: PLC0415  only where there are alerts

    problems = []
    for config in configs:
        try:
            resolve(config, environment)
        except ValueError as error:
            problems.append(str(error))
    return problems
