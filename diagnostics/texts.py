"""What completions look like: ended and not noticed, repeating themselves, in another script than their prompt."""

from tocsin.diagnostics.feature import Feature
from tocsin.diagnostics.outcome import PooledShare
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent


class Texts(Feature):
    """Shares of completions by what was found in them, each over the completions that could show it."""

    takes = (BatchConsumed,)
    moved_by = frozenset({"truncation"})

    def __init__(self) -> None:
        self.is_measured = False
        """Whether the newest batch said what its texts look like."""
        self.has_long = False
        """Whether any completion was long enough to be judged for repetition."""
        self.has_letters = False
        """Whether any completion and its prompt had enough letters to be judged for their script."""
        self.restart()

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch."""
        if not isinstance(event, BatchConsumed):
            return
        texts, n = event.texts, sum(event.finish_reasons.values())
        self.is_measured = texts is not None
        if texts is None or n == 0:
            return
        self.cut_with_end.add(event.step, n, texts.cut_with_end)
        if texts.judged:
            self.has_long = True
            self.repetitive.add(event.step, texts.judged, texts.repetitive)
        if texts.script_judged:
            self.has_letters = True
            self.other_script.add(event.step, texts.script_judged, texts.other_script)

    def restart(self) -> None:
        """Start over: another limit shows other ends."""
        self.cut_with_end = PooledShare()
        """Of all completions: cut at the limit although they contain an end token."""
        self.repetitive = PooledShare()
        """Of those with 64 tokens or more."""
        self.other_script = PooledShare()
        """Of those that have, as their prompt has, at least 20 letters of one script."""
