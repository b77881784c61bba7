"""SYS012: the run says something about itself that cannot be, or stops saying it."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.invariants import Broken
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rewards import GROUPS, Rewards, expected_share
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

EVERY = 10
"""Optimizer steps between two looks at the share of groups without spread."""


@dataclass(frozen=True, kw_only=True)
class TelemetryGap(Rule):
    """The run's own numbers cannot be, or one that was always there is missing.

    ## What it means
    Sums that must hold do not, a share is not one, or a field of every step is gone. Something is not measured, not
    written or counted wrongly; what the other rules say may rest on it.

    ## Why it matters
    Groups that the ledger cannot account for are lost, or are trained on twice. Rules whose input is missing are
    silent, which looks like health.

    ## How it is detected
    Any one of these within the last 20 steps. The ledger does not add up: launched is not in flight, queued, consumed,
    dropped and failed. A group is consumed twice in one attempt. More groups are queued than `groups_per_step` times
    `max_staleness` + 1. A clip fraction, effective sample size or pass rate lies outside 0 to 1, or entropy below 0.
    The parts of a step take longer than the step. A field of ten updates is missing in three in a row. Events were
    lost. Fewer groups have zero spread than there must be at this pass rate (p^G + (1 - p)^G, which differences between
    prompts only raise), by `errors` standard errors over 128 groups, where rewards are pass or fail. A warning that
    names the first one. It resolves when nothing of it was seen for 20 steps.

    ## Known false alarms
    A foreign trainer that fills fields by other definitions. Steps without an update carry fewer fields and are not
    counted.

    ## What to do
    Look at the event that is named, and at what changed at that step. Take other findings that read the same field with
    care. A number that is not finite is POL015, and no gap.

    ## Sources
    rl-doctor never guesses from missing data; trl#5231, verl#1455, verl#6693 (metrics that were wrong). The bound on
    groups without spread is Jensen's inequality. Four standard errors are judgement.
    """

    code = "SYS012"
    name = "telemetry-gap"
    title = "A metric is missing or impossible"
    kind = "fault"
    proof = "injected"
    where = "trainer"
    reads = (
        "queue_sampled.ledger",
        "batch_consumed.groups",
        "batch_consumed.pass_rate",
        "step_completed.seconds",
        "step_completed.entropy",
        "step_completed.clip_low_frac",
        "step_completed.clip_high_frac",
        "step_completed.ess_frac",
        "clock_ticked.events_dropped",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=20, warm_up=0, persistence=1, clear_persistence=1)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(text="a bug in what measures or counts", weight=0.5, check="it began with a change of the code"),
        Cause(
            text="events are lost on the way",
            weight=0.3,
            check="`clock_ticked.events_dropped` rises, or `seq` has gaps",
        ),
        Cause(
            code="SYS014",
            text="a resume counts from a wrong place",
            weight=0.2,
            check="it began at `run_resumed`",
        ),
    )

    errors: float = threshold(4.0, "Standard errors by which zero-spread groups may be too few", low=2)

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """The oldest of what is broken."""
        broken = features.invariants.broken
        if broken:
            return self._finding(next(iter(broken.values())), len(broken))
        if features.settings.step % EVERY and not is_open:
            return None
        few = self._too_few(features.rewards, features.settings.step)
        return None if few is None else self._finding(few, 1)

    def _too_few(self, rewards: Rewards, step: int) -> Broken | None:
        totals = rewards.totals
        p = totals.pass_rate
        # Where every completion that does not pass has the lowest reward, the mean level is the pass rate.
        if rewards.declared is None or totals.groups < GROUPS or not abs(rewards.mean_level - p) < 1e-9:
            return None
        least = expected_share(p, totals.size)
        limit = least - self.errors * math.sqrt(max(0.0, least * (1 - least)) / totals.groups)
        share = totals.zero_share
        if not share < limit:
            return None
        text = f"{share:.0%} of {totals.groups} groups have no spread; at pass rate {p:.2f} at least {least:.0%} must"
        return Broken("batch_consumed.groups.zero_spread", text, share, "<", limit, step)

    def _finding(self, first: Broken, num: int) -> Finding:
        others = f" (and {num - 1} more)" if num > 1 else ""
        text = first.text[0].upper() + first.text[1:]
        return Finding(
            severity="warning",
            summary=f"{text}{others}; first seen at step {first.step}",
            evidence=(
                Evidence(
                    metric=first.metric,
                    observed=first.observed,
                    operator=first.operator,
                    threshold=first.limit,
                    window=self.timing.window,
                    window_unit="steps",
                    n=1,
                ),
            ),
            proposals=ranked(look("look-at-events", f"look at {first.metric} in events.jsonl around this step")),
        )
