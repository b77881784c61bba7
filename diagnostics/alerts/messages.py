"""Webhook and Slack: each message once and in order, from a bounded queue and a thread of its own."""

import json
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from tocsin.diagnostics.alerts.address import Address
from tocsin.diagnostics.alerts.post import THREADS, Poster, Refused, Unavailable
from tocsin.schemas.alerts import Alert, AlertConfig

QUEUED: Final = 256
"""Messages that may wait; then the oldest is dropped."""


class MessageReceiver:
    """A receiver that gets one POST per message. `put` never blocks."""

    def __init__(self, config: AlertConfig, address: Address, trouble: Callable[[str], None]) -> None:
        self.where = address.where
        self._config = config
        self._trouble = trouble
        self._poster = Poster(address, config.timeout_s)
        self._queue: deque[Alert] = deque()
        self._news = threading.Condition()
        self._is_closing = False
        self._lost = 0
        self._untold = 0
        """Messages lost since the last one that arrived."""
        self._reported = 0
        """How many of them the message under way tells of."""
        self._thread = threading.Thread(target=self._run, name=f"{THREADS}-{config.kind}", daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Queue a message."""
        with self._news:
            if len(self._queue) >= QUEUED:
                self._queue.popleft()
                self._lose()
            self._queue.append(alert)
            self._news.notify()

    def recall(self, alert: Alert) -> None:
        """An earlier attempt sent this: it is not sent again."""

    def stop(self) -> None:
        """Try what waits once more, each message once, and end."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        self._poster.stop.set()

    def join(self, timeout_s: float) -> int:
        """Wait for the end, for `timeout_s` at most; returns how many messages never arrived."""
        self._thread.join(timeout_s)
        with self._news:
            waiting = len(self._queue) + self._thread.is_alive()
            return self._lost + waiting

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._queue and not self._is_closing:
                    self._news.wait()
                if not self._queue:
                    break
                alert = self._queue.popleft()
            self._deliver(alert)
        self._poster.close()

    def _deliver(self, alert: Alert) -> None:
        try:
            self._poster.send(lambda: self._body(alert), self._config.retry_budget_s, self._trouble)
        except (Refused, Unavailable) as error:
            with self._news:
                self._lose()
            self._trouble(str(error))
        else:
            with self._news:
                self._untold -= self._reported

    def _lose(self) -> None:
        self._lost += 1
        self._untold += 1

    def _body(self, alert: Alert) -> bytes:
        if self._config.kind == "slack":
            return json.dumps({"text": slack_text(alert)}).encode()
        # More may be lost while this one is under way.
        self._reported = self._untold
        told = alert.model_copy(update={"dropped": self._reported})
        return told.model_dump_json(exclude_none=True).encode()


def slack_text(alert: Alert) -> str:
    """The line for people, without what Slack would take for a link, a mention or a channel."""
    return alert.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
