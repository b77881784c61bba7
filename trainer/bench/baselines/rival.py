"""How a package of somebody else's is imported and kept quiet, so that only its findings get out."""

import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any


class NotInstalled(ImportError):
    """A package that only the benchmark needs is missing."""


def imported(module: str, distribution: str) -> Any:
    """The module of a rival. Raises `NotInstalled` that says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"`{distribution}` must be installed to compare with it, got: {error}; run `pip install 'tocsin[bench]'`"
        ) from error


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Inside of the block nothing is printed, logged to `logger` or warned about by this process.

    Warnings are part of it because a test that makes errors of them would turn off a detector that divides by zero.
    """
    named = logging.getLogger(logger)
    disabled, named.disabled = named.disabled, True
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        named.disabled = disabled
