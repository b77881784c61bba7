"""RWD010: one of several reward functions always gives the same value."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.components import Components, Constant
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, measured, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.side_rewards import one_function
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Severity


@dataclass(frozen=True, kw_only=True)
class DeadRewardComponent(Rule):
    """A reward function gives every completion one and the same value, so that it teaches nothing.

    ## What it means
    A function whose value never differs adds the same number to every reward of a group and vanishes from the
    advantages. At its lowest value it usually looks for something that cannot be there: a pattern with a mistake, a tag
    that the template strips. At its highest it is satisfied.

    ## Why it matters
    What it was meant to teach is not taught, and the remaining functions decide alone.

    ## How it is detected
    Its smallest and its largest value were one value for at least `steps` steps and `completions` completions, in a run
    with several reward functions; `sparse` completions where it has given another value before, because rare events
    need more. At its lowest declared value it is a warning. At the highest it is advice, and so is any value where the
    function does not declare its range, because which end it is at is then unknown. It resolves with the first other
    value.

    ## Known false alarms
    A reward for form that is always met is normal late in a run. A rare event, met once in thousands of completions,
    looks dead. After a collapse of the policy every function is at its floor.

    ## What to do
    Call the function with three completions that should score and look at what it finds. Mend it, or take it out.

    ## Sources
    Three public runs in which one function was 0 from the first step to the last; open-r1#235.
    """

    code = "RWD010"
    name = "dead-reward-component"
    title = "A reward function always answers the same"
    kind = "fault"
    proof = "injected"
    where = "rewards"
    reads = ("batch_consumed.component_stats", "run_started.setup")
    trigger = BatchConsumed
    timing = Timing(unit="steps", window=20, warm_up=20, persistence=1, clear_persistence=1)
    rising = (("completions", "sparse"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the function looks for something that completions cannot contain",
            weight=0.5,
            check="call it with a completion that should score",
        ),
        Cause(
            code="GEN012",
            text="the answer cannot be read out",
            weight=0.2,
            check="`batch_consumed.texts.unparsed` of this function is nearly all",
        ),
        Cause(
            code="GEN008",
            text="the prompt format hides what it looks for",
            weight=0.15,
            check="it is constant from the first step on",
        ),
        Cause(text="everything meets it already", weight=0.15, check="the value is the highest one"),
    )

    steps: float = threshold(20, "Steps with one value that fire", low=1, unit="steps")
    completions: float = threshold(256, "Completions with one value that fire", low=1, unit="completions")
    sparse: float = threshold(1000, "The same where another value was seen before", low=1, unit="completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Look for the gravest of the constant functions."""
        components = features.components
        missing = one_function(components)
        if missing is not None:
            return missing
        if not components.constants:
            return not_evaluated("missing_input", "batches do not state the range of each reward function")
        dead = [label for label, found in components.constants.items() if self._is_dead(found)]
        if not dead:
            return None
        worst = max(dead, key=lambda label: _at_floor(components, label))
        return self._finding(components, worst, len(dead))

    def _is_dead(self, found: Constant) -> bool:
        if found.steps < self.steps:
            return False
        return found.completions >= (self.sparse if found.has_varied else self.completions)

    def _finding(self, components: Components, label: str, dead: int) -> Finding:
        found, function = components.constants[label], components.functions.get(label)
        severity: Severity = "warning" if _at_floor(components, label) else "info"
        others = f" ({dead - 1} more functions do the same)" if dead > 1 else ""
        return Finding(
            severity=severity,
            summary=(
                f"Reward function {label[:40]} gave {found.value:.4g} to all {found.completions} completions of "
                f"{found.steps} steps{others}"
            ),
            evidence=(
                measured(
                    f"batch_consumed.component_stats.{label}.max",
                    found.value,
                    "<=" if severity == "warning" else ">=",
                    found.value if function is None or function.low is None else function.low,
                    unit="reward",
                    over=(found.completions, "completions"),
                ),
            ),
            proposals=ranked(look("try-reward-function", "call the function with three completions that should score")),
        )


def _at_floor(components: Components, label: str) -> bool:
    """Whether a constant function is at the lowest value that it declares."""
    function = components.functions.get(label)
    if function is None or function.low is None or function.high is None or not function.low < function.high:
        return False
    return components.constants[label].value <= function.low + 1e-6 * (function.high - function.low)
