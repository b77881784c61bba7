"""SYS010: the disk has no room for the next checkpoints."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.host import Disk
from tocsin.diagnostics.memory import GIB
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.resources import ResourcesSampled

FREE = "resources_sampled.disk_free_bytes"


@dataclass(frozen=True, kw_only=True)
class DiskFull(Rule):
    """The disk of the run folder has room for a few more checkpoints, or is about to.

    ## What it means
    Free space is measured in checkpoints of this run: what counts is whether the next one can be written.

    ## Why it matters
    A checkpoint that the disk refuses ends the run, and the work since the last one is lost. Events and completions go
    to the same disk.

    ## How it is detected
    Free space below `fire` times the size of the last checkpoint: a warning; below `critical` times it: critical. Also
    a warning below `soon` times it when at the pace of the last ten samples the disk is full within `hours`. Before
    the first checkpoint its size is taken to be four times the weights that are sent to the sampler. The share of the
    disk that is used says nothing: a large disk is fine at 85 %. It resolves above `clear` times the size.

    ## Known false alarms
    The estimate before the first checkpoint is rough where weights are sent in another precision than they are saved.

    ## What to do
    Remove old runs and checkpoints (`checkpoint.keep` bounds those of this run at the next start), or free the disk of
    whatever else fills it. A checkpoint taken now makes it worse.

    ## Sources
    open-instruct warns at 85 % used; prime-rl#1464 and prime-rl#791 (checkpoints of 300 GB). The multiples are
    judgement: a new checkpoint is complete before an old one is removed, so one and a bit is the least.
    """

    code = "SYS010"
    name = "disk-full"
    title = "The disk fills up"
    kind = "fault"
    proof = "injected-simulated"
    where = "host"
    reads = (
        "resources_sampled.disk_free_bytes",
        "resources_sampled.disk_total_bytes",
        "checkpoint_saved.bytes",
        "weights_synced.bytes",
    )
    trigger = ResourcesSampled
    timing = Timing(unit="samples", window=Disk.SAMPLES, warm_up=1, persistence=1, clear_persistence=3)
    rising = (("critical", "fire", "clear", "soon"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="checkpoints or completions of this run and of earlier ones fill the disk",
            weight=0.6,
            check="the size of the folder of runs",
        ),
        Cause(text="something else fills the disk", weight=0.4, check="free space falls between checkpoints as well"),
    )

    fire: float = threshold(3.0, "Free space below which it fires", unit="checkpoints")
    critical: float = threshold(1.2, "Free space below which it is critical", unit="checkpoints")
    clear: float = threshold(4.0, "Free space above which it resolves", unit="checkpoints")
    soon: float = threshold(20.0, "Free space below which the pace counts", unit="checkpoints")
    hours: float = threshold(2.0, "Time until the disk is full below which it fires", unit="hours")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Free space and its pace, in checkpoints."""
        disk = features.disk
        size = disk.checkpoint_bytes
        if size <= 0:
            return not_evaluated("warm_up", "no checkpoint and no weight sync has told a size yet")
        if not disk.free:
            return None
        free = disk.free[-1][1]
        if free >= self.soon * size:
            return None
        hours = disk.seconds_left / 3600
        if free >= (self.clear if is_open else self.fire) * size and hours >= self.hours:
            return None
        return self._finding(disk, free, size, hours)

    def _finding(self, disk: Disk, free: int, size: int, hours: float) -> Finding:
        room = free / size
        of = "" if not disk.total_bytes else f" of {disk.total_bytes / GIB:.3g}"
        pace = f"; full in {60 * hours:.0f} minutes at this pace" if hours < self.hours else ""
        told = "a checkpoint" if disk.has_checkpoint else "a checkpoint, by the weights sent,"
        is_room_short = room < self.clear
        return Finding(
            severity="critical" if room < self.critical else "warning",
            summary=f"{free / GIB:.3g}{of} GiB are free and {told} takes {size / GIB:.2g} GiB{pace}",
            evidence=(
                Evidence(
                    metric=FREE if is_room_short else "hours until resources_sampled.disk_free_bytes is 0",
                    observed=room if is_room_short else hours,
                    operator="<",
                    threshold=(self.fire if room < self.fire else self.clear) if is_room_short else self.hours,
                    unit="checkpoints" if is_room_short else "hours",
                    window=len(disk.free),
                    window_unit="samples",
                    n=len(disk.free),
                ),
            ),
            proposals=ranked(
                look("free-disk", "remove old runs and checkpoints from this disk"),
                look("keep-fewer", "lower checkpoint.keep at the next start"),
            ),
        )
