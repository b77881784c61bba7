"""Prometheus Alertmanager, API v2: what fires is told anew in time, because Alertmanager forgets what is not.

Every POST holds the whole state, so nothing can be lost in between and a restarted Alertmanager learns it again. What
fires ends `hold_s` after the last POST: a run that was killed must not read as one that recovered, and a run that
ended leaves open what was open.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tocsin.diagnostics.alerts.address import Address
from tocsin.diagnostics.alerts.post import THREADS, Poster, Refused, Unavailable
from tocsin.diagnostics.clock import utc_text
from tocsin.schemas.alerts import Alert, AlertConfig

PATH: Final = "/api/v2/alerts"
RESEND_S: Final = 60.0
"""Between two POSTs when nothing changes; `hold_s` may ask for more of them."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Told:
    alert: Alert
    ended: str | None = None
    """When it resolved; None while it fires."""


class AlertmanagerReceiver:
    """An Alertmanager that is told the state. `put` never blocks."""

    def __init__(self, config: AlertConfig, address: Address, trouble: Callable[[str], None]) -> None:
        self.where = address.where
        self._config = config
        self._trouble = trouble
        root = Address(address.url.rstrip("/") + PATH, address.headers, address.where)
        self._poster = Poster(root, config.timeout_s)
        self._state: dict[Labels, _Told] = {}
        self._news = threading.Condition()
        self._has_news = self._is_closing = False
        self._failed: set[Labels] = set()
        """What the last POST that failed should have told."""
        self._thread = threading.Thread(target=self._run, name=f"{THREADS}-alertmanager", daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Change the state and have it told."""
        with self._news:
            for labels, told in list(self._state.items()):
                is_same = told.alert.dedup_key == alert.dedup_key and told.ended is None
                if is_same and (alert.status == "resolved" or labels != labels_of(alert)):
                    self._state[labels] = _Told(told.alert, utc_text())
            if alert.status == "firing":
                self._state[labels_of(alert)] = _Told(alert)
            elif labels_of(alert) not in self._state:
                self._state[labels_of(alert)] = _Told(alert, utc_text())
            self._has_news = True
            self._news.notify()

    def recall(self, alert: Alert) -> None:
        """An earlier attempt sent this, and it goes on."""
        self.put(alert)

    def stop(self) -> None:
        """Tell the state once more and end."""
        with self._news:
            self._is_closing = self._has_news = True
            self._news.notify()
        self._poster.stop.set()

    def join(self, timeout_s: float) -> int:
        """Wait for the end, for `timeout_s` at most; returns how many alerts it was not told of as they are now."""
        self._thread.join(timeout_s)
        with self._news:
            return len(self._state) if self._thread.is_alive() else len(self._failed)

    def _run(self) -> None:
        pause_s = min(RESEND_S, self._config.hold_s / 4)
        while True:
            with self._news:
                if not self._has_news:
                    self._news.wait(pause_s)
                self._has_news = False
                is_last = self._is_closing
                if not self._state and not is_last:
                    continue
            self._tell()
            if is_last:
                break
        self._poster.close()

    def _tell(self) -> None:
        """POST the state, again while that fails; what came in between is in the next attempt."""
        sent: dict[Labels, _Told] = {}

        def body() -> bytes:
            with self._news:
                sent.clear()
                sent.update(self._state)
            return json.dumps([self._posted(labels, told) for labels, told in sent.items()]).encode()

        try:
            if self._state:
                self._poster.send(body, RESEND_S, self._trouble)
            self._failed = set()
        except (Refused, Unavailable) as error:
            self._failed = set(sent)
            self._trouble(str(error))
            return
        with self._news:
            for labels, told in sent.items():
                if told.ended is not None and self._state.get(labels) is told:
                    del self._state[labels]

    def _posted(self, labels: Labels, told: _Told) -> dict[str, object]:
        alert = told.alert
        notes = {"summary": alert.summary, "description": alert.text, "help": alert.help, "action": alert.action or ""}
        return {
            "labels": dict(labels),
            "annotations": {name: text for name, text in notes.items() if text},
            "startsAt": alert.started,
            "endsAt": told.ended or utc_text(time.time() + self._config.hold_s),
        }


def labels_of(alert: Alert) -> Labels:
    """The identity of an alert there. Severity is part of it, because routes depend on it."""
    own = {re.sub(r"\W", "_", name, flags=re.ASCII): value for name, value in alert.labels.items()}
    fixed = {"alertname": alert.name, "job": "tocsin", "run_id": alert.run_id, "severity": alert.severity}
    return tuple(sorted({**own, **fixed, **({"code": alert.code} if alert.code else {})}.items()))
