"""OFF016: the learner stands still for groups more than half of the time."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.pipeline import tail_ratio
from tocsin.diagnostics.proposals import look, move, ranked, time_share
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.waits import Waits
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.events import QueueSampled

SHARE = "queue_sampled.learner_wait_s / step_s"
OLDEST_ADVISED: Final = 8
"""Staleness bound beyond which more overlap is not worth its risk; the default cut-off of prime-rl and verl."""
SPARE: Final = 0.1
"""Share of time that the sampler must wait for more slots to be of any use to it."""
LONG_TAIL: Final = 4.0
"""Slowest over usual time of a group from which the tail is what the learner waits for; as in SYS005."""


@dataclass(frozen=True, kw_only=True)
class TrainerStarved(Rule):
    """The learner waits for groups most of the time: the run is bound by generation.

    ## What it means
    Of the wall-clock time of the last steps, the learner spent at least half waiting for finished groups. Faster
    training would change nothing; faster or earlier generation would.

    ## Why it matters
    The learner's device is paid for and idle. Nothing is learned worse by it, so this is a matter of cost.

    ## How it is detected
    Sum of `learner_wait_s` over sum of `step_s`, over the last 30 steps that updated the weights and over the last ten
    of them, each without its longest wait, so that one evaluation or checkpoint does not decide. The first eight
    steps are start-up. It fires when both shares stay at `fire` or above for five steps: a warning. At staleness bound
    0 learner and sampler must take turns, so the wait is chosen: info, with what overlap would give. Steps without
    signal leave the learner nothing to do and are not counted. Where groups wait for their rewards for longer than for
    their tokens, GEN015 speaks instead. Causes are ranked by what the run says: how long groups take to generate and to
    score, how far the slowest is behind, how much the sampler waits, and what weight syncs take. It resolves below
    `clear`.

    ## Known false alarms
    A wait of a third is the usual price of fresh data. Both sides waiting means that slots, not speed, are short: the
    summary says how much the sampler waits. Where the run does not say how long scoring takes, a slow reward function
    looks like a slow sampler from here.

    ## What to do
    If the sampler waits as well, allow older data: raise `max_staleness` by one. If it never does, it is the
    bottleneck, and older data would not help: more samplers, larger sampler batches (`sampler.batch_groups`, at the
    next start), shorter completions. A cap on groups in flight below what the slots allow is lifted first.

    ## Sources
    Comments in TRL's AsyncGRPO (an empty queue and a wait mean bound by generation); idle ratios of verl's fully
    asynchronous trainer; prime-rl's ConcurrencyController; verl#6693 (an idle ratio that missed pauses).
    """

    code = "OFF016"
    name = "trainer-starved"
    title = "Learner waits for groups"
    kind = "efficiency"
    proof = "injected"
    where = "learner"
    reads = (
        "queue_sampled.learner_wait_s",
        "queue_sampled.sampler_wait_s",
        "queue_sampled.step_s",
        "queue_sampled.generate_s",
        "queue_sampled.score_s",
        "weights_synced.seconds",
    )
    trigger = QueueSampled
    timing = Timing(unit="steps", window=Waits.STEPS, warm_up=Waits.STEPS, persistence=5, clear_persistence=10)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the sampler is slower than the learner",
            weight=0.6,
            check="`sampler_wait_s` is near zero: it never stands still",
        ),
        Cause(
            text="the staleness bound leaves too few slots",
            weight=0.25,
            check="`sampler_wait_s` is a large share of the step as well",
        ),
        Cause(
            code="GEN015",
            text="scoring takes the time",
            weight=0.15,
            check="`queue_sampled.score_s` is a large part of `generate_s` and `score_s` together",
        ),
        Cause(
            code="SYS005",
            text="a few slow groups hold up the others",
            weight=0.1,
            check="`queue_sampled.generate_s.max` is many times `p50`",
        ),
        Cause(
            code="OFF012",
            text="the sampler stands still for new weights",
            weight=0.1,
            check="`weights_synced.seconds.load` is a large share of a step",
        ),
    )

    fire: float = threshold(0.5, "Share of time from which it fires", high=1, unit="share of time")
    clear: float = threshold(0.4, "Share of time below which it resolves", high=1, unit="share of time")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the learner's shares with the limit."""
        waits = features.waits
        if len(waits.window) < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} steps with an update were seen")
        learner, sampler = waits.shares(Waits.STEPS)
        newest, _ = waits.shares(10)
        held = learner if is_open else min(learner, newest)
        # A NaN is no share: it neither fires nor holds.
        if not held >= (self.clear if is_open else self.fire) or features.durations.is_scoring_longer:
            return None
        return self._finding(features, learner, sampler)

    def _finding(self, features: Features, learner: float, sampler: float) -> Finding:
        settings, window = features.settings, features.waits.window
        takes_turns = settings.knob("max_staleness") == 0
        return Finding(
            severity="info" if takes_turns else "warning",
            summary=(
                f"The learner waited {learner:.0%} of the time over {len(window)} steps, the sampler {sampler:.0%}"
                + (" (they take turns at max_staleness 0)" if takes_turns else "")
            ),
            evidence=(
                time_share(SHARE, learner, self.fire if learner >= self.fire else self.clear, len(window)),
                time_share("queue_sampled.sampler_wait_s / step_s", sampler, self.clear, len(window)),
                *_durations(features),
            ),
            proposals=self._answers(settings, sampler),
            causes=self._ranked_causes(features, sampler),
        )

    def _ranked_causes(self, features: Features, sampler: float) -> tuple[Cause, ...]:
        """The causes by how much of the wait each can account for; those that nothing was measured of as they are."""
        durations, syncs = features.durations, features.sync_cost
        has_room = sampler >= SPARE
        weights: dict[int, float] = {0: 0.3 if has_room else 0.6, 1: 0.5 if has_room else 0.1}
        if durations.window:
            both = durations.score_s + durations.generate_s
            weights[2] = 0.6 * durations.score_s / both if both > 0 else 0.0
        if tail := durations.tail:
            weights[3] = 0.7 if tail_ratio(tail) > LONG_TAIL else 0.05
        if syncs.window:
            weights[4] = min(0.9, 2 * syncs.lost_share)
        given = [
            cause.model_copy(update={"weight": round(weights.get(position, cause.weight), 2)})
            for position, cause in enumerate(self.causes)
        ]
        return tuple(sorted(given, key=lambda cause: -cause.weight))

    def _answers(self, settings: Settings, sampler: float) -> tuple[Proposal, ...]:
        verify = Verify(metric=SHARE, operator="<", threshold=self.clear, within=60, unit="steps")
        bound, flight, groups = (settings.knob(k) for k in ("max_staleness", "in_flight_groups", "groups_per_step"))
        fresher = more = None
        if bound is not None and bound < OLDEST_ADVISED and (sampler >= SPARE or bound == 0):
            fresher = move(settings, "max_staleness", bound + 1, verify, risk="medium")
        if bound is not None and flight is not None and groups is not None and flight < groups * (bound + 1):
            more = move(settings, "in_flight_groups", groups * (bound + 1), verify)
        capacity = look("add-samplers", "add samplers, raise sampler.batch_groups, or shorten completions")
        return ranked(more, fresher, capacity)


def _durations(features: Features) -> tuple[Evidence, ...]:
    """How long a group takes to generate, beside how long it takes to score."""
    durations = features.durations
    if not durations.window:
        return ()
    generate, score, n = durations.generate_s, durations.score_s, len(durations.window)
    return (
        Evidence(
            metric="queue_sampled.generate_s.p50",
            observed=generate,
            operator=">" if generate > score else "<=",
            threshold=score,
            unit="seconds",
            window=n,
            window_unit="steps",
            n=n,
        ),
    )
