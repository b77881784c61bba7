"""SYS006: one of several generation servers is far slower than the others, or fails more often."""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from tocsin.diagnostics.engines import Engines, ServerWindow, others
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.events import ClockTicked

BUSY: Final = 4
"""Looks out of six that must find the suspect at work."""
BUSY_OTHERS: Final = 2
"""The same for those that it is compared with, which may be idle because a step waits for the suspect."""
MORE_WORK: Final = 1.25
"""Tokens per second, over those of the others, above which a server is slow per sequence because it serves more."""
FEWEST_FAILED: Final = 3
"""Failures below which a share says nothing."""


@dataclass(frozen=True, kw_only=True)
class EngineImbalance(Rule):
    """One generation server is sick: much slower per sequence than the others, or failing where they do not.

    ## What it means
    Servers of one run have the same weights and draw from the same prompts, so each should generate about as fast for
    each of its sequences. One of them does not.

    ## Why it matters
    A step waits for all of its groups, so the slowest server sets the pace of all. Means over servers hide it.

    ## How it is detected
    At every clock tick, over the last six looks at each server. Slow: its tokens per second and running sequence are
    below `speed` times the median of the others, and it does not generate more in total than they do (1.25 times at
    most), while it was at work in at least four of six looks. Failing: at least three of its requests failed, more
    than `failures` of all, and three times the share of the others. The fault is not planted yet, so it is shown as
    info. It resolves above `clear`, or when failures fall below half of their limit. Not evaluated with one server.

    ## Known false alarms
    Routing by prefix makes load uneven, and a server with more sequences is slower for each of them. So servers are
    compared per running sequence, and one that generates more in total is never slow. A server at the end of a batch
    runs few sequences and is fast for each.

    ## What to do
    Take the server out of `sampler.urls` or start it again. Look at its device first: clocks, temperature, errors,
    another process. If load alone is uneven, route by the number of requests under way.

    ## Sources
    prime-rl (a mean hides a sick engine; it logs the largest and the smallest); verl#3895. Half of the median over
    six looks and three times the failures as published; comparing per sequence is judgement.
    """

    code = "SYS006"
    name = "engine-imbalance"
    title = "One server is slower than the others"
    kind = "fault"
    proof = "scenario"
    where = "sampler"
    reads = (
        "engine_sampled.generated_tokens",
        "engine_sampled.interval_s",
        "engine_sampled.running",
        "engine_sampled.requests_finished",
        "engine_sampled.requests_failed",
    )
    trigger = ClockTicked
    timing = Timing(
        unit="polls", window=Engines.POLLS, warm_up=Engines.POLLS, persistence=2, clear_persistence=3, silent_after=5000
    )
    rising = (("speed", "clear"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="SYS015",
            text="its device is throttled or faulty",
            weight=0.4,
            check="clocks, temperature and error counters of the device",
        ),
        Cause(
            text="another process uses its device",
            weight=0.3,
            check="the device's utilisation is high while few sequences run",
        ),
        Cause(
            code="SYS004",
            text="it preempts sequences and computes them again",
            weight=0.2,
            check="`engine_sampled.preemptions` is above 0 there and not elsewhere",
        ),
        Cause(text="its network or its router is slow", weight=0.1, check="requests fail without a word in its log"),
    )

    speed: float = threshold(0.5, "Speed per sequence, over the others' median, below which it fires", high=1)
    clear: float = threshold(0.65, "The same, at or above which it resolves", high=1)
    failures: float = threshold(0.05, "Share of failed requests above which it fires", high=1, unit="share")
    failure_ratio: float = threshold(3, "Times the others' share of failures that it must exceed", low=1)

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Look for the slowest server, then for one that fails."""
        engines = features.engines
        if engines.unpolled is not None:
            return not_evaluated(*engines.unpolled)
        if len(engines.servers) < 2:
            return not_evaluated("not_applicable", "one server has nothing to be compared with")
        servers = engines.full
        if len(servers) < 2:
            return not_evaluated("warm_up", f"fewer than {Engines.POLLS} looks at two servers")
        return self._slow(servers, is_open=is_open) or self._failing(servers, is_open=is_open)

    def _slow(self, servers: dict[str, ServerWindow], *, is_open: bool) -> Finding | None:
        working = {name: server for name, server in servers.items() if len(server.busy) >= BUSY_OTHERS}
        suspects = [name for name, server in working.items() if len(server.busy) >= BUSY]
        if len(working) < 2 or not suspects:
            return None
        speeds = {name: server.speed for name, server in working.items()}
        rates = {name: server.rate for name, server in working.items()}
        name = min(suspects, key=lambda suspect: speeds[suspect])
        usual = others(speeds, name)
        limit = (self.clear if is_open else self.speed) * usual
        serves_more = rates[name] > MORE_WORK * others(rates, name)
        if serves_more or not speeds[name] < limit:
            return None
        return Finding(
            severity="warning",
            summary=(
                f"{name[:24]} generates {speeds[name]:.3g} tokens/s for each of its sequences, the other "
                f"{len(working) - 1} {usual:.3g} (median of {Engines.POLLS} polls)"
            ),
            evidence=(
                _evidence("engine_sampled.generated_tokens / interval_s / running", speeds[name], "<", limit, usual),
                _evidence(
                    "engine_sampled.generated_tokens / interval_s",
                    rates[name],
                    "<=",
                    MORE_WORK * others(rates, name),
                    others(rates, name),
                ),
            ),
            proposals=_answers(name),
        )

    def _failing(self, servers: dict[str, ServerWindow], *, is_open: bool) -> Finding | None:
        asked, failed = sum(s.asked for s in servers.values()), sum(s.failed for s in servers.values())
        name = max(servers, key=lambda suspect: servers[suspect].failed)
        worst = servers[name]
        if worst.failed < FEWEST_FAILED:
            return None
        share = worst.failed / worst.asked
        rest = (failed - worst.failed) / max(1, asked - worst.asked)
        limit = max(self.failure_ratio * rest, self.failures * (0.5 if is_open else 1.0))
        if share <= limit:
            return None
        return Finding(
            severity="warning",
            summary=(
                f"{name[:24]} failed {worst.failed} of {worst.asked} requests in {Engines.POLLS} polls, "
                f"the other servers {rest:.1%} of theirs"
            ),
            evidence=(_evidence("engine_sampled.requests_failed / all requests", share, ">", limit, rest),),
            proposals=_answers(name),
        )


def _answers(name: str) -> tuple[Proposal, ...]:
    return ranked(
        look("restart-server", f"start {name[:24]} again, or take it out of sampler.urls"),
        look("check-device", f"check clocks, temperature, errors and other processes on the device of {name[:24]}"),
    )


def _evidence(metric: str, observed: float, operator: Literal["<", "<=", ">"], limit: float, usual: float) -> Evidence:
    return Evidence(
        metric=metric,
        observed=observed,
        operator=operator,
        threshold=limit,
        window=Engines.POLLS,
        window_unit="polls",
        n=Engines.POLLS,
        baseline=usual,
    )
