"""Ctrl-C and SIGTERM: the first one asks a run to stop at the next barrier, the second Ctrl-C ends it at once.

Before there is anything to save, the first one ends it at once as well.
"""

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class StopFlag:
    """Set by the first signal. A context manager that puts the old handlers back."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._armed = False
        self._before: dict[signal.Signals, Any] = {}

    def arm(self) -> None:
        """From now on there is a barrier to stop at. Raises `KeyboardInterrupt` when a signal came before."""
        self._armed = True
        if self.signal is not None:
            raise KeyboardInterrupt

    def ask(self) -> None:
        """Ask to stop at the next barrier, as SIGTERM does; for any thread."""
        self.signal = self.signal or signal.SIGTERM

    def is_set(self) -> bool:
        """Whether somebody asked to stop."""
        return self.signal is not None

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self.signal is not None and number == signal.SIGINT
        self.signal = signal.Signals(number)
        if again or not self._armed:
            raise KeyboardInterrupt
