"""Environment variables for what is started or configured inside of a block."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment_variables(chosen: Mapping[str, str]) -> Iterator[None]:
    """Set `chosen`, and put back what was there: processes that start later are no business of the block."""
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
