"""What a person is told when the disk refuses what a run has to write."""

import errno
import shlex
from pathlib import Path
from typing import Final

from tocsin.trainer.checkpoint import steps_saved

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, None)
"""Error numbers of a full disk; libraries that write for us often give none."""


def write_problem(folder: Path, error: OSError) -> str:
    """One line: what could not be written, why, and what to do. `folder` is the run's.

    >>> write_problem(Path("no/such/run"), OSError(errno.ENOENT, "No such file"))
    'the run folder `no/such/run` is gone: it was removed or moved while the run went on; start a new run'
    """
    if not folder.is_dir():
        return f"the run folder `{folder}` is gone: it was removed or moved while the run went on; start a new run"
    what = f"`{error.filename or folder}` could not be written: {' '.join((error.strerror or str(error)).split())}"
    remedy = f"free space on `{_mount(folder)}`" if error.errno in NO_SPACE else "mend that"
    if steps := steps_saved(folder):
        return (
            f"{what}; {remedy}, then `tocsin train --resume {shlex.quote(str(folder))}` goes on from step {steps[-1]}"
        )
    return f"{what}; {remedy}, then start a new run: there is no checkpoint to go on from"


def _mount(folder: Path) -> Path:
    """Where the file system of `folder` is mounted."""
    place = folder.absolute()
    while not place.is_mount():
        place = place.parent
    return place
