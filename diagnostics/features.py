"""What the rules look at: every feature of the engine, updated once per event and shared by all rules."""

from tocsin.diagnostics.feature import ACCELERATORS, Feature, Settings
from tocsin.diagnostics.freshness import OnPolicyGap, Staleness, Syncs
from tocsin.diagnostics.memory import Memory
from tocsin.diagnostics.outcome import Outcome, Truncation
from tocsin.diagnostics.rewards import Rewards
from tocsin.diagnostics.updates import Clips, Entropy, Gradients, Numerics, Updates
from tocsin.diagnostics.waits import Waits
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, RunResumed
from tocsin.schemas.knobs import LIMITS

__all__ = ["ACCELERATORS", "Features", "Settings"]


class Features:
    """Every window of the engine."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.rewards = Rewards()
        self.outcome = Outcome(self.rewards)
        self.truncation = Truncation()
        self.numerics = Numerics()
        self.clips = Clips()
        self.updates = Updates()
        self.gradients = Gradients()
        self.entropy = Entropy()
        self.staleness = Staleness()
        self.syncs = Syncs()
        self.on_policy_gap = OnPolicyGap()
        self.waits = Waits()
        self.memory = Memory()
        self._windows: tuple[Feature, ...] = (
            self.truncation,
            self.numerics,
            self.clips,
            self.updates,
            self.gradients,
            self.entropy,
            self.staleness,
            self.syncs,
            self.on_policy_gap,
            self.waits,
            self.memory,
        )
        self._takers: dict[type[BaseEvent], tuple[Feature, ...]] = {}
        """Who takes which type of event; filled as the types appear."""

    def update(self, event: BaseEvent) -> None:
        """Take in one event; a knob change or a resume restarts the windows whose metrics it moves."""
        self.settings.update(event)
        kind = type(event)
        if kind not in self._takers:
            self._takers[kind] = tuple(feature for feature in self._windows if issubclass(kind, feature.takes))
        for feature in self._takers[kind]:
            feature.update(event)
        if isinstance(event, BatchConsumed):
            self.rewards.update(event)
            self.outcome.update(event.step, self.rewards.last)
        if isinstance(event, RunResumed):
            moved = frozenset().union(*(feature.moved_by for feature in self._windows), Rewards.MOVED_BY)
        elif isinstance(event, KnobChanged) and event.path in LIMITS:
            moved = frozenset(LIMITS[event.path].moves)
        else:
            return
        for feature in self._windows:
            if feature.moved_by & moved:
                feature.restart()
        if moved & Rewards.MOVED_BY:
            self.rewards.restart()
