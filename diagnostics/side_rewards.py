"""What the rules about several reward functions share: when there is nothing to judge."""

from typing import Final

from tocsin.diagnostics.components import Components
from tocsin.diagnostics.rule import not_evaluated
from tocsin.schemas.diagnosis import NotEvaluated

BOOTSTRAP: Final = 50
"""First steps of a run, in which learning the form before the content is normal."""


UNSTATED: Final = not_evaluated("missing_input", "the run does not state its reward functions")
SINGLE: Final = not_evaluated("not_applicable", "there is one reward function only")
NO_SIDE: Final = not_evaluated("not_applicable", "no reward function beside those that decide what a pass is")


def one_function(components: Components) -> NotEvaluated | None:
    """Why a run without several reward functions cannot be judged; None when it has several."""
    if not components.functions:
        return UNSTATED
    return SINGLE if len(components.functions) == 1 else None


def no_side_reward(components: Components) -> NotEvaluated | None:
    """The same, and also where no function stands beside those that decide what a pass is."""
    return one_function(components) or (None if components.side else NO_SIDE)
