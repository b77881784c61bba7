"""OFF014: single completions span many versions of the weights."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import fewer_in_flight, look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.syncs import BatchSpan, Spans
from tocsin.schemas.actions import Verify
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence

P95 = "batch_consumed.version_span.p95"


@dataclass(frozen=True, kw_only=True)
class MixedVersionRollouts(Rule):
    """The tokens of single completions come from several versions of the weights.

    ## What it means
    Weights changed while completions were being generated, and these went on. By itself that is how in-flight updates
    work: it keeps servers busy and makes the later tokens fresher. A completion that spans more versions than
    `max_staleness` allows is another matter, since its oldest tokens are older than any token should be.

    ## Why it matters
    The loss weighs every token by the log-prob recorded when it was sampled, so a mixture is corrected token by token.
    The further apart the versions, the larger the corrections and the fewer tokens count.

    ## How it is detected
    In at least `batches` of the last ten batches the 95th percentile of `version_span` exceeds the staleness bound of
    the batch: a warning. Otherwise, in as many of them more than `mixed` of the completions have tokens of more than
    one version: info, for as long as it is so. The fault is not planted yet, so both are shown as info. It resolves
    when at most one of ten batches counts.

    ## Known false alarms
    A large share of mixed completions is normal wherever generation takes longer than a step and weights change in
    flight. It is said once, so that nobody has to find out, and asks for nothing. The local sampler changes weights
    between batches, so its completions have one version each.

    ## What to do
    Nothing about the share. When spans exceed the bound: fewer groups in flight, so that single completions take fewer
    steps, and a look at what makes them slow. Keep the sampler's log-prob of each token, and never recompute them.

    ## Sources
    `partial_rollout`, `max_partial_span` and trajectory spans of verl; PipelineRL (arXiv 2509.19128). The limit at the
    bound and the share of one half are judgement.
    """

    code = "OFF014"
    name = "mixed-version-rollouts"
    title = "Completions span many versions"
    kind = "fault"
    proof = "scenario"
    where = "sampler"
    reads = ("batch_consumed.version_span", "batch_consumed.mixed_frac", "batch_consumed.max_staleness")
    trigger = BatchConsumed
    timing = Timing(unit="steps", window=Spans.BATCHES, warm_up=Spans.BATCHES, persistence=1, clear_persistence=3)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="weights change in flight, and completions take longer than a step",
            weight=0.6,
            check="`version_span` is about the length of a generation over that of a step",
        ),
        Cause(
            code="SYS005",
            text="single generations take far longer than the others",
            weight=0.25,
            check="`version_span.p50` is 0 and `max` is large",
        ),
        Cause(
            code="SYS004",
            text="servers throw sequences out of their cache and begin them again",
            weight=0.15,
            check="`engine_sampled.preemptions` is above 0",
        ),
    )

    batches: float = threshold(5, "Batches out of ten that must count", low=2, high=10, unit="batches")
    mixed: float = threshold(0.5, "Share of mixed completions above which a batch counts as info", high=1)

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Count the batches of the window with wide spans, or else with many mixed completions."""
        window = features.spans.window
        if not window or features.settings.step - window[-1].step > self.timing.window:
            return not_evaluated("missing_input", "no `batch_consumed` with a version span came in the last 10 steps")
        if len(window) < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} batches were seen")
        needed = 2 if is_open else self.batches
        wide = [batch for batch in window if batch.p95 > batch.bound]
        if len(wide) >= needed:
            return self._wide(features.settings, wide)
        mixed = [batch.mixed for batch in window if batch.mixed > self.mixed]
        return self._mixed(mixed) if len(mixed) >= needed else None

    def _wide(self, settings: Settings, wide: list[BatchSpan]) -> Finding:
        bound = wide[-1].bound
        longest = max(batch.p95 for batch in wide)
        return Finding(
            severity="warning",
            summary=(
                f"In {len(wide)} of {Spans.BATCHES} batches the p95 of version spans was above the bound {bound} "
                f"(largest {longest:g} steps)"
            ),
            evidence=(_evidence(P95, longest, bound, "optimizer steps"),),
            proposals=ranked(
                fewer_in_flight(settings, Verify(metric=P95, operator="<=", threshold=bound, within=50, unit="steps")),
                look("find-slow-generations", "look for what makes single generations take several steps"),
            ),
        )

    def _mixed(self, mixed: list[float]) -> Finding:
        middle = sorted(mixed)[len(mixed) // 2]
        return Finding(
            severity="info",
            summary=(
                f"In {len(mixed)} of {Spans.BATCHES} batches most completions span a weight sync "
                f"(median {middle:.0%}), within the bound"
            ),
            evidence=(_evidence("batch_consumed.mixed_frac", middle, self.mixed, "share"),),
            proposals=ranked(look("keep-token-logprobs", "keep each token's log-prob from when it was sampled")),
        )


def _evidence(metric: str, observed: float, limit: float, unit: str) -> Evidence:
    return Evidence(
        metric=metric,
        observed=observed,
        operator=">",
        threshold=limit,
        unit=unit,
        window=Spans.BATCHES,
        window_unit="steps",
        n=Spans.BATCHES,
    )
