"""RWD006: the completions of a group are copies of each other although the policy would vary them."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.prompt_stats import GROUPS, Kinds, KindWindow
from tocsin.diagnostics.proposals import look, measured, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.streaks import is_sudden
from tocsin.schemas.actions import Verify
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause

SHRINK: Final = 2.0
"""Learning is granted to halve the share of groups with different completions within one streak: copies carry no
advantage, so that a run of them hardly learns."""
USUAL_TEMPERATURE: Final = 0.7


@dataclass(frozen=True, kw_only=True)
class IdenticalCompletions(Rule):
    """All completions of a group are one and the same text, and the policy's own entropy does not explain it.

    ## What it means
    The sampler draws the same completion again and again: one random stream for a whole group, a temperature of zero, a
    filter that leaves one token, or a cache that answers with the first completion.

    ## Why it matters
    Copies get the same reward, so the group has no advantage: the whole group is generated for nothing.

    ## How it is detected
    Different token sequences within each group, over at least 64 groups. A policy of low entropy repeats itself for
    good reasons, so one of two witnesses is asked for. *Entropy*: `fire` of the groups are copies throughout, and the
    entropy per token times the mean length is at least `nats`, which a policy that gives one answer almost always
    cannot have. How many completions differ says nothing beyond that: a policy that is right six times in ten repeats
    its right answer in every group. *Suddenly*: whole steps in which every group consists of copies make a streak
    that is impossible as learning: with the share of other groups in the 64 groups before (lower confidence bound),
    halved for what may have been learned, its probability is below one in a million, and that share surely was a
    tenth or more. It resolves when groups differ again: below `clear` by the first witness, at the end of the streak
    by the second.

    ## Known false alarms
    Answers of one token and multiple choice have few different completions at any entropy; their length keeps them out
    of the first witness. A run that has converged to one answer per prompt is left alone, and is POL001's if it got
    there too fast.

    ## What to do
    Give every completion of a group its own random stream; look for a fixed seed in the requests to the server. Raise
    `temperature` where it is far below one.

    ## Sources
    tt-metal#53077 (one seed, identical completions); the default temperature of one in TRL and Skywork-OR1.
    """

    code = "RWD006"
    name = "identical-completions"
    title = "Completions of a group are copies of each other"
    kind = "fault"
    proof = "injected"
    where = "sampler"
    reads = ("batch_consumed.groups.distinct", "step_completed.entropy")
    trigger = BatchConsumed
    timing = Timing(unit="groups", window=GROUPS, warm_up=GROUPS, persistence=2, clear_persistence=5)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="all completions of a group are drawn with one random stream",
            weight=0.5,
            check="requests state a fixed seed, or one seed for all completions of a prompt",
        ),
        Cause(text="the temperature is zero or nearly so", weight=0.2, check="the knob and what the server is sent"),
        Cause(
            code="OFF006",
            text="the sampler draws from the likeliest tokens only",
            weight=0.2,
            check="top-p, top-k and min-p of the requests and of the server's own settings",
        ),
        Cause(
            code="POL001",
            text="the policy has lost its variety",
            weight=0.1,
            check="`step_completed.entropy` fell before",
        ),
    )

    fire: float = threshold(0.9, "Share of groups of copies that fires", high=1, unit="share of groups")
    clear: float = threshold(0.7, "Share of groups of copies below which it resolves", high=1, unit="share of groups")
    nats: float = threshold(3, "Entropy of a whole completion from which copies are no chance", unit="nats")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """The streak first, then the shares beside the entropy."""
        window = features.rewards.kinds
        if not window.states_distinct:
            return not_evaluated("missing_input", "batches do not count different completions by group")
        kinds = window.sums
        if kinds.told < GROUPS:
            return not_evaluated("warm_up", f"fewer than {GROUPS} groups with two completions were seen")
        if window.copies.groups and (is_open or is_sudden(window.copies, SHRINK)):
            return self._finding(features, window)
        if kinds.copies < (self.clear if is_open else self.fire) * kinds.told:
            return None
        return self._finding(features, window) if _entropy(features, kinds) >= self.nats else None

    def _finding(self, features: Features, window: KindWindow) -> Finding:
        kinds, streak = window.sums, window.copies
        share = kinds.copies / kinds.told
        entropy = _entropy(features, kinds)
        evidence = [
            measured(
                "batch_consumed.groups.distinct == 1",
                share,
                ">=",
                min(share, self.fire),
                unit="share of groups",
                over=(kinds.told, "groups"),
            ).model_copy(
                update={"baseline": streak.before_same / streak.before_groups if streak.before_groups else None}
            ),
        ]
        if math.isfinite(entropy):
            evidence.append(
                measured(
                    "step_completed.entropy times mean length",
                    entropy,
                    ">=" if entropy >= self.nats else "<",
                    self.nats,
                    unit="nats",
                    over=(len(features.entropy.recent), "steps"),
                )
            )
        if streak.groups and streak.before_groups:
            before = f"{streak.before_same} of the {streak.before_groups} before did"
            summary = f"All {streak.groups} groups since step {streak.first_step} consist of copies; {before}"
        else:
            summary = (
                f"{kinds.copies} of {kinds.told} groups since step {window.first_step} consist of copies, "
                f"{kinds.distinct} of {kinds.told_completions} completions differ"
            )
        return Finding(
            severity="critical", summary=summary, evidence=tuple(evidence), proposals=self._answers(features)
        )

    def _answers(self, features: Features) -> tuple[Proposal, ...]:
        seeds = look("look-for-seed", "look for a seed that is the same for all completions of a prompt")
        temperature = features.settings.knob("temperature")
        if temperature is None or temperature >= USUAL_TEMPERATURE:
            return ranked(seeds)
        verify = Verify(
            metric="batch_consumed.groups.zero_spread",
            operator="<",
            threshold=self.clear,
            within=4 * self.timing.window,
            unit="groups",
        )
        return ranked(move(features.settings, "temperature", 1.0, verify, risk="medium"), seeds)


def _entropy(features: Features, kinds: Kinds) -> float:
    """Entropy of a whole completion in nats: that of a trained token, of the last steps, times the mean length."""
    recent = features.entropy.recent
    return sum(recent) / len(recent) * kinds.tokens / kinds.completions if recent else math.nan
