"""All receivers of a run. Its methods are called in the monitor's thread, or behind a file, and never wait."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tocsin.diagnostics import render
from tocsin.diagnostics.alerts.address import Address, resolve
from tocsin.diagnostics.alerts.alertmanager import AlertmanagerReceiver
from tocsin.diagnostics.alerts.book import Book
from tocsin.diagnostics.alerts.messages import MessageReceiver
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.alerts import Alert, AlertConfig
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunEnded

CLOSE_TIMEOUT_S: Final = 5.0
"""How long the end of a run waits for what is not delivered yet."""

Say = Callable[[str], None]
"""Prints one line for people."""
Receiver = MessageReceiver | AlertmanagerReceiver


class Alerts:
    """Tells receivers of what fires and of what is over. Raises `ValueError` for an address that cannot be used."""

    def __init__(self, configs: Sequence[AlertConfig], environment: Mapping[str, str], say: Say) -> None:
        self._say = say
        self._troubled: set[str] = set()
        addresses = [resolve(config, environment) for config in configs]
        self._receivers = [
            (Book(config.min_severity), self._receiver(config, address))
            for config, address in zip(configs, addresses, strict=True)
        ]

    def _receiver(self, config: AlertConfig, address: Address) -> Receiver:
        def trouble(what: str) -> None:
            if address.where not in self._troubled:
                self._troubled.add(address.where)
                self._say(f"alerts: {address.where} {what}; the run goes on, more of this is not shown")

        kind = AlertmanagerReceiver if config.kind == "alertmanager" else MessageReceiver
        return kind(config, address, trouble)

    def recall(self, open: Sequence[Diagnostic], end: RunEnded | None) -> None:
        """Take what earlier attempts left open, and how the last one ended, as told."""
        for book, receiver in self._receivers:
            told = [*map(book.take, open), *([book.observe(end)] if end is not None else [])]
            for alert in filter(None, told):
                receiver.recall(alert)

    def observe(self, event: BaseEvent) -> None:
        """Take in an event: the end of the run may be worth a message."""
        self._tell(lambda book: book.observe(event))

    def record(self, record: Diagnostic | ActionRecord | Coverage) -> None:
        """Take in a new record of the feed."""
        if isinstance(record, Diagnostic):
            self._tell(lambda book: book.take(record))

    def died(self, last: BaseEvent) -> None:
        """Nobody writes the run any more."""
        self._tell(lambda book: book.died(last))

    def _tell(self, message: Callable[[Book], Alert | None]) -> None:
        for book, receiver in self._receivers:
            alert = message(book)
            if alert is not None:
                receiver.put(alert)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Deliver what waits, for `timeout_s` at most, and say what did not arrive."""
        deadline = time.monotonic() + timeout_s
        for _, receiver in self._receivers:
            receiver.stop()
        for _, receiver in self._receivers:
            lost = receiver.join(max(0.0, deadline - time.monotonic()))
            if lost:
                self._say(f"alerts: {render.plural(lost, 'message')} did not reach {receiver.where}")
