"""SYS011: an end of the run now would lose hours of work."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, threshold
from tocsin.diagnostics.standstill import CheckpointAge
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.events import ClockTicked


@dataclass(frozen=True, kw_only=True)
class CheckpointOld(Rule):
    """The last checkpoint is hours old, or there is none.

    ## What it means
    If the run ended now, by a crash or a machine that goes away, everything since the last checkpoint would be lost.

    ## Why it matters
    It costs as many hours of the whole machine as the checkpoint is old.

    ## How it is detected
    At every clock tick: more than `fire` seconds, and more than a tenth of the planned steps, since the last checkpoint
    or the start; or more than `none` seconds without any. Pauses do not count. Always info: how much may be lost is the
    user's choice. It resolves with the next checkpoint.

    ## Known false alarms
    A run of a few hours on a machine of one's own.

    ## What to do
    Ask for a checkpoint now (`tocsin checkpoint`), and set `checkpoint.every` at the next start.

    ## Sources
    Checkpoint intervals by Young and Daly (arXiv 2410.18124 for training runs). An hour is judgement.
    """

    code = "SYS011"
    name = "checkpoint-old"
    title = "The last checkpoint is old"
    kind = "lint"
    proof = "lint"
    where = "trainer"
    reads = (
        "checkpoint_saved.bytes",
        "clock_ticked.paused",
        "run_started.num_steps",
        "run_started.setup",
        "run_resumed.checkpoint_step",
    )
    trigger = ClockTicked
    timing = Timing(unit="seconds", window=3600, warm_up=0, persistence=1, clear_persistence=1, silent_after=5000)
    rising = (("fire", "none"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(text="`checkpoint.every` is 0 or large", weight=0.6, check="`run_started.setup.checkpoint_every`"),
        Cause(code="SYS010", text="the disk refuses checkpoints", weight=0.2, check="free space on the disk"),
        Cause(code="OFF018", text="the run stands still", weight=0.1, check="no step has ended for long"),
        Cause(code="OFF011", text="a weight sync hangs", weight=0.1, check="a sync began and does not end"),
    )

    fire: float = threshold(3600, "Age above which it fires", low=1, unit="seconds")
    none: float = threshold(7200, "Time without any checkpoint above which it fires", low=1, unit="seconds")
    part: float = threshold(0.1, "Share of the planned steps that must be at stake", high=1, unit="share of steps")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the age with what may be lost."""
        age = features.checkpoint_age
        if age.seconds <= self.fire or age.has_ended:
            return None
        steps = features.settings.step - age.since_step
        is_much = age.num_steps is None or steps > self.part * age.num_steps
        is_none = not age.has_any and age.seconds > self.none
        return self._finding(features, age, steps) if is_much or is_none or is_open else None

    def _finding(self, features: Features, age: CheckpointAge, steps: int) -> Finding:
        every = features.settings.setup.checkpoint_every
        plan = " (they are written at the end only)" if every == 0 else ""
        since = "the last checkpoint" if age.has_any else "the start, without a checkpoint"
        return Finding(
            severity="info",
            summary=f"{age.seconds / 3600:.1f} h and {steps} steps since {since}{plan}",
            evidence=(
                Evidence(
                    metric="seconds since checkpoint_saved",
                    observed=age.seconds,
                    operator=">",
                    threshold=self.fire,
                    unit="seconds",
                    window=round(age.seconds),
                    window_unit="seconds",
                    n=1,
                    baseline=None,
                ),
            ),
            proposals=ranked(
                look("save-now", "write a checkpoint now with `tocsin checkpoint`"),
                look("save-more-often", "set checkpoint.every at the next start"),
            ),
        )
