"""One POST, classified; and the same again with growing pauses, until it arrives or its time is spent.

httpx is what the trainer uses for its servers already, has no retries and follows no redirects unless asked.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

import httpx
import tenacity

from tocsin.diagnostics.alerts.address import Address

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
THREADS: Final = "tocsin-alerts"
"""How the names of the threads begin that post."""


class Refused(Exception):
    """The receiver understood and refused: the same message will be refused again."""


class Unavailable(Exception):
    """No answer, or one of 408, 429 and 5xx: another attempt may succeed."""

    def __init__(self, message: str, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s
        """What the receiver asked to wait for."""


class Poster:
    """Posts JSON to one address. Used from one thread; `stop` may be set from any. Raises `ValueError` for the address.

    Once `stop` is set nothing is tried again.
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.stop = threading.Event()
        self._timeout_s = timeout_s
        try:
            self._url = httpx.URL(address.url)
        except httpx.InvalidURL:
            raise ValueError(f"`alerts`: the address of the {address.where} cannot be posted to") from None
        self._client = httpx.Client(timeout=timeout_s, headers=address.headers, follow_redirects=False)
        _quieten()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(self, body: Callable[[], bytes], budget_s: float, failed: Callable[[str], None]) -> None:
        """Post what `body` gives, anew at each attempt, for `budget_s` at most.

        `failed` hears of each attempt that will be repeated. Raises `Refused`, or `Unavailable` when the time is spent.
        """
        growing = tenacity.wait_exponential(FIRST_PAUSE_S, LONGEST_PAUSE_S) + tenacity.wait_random(0, FIRST_PAUSE_S)

        def pause(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome is not None else None
            asked = error.pause_s if isinstance(error, Unavailable) else 0.0
            return max(growing(state), min(asked, LONGEST_PAUSE_S))

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Unavailable),
            wait=pause,
            stop=tenacity.stop_after_delay(budget_s) | tenacity.stop_when_event_set(self.stop),
            sleep=tenacity.sleep_using_event(self.stop),
            before_sleep=lambda state: failed(str(state.outcome.exception()) if state.outcome is not None else ""),
            reraise=True,
        )
        retrying(lambda: self.post(body()))

    def post(self, body: bytes) -> None:
        """One attempt. Raises `Refused` or `Unavailable`; neither holds anything of the address or of the answer."""
        try:
            # Only the status of the answer is of interest, so the rest is never read.
            with self._client.stream(
                "POST", self._url, content=body, headers={"Content-Type": "application/json"}
            ) as answer:
                status = answer.status_code
                asked = answer.headers.get("Retry-After", "")
        except httpx.TimeoutException as error:
            raise Unavailable(f"no answer within {self._timeout_s:g} s") from error
        except httpx.ConnectError as error:
            raise Unavailable("cannot connect") from error
        except httpx.HTTPError as error:
            raise Unavailable(type(error).__name__) from error
        if status in (408, 429) or status >= 500:
            raise Unavailable(f"answers {status}", float(asked) if asked.isdecimal() else 0.0)
        if 300 <= status < 400:
            raise Refused(f"answers {status}, and redirects are not followed")
        if status >= 400:
            raise Refused(f"answers {status}")


class _NotOurs(logging.Filter):
    """Lets through what other threads log: httpx writes each address, and httpcore each header, into the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.threadName or "").startswith(THREADS)


_NOT_OURS: Final = _NotOurs()


def _quieten() -> None:
    for name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy"):
        logging.getLogger(name).addFilter(_NOT_OURS)
