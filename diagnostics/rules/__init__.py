"""The rules, one file each: thresholds, documentation and check in one place.

To add a rule: write the file, add it here, plant its fault in a scenario, run `make generate`.
"""

from typing import Final

from tocsin.diagnostics.rule import Rule
from tocsin.diagnostics.rules.clip_fraction_high import ClipFractionHigh
from tocsin.diagnostics.rules.entropy_collapse import EntropyCollapse
from tocsin.diagnostics.rules.generator_backpressure import GeneratorBackpressure
from tocsin.diagnostics.rules.grad_spike import GradSpike
from tocsin.diagnostics.rules.group_size_small import GroupSizeSmall
from tocsin.diagnostics.rules.lr_too_high import LrTooHigh
from tocsin.diagnostics.rules.nan_inf import NanInf
from tocsin.diagnostics.rules.reward_collapse import RewardCollapse
from tocsin.diagnostics.rules.staleness_high import StalenessHigh
from tocsin.diagnostics.rules.sync_not_applied import SyncNotApplied
from tocsin.diagnostics.rules.train_infer_mismatch import TrainInferMismatch
from tocsin.diagnostics.rules.trainer_starved import TrainerStarved
from tocsin.diagnostics.rules.truncation_high import TruncationHigh
from tocsin.diagnostics.rules.vram_near_oom import VramNearOom
from tocsin.diagnostics.rules.vram_underused import VramUnderused
from tocsin.diagnostics.rules.zero_std_groups import ZeroStdGroups

ALL_RULES: Final[tuple[Rule, ...]] = (
    ZeroStdGroups(),
    GroupSizeSmall(),
    EntropyCollapse(),
    ClipFractionHigh(),
    RewardCollapse(),
    GradSpike(),
    LrTooHigh(),
    NanInf(),
    StalenessHigh(),
    TrainInferMismatch(),
    SyncNotApplied(),
    TrainerStarved(),
    GeneratorBackpressure(),
    TruncationHigh(),
    VramUnderused(),
    VramNearOom(),
)
"""Every rule with its default thresholds."""
