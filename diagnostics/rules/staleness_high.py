"""OFF001: training data is older than the bound, or than is safe without looking at its effects."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.freshness import StepStaleness
from tocsin.diagnostics.knob_patch import patch
from tocsin.diagnostics.origins import origin, table, told_apart
from tocsin.diagnostics.proposals import PIPELINE_STEPS, pipeline_delay
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, Severity
from tocsin.schemas.step import StepCompleted


@dataclass(frozen=True, kw_only=True)
class StalenessHigh(Rule):
    """Completions were sampled by weights many optimizer steps behind those that train on them.

    ## What it means
    The staleness of a completion counts the optimizer steps between the weights of its oldest token and the weights
    that train on it. The slots of the rollout process bound it, so a value above `max_staleness` means that the
    bound does not hold; a value within a wide bound is a risk that was chosen.

    ## Why it matters
    The older the data, the further importance ratios are from one, and the fewer tokens carry the update. Staleness
    by itself is no harm: published runs trained well far beyond the usual bounds. So it is judged together with the
    effective sample size and the k3 gap between sampler and learner.

    ## How it is detected
    In at least `steps_of_ten` of the last ten batches, the 95th percentile of staleness over completions exceeds the
    bound in force for that batch, or exceeds `fire`. Alone the second is info. It becomes a warning when the
    effective sample size of the last step is below `ess` or its k3 above `k3`, or when the bound itself is broken;
    critical when the largest staleness also exceeds `critical`. With an effect the evidence tells its reason apart:
    staleness leaves the probe in agreement and the mean ratio at one, and older tokens are further away than younger
    ones. The fault that proves this rule is not planted yet,
    so it is shown as info at most. It resolves when at most one of ten batches exceeds both the bound and `clear`.

    ## Known false alarms
    With a first-in-first-out queue the mean sits at the bound, not below it, and that is fine. The first steps always
    have staleness zero. A bound of more than four that was chosen on purpose shows at info for as long as it is used.

    ## What to do
    Lower `max_staleness` to the target at once, below it by one at a time. What is in the queue is trained on first, so
    the effect comes as many steps later as the data were old. If the learner then waits, the sampler is the
    bottleneck: add samplers or shorten completions before allowing older data. Check that weight syncs arrive.

    ## Sources
    AReaL (arXiv 2505.24298); PipelineRL (2509.19128); M2PO (2510.01161); ScaleRL (2510.13786); default cut-offs of
    prime-rl and verl (8 steps); tinker-cookbook#822.
    """

    code = "OFF001"
    name = "staleness-high"
    title = "Staleness too high"
    kind = "fault"
    proof = "scenario"
    where = "trainer"
    reads = (
        "batch_consumed.staleness",
        "batch_consumed.max_staleness",
        "step_completed.ess_frac",
        "step_completed.logprob_gap.k3",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=10, warm_up=10, persistence=1, clear_persistence=3)
    rising = (("clear", "fire", "critical"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="`max_staleness` allows it",
            weight=0.4,
            check="the 95th percentile lies at or below `batch_consumed.max_staleness`",
        ),
        Cause(
            code="OFF010",
            text="weight syncs do not arrive",
            weight=0.25,
            check="`weights_synced.probe_gap` is above its tolerance",
        ),
        Cause(
            code="SYS005",
            text="single generations take far longer than the others",
            weight=0.2,
            check="the flight part of staleness dominates and its tail is long",
        ),
        Cause(text="finished groups wait in the queue", weight=0.15, check="`queue_sampled.queue_wait` grows"),
        Cause(
            code="OFF004",
            text="the effects have another reason than age: sampler and learner compute differently",
            weight=0.1,
            check="the probe disagrees or the mean ratio is above one, and tokens of all ages are alike",
        ),
    )

    fire: float = threshold(4, "95th percentile above which a batch counts", unit="optimizer steps")
    critical: float = threshold(
        8, "Largest staleness that is critical together with its effects", unit="optimizer steps"
    )
    clear: float = threshold(3, "95th percentile at or below which a batch no longer counts", unit="optimizer steps")
    steps_of_ten: float = threshold(5, "Batches out of ten that must count", low=2, high=10, unit="batches")
    ess: float = threshold(0.5, "Effective sample size below which staleness shows its effect", high=1, unit="share")
    k3: float = threshold(0.01, "k3 between sampler and learner above which it does", unit="nats")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Count the batches of the window that are too old."""
        window = features.staleness.window
        if not window or features.settings.step - window[-1].step > self.timing.window:
            return not_evaluated("missing_input", "no `batch_consumed` with staleness arrived in the last 10 steps")
        if len(window) < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} batches were seen")
        limit = self.clear if is_open else self.fire
        # Without a bound to speak of (an on-policy run has 0) any older batch breaks it; a wide bound does not help.
        late = sum(batch.p95 > batch.bound for batch in window)
        old = sum(batch.p95 > limit for batch in window)
        needed = 2 if is_open else self.steps_of_ten
        if max(late, old) < needed:
            return None
        return self._finding(features, list(window), limit=limit, is_broken=late >= needed)

    def _finding(self, features: Features, window: list[StepStaleness], *, limit: float, is_broken: bool) -> Finding:
        p95 = sorted(batch.p95 for batch in window)[len(window) // 2]
        bound = window[-1].bound
        threshold_used = float(bound) if is_broken else limit
        counted = sum(batch.p95 > (batch.bound if is_broken else limit) for batch in window)
        compared = f"the bound {bound}" if is_broken else f"{limit:g}"
        effects = self._effects(features)
        return Finding(
            severity=self._severity(window, is_broken=is_broken, has_effects=bool(effects)),
            summary=(
                f"Staleness p95 was above {compared} in {counted} of {len(window)} batches "
                f"(median {p95:g}, largest {max(batch.max for batch in window):g} steps)"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.staleness.p95",
                    observed=p95,
                    operator=">" if p95 > threshold_used else "<=",
                    threshold=threshold_used,
                    unit="optimizer steps",
                    window=len(window),
                    window_unit="steps",
                    n=len(window),
                    baseline=float(bound),
                ),
                *effects,
                *(table(features) if effects else ()),
            ),
            proposals=_answers(features.settings, self.clear),
            causes=told_apart(self.causes, origin(features)) if effects else None,
        )

    def _severity(self, window: list[StepStaleness], *, is_broken: bool, has_effects: bool) -> Severity:
        if has_effects and max(batch.max for batch in window) > self.critical:
            return "critical"
        return "warning" if is_broken or has_effects else "info"

    def _effects(self, features: Features) -> tuple[Evidence, ...]:
        """The mechanism: evidence that old data weighs on the update."""
        last = features.numerics.last
        if last is None:
            return ()
        found = []
        if math.isfinite(last.ess_frac) and last.ess_frac < self.ess:
            found.append(_last_step("step_completed.ess_frac", last.ess_frac, "<", self.ess))
        if math.isfinite(last.k3) and last.k3 > self.k3:
            found.append(_last_step("step_completed.logprob_gap.k3", last.k3, ">", self.k3))
        return tuple(found)


