"""The rules, one file each: thresholds, documentation and check in one place.

To add a rule: write the file, add it here, take its code out of `gaps`, plant its fault in a scenario, run
`make generate`.
"""

from typing import Final

from tocsin.diagnostics.rule import Rule
from tocsin.diagnostics.rules.adam_eps_dominates import AdamEpsDominates
from tocsin.diagnostics.rules.always_clipped_grad import AlwaysClippedGrad
from tocsin.diagnostics.rules.chat_template_mismatch import ChatTemplateMismatch
from tocsin.diagnostics.rules.checkpoint_old import CheckpointOld
from tocsin.diagnostics.rules.clip_fraction_high import ClipFractionHigh
from tocsin.diagnostics.rules.clip_zero_off_policy import ClipZeroOffPolicy
from tocsin.diagnostics.rules.cpu_bound import CpuBound
from tocsin.diagnostics.rules.dead_reward_component import DeadRewardComponent
from tocsin.diagnostics.rules.disk_full import DiskFull
from tocsin.diagnostics.rules.duplicate_prompts import DuplicatePrompts
from tocsin.diagnostics.rules.engine_imbalance import EngineImbalance
from tocsin.diagnostics.rules.entropy_collapse import EntropyCollapse
from tocsin.diagnostics.rules.entropy_explosion import EntropyExplosion
from tocsin.diagnostics.rules.eos_missing import EosMissing
from tocsin.diagnostics.rules.ess_low import EssLow
from tocsin.diagnostics.rules.eval_missing import EvalMissing
from tocsin.diagnostics.rules.format_gaming import FormatGaming
from tocsin.diagnostics.rules.generator_backpressure import GeneratorBackpressure
from tocsin.diagnostics.rules.grad_spike import GradSpike
from tocsin.diagnostics.rules.gradient_alignment import GradientAlignment
from tocsin.diagnostics.rules.group_size_small import GroupSizeSmall
from tocsin.diagnostics.rules.hardware import Hardware
from tocsin.diagnostics.rules.heldout_gap import HeldoutGap
from tocsin.diagnostics.rules.identical_completions import IdenticalCompletions
from tocsin.diagnostics.rules.kv_preemption import KvPreemption
from tocsin.diagnostics.rules.language_drift import LanguageDrift
from tocsin.diagnostics.rules.length_collapse import LengthCollapse
from tocsin.diagnostics.rules.length_growth import LengthGrowth
from tocsin.diagnostics.rules.lr_too_high import LrTooHigh
from tocsin.diagnostics.rules.lr_too_low import LrTooLow
from tocsin.diagnostics.rules.memory_fragmentation import MemoryFragmentation
from tocsin.diagnostics.rules.mixed_version_rollouts import MixedVersionRollouts
from tocsin.diagnostics.rules.nan_inf import NanInf
from tocsin.diagnostics.rules.normalisation_bias import NormalisationBias
from tocsin.diagnostics.rules.padding_waste import PaddingWaste
from tocsin.diagnostics.rules.parse_failures import ParseFailures
from tocsin.diagnostics.rules.policy_kl_spike import PolicyKlSpike
from tocsin.diagnostics.rules.prompt_truncated import PromptTruncated
from tocsin.diagnostics.rules.prompts_too_easy import PromptsTooEasy
from tocsin.diagnostics.rules.prompts_too_hard import PromptsTooHard
from tocsin.diagnostics.rules.proxy_only_variance import ProxyOnlyVariance
from tocsin.diagnostics.rules.ref_kl_runaway import RefKlRunaway
from tocsin.diagnostics.rules.reference_misconfigured import ReferenceMisconfigured
from tocsin.diagnostics.rules.repetition_gibberish import RepetitionGibberish
from tocsin.diagnostics.rules.resume_inconsistency import ResumeInconsistency
from tocsin.diagnostics.rules.reward_collapse import RewardCollapse
from tocsin.diagnostics.rules.reward_component_dominance import RewardComponentDominance
from tocsin.diagnostics.rules.reward_plateau import RewardPlateau
from tocsin.diagnostics.rules.reward_scale_outlier import RewardScaleOutlier
from tocsin.diagnostics.rules.sampling_truncation_bias import SamplingTruncationBias
from tocsin.diagnostics.rules.scoring_bound import ScoringBound
from tocsin.diagnostics.rules.stale_prefix_cache import StalePrefixCache
from tocsin.diagnostics.rules.staleness_high import StalenessHigh
from tocsin.diagnostics.rules.straggler_tail import StragglerTail
from tocsin.diagnostics.rules.sync_not_applied import SyncNotApplied
from tocsin.diagnostics.rules.telemetry_gap import TelemetryGap
from tocsin.diagnostics.rules.throughput_regression import ThroughputRegression
from tocsin.diagnostics.rules.tiny_std_advantage import TinyStdAdvantage
from tocsin.diagnostics.rules.train_infer_mismatch import TrainInferMismatch
from tocsin.diagnostics.rules.trainer_starved import TrainerStarved
from tocsin.diagnostics.rules.truncation_high import TruncationHigh
from tocsin.diagnostics.rules.verifier_errors import VerifierErrors
from tocsin.diagnostics.rules.vram_near_oom import VramNearOom
from tocsin.diagnostics.rules.vram_underused import VramUnderused
from tocsin.diagnostics.rules.weight_sync_hang import WeightSyncHang
from tocsin.diagnostics.rules.weight_sync_slow import WeightSyncSlow
from tocsin.diagnostics.rules.worker_hang import WorkerHang
from tocsin.diagnostics.rules.zero_gradient import ZeroGradient
from tocsin.diagnostics.rules.zero_std_groups import ZeroStdGroups

