"""SYS005: a few groups take many times as long to generate as the others, and the learner waits for them."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.pipeline import Durations, GroupTimes, length_ratio, tail_ratio
from tocsin.diagnostics.proposals import look, move, ranked, time_share
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.waits import Waits
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.events import QueueSampled

WAIT = "queue_sampled.learner_wait_s / step_s"


@dataclass(frozen=True, kw_only=True)
class StragglerTail(Rule):
    """A few groups take many times as long to generate as the others, and the learner waits for them.

    ## What it means
    Groups are consumed in order, so one slow group delays its step and everything behind it, however fast the others
    are.

    ## Why it matters
    Learner and sampler stand still for a few groups. Nothing is learned worse by it, so this is a matter of cost.

    ## How it is detected
    Over the last eight steps, or as many as hold 64 groups: the slowest group's time from launch to its last token,
    divided by the median of the usual times, exceeds `fire`, while the learner waits at least `waits` of the time over
    the last 30 steps that updated the weights; ten times in a row, so that one hiccup does not count. Info; a warning
    where the learner waits half of the time. Info as well when the longest completion exceeds the usual one at least
    half as much as the slowest group the usual group: long answers take long, and the summary says so. It resolves
    below `clear`.

    ## Known false alarms
    Evaluations share the sampler with training, and the groups of that moment are slow. With sampler batches, all
    groups of a batch take as long as its longest completion.

    ## What to do
    Look at what the slow groups have in common: one server (SYS006), a full KV cache (SYS004), long answers (GEN003).
    A higher `max_staleness` or more groups in flight hides a tail that is not too long; shorter completions cut it.

    ## Sources
    RollPacker (arXiv 2509.21009); partial rollouts of Kimi k1.5 (arXiv 2501.12599); AReaL and verl's fully asynchronous
    trainer. Four times, and a wait of three tenths beside it, are judgement.
    """

    code = "SYS005"
    name = "straggler-tail"
    title = "A few slow completions hold up the others"
    kind = "efficiency"
    proof = "injected"
    where = "sampler"
    reads = (
        "queue_sampled.generate_s",
        "queue_sampled.learner_wait_s",
        "queue_sampled.step_s",
        "batch_consumed.length",
    )
    trigger = QueueSampled
    timing = Timing(
        unit="groups", window=Durations.TAIL_GROUPS, warm_up=Durations.TAIL_GROUPS, persistence=10, clear_persistence=10
    )
    rising = (("clear", "fire"), ("waits", "wasted"))
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="some batches or requests meet a slow moment of the sampler",
            weight=0.4,
            check="`sampler_sampled.seconds` varies without `tokens` doing so",
        ),
        Cause(
            code="GEN003",
            text="a few completions are very long",
            weight=0.3,
            check="`batch_consumed.length.max` over `p50` is about as large as the ratio of the times",
        ),
        Cause(code="SYS006", text="one server is slower", weight=0.15, check="`engine_sampled` differs by server"),
        Cause(
            code="SYS004",
            text="requests are preempted for lack of room in the KV cache",
            weight=0.15,
            check="`engine_sampled.preemptions` is above zero",
        ),
    )

    fire: float = threshold(4.0, "Slowest over usual time above which it fires", low=1)
    clear: float = threshold(3.0, "Slowest over usual time below which it resolves", low=1)
    waits: float = threshold(0.3, "Share of time that the learner must wait", high=1, unit="share of time")
    wasted: float = threshold(0.5, "Share of time from which it is a warning", high=1, unit="share of time")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """The learner's share first, then the tail."""
        waits, durations = features.waits, features.durations
        if len(waits.window) < Waits.STEPS:
            return not_evaluated("warm_up", f"fewer than {Waits.STEPS} steps with an update were seen")
        if not durations.window:
            return not_evaluated("missing_input", "no sample says how long generating takes")
        learner, _ = waits.shares(Waits.STEPS)
        if not learner >= self.waits:
            return None
        tail = durations.tail
        if not tail:
            return None
        ratio = tail_ratio(tail)
        return self._finding(features, tail, ratio, learner) if ratio > (self.clear if is_open else self.fire) else None

    def _finding(self, features: Features, tail: list[GroupTimes], ratio: float, learner: float) -> Finding:
        lengths = length_ratio(tail)
        is_long = lengths >= ratio / 2
        groups = sum(times.groups for times in tail)
        slowest = max(times.slowest for times in tail)
        return Finding(
            severity="warning" if learner >= self.wasted and not is_long else "info",
            summary=(
                f"The slowest of {groups} groups took {slowest:.2g} s, {ratio:.1f} times as long as usual; the learner "
                f"waited {learner:.0%} of the time" + (" (the longest completion explains it)" if is_long else "")
            ),
            evidence=(
                Evidence(
                    metric="queue_sampled.generate_s.max / queue_sampled.generate_s.p50",
                    observed=ratio,
                    operator=">",
                    threshold=self.fire if ratio > self.fire else self.clear,
                    unit="ratio",
                    window=groups,
                    window_unit="groups",
                    n=groups,
                    baseline=lengths if math.isfinite(lengths) else None,
                ),
                time_share(WAIT, learner, self.waits, len(features.waits.window)),
            ),
            proposals=self._answers(features, is_long=is_long),
            causes=_by_length(self.causes) if is_long else None,
        )

    def _answers(self, features: Features, *, is_long: bool) -> tuple[Proposal, ...]:
        settings = features.settings
        verify = Verify(metric=WAIT, operator="<", threshold=self.waits, within=60, unit="steps")
        bound, flight = settings.knob("max_staleness"), settings.knob("in_flight_groups")
        older = None if bound is None else move(settings, "max_staleness", bound + 1, verify, risk="medium")
        more = None if flight is None else move(settings, "in_flight_groups", math.ceil(1.25 * flight), verify)
        slow = look("look-at-slow-groups", "look at what the slow groups have in common: server, length, moment")
        shorter = look("shorten-completions", "shorten completions: a few long ones hold up the others")
        return ranked(shorter, older) if is_long else ranked(slow, older, more)


def _by_length(causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """The long completions first."""
    return tuple(sorted(causes, key=lambda cause: cause.code != "GEN003"))
