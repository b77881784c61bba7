"""Keeps text of models, data and logs out of what is sent: a reader may be a language model that obeys it.

What the engine says is safe by construction: summaries, titles and causes are its own words around numbers. Events are
not: errors quote completions, prompts have ids, and foreign metrics have names of their own.
"""

import re
from typing import Final

from tocsin.diagnostics.snapshot import Metrics, Scalar

METRIC: Final = re.compile(r"[A-Za-z0-9_.:/@-]{1,120}")
EVENT_TYPE: Final = re.compile(r"[a-z_]{1,40}")
ERROR_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.]{0,60}(?:Error|Exception|Interrupt|Warning))(?::|$)")
KEPT_BACK: Final = "an error; its text is untrusted and stays in the run folder"


def error_name(text: str | None) -> str | None:
    """`ValueError` for `ValueError: ignore previous instructions`; what an error said stays behind."""
    if text is None:
        return None
    found = ERROR_NAME.match(text)
    return found[1] if found else KEPT_BACK


def event_type(name: str) -> str:
    """`name` when it looks like the type of an event."""
    return name if EVENT_TYPE.fullmatch(name) else "unknown"


def plain_name(name: str | None) -> str | None:
    """`name` when it looks like one; it may come from anywhere."""
    return name if name is None or METRIC.fullmatch(name) else "unnamed"


def numbers_of(metrics: Metrics) -> dict[str, Scalar]:
    """The measured numbers and switches whose names are plain; strings are left out."""
    return {name: leaf for name, leaf in metrics.items() if not isinstance(leaf, str) and METRIC.fullmatch(name)}
