"""SYS004: a generation server throws sequences out of its KV cache and computes them again."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.engines import Engines, ServerWindow
from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import fewer_in_flight, look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, Severity
from tocsin.schemas.events import ClockTicked

FULL: Final = 0.9
"""Share of the KV cache above which it is at its hard limit."""
CROWD: Final = 0.5
"""Waiting sequences over running ones above which the limit holds others up."""


@dataclass(frozen=True, kw_only=True)
class KvPreemption(Rule):
    """A server runs out of KV cache, throws sequences out and computes them again.

    ## What it means
    More sequences are in flight than the cache can hold to their end. The server makes room by preempting some; their
    keys and values are gone and are computed again when their turn comes.

    ## Why it matters
    The work is done twice, single completions take far longer than others, and the step waits for them. Fewer
    sequences at a time would finish more of them.

    ## How it is detected
    At every clock tick, over the last six looks at a server: at least `polls` of them found preemptions, as many found
    sequences waiting, and the tokens computed again make up at least `redone` of all. A preempted sequence counts as
    half of the mean completion, since servers report how many were thrown out and not how much. Critical when in all
    six the cache was fuller than 90 % and more than half as many sequences waited as ran. The fault is not planted
    yet, so it is shown as info. It resolves when the share falls below `clear` or no look found a preemption. A full
    cache without preemptions is a cache well used, so its use alone (published soft limit: 80 %) is no finding.

    ## Known false alarms
    A few preemptions while the last sequences of a batch end are harmless: little is computed again and nobody waits.
    After a change of the groups in flight the window begins anew.

    ## What to do
    Lower `in_flight_groups` by a fifth, and again if that is not enough. Or give the server more cache: five points
    more of the device's memory where it is alone there, a shorter maximum length, more devices per model. Keys in
    eight bits double the cache and widen the gap to the learner's log-probs.

    ## Sources
    vLLM's optimisation guide (preemption by recomputation); the soft and hard limits of prime-rl's
    ConcurrencyController; rllm#93, vllm#15763, vllm#18115. The share of work is judgement.
    """

    code = "SYS004"
    name = "kv-preemption"
    title = "KV cache preempts sequences"
    kind = "fault"
    proof = "scenario"
    where = "sampler"
    reads = (
        "engine_sampled.preemptions",
        "engine_sampled.waiting",
        "engine_sampled.running",
        "engine_sampled.kv_usage",
        "engine_sampled.generated_tokens",
        "batch_consumed.length",
    )
    trigger = ClockTicked
    timing = Timing(
        unit="polls", window=Engines.POLLS, warm_up=Engines.POLLS, persistence=2, clear_persistence=3, silent_after=5000
    )
    rising = (("clear", "redone"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="more groups are in flight than the cache holds",
            weight=0.5,
            check="`running` times the length of a completion is about the size of the cache",
        ),
        Cause(
            code="GEN003",
            text="completions have grown longer",
            weight=0.3,
            check="`batch_consumed.length` rises while the groups in flight do not",
        ),
        Cause(
            text="the server has less memory than it could have",
            weight=0.2,
            check="another process holds memory of its device, or its memory fraction is low",
        ),
    )

    polls: float = threshold(2, "Looks out of six that must have found preemptions", low=1, high=6, unit="polls")
    redone: float = threshold(0.1, "Share of tokens computed again from which it fires", high=1, unit="share")
    clear: float = threshold(0.05, "Share of tokens computed again below which it resolves", high=1, unit="share")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Judge the server that computes most again."""
        engines = features.engines
        if engines.unpolled is not None:
            return not_evaluated(*engines.unpolled)
        servers = engines.full
        if not servers:
            return not_evaluated("warm_up", f"fewer than {Engines.POLLS} looks at any server")
        if math.isnan(engines.length):
            return not_evaluated("warm_up", "no batch has said yet how long completions are")
        needed, limit = (1, self.clear) if is_open else (self.polls, self.redone)
        shares = {name: engines.redone(server) for name, server in servers.items() if _is_short(server, needed)}
        worst = max(shares, key=lambda name: shares[name], default=None)
        if worst is None or shares[worst] < limit:
            return None
        return self._finding(features.settings, worst, servers[worst], shares[worst], limit)

    def _finding(self, settings: Settings, name: str, server: ServerWindow, share: float, limit: float) -> Finding:
        hit = sum(poll.preemptions > 0 for poll in server.polls)
        waiting = sum(poll.waiting for poll in server.polls) / len(server.polls)
        verify = Verify(
            metric="engine_sampled.preemptions / running",
            operator="<",
            threshold=0.5 * server.preemptions / max(1, sum(poll.running for poll in server.polls)),
            within=48,
            unit="polls",
        )
        return Finding(
            severity=_severity(server),
            summary=(
                f"{name[:24]} threw out {server.preemptions} sequences in {hit} of {len(server.polls)} polls, "
                f"{waiting:.0f} waiting; about {share:.0%} of its tokens are computed again"
            ),
            evidence=(
                _evidence("share of engine_sampled.generated_tokens computed again", share, limit, "share"),
                _evidence("polls with engine_sampled.preemptions", hit, 1, "polls"),
                _evidence("engine_sampled.waiting, mean", waiting, 0, "sequences"),
            ),
            proposals=ranked(
                fewer_in_flight(settings, verify),
                look("enlarge-kv-cache", "give the server more KV cache: memory fraction, devices, or a shorter limit"),
                look("lower-groups-in-flight", "lower knobs.in_flight_groups below the groups in flight now"),
            ),
        )


def _is_short(server: ServerWindow, needed: float) -> bool:
    """Whether sequences were thrown out and others waited, in at least `needed` looks each."""
    hit = sum(poll.preemptions > 0 for poll in server.polls)
    return hit >= needed and sum(poll.waiting > 0 for poll in server.polls) >= needed


def _severity(server: ServerWindow) -> Severity:
    is_jammed = all((p.kv_usage or 0.0) > FULL and p.waiting > CROWD * p.running for p in server.polls)
    return "critical" if is_jammed else "warning"


def _evidence(metric: str, observed: float, limit: float, unit: str) -> Evidence:
    return Evidence(
        metric=metric,
        observed=observed,
        operator=">=",
        threshold=limit,
        unit=unit,
        window=Engines.POLLS,
        window_unit="polls",
        n=Engines.POLLS,
    )