ALL_RULES: Final[tuple[Rule, ...]] = (
    ZeroStdGroups(),
    PromptsTooHard(),
    PromptsTooEasy(),
    ProxyOnlyVariance(),
    GroupSizeSmall(),
    NormalisationBias(),
    RewardPlateau(),
    IdenticalCompletions(),
    DuplicatePrompts(),
    DeadRewardComponent(),
    RewardComponentDominance(),
    RewardScaleOutlier(),
    TinyStdAdvantage(),
    EntropyCollapse(),
    EntropyExplosion(),
    ClipFractionHigh(),
    ClipZeroOffPolicy(),
    RefKlRunaway(),
    ReferenceMisconfigured(),
    PolicyKlSpike(),
    RewardCollapse(),
    GradSpike(),
    AlwaysClippedGrad(),
    ZeroGradient(),
    LrTooLow(),
    AdamEpsDominates(),
    LrTooHigh(),
    NanInf(),
    StalenessHigh(),
    TrainInferMismatch(),
    EssLow(),
    SamplingTruncationBias(),
    GradientAlignment(),
    SyncNotApplied(),
    WeightSyncHang(),
    WeightSyncSlow(),
    StalePrefixCache(),
    MixedVersionRollouts(),
    TrainerStarved(),
    GeneratorBackpressure(),
    TruncationHigh(),
    EosMissing(),
    LengthGrowth(),
    LengthCollapse(),
    RepetitionGibberish(),
    LanguageDrift(),
    ChatTemplateMismatch(),
    HeldoutGap(),
    VerifierErrors(),
    FormatGaming(),
    ParseFailures(),
    PromptTruncated(),
    VramUnderused(),
    VramNearOom(),
    KvPreemption(),
    EngineImbalance(),
    EvalMissing(),
    WorkerHang(),
    ScoringBound(),
    StragglerTail(),
    MemoryFragmentation(),
    DiskFull(),
    TelemetryGap(),
    ResumeInconsistency(),
    ThroughputRegression(),
    PaddingWaste(),
    CpuBound(),
    Hardware(),
    CheckpointOld(),
)
"""Every rule with its default thresholds."""
