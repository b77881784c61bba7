"""Exit codes of the command line, and the one line that every error becomes."""

from typing import Final

from tocsin.diagnostics.render import clean
from tocsin.schemas.diagnosis import Coverage
from tocsin.schemas.feed import ActiveCounts, WriterState

CLEAR: Final = 0
"""Nothing is open."""
OPEN: Final = 1
"""Something is firing or lost its data, or the run ended in a failure."""
BAD_INPUT: Final = 2
"""Usage or bad input; nothing was done."""
CANNOT_TELL: Final = 3
"""No such run, a writer that is dead or silent, or nothing evaluated: the absence of findings proves nothing."""
PIPE_CLOSED: Final = 141
"""The reader of standard output went away, as a shell reports it."""


def judge(active: ActiveCounts, writer: WriterState, coverage: Coverage | None, *, failed: bool = False) -> int:
    """Exit code for the state of a run. The order matters:

    1. a dead writer is `CANNOT_TELL`, whatever is on record: nobody looks at the run any more;
    2. anything open, or a run that `failed`, is `OPEN`;
    3. a stalled writer, or no rule evaluated, is `CANNOT_TELL`: silence is not health;
    4. the rest is `CLEAR`. A run that ended is judged by what was open at its end, and one that starts by what its
       earlier attempts left open.
    """
    if writer.state == "dead":
        return CANNOT_TELL
    if failed or active.critical or active.warning or active.info:
        return OPEN
    if writer.state == "stalled" or coverage is None or not coverage.evaluated:
        return CANNOT_TELL
    return CLEAR


def error_line(message: str) -> str:
    """`message` as the one line that goes to standard error, without what a terminal would obey."""
    return f"tocsin: {clean(' '.join(message.split()))}"
