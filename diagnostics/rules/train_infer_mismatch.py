"""OFF004: sampler and learner give the same tokens different log-probs under the same weights."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.freshness import Streak
from tocsin.diagnostics.origins import is_noisy, origin, table, told_apart
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, Severity
from tocsin.schemas.step import StepCompleted

GAP = "step_completed.logprob_gap.abs_mean"


@dataclass(frozen=True, kw_only=True)
class TrainInferMismatch(Rule):
    """Sampler and learner disagree on log-probs although both hold the same weights.

    ## What it means
    The same tokens under the same weights should get the same log-probs on both sides. Another precision, kernel,
    degree of parallelism, template or filter on one side makes them differ, and the importance ratio carries the
    difference into every update.

    ## Why it matters
    The data are then off-policy even at staleness zero. The bias grows with the length of completions, and runs that
    ignored it trained well for a while and fell apart.

    ## How it is detected
    Three clean measures, each is enough. *Probe*: `syncs` or more weight syncs in a row disagree beyond the tolerance
    that the first sync calibrated, and not in the way of old weights: the gap exceeds what the learner moved, or is
    small against it. *Steps*: the mean absolute difference of log-probs over five steps whose trained tokens all came
    from the current weights exceeds `warn`. Where tokens are older, their difference is drift as well as mismatch and
    is not used. *Mean ratio*: over five updates it is above one by a twentieth and by four standard errors. Drift
    leaves the mean at one however old the tokens are; noise in the log-probs of one side raises it. Critical above
    `critical` in steps. It resolves when a sync agrees, the mean is back and the steps lie below `clear`.

    ## Known false alarms
    Weights that did not arrive look the same in a single step: OFF010 takes them, because their gap grows with the
    learner's movement. The largest difference of a batch belongs to one unlikely token and is not used. Text that
    turned to noise raises the gap as a symptom: look which came first. Hardware, quantised samplers and merged
    adapters have a floor of their own, which the calibrated tolerance allows for.

    ## What to do
    Use the same precision on both sides, float32 in the head at least. Switch off prefix caches, custom reductions
    and cascade attention one at a time. Check that temperature and filters are applied on both sides. Until it is
    found, a lower learning rate lets the mismatch do less.

    ## Sources
    Defeating the training-inference mismatch with float16 (arXiv 2510.26788); truncated importance sampling by Yao et
    al.; IcePop (2510.18855); Qwen on stability (2512.01374); limits of miles, NeMo-RL and tinker; trl#5312, verl#3597.
    """

    code = "OFF004"
    name = "train-infer-mismatch"
    title = "Sampler and learner compute differently"
    kind = "fault"
    proof = "injected"
    where = "sampler"
    reads = (
        "weights_synced.probe_gap",
        "weights_synced.probe_moved",
        "weights_synced.probe_tolerance",
        "step_completed.logprob_gap.abs_mean",
        "step_completed.ratio",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=5, warm_up=5, persistence=3, clear_persistence=5)
    rising = (("clear", "warn", "critical"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="precision, kernels or parallelism differ",
            weight=0.6,
            check="the probe gap is there at the first syncs already and does not grow",
        ),
        Cause(
            text="a template or a temperature is applied on one side only",
            weight=0.2,
            check="the gap is above 1 nat, or shows on some prompts only",
        ),
        Cause(
            code="OFF006",
            text="the sampler draws with filters",
            weight=0.1,
            check="the mean ratio is below one and nearly all differences have one sign",
        ),
        Cause(
            code="OFF010",
            text="weights do not arrive",
            weight=0.1,
            check="the gap grows with `weights_synced.probe_moved`",
        ),
    )

    warn: float = threshold(0.03, "Mean absolute difference that fires", unit="nats")
    critical: float = threshold(0.1, "Mean absolute difference that is critical", unit="nats")
    clear: float = threshold(0.02, "Mean absolute difference below which it resolves", unit="nats")
    syncs: float = threshold(5, "Syncs in a row that must disagree", low=2, unit="syncs")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Judge the probe first, then the steps at staleness zero."""
        syncs, window = features.syncs, features.on_policy_gap.window
        if not syncs.seen and not window and not features.ratios.was_judged:
            return not_evaluated("missing_input", "no weight sync and no step with tokens of the current weights")
        if syncs.holds_old_weights:
            return None
        if syncs.streak.syncs >= (1 if is_open else self.syncs):
            return self._by_probe(features, syncs.streak)
        if is_noisy(features.ratios.pooled):
            return self._by_mean(features)
        if len(window) < self.timing.window:
            return None
        gap = sum(window) / len(window)
        return self._by_steps(features, gap, len(window)) if gap > self._limit(is_open) else None

    def _limit(self, is_open: bool) -> float:
        return self.clear if is_open else self.warn

    def _by_probe(self, features: Features, streak: Streak) -> Finding:
        return Finding(
            severity="warning",
            summary=(
                f"Sampler and learner disagree by {streak.gap:.3g} nats on the probe over {streak.syncs} syncs; "
                f"the learner moved {streak.moved:.3g}"
            ),
            evidence=(
                Evidence(
                    metric="weights_synced.probe_gap",
                    observed=streak.gap,
                    operator=">",
                    threshold=streak.tolerance,
                    unit="nats",
                    window=streak.syncs,
                    window_unit="syncs",
                    n=streak.syncs,
                    baseline=streak.tolerance / 5,
                ),
                *table(features)[1:],
            ),
            proposals=_answers(features.settings, "weights_synced.probe_gap", streak.tolerance),
        )

    def _by_mean(self, features: Features) -> Finding:
        pooled = features.ratios.pooled
        return Finding(
            severity="warning",
            summary=(
                f"The mean ratio of learner to sampler is {pooled.mean:.3g} over {pooled.tokens} tokens, where drift "
                "alone leaves it at 1"
            ),
            evidence=table(features),
            proposals=_answers(features.settings, GAP, self.clear),
        )

    def _by_steps(self, features: Features, gap: float, steps: int) -> Finding:
        severity: Severity = "critical" if gap > self.critical else "warning"
        return Finding(
            severity=severity,
            summary=f"Log-probs of sampler and learner differ by {gap:.3g} nats on tokens of the current weights",
            evidence=(
                Evidence(
                    metric=GAP,
                    observed=gap,
                    operator=">",
                    threshold=self.critical if severity == "critical" else self.clear,
                    unit="nats",
                    window=steps,
                    window_unit="steps",
                    n=steps,
                    baseline=0.0,
                ),
                *table(features),
            ),
            proposals=_answers(features.settings, GAP, self.clear),
            causes=told_apart(self.causes, origin(features)),
        )


def _answers(settings: Settings, metric: str, target: float) -> tuple[Proposal, ...]:
    compare = look("compare-precision", "compute one batch on both sides in float32 and compare log-probs by token")
    rate = settings.knob("learning_rate")
    verify = Verify(metric=metric, operator="<=", threshold=target, within=50, unit="steps")
    slower = None if rate is None else move(settings, "learning_rate", rate / 2, verify, risk="medium")
    return ranked(compare, slower)
