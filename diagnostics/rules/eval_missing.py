"""SYS013: nothing is evaluated on held-out prompts, or too little to see a difference."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.heldout import Result
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted


@dataclass(frozen=True, kw_only=True)
class EvalMissing(Rule):
    """The run has not been evaluated for long, or with so few prompts that differences drown in noise.

    ## What it means
    The training reward is measured on the prompts that are trained on, by the reward that is trained for. Only
    held-out prompts tell whether the model gets better.

    ## Why it matters
    Without them a gamed reward looks like success (GEN010), and nobody knows which checkpoint is the best.

    ## How it is detected
    No evaluation for `steps` steps, or `share` of the plan where that is more, or twice the interval that the run
    evaluates at. Or a standard error of the newest pass rate above `error`: with 100 prompts at a pass rate of a half
    it is 0.05. It resolves with an evaluation, or at a lower error. Info: advice about the configuration.

    ## Known false alarms
    Who evaluates elsewhere, from checkpoints, needs none here.

    ## What to do
    Give `data.evaluation` at least 256 prompts, and set `evaluation.every`.

    ## Sources
    Noise between seeds in small studies of GRPO; UniRL#310 (a difference between settings below that between seeds).
    """

    code = "SYS013"
    name = "eval-missing"
    title = "No held-out evaluation, or one too small"
    kind = "lint"
    proof = "lint"
    where = "trainer"
    reads = (
        "evaluation_completed.pass_rate_se",
        "run_started.num_steps",
        "run_started.setup",
        "run_resumed.setup",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=100, warm_up=0, persistence=1, clear_persistence=1)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="no held-out prompts are configured",
            weight=0.5,
            check="`run_started.setup.evaluation_prompts` is 0",
        ),
        Cause(text="evaluations are rare", weight=0.3, check="`run_started.setup.evaluation_every` is 0 or large"),
        Cause(text="there are few held-out prompts", weight=0.2, check="`evaluation_completed.n` is below 256"),
    )

    steps: float = threshold(100, "Steps without an evaluation that fire", unit="optimizer steps")
    share: float = threshold(0.2, "Share of the plan without one that fires", high=1, unit="share of the plan")
    error: float = threshold(0.05, "Standard error of a pass rate that fires", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Count the steps since the last evaluation, then look at its error."""
        settings, newest = features.settings, features.held_out.newest
        since = settings.step - (0 if newest is None else newest.step)
        if since > self.steps:
            every = settings.setup.evaluation_every or 0
            limit = max(self.steps, self.share * settings.planned_steps, 2 * every)
            if since > limit:
                return self._missing(since, limit, is_off=settings.setup.evaluation_prompts == 0)
        if newest is not None and newest.is_pass_rate and newest.error > self.error:
            return self._noisy(newest)
        return None

    def _missing(self, since: int, limit: float, *, is_off: bool) -> Finding:
        why = ": none is configured" if is_off else ""
        return Finding(
            severity="info",
            summary=f"No held-out evaluation for {since} steps{why}",
            evidence=(
                Evidence(
                    metric="steps since `evaluation_completed`",
                    observed=since,
                    operator=">",
                    threshold=limit,
                    unit="optimizer steps",
                    window=since,
                    window_unit="steps",
                    n=since,
                ),
            ),
            proposals=ranked(
                look("evaluate", "set data.evaluation with at least 256 prompts, and evaluation.every, and start again")
            ),
        )

    def _noisy(self, newest: Result) -> Finding:
        return Finding(
            severity="info",
            summary=f"The held-out pass rate {newest.score:.2f} has a standard error of {newest.error:.3f}",
            evidence=(
                Evidence(
                    metric="evaluation_completed.pass_rate_se",
                    observed=newest.error,
                    operator=">",
                    threshold=self.error,
                    unit="share of completions",
                    window=newest.n,
                    window_unit="completions",
                    n=newest.n,
                ),
            ),
            proposals=ranked(look("evaluate-more", "evaluate at least 256 held-out prompts at the next start")),
        )
