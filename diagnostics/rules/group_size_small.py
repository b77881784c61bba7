"""RWD005: groups are so small that chance alone leaves most of them without reward spread."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.knob_patch import patch
from tocsin.diagnostics.proposals import look, pipeline_delay, ranked
from tocsin.diagnostics.rewards import GROUPS, Totals, expected_share
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence


@dataclass(frozen=True, kw_only=True)
class GroupSizeSmall(Rule):
    """Groups have so few scored completions that much of the sampling is lost to chance.

    ## What it means
    A group teaches only when its completions got different rewards. With G completions at pass rate p, chance alone
    leaves p^G + (1 - p)^G of the groups without any difference: half of them for G = 2 at p = 0.5, an eighth for
    G = 4. A group of one has no advantage at all.

    ## Why it matters
    Tokens of such groups are generated for nothing, and the advantage of the others is noisy, about as 1 / sqrt(G).

    ## How it is detected
    Over at least 64 groups, with G the mean number of *scored* completions, so that failures count: the share that
    chance alone explains at the pooled pass rate reaches `fire`, for a G below `enough`. Or `single` of the groups have
    fewer than two scored completions. Not judged at pass rates below 0.1 or above 0.9, where the prompts and not G
    are the reason; it fires only a standard error inside of them, each group counted as one observation, so that a
    passing dip of an easy run is none. Advice about the configuration, so info.

    ## Known false alarms
    Two completions a group can work when there are many groups, and the total of completions is what one pays for.
    The formula takes all prompts for equally hard; a spread of difficulty only raises the share.

    ## What to do
    Raise `group_size` towards 8 and lower `groups_per_step` in proportion, which keeps the number of completions. If
    groups shrink only through failures, mend the failures.

    ## Sources
    prime-rl's floor of 8; 2-GRPO (arXiv 2510.00977); open-instruct's warning for one sample; trl#7176.
    """

    code = "RWD005"
    name = "group-size-small"
    title = "Groups too small"
    kind = "lint"
    proof = "lint"
    where = "trainer"
    reads = ("batch_consumed.groups", "batch_consumed.pass_rate")
    trigger = BatchConsumed
    timing = Timing(unit="groups", window=GROUPS, warm_up=64, persistence=5, clear_persistence=10)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(text="`group_size` is small", weight=0.8, check="`batch_consumed.groups.size` equals the knob"),
        Cause(
            code="GEN013",
            text="completions fail before they are scored",
            weight=0.2,
            check="`batch_consumed.groups.num_failed` is above zero",
        ),
    )

    fire: float = threshold(0.4, "Share without spread by chance that fires", high=1, unit="share of groups")
    clear: float = threshold(0.3, "Share by chance below which it resolves", high=1, unit="share of groups")
    enough: float = threshold(8, "Group size from which it is not judged", low=2, unit="completions")
    single: float = threshold(0.1, "Share of groups with fewer than two scores", high=1, unit="share of groups")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compute what chance does at this size and pass rate."""
        totals = features.rewards.totals
        seen = totals.groups + totals.single
        if seen < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} groups were seen")
        if totals.single / seen >= self.single:
            return self._finding(features, totals, totals.single / seen)
        rate = totals.pass_rate
        margin = 0.0 if is_open else math.sqrt(rate * (1 - rate) / totals.groups)
        if totals.size >= self.enough or not 0.1 + margin <= rate <= 0.9 - margin:
            return None
        chance = expected_share(rate, totals.size)
        return self._finding(features, totals, chance) if chance >= (self.clear if is_open else self.fire) else None

    def _finding(self, features: Features, totals: Totals, share: float) -> Finding:
        seen = totals.groups + totals.single
        if totals.single / seen >= self.single:
            summary = f"{totals.single} of {seen} groups have fewer than two scored completions"
            metric = "batch_consumed.groups.size < 2"
        else:
            summary = (
                f"Groups of {totals.size:.3g} at pass rate {totals.pass_rate:.2f}: chance alone leaves {share:.0%} "
                f"without reward spread"
            )
            metric = "p^G + (1 - p)^G"
        return Finding(
            severity="warning" if totals.single / seen >= self.single else "info",
            summary=summary,
            evidence=(
                Evidence(
                    metric=metric,
                    observed=share,
                    operator=">=",
                    threshold=min(share, self.fire),
                    unit="share of groups",
                    window=seen,
                    window_unit="groups",
                    n=seen,
                    baseline=expected_share(totals.pass_rate, self.enough) if totals.groups else None,
                ),
            ),
            proposals=self._answers(features),
        )

    def _answers(self, features: Features) -> tuple[Proposal, ...]:
        settings = features.settings
        inspect = look("look-at-failures", "look why completions of a group were not scored")
        size, groups = settings.knob("group_size"), settings.knob("groups_per_step")
        wanted = (
            None if size is None or size >= self.enough else patch(settings, "group_size", min(self.enough, 2 * size))
        )
        if wanted is None or wanted.to is None or groups is None or features.rewards.totals.single:
            return ranked(inspect)
        fewer = patch(settings, "groups_per_step", max(1.0, groups * wanted.expect / wanted.to))
        larger = Proposal(
            verb="raise-group-size",
            title=f"raise group_size {wanted.expect} to {wanted.to}"
            + (f" and lower groups_per_step {fewer.expect} to {fewer.to}" if fewer else ""),
            applicability="review",
            risk="medium",
            patches=(wanted, fewer) if fewer else (wanted,),
            verify=Verify(
                metric="batch_consumed.groups.zero_spread",
                operator="<",
                threshold=self.fire,
                within=4 * self.timing.window,
                unit="groups",
            ),
            cooldown_steps=pipeline_delay(settings) + 20,
        )
        return ranked(larger)
