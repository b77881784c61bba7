"""Whether the feed of a run that is over says what its events say.

A feed that lost lines reads like that of a healthier run. The events tell: the engine judges them again, and what is
open at their end must be open in the feed.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tocsin.diagnostics.added_rules import Added
from tocsin.diagnostics.feed import EVENTS_FILE
from tocsin.diagnostics.reader import OPEN_STATES, NotAFeed
from tocsin.diagnostics.recording import Verdict, judge_again
from tocsin.diagnostics.rule import ADDED
from tocsin.diagnostics.runs import BadManifest, RunNotFound, read_manifest
from tocsin.schemas.diagnosis import Diagnostic

LARGEST_BYTES: Final = 64 << 20
"""Larger recordings take too long to be judged again for a glance at the run."""

FeedState = Literal["unchecked", "confirmed", "incomplete", "unreadable"]


class FeedCheck(NamedTuple):
    """How far the feed can be trusted."""

    state: FeedState
    """`unchecked`: it still grows, or `why` tells. `incomplete`: it lost records, or it or the rules were changed."""
    why: str = ""


def check_feed(folder: Path, active: list[Diagnostic], replayed: Verdict | None = None) -> FeedCheck:
    """Compare what the feed says is open with the events. `replayed` saves judging them once more.

    Rules differ between releases, so a run of another one is left unchecked. Those of other packages may be missing
    here or be others, so only ours are compared.
    """
    path = folder / EVENTS_FILE
    if not _is_of_this_release(folder):
        return FeedCheck("unchecked", "this release of Tocsin did not write the run")
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return FeedCheck("unchecked", f"its events are larger than {LARGEST_BYTES >> 20} MiB")
        verdict = judge_again(path, Added()) if replayed is None else replayed
    except (NotAFeed, FileNotFoundError):
        return FeedCheck("unchecked", "its events cannot be read")
    found: dict[str, Diagnostic] = {}
    for record in verdict.records:
        if isinstance(record, Diagnostic):
            found[record.id] = record
    left_open = [record for record in found.values() if record.state in OPEN_STATES]
    return FeedCheck("confirmed" if _keys(left_open) == _keys(active) else "incomplete")


def _keys(records: list[Diagnostic]) -> set[tuple[str, str, str]]:
    return {(record.id, record.state, record.severity) for record in records if not record.code.startswith(ADDED)}


def _is_of_this_release(folder: Path) -> bool:
    try:
        return read_manifest(folder).versions.get("tocsin") == version("tocsin")
    except (RunNotFound, BadManifest):
        return False
