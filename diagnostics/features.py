"""What the rules look at: every feature of the engine, updated once per event and shared by all rules."""

from dataclasses import dataclass, field

from tocsin.diagnostics.components import Components, Parsing
from tocsin.diagnostics.engines import Engines, PrefixCaches
from tocsin.diagnostics.failures import RewardFailures
from tocsin.diagnostics.feature import ACCELERATORS, Feature, Settings
from tocsin.diagnostics.freshness import OnPolicyGap, Staleness, Syncs
from tocsin.diagnostics.heldout import HeldOut
from tocsin.diagnostics.host import Disk, Host
from tocsin.diagnostics.invariants import Invariants
from tocsin.diagnostics.lengths import Lengths, LengthsByPass
from tocsin.diagnostics.memory import Memory
from tocsin.diagnostics.movement import AdamEps, Alignment, Clipping, EntropyRise, Movement
from tocsin.diagnostics.outcome import Outcome, Truncation
from tocsin.diagnostics.pipeline import Durations, Padding, Throughput
from tocsin.diagnostics.plateau import Plateau
from tocsin.diagnostics.prompt_stats import Extremes, Repeats
from tocsin.diagnostics.ratios import PolicySteps, Ratios
from tocsin.diagnostics.reference import Reference
from tocsin.diagnostics.resumption import Resumption
from tocsin.diagnostics.rewards import Rewards
from tocsin.diagnostics.standstill import CheckpointAge, Standstill
from tocsin.diagnostics.syncs import OpenSync, Spans, SyncCost
from tocsin.diagnostics.texts import Texts
from tocsin.diagnostics.updates import Clips, Entropy, Gradients, Numerics, Updates
from tocsin.diagnostics.waits import Waits
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, RunResumed
from tocsin.schemas.knobs import LIMITS

__all__ = ["ACCELERATORS", "Features", "Settings"]


@dataclass(eq=False)
class Features:
    """Every window of the engine."""

    event: BaseEvent | None = None
    """The newest event: for a rule, the one that it is evaluated at. None before the first."""
    settings: Settings = field(default_factory=Settings)
    rewards: Rewards = field(default_factory=Rewards)
    outcome: Outcome = field(init=False)
    truncation: Truncation = field(default_factory=Truncation)
    numerics: Numerics = field(default_factory=Numerics)
    clips: Clips = field(default_factory=Clips)
    updates: Updates = field(default_factory=Updates)
    gradients: Gradients = field(default_factory=Gradients)
    entropy: Entropy = field(default_factory=Entropy)
    staleness: Staleness = field(default_factory=Staleness)
    syncs: Syncs = field(default_factory=Syncs)
    on_policy_gap: OnPolicyGap = field(default_factory=OnPolicyGap)
    waits: Waits = field(default_factory=Waits)
    memory: Memory = field(default_factory=Memory)
    open_sync: OpenSync = field(default_factory=OpenSync)
    sync_cost: SyncCost = field(default_factory=SyncCost)
    spans: Spans = field(default_factory=Spans)
    engines: Engines = field(default_factory=Engines)
    prefix_caches: PrefixCaches = field(default_factory=PrefixCaches)
    ratios: Ratios = field(default_factory=Ratios)
    policy_steps: PolicySteps = field(default_factory=PolicySteps)
    movement: Movement = field(default_factory=Movement)
    clipping: Clipping = field(default_factory=Clipping)
    entropy_rise: EntropyRise = field(default_factory=EntropyRise)
    reference: Reference = field(default_factory=Reference)
    components: Components = field(default_factory=Components)
    parsing: Parsing = field(default_factory=Parsing)
    repeats: Repeats = field(default_factory=Repeats)
    extremes: Extremes = field(default_factory=Extremes)
    adam_eps: AdamEps = field(default_factory=AdamEps)
    alignment: Alignment = field(default_factory=Alignment)
    lengths: Lengths = field(init=False)
    lengths_by_pass: LengthsByPass = field(init=False)
    texts: Texts = field(default_factory=Texts)
    held_out: HeldOut = field(init=False)
    plateau: Plateau = field(init=False)
    reward_failures: RewardFailures = field(default_factory=RewardFailures)
    durations: Durations = field(default_factory=Durations)
    throughput: Throughput = field(default_factory=Throughput)
    padding: Padding = field(default_factory=Padding)
    standstill: Standstill = field(default_factory=Standstill)
    checkpoint_age: CheckpointAge = field(default_factory=CheckpointAge)
    host: Host = field(default_factory=Host)
    disk: Disk = field(default_factory=Disk)
    invariants: Invariants = field(default_factory=Invariants)
    resumption: Resumption = field(default_factory=Resumption)

    def __post_init__(self) -> None:
        self.outcome = Outcome(self.rewards)
        self.lengths = Lengths(self.outcome)
        self.lengths_by_pass = LengthsByPass(self.settings, self.rewards)
        self.held_out = HeldOut(self.outcome)
        self.plateau = Plateau(self.settings, self.rewards)
        self._windows: tuple[Feature, ...] = tuple(
            feature for feature in vars(self).values() if isinstance(feature, Feature) and feature is not self.settings
        )
        self._takers: dict[type[BaseEvent], tuple[Feature, ...]] = {}
        """Who takes which type of event; filled as the types appear."""

    def update(self, event: BaseEvent) -> None:
        """Take in one event; a knob change or a resume restarts the windows whose metrics it moves."""
        self.event = event
        self.settings.update(event)
        if isinstance(event, BatchConsumed):
            self.rewards.update(event)
            self.outcome.update(event.step, self.rewards.last)
        kind = type(event)
        if kind not in self._takers:
            self._takers[kind] = tuple(feature for feature in self._windows if issubclass(kind, feature.takes))
        for feature in self._takers[kind]:
            feature.update(event)
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
