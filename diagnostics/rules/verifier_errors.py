"""GEN011: reward functions fail, so that completions stay without a reward."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.failures import REWARD_CAUSES, RewardFailures
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.outcome import COMPLETIONS
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence, Severity


@dataclass(frozen=True, kw_only=True)
class VerifierErrors(Rule):
    """A share of the completions could not be scored, because a reward function raised, hung or gave no number.

    ## What it means
    What cannot be scored has no reward at all: it is counted as failed, with its cause, and never as reward 0. So
    nothing wrong is learned, and data are lost.

    ## Why it matters
    Groups shrink or disappear, tokens were generated for nothing, and when long or unusual answers are the ones that
    fail, the policy learns from the others only. A verifier that is down for all of them stops the run in the end.

    ## How it is detected
    Completions that failed in a reward function over those that failed or were scored, over at least 256 of them.
    Above `fire` it is a warning, above `critical` critical; at one or two prompts only it is info. Rows that cannot be
    read, prompts that are too long, workers that died and samplers that refuse are not counted. It resolves below
    `clear`.

    ## Known false alarms
    Extreme answers may rightly take longer than a verifier is given. A few bad prompts fail again in each epoch; they
    are the one or two of each window.

    ## What to do
    Read one of the errors in `rollout_failed`. Errors: mend the function or what it depends on. Time: give it more
    `reward_workers.timeout_s`, or more workers. No number: find where it divides by zero. When more than half fail,
    pause the run until it answers again.

    ## Sources
    TRL leaves out what a reward function answers with None; open-r1#420 (pass rate 0.72 to 0.09 by a verifier that
    failed silently), UniRL#462, miles#3221.
    """

    code = "GEN011"
    name = "verifier-errors"
    title = "Reward functions fail"
    kind = "fault"
    proof = "injected"
    where = "trainer"
    reads = ("rollout_failed.cause", "rollout_failed.completions", "batch_consumed.finish_reasons")
    trigger = BatchConsumed
    timing = Timing(unit="completions", window=COMPLETIONS, warm_up=COMPLETIONS, persistence=3, clear_persistence=5)
    rising = (("clear", "fire", "critical", "outage"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="what the reward function depends on is down",
            weight=0.4,
            check="the share jumped from one step to the next, and all prompts are concerned",
        ),
        Cause(
            text="the reward function cannot handle what the policy now writes",
            weight=0.4,
            check="the share grows slowly, and the failed completions are of one kind",
        ),
        Cause(
            code="SYS007",
            text="the processor is too busy to score in time",
            weight=0.2,
            check="most failures are `reward_timeout`, and `queue_sampled.score_s` rose before",
        ),
    )

    fire: float = threshold(0.01, "Failed share that warns", high=1, unit="share of completions")
    critical: float = threshold(0.1, "Failed share that is critical", high=1, unit="share of completions")
    outage: float = threshold(0.5, "Failed share at which to pause the run", high=1, unit="share of completions")
    clear: float = threshold(0.005, "Failed share below which it resolves", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the share that failed with the limit."""
        failures = features.reward_failures
        share = failures.window.share
        if math.isnan(share):
            return not_evaluated("warm_up", "fewer than 256 completions were scored or failed")
        return self._finding(failures, share) if share > (self.clear if is_open else self.fire) else None

    def _severity(self, share: float, prompts: int) -> Severity:
        if prompts <= 2:
            return "info"
        return "critical" if share > self.critical else "warning"

    def _finding(self, failures: RewardFailures, share: float) -> Finding:
        window, prompts = failures.window, failures.num_prompts()
        (cause, most), *_ = failures.causes().most_common(1)
        return Finding(
            severity=self._severity(share, prompts),
            summary=(
                f"{share:.1%} of {window.n} completions since step {window.first_step} got no reward: in {most} cases "
                f"the function {REWARD_CAUSES[cause]}, over {prompts} prompts"
            ),
            evidence=(
                Evidence(
                    metric="rollout_failed.completions / (failed + scored)",
                    observed=share,
                    operator=">",
                    threshold=self.fire if share > self.fire else self.clear,
                    unit="share of completions",
                    window=window.n,
                    window_unit="completions",
                    n=window.n,
                    baseline=None if math.isnan(window.lowest) else window.lowest,
                ),
            ),
            proposals=self._answers(cause, share),
        )

    def _answers(self, cause: str, share: float) -> tuple[Proposal, ...]:
        pause = look("pause-run", "pause the run (`tocsin pause`) until the reward function answers again")
        answers = {
            "reward_error": look("read-errors", "read an error of `rollout_failed`, and mend the reward function"),
            "reward_timeout": look("give-more-time", "raise reward_workers.timeout_s or reward_workers.num"),
            "reward_invalid": look("find-no-number", "find where the reward function answers with no finite number"),
        }
        return ranked(pause if share > self.outage else None, answers[cause])
