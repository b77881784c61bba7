"""Rules whose findings are written down in the test, for what the engine makes of several findings together."""

from collections.abc import Iterable, Sequence
from typing import Any

from tests.diagnostics.scenario import run, step
from tocsin.diagnostics.engine import Engine, Record
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing
from tocsin.schemas.actions import Patch, Verify
from tocsin.schemas.diagnosis import Cause, Diagnostic, Evidence, Severity
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import StepCompleted

Span = tuple[int, int]
"""First and last step at which a condition holds."""


def proposal(*, within: int = 40, threshold: float = 0.2) -> Proposal:
    """Halve the learning rate; worked when the upper clip fraction is below `threshold`."""
    return Proposal(
        verb="lower-learning-rate",
        title="lower learning_rate 0.0001 to 5e-05",
        applicability="review",
        preferred=True,
        patches=(Patch(path="learning_rate", expect=1e-4, to=5e-5, min=0.0, max=1.0, effective="next_step"),),
        verify=Verify(
            metric="step_completed.clip_high_frac", operator="<", threshold=threshold, within=within, unit="steps"
        ),
    )


def scripted(code: str, *spans: Span, severity: Severity = "warning", persistence: int = 1, **options: Any) -> Rule:
    """The rule `code`, named after it, that finds something at the steps of `spans` and resolves after two others."""

    class Scripted(Rule):
        """Holds when the script says so."""

        name = f"rule-{code.lower()}"
        title = code
        kind = options.get("kind", "fault")
        proof = "injected"
        where = "learner"
        reads = ("step_completed.outcome",)
        trigger = StepCompleted
        timing = Timing(
            unit="steps", window=1, warm_up=0, persistence=persistence, clear_persistence=2, reopen_within=0
        )
        causes = tuple(
            Cause(code=cause, text=cause, weight=weight, check="look")
            for cause, weight in options.get("causes", {}).items()
        )

        def check(self, features: Features, *, is_open: bool) -> Answer:
            """Look the step up."""
            now = features.settings.step
            if not any(first <= now <= last for first, last in spans):
                return None
            evidence = Evidence(
                metric="m", observed=1.0, operator=">", threshold=0.5, window=1, window_unit="steps", n=1
            )
            proposals = options.get("proposals", ())
            return Finding(severity=severity, summary=f"{code} holds", evidence=(evidence,), proposals=proposals)

    Scripted.code = code
    return Scripted()


def quiet_steps(num: int) -> Iterable[list[BaseEvent]]:
    """`num` steps in which nothing is measured that a scripted rule would look at."""
    return ([step()] for _ in range(num))


def story(rules: Sequence[Rule], num: int = 40) -> list[Diagnostic]:
    """The diagnostics of these rules over `num` steps; every record is valid against the schema."""
    records: list[Record] = run(Engine(rules), quiet_steps(num))
    return [record for record in records if isinstance(record, Diagnostic)]


def told(found: Iterable[Diagnostic]) -> list[tuple[str, str, str, list[str], bool]]:
    """Code, reason, severity, relations as `kind code`, and whether it is suppressed."""
    return [
        (
            item.code,
            item.reason,
            item.severity,
            [f"{relation.kind} {relation.id[5:11].upper()}" for relation in item.relations],
            item.suppressed,
        )
        for item in found
    ]