def _last_step(metric: str, observed: float, operator: str, limit: float) -> Evidence:
    return Evidence(
        metric=metric,
        observed=observed,
        operator="<" if operator == "<" else ">",
        threshold=limit,
        window=1,
        window_unit="steps",
        n=1,
    )


def _answers(settings: Settings, target: float) -> tuple[Proposal, ...]:
    bound = settings.knob("max_staleness")
    # At once: a bound between would leave the 95th percentile, which sits at the bound, above what is asked for.
    wanted = None if bound is None else target if bound > target else bound - 1
    change = None if wanted is None else patch(settings, "max_staleness", wanted)
    look = Proposal(
        verb="check-weight-syncs",
        title="check that weight syncs arrive and which part of staleness passes in flight",
        applicability="advisory",
        preferred=change is None,
        on_failure="keep",
    )
    if change is None:
        return (look,)
    lower = Proposal(
        verb="lower-max-staleness",
        title=f"lower max_staleness {change.expect} to {change.to}",
        applicability="review",
        preferred=True,
        patches=(change,),
        verify=Verify(metric="batch_consumed.staleness.p95", operator="<=", threshold=target, within=50, unit="steps"),
        cooldown_steps=max(50, pipeline_delay(settings) + PIPELINE_STEPS),
    )
    return (lower, look)
