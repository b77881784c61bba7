"""OFF006: the sampler draws from a part of the distribution only."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.origins import BELOW_ONE, ERRORS, ONE_SIDED, is_cut
from tocsin.diagnostics.proposals import look
from tocsin.diagnostics.ratios import Ratios
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.base import as_float
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted


@dataclass(frozen=True, kw_only=True)
class SamplingTruncationBias(Rule):
    """Filters of the sampler, such as top-p, cut its distribution, and the importance ratio carries the cut.

    ## What it means
    A sampler that draws from the most likely tokens only gives each of them a higher log-prob than the learner does.
    Their ratios to the learner are then below one, by the mass that was kept, for right and wrong answers alike.

    ## Why it matters
    The ratio is meant to correct for old data. Here it shrinks every token by a constant that has nothing to do with
    age, and over a long completion the constants multiply: a hundredth of a nat a token is a factor of three over
    a hundred tokens. Tokens outside the cut are never sampled, so nothing is learned about them.

    ## How it is detected
    Two ways. *In the data*: pooled over five updates, or as many as have 256 tokens, the mean ratio is more than `bias`
    and four standard errors below one, its effective sample size at least 0.8, and 0.8 of the mean distance between the
    log-probs has one sign. Drift between two whole distributions cannot do this: its mean ratio is one. A warning. *At
    launch*: the run states filters that are not neutral, which is information. It resolves when the mean ratio is
    within half of `bias`.

    ## Known false alarms
    A policy that broke away from its data has ratios near zero, and these scatter. Noise in log-probs goes both ways
    and raises the mean ratio (OFF004). Filters that both sides apply in the same way leave the mean at one.

    ## What to do
    Sample with top-p 1, without top-k, min-p and repetition penalty, and with the learner's temperature; a server may
    take filters from the model's own folder. Or have the learner apply the same cut before it takes log-probs.

    ## Sources
    DeepSeek-V3.2 (arXiv 2512.02556) on keeping the sampling mask; trl#4772 (0.012 nats over a hundred tokens),
    trl#6789, trl#6944, trl#7120, trl#7269.
    """

    code = "OFF006"
    name = "sampling-truncation-bias"
    title = "Sampling filters bias the ratio"
    kind = "fault"
    proof = "injected"
    where = "sampler"
    reads = (
        "step_completed.ratio",
        "step_completed.logprob_gap.k1",
        "step_completed.logprob_gap.abs_mean",
        "run_started.setup",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=5, warm_up=5, persistence=3, clear_persistence=5)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="top-p, top-k, min-p or a repetition penalty is set on the sampler",
            weight=0.8,
            check="`run_started.setup.sampling` is not empty, or the server's own settings are not neutral",
        ),
        Cause(
            text="the server takes its settings from the model's folder",
            weight=0.2,
            check="the folder has a `generation_config.json` with filters",
        ),
    )

    bias: float = threshold(BELOW_ONE, "Distance of the mean ratio below one", high=1, unit="ratio")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Judge the data; without enough of them, what the run states."""
        ratios = features.ratios
        filters = {name: as_float(value) for name, value in (features.settings.setup.sampling or {}).items()}
        if ratios.unmeasured >= self.timing.absent_after and not filters:
            return not_evaluated("missing_input", "steps report no `ratio`")
        if not ratios.was_judged and not filters:
            return not_evaluated(
                "warm_up",
                f"fewer than {Ratios.STEPS} updates, or than {Ratios.TOKENS} tokens in up to {Ratios.MOST}, were seen",
            )
        missing, chance = 1 - ratios.pooled.mean, ERRORS * ratios.pooled.error
        if missing > max(self.bias / 2, chance) if is_open else missing > self.bias and is_cut(ratios):
            return self._in_data(ratios)
        return _at_launch(filters) if filters else None

    def _in_data(self, ratios: Ratios) -> Finding:
        pooled = ratios.pooled
        return Finding(
            severity="warning",
            summary=(
                f"The mean ratio of learner to sampler is {pooled.mean:.3f} over {pooled.tokens} tokens, where drift "
                "alone leaves it at 1"
            ),
            evidence=(
                Evidence(
                    metric="1 - step_completed.ratio.mean",
                    observed=1 - pooled.mean,
                    operator=">",
                    threshold=self.bias if 1 - pooled.mean > self.bias else self.bias / 2,
                    unit="ratio",
                    window=len(ratios.window),
                    window_unit="steps",
                    n=pooled.tokens,
                    baseline=ERRORS * pooled.error,
                ),
                *_one_sided(ratios),
            ),
            proposals=_answers(),
        )


def _one_sided(ratios: Ratios) -> tuple[Evidence, ...]:
    share = ratios.one_sided
    if not math.isfinite(share):
        return ()
    return (
        Evidence(
            metric="step_completed.logprob_gap.k1 / logprob_gap.abs_mean",
            observed=share,
            operator=">" if share > ONE_SIDED else "<=",
            threshold=ONE_SIDED,
            unit="share",
            window=len(ratios.window),
            window_unit="steps",
            n=len(ratios.window),
            baseline=0.0,
        ),
    )


def _at_launch(filters: dict[str, float]) -> Finding:
    stated = ", ".join(f"{name} {value:g}" for name, value in sorted(filters.items()))
    return Finding(
        severity="info",
        summary=f"The sampler draws with filters that are not neutral: {stated}"[:160],
        evidence=tuple(
            Evidence(
                metric=f"run_started.setup.sampling.{name}",
                observed=value,
                operator="!=",
                threshold=1.0,
                window=1,
                window_unit="samples",
                n=1,
            )
            for name, value in sorted(filters.items())
        ),
        proposals=_answers(),
    )


def _answers() -> tuple[Proposal, ...]:
    return (look("set-neutral-filters", "start again with neutral filters and one temperature on both sides"),)
