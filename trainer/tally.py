"""What a sampler did since the last report: one report a batch, or one a step where there are no batches."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tocsin.trainer.data import GroupRequest
from tocsin.trainer.messages import BatchSampled, Generated


@dataclass
class Tally:
    """Sums over finished generations of one purpose."""

    purpose: Literal["train", "eval"] | None = None
    version: int = 0
    groups: int = 0
    completions: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """In which at least one of them was under way."""
    waited_s: float = 0.0
    """In which the sampler stood still because no slot was free."""
    _until: float = field(default_factory=time.monotonic)

    def add(self, requests: Sequence[GroupRequest], answer: Generated) -> None:
        """Take in one answer."""
        now = time.monotonic()
        self.purpose = requests[0].purpose
        self.version = answer.version
        self.groups += len(requests) - len(answer.errors)
        self.completions += sum(len(group) for group in answer.completions)
        self.tokens += sum(len(completion.token_ids) for group in answer.completions for completion in group)
        # Generations overlap: what lies before the end of an earlier one is counted already.
        self.seconds += max(0.0, now - max(self._until, now - answer.seconds))
        self._until = now

    def report(self, sampler: str) -> BatchSampled:
        """The message to the learner. `purpose` must be known."""
        assert self.purpose is not None
        return BatchSampled(
            sampler=sampler,
            version=self.version,
            groups=self.groups,
            completions=self.completions,
            tokens=self.tokens,
            seconds=self.seconds,
            purpose=self.purpose,
            waited_s=self.waited_s,
        )
