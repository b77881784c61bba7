"""From an episode to the record that goes into the feed."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.diagnostics.evaluation import Watch
from tocsin.diagnostics.lifecycle import Episode
from tocsin.diagnostics.rule import Finding, Rule
from tocsin.diagnostics.spending import Spent
from tocsin.schemas.actions import Action
from tocsin.schemas.diagnosis import At, Diagnostic, Reason, Relation, State
from tocsin.schemas.event import BaseEvent


@dataclass(frozen=True, slots=True)
class Context:
    """How a finding stands to the others and to the run."""

    relations: Sequence[Relation] = ()
    is_suppressed: bool = False
    spent: Spent | None = None
    """What the run has spent so far; None when nobody counts."""


def conclude(watch: Watch, episode: Episode, event: BaseEvent, reason: Reason, context: Context) -> Diagnostic:
    """The record of `episode` as it is after `event`."""
    rule, finding = watch.rule, episode.finding
    state = _state(watch, reason)
    id = watch.id_of(episode)
    return Diagnostic(
        run_id=event.run_id,
        event_seq=event.seq,
        code=rule.code,
        name=rule.name,
        kind=rule.kind,
        id=id,
        fingerprint=fingerprint(rule, event.run_id),
        episode=episode.number,
        state=state,
        reason=reason,
        severity=episode.severity,
        summary=finding.summary,
        labels=rule.labels,
        config_generation=event.config_generation,
        started=episode.started,
        fired=episode.fired,
        last=episode.last,
        resolved=episode.resolved,
        count=episode.count,
        evidence=list(finding.evidence),
        causes=list(rule.causes if finding.causes is None else finding.causes),
        actions=[] if state == "resolved" else _actions(finding, id, context.relations),
        relations=list(context.relations),
        suppressed=context.is_suppressed,
        cost=None if context.spent is None else context.spent.since(episode.before),
        help=f"tocsin explain {rule.code}",
    )


def _state(watch: Watch, reason: Reason) -> State:
    if reason in ("pending", "resolved"):
        return "pending" if reason == "pending" else "resolved"
    return "no_data" if watch.track.state == "no_data" else "firing"


def fingerprint(rule: Rule, run_id: str) -> str:
    """Identity of a finding: code, run and labels. No value, threshold, step or text is in it."""
    identity = json.dumps([rule.code, run_id, sorted(rule.labels.items())])
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def moment(event: BaseEvent) -> At:
    """When an event happened."""
    return At(step=event.step, policy_version=event.policy_version, ts=event.ts)


def _actions(finding: Finding, diagnostic_id: str, relations: Sequence[Relation]) -> list[Action]:
    """What the finding proposes; switched off while a cause explains it, because the cause is what needs an answer."""
    explainer = next((relation.id for relation in relations if relation.kind == "explained_by"), None)
    off = None if explainer is None else f"explained by {explainer}: answer that one first"
    return [
        Action(
            id=f"{diagnostic_id}/{proposal.verb}",
            title=proposal.title,
            applicability=proposal.applicability,
            risk=proposal.risk,
            preferred=proposal.preferred,
            patches=list(proposal.patches),
            verify=proposal.verify,
            on_failure=proposal.on_failure,
            cooldown_steps=proposal.cooldown_steps,
            disabled=proposal.disabled or off,
        )
        for proposal in finding.proposals
    ]
