"""GEN015: the learner stands still because rewards take longer than tokens."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.pipeline import SCORING_SHARE, Durations
from tocsin.diagnostics.proposals import look, move, ranked, time_share
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.waits import Waits
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.events import QueueSampled

SHARE = "queue_sampled.learner_wait_s / step_s"


@dataclass(frozen=True, kw_only=True)
class ScoringBound(Rule):
    """The learner waits most of the time, and groups wait for their rewards for longer than for their tokens.

    ## What it means
    The run is bound by the reward functions. Completions are there, and neither faster generation nor faster training
    would change anything.

    ## Why it matters
    Learner and sampler are paid for and idle. Nothing is learned worse by it, so this is a matter of cost.

    ## How it is detected
    The learner's share of waiting as in OFF016: at `fire` or above over the last 30 steps that updated the weights and
    over the last ten of them, five times in a row. And over the last 30 steps, the median time to score a group, the
    wait for a free reward worker included, exceeds the median time to generate one, and a fifth of a step. The three
    bounds apart: OFF017 when the sampler waits, OFF016 when the learner waits and generating takes longer, GEN015 when
    the learner waits and scoring takes longer; OFF016 says nothing then. At staleness bound 0 waiting in turns is
    chosen: info. It resolves when the learner waits less than `clear`, or generating takes longer again.

    ## Known false alarms
    A judge model on the sampler's own device: scoring and generating then slow each other down. An evaluation that
    occupies the workers, for as long as it lasts.

    ## What to do
    More reward workers (`reward_workers.num`, at the next start) if they are busy all the time; a faster reward
    function, or a tighter `reward_workers.timeout_s`, if few groups take most of the time. If the workers are often
    free, it is a matter of latency, and a higher `max_staleness` hides it.

    ## Sources
    TRL's `rollout/score_*` metrics; verl's reward loop. Comparing medians within the run, and the fifth of a step, are
    judgement.
    """

    code = "GEN015"
    name = "scoring-bound"
    title = "Scoring is the bottleneck"
    kind = "efficiency"
    proof = "injected"
    where = "rewards"
    reads = (
        "queue_sampled.learner_wait_s",
        "queue_sampled.sampler_wait_s",
        "queue_sampled.step_s",
        "queue_sampled.generate_s",
        "queue_sampled.score_s",
    )
    trigger = QueueSampled
    timing = Timing(unit="steps", window=Waits.STEPS, warm_up=Waits.STEPS, persistence=5, clear_persistence=10)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the reward function is slow, and there are too few workers for it",
            weight=0.6,
            check="`score_s.mean` times the groups of a step over the workers fills the step",
        ),
        Cause(
            text="few groups take very long to score",
            weight=0.2,
            check="`score_s.max` is many times `score_s.p50`",
        ),
        Cause(
            code="GEN011",
            text="the reward function runs into its time limit",
            weight=0.1,
            check="`rollout_failed` with cause `reward_timeout`",
        ),
        Cause(
            code="SYS007",
            text="the processors are busy with something else",
            weight=0.1,
            check="`resources_sampled.cpu_s` of all components comes near `wall_s` times the processors",
        ),
    )

    fire: float = threshold(0.5, "Share of time from which it fires", high=1, unit="share of time")
    clear: float = threshold(0.4, "Share of time below which it resolves", high=1, unit="share of time")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """The learner's shares first, then what groups wait for."""
        waits, durations = features.waits, features.durations
        if len(waits.window) < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} steps with an update were seen")
        if not durations.window:
            return not_evaluated("missing_input", "no sample says how long generating and scoring take")
        learner, sampler = waits.shares(Waits.STEPS)
        newest, _ = waits.shares(10)
        held = learner if is_open else min(learner, newest)
        # A NaN is no share: it neither fires nor holds.
        holds = held >= (self.clear if is_open else self.fire) and durations.is_scoring_longer
        return self._finding(features, learner, sampler) if holds else None

    def _finding(self, features: Features, learner: float, sampler: float) -> Finding:
        durations, window = features.durations, features.waits.window
        takes_turns = features.settings.knob("max_staleness") == 0
        score, generate = durations.score_s, durations.generate_s
        return Finding(
            severity="info" if takes_turns else "warning",
            summary=(
                f"The learner waited {learner:.0%} of the time over {len(window)} steps; scoring a group takes "
                f"{score:.2g} s, generating it {generate:.2g} s"
            ),
            evidence=(
                time_share(SHARE, learner, self.fire if learner >= self.fire else self.clear, len(window)),
                time_share("queue_sampled.sampler_wait_s / step_s", sampler, self.clear, len(window)),
                longer("queue_sampled.score_s.p50", score, generate, durations),
            ),
            proposals=self._answers(features),
        )

    def _answers(self, features: Features) -> tuple[Proposal, ...]:
        settings = features.settings
        verify = Verify(metric=SHARE, operator="<", threshold=self.clear, within=60, unit="steps")
        workers = look("add-reward-workers", "raise reward_workers.num at the next start, or make the function faster")
        bound = settings.knob("max_staleness")
        older = None if bound is None else move(settings, "max_staleness", bound + 1, verify, risk="medium")
        return ranked(workers, older)


def longer(metric: str, seconds: float, than: float, durations: Durations) -> Evidence:
    """A time of the window beside the one that it exceeds."""
    return Evidence(
        metric=metric,
        observed=seconds,
        operator=">",
        threshold=max(than, SCORING_SHARE * durations.window[-1].total) if seconds > than else than,
        unit="seconds",
        window=len(durations.window),
        window_unit="steps",
        n=len(durations.window),
    )
