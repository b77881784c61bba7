"""Ctrl-C and SIGTERM: the first one asks the run to stop at the next barrier, the second Ctrl-C ends it at once."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class StopFlag:
    """Set by the first signal. A context manager that puts the old handlers back."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

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
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
