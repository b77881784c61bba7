"""Gates: what must hold before compute hours are spent. Each answers with numbers, and with findings where it fails.

    configuration, prompts, chat template, end of sequence, vocabulary, rewards, disk, memory
        `gates_launch` puts them in order: `tocsin check` and every start of a run
    log-probs, weights
        `gates_sampler`: `tocsin check`; a run proves both at its first weight sync

A finding is a `Diagnostic` like those of the feed, with the code of the failure mode that it would become.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeVar

from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.modes import NAMES
from tocsin.diagnostics.rule import Proposal
from tocsin.schemas.actions import Action
from tocsin.schemas.base import Number
from tocsin.schemas.check import Gate
from tocsin.schemas.diagnosis import At, Diagnostic, Evidence, Severity, Unit

T = TypeVar("T")

ROWS: Final = 8
"""Prompts that a gate looks at: enough to tell a rule from an exception, and few enough for a slow reward."""

OWN_NAMES: Final = {
    "CHK001": "vocabulary-mismatch",
    "CHK002": "host-memory-short",
    "CHK003": "sampler-failed",
}
"""Names of what goes wrong before a run only; all other codes are those of the registry of failure modes."""

LINTS: Final = frozenset({"RWD005", "RWD014", "SYS011", "SYS013"})
"""Codes that are advice about the configuration here."""


class GateError(ValueError):
    """A run must not start; one line per gate."""


def gate(
    name: str,
    summary: str,
    findings: Sequence[Diagnostic] = (),
    *,
    measured: Mapping[str, Number] | None = None,
    evaluated: bool = True,
) -> Gate:
    """The answer of one gate: failed when a finding is more than advice."""
    failed = any(found.severity != "info" for found in findings)
    outcome: Literal["passed", "failed", "not_evaluated"] = "failed" if failed else "passed"
    return Gate(
        name=name,
        outcome=outcome if evaluated or failed else "not_evaluated",
        summary=summary,
        measured=dict(measured or {}),
        findings=list(findings),
    )


def finding(
    code: str, severity: Severity, summary: str, evidence: Evidence, *proposals: Proposal, where: str = "launch"
) -> Diagnostic:
    """A finding before the first step. `where` is the component that it is about."""
    name = OWN_NAMES[code] if code in OWN_NAMES else NAMES[code]
    now = At(step=0, policy_version=0, ts=utc_text())
    identity = f"{name}/{where}#1"
    return Diagnostic(
        event_seq=0,
        code=code,
        name=name,
        kind="lint" if code in LINTS else "fault",
        id=identity,
        fingerprint=hashlib.sha256(json.dumps([code, "", [["component", where]]]).encode()).hexdigest()[:16],
        episode=1,
        state="firing",
        reason="fired",
        severity=severity,
        summary=summary,
        labels={"component": where},
        config_generation=0,
        started=now,
        fired=now,
        last=now,
        count=1,
        evidence=[evidence],
        causes=[],
        actions=[_action(identity, proposal, preferred=i == 0) for i, proposal in enumerate(proposals)],
        help="tocsin check --help" if code in OWN_NAMES else f"tocsin explain {code}",
    )


def _action(diagnostic_id: str, proposal: Proposal, *, preferred: bool) -> Action:
    return Action(
        id=f"{diagnostic_id}/{proposal.verb}",
        title=proposal.title,
        applicability=proposal.applicability,
        risk=proposal.risk,
        preferred=preferred,
        patches=list(proposal.patches),
        on_failure=proposal.on_failure,
    )


def fact(
    metric: str,
    observed: float,
    operator: Literal["<", "<=", ">", ">=", "==", "!="],
    threshold: float,
    *,
    unit: str = "",
    n: int = 1,
) -> Evidence:
    """A measured value beside what it was compared to; `n` rows, tokens or whatever `unit` counts."""
    window_unit: Unit = "samples"
    return Evidence(
        metric=metric,
        observed=observed,
        operator=operator,
        threshold=threshold,
        unit=unit,
        window=n,
        window_unit=window_unit,
        n=n,
    )


def spread(items: Sequence[T], most: int = ROWS) -> list[T]:
    """At most `most` of `items`, evenly spaced, the first one among them.

    >>> spread(range(100), 4)
    [0, 25, 50, 75]
    """
    count = min(most, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def size(of: float) -> str:
    """Bytes for people.

    >>> size(1536), size(3 * 2**30)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if of < 1024:
            return f"{of:.0f} B" if unit == "B" else f"{of:.1f} {unit}"
        of /= 1024
    return f"{of:.1f} TiB"


def refusal(gates: Sequence[Gate]) -> str:
    """One line per gate with a critical finding: what was measured, and what to do."""
    lines = []
    for item in gates:
        critical = [found for found in item.findings if found.severity == "critical"]
        if critical:
            advice = critical[0].actions[0].title
            lines.append(f"{item.name}: {item.summary}; {advice} (`tocsin check` shows every gate)")
    return "\n".join(lines)
