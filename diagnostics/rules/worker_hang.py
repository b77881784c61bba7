"""OFF018: the clock goes on and nothing else does."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, threshold
from tocsin.diagnostics.standstill import Standstill, Who
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.events import ClockTicked

WORDS: Final[dict[Who, str]] = {
    "sampler": "the rollout process has waited for its sampler for {busy:.0f} s",
    "scoring": "the rollout process has waited for a reward function for {busy:.0f} s",
    "sync": "the rollout process has waited for a weight sync for {busy:.0f} s",
    "idle": "the rollout process is idle, and the learner waits for groups",
    "silent": "the rollout process says nothing, and the learner reads nothing from it",
    "unknown": "nobody says what is under way",
}


@dataclass(frozen=True, kw_only=True)
class WorkerHang(Rule):
    """Nothing has happened for far longer than a step takes: a sampler, a reward function or the learner hangs.

    ## What it means
    No step ended, no batch was generated, no weights arrived and no failure was dealt with, for many times as long as
    that usually takes. What hangs says nothing, so the clock is all there is to go by; who it is, the heartbeats of
    the rollout process tell.

    ## Why it matters
    The whole run stands still at full cost, and looks busy from outside. Time limits end it late or never.

    ## How it is detected
    At every clock tick: the time since the last sign of progress, on the monotonic clock of the events, exceeds the
    larger of `floor` and `factor` times the median of the last 32 steps or sampler batches, whichever takes longer. A
    warning, and critical from `critical` times that limit on. Until the first step of an attempt has ended the limit
    is `first`, for compilation and set-up. Twice the last checkpoint is added. A pause that somebody asked for does not
    count, and a sync under way is judged by OFF011. It resolves with the next sign of progress.

    ## Known false alarms
    A reward function or a batch that takes minutes now and then where the usual one takes seconds. A first checkpoint
    that takes longer than `floor`.

    ## What to do
    Look at the one that is named: dump its stack (py-spy), read its log. A sampler that exceeds `sampler.timeout_s` and
    a reward worker that exceeds `reward_workers.timeout_s` are killed and replaced, and their work is issued again:
    lower these limits if they are far above what is usual. Otherwise stop the run and resume it; nothing is lost but
    the steps since the last checkpoint.

    ## Sources
    Heartbeat limits of TRL's asynchronous trainer (300 s) and health checks of slime (300 s before the first);
    trl#7176 (one failed generation kills a worker). The minute and ten times the usual are judgement.
    """

    code = "OFF018"
    name = "worker-hang"
    title = "A worker or a reward function hangs"
    kind = "fault"
    proof = "injected"
    where = "rollout"
    reads = (
        "component_heartbeat.busy",
        "component_heartbeat.busy_s",
        "step_completed.seconds",
        "sampler_sampled.seconds",
        "checkpoint_saved.seconds",
        "clock_ticked.paused",
    )
    trigger = ClockTicked
    timing = Timing(unit="seconds", window=60, warm_up=0, persistence=1, clear_persistence=1, silent_after=5000)
    rising = (("floor", "first"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the sampler hangs in a batch",
            weight=0.4,
            check="`component_heartbeat.busy` is `generate` or `evaluate` and `busy_s` grows",
        ),
        Cause(
            text="a reward function hangs",
            weight=0.25,
            check="`component_heartbeat.busy` is `score`; `rollout_failed` with `reward_timeout` follows",
        ),
        Cause(
            text="the learner hangs in its own step, or the rollout process is gone",
            weight=0.2,
            check="heartbeats stopped; the learner's stack says in which call it is",
        ),
        Cause(
            text="both sides wait for each other",
            weight=0.1,
            check="`component_heartbeat.busy` is `idle` while the learner waits for groups",
        ),
        Cause(
            code="SYS015",
            text="a device, a link or the node is faulty",
            weight=0.05,
            check="the kernel log or the device's error counters show it",
        ),
    )

    floor: float = threshold(60, "Seconds that may always pass", low=0.1, unit="seconds")
    factor: float = threshold(10, "Times the usual step or batch that may pass", low=1)
    first: float = threshold(600, "Seconds that the first step of an attempt may take", low=1, unit="seconds")
    critical: float = threshold(5, "Times the limit from which it is critical", low=1)

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the time without progress with what it may last."""
        still = features.standstill
        if still.seconds <= self.floor or still.has_ended:
            return None
        limit = self.limit(still)
        who = still.who
        if not is_open:
            is_sync = who == "sync" or (who in ("silent", "unknown") and features.open_sync.version is not None)
            if still.seconds <= limit or is_sync:
                return None
        return self._finding(still, who, limit)

    def limit(self, still: Standstill) -> float:
        """Seconds that may pass without progress."""
        most = self.first if still.is_starting else max(self.floor, self.factor * still.usual_s)
        return most + still.allowance_s

    def _finding(self, still: Standstill, who: Who, limit: float) -> Finding:
        passed = still.seconds
        return Finding(
            severity="critical" if passed > self.critical * limit else "warning",
            summary=f"Nothing has happened for {passed:.0f} s; {WORDS[who].format(busy=still.busy_s)}",
            evidence=(
                Evidence(
                    metric="seconds since the last step, sampler batch, sync, checkpoint or failure",
                    observed=passed,
                    operator=">",
                    threshold=limit if passed > limit else self.floor,
                    unit="seconds",
                    window=round(passed),
                    window_unit="seconds",
                    n=1,
                    baseline=still.usual_s or None,
                ),
            ),
            proposals=ranked(*_answers(who)),
            causes=_ranked_causes(self.causes, who),
        )


def _answers(who: Who) -> tuple[Proposal, ...]:
    again = look("resume-run", "stop the run and resume it: what is in flight is issued again")
    if who == "sampler":
        return (look("look-at-sampler", "dump the sampler's stack with py-spy, or lower sampler.timeout_s"), again)
    if who == "scoring":
        lower = look("look-at-reward", "look at the reward function, or lower reward_workers.timeout_s")
        return (lower, again)
    return (look("dump-stacks", "dump the stacks of learner and rollout process with py-spy"), again)


def _ranked_causes(causes: tuple[Cause, ...], who: Who) -> tuple[Cause, ...] | None:
    """The cause that the heartbeats point at first."""
    position = {"sampler": 0, "scoring": 1, "silent": 2, "idle": 3}.get(who)
    if position is None:
        return None
    named = causes[position].model_copy(update={"weight": 0.8})
    return (named, *(cause for i, cause in enumerate(causes) if i != position))
