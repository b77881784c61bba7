"""The thresholds themselves, each with where its number comes from.

The numbers are those that trainers and tools publish, and where nobody publishes one, its source says so; none was
fitted to runs of ours. Metrics are read as a mean over five values unless a single one is an event of its own.
"""

from typing import Final

from tocsin.trainer.bench.baselines.limits import Limit
from tocsin.trainer.bench.baselines.readings import OURS


def _codes(text: str) -> frozenset[str]:
    return frozenset(text.split())


REWARD: Final = (
    Limit(
        "reward-drop",
        "reward",
        "below",
        0.7,
        _codes("POL009 POL014"),
        source="30 % below the best moving average: the usual alert on a reward curve",
        scale="best",
        severity="critical",
    ),
    Limit(
        "reward-plateau",
        "steps_since_best",
        "above",
        100,
        _codes("RWD015 POL012 POL013"),
        source="early stopping by patience, as in Keras, Lightning and transformers; 100 steps is a round number",
        mean_of=1,
    ),
    Limit(
        "zero-spread",
        "frac_reward_zero_std",
        "above",
        0.75,
        _codes("RWD001 RWD002 RWD003 RWD006 RWD010"),
        source="critical limit of rl-doctor 0.2.0; the metric is TRL's",
    ),
    Limit(
        "no-signal",
        "frac_reward_zero_std",
        "above",
        0.9999,
        _codes("RWD001 RWD002 RWD003 RWD010 GEN011"),
        source="prime-rl gives up after 10 batches without a trainable group",
        mean_of=10,
        severity="critical",
    ),
    Limit(
        "reward-variance",
        "reward_std",
        "above",
        3**0.5,
        _codes("RWD012 GEN010"),
        source="rlwatch 0.5.1: variance three times that of the start",
        scale="start",
    ),
    Limit(
        "held-out-gap",
        "held_out_gap",
        "above",
        0.15,
        _codes("GEN010 GEN009 RWD004 RWD011"),
        source="warning limit of rl-doctor 0.2.0 on the gap of training reward and held-out score",
        mean_of=1,
    ),
    Limit(
        "failed-rollouts",
        f"{OURS}failed_frac",
        "above",
        0.05,
        _codes("GEN011 GEN013"),
        source="documentation of prime-rl: more than 5 % of rollouts with an error is a smell",
    ),
)

POLICY: Final = (
    Limit(
        "not-finite-loss",
        "loss",
        "not_finite",
        0,
        _codes("POL015"),
        source="every trainer's check",
        mean_of=1,
        severity="critical",
    ),
    Limit(
        "not-finite-gradient",
        "grad_norm",
        "not_finite",
        0,
        _codes("POL015 POL010"),
        source="verl skips the update and warns",
        mean_of=1,
        severity="critical",
    ),
    Limit(
        "entropy-low",
        "entropy",
        "below",
        0.1,
        _codes("POL001 RWD006"),
        source="floor of rl-doctor 0.2.0: a tenth of the start. Absolute floors belong to a model: rlwatch's is 1 nat",
        scale="start",
    ),
    Limit(
        "entropy-high",
        "entropy",
        "above",
        2.0,
        _codes("POL002 POL014"),
        source="twice the start; no trainer publishes a number",
        scale="start",
    ),
    Limit(
        "reference-kl",
        "kl",
        "above",
        0.5,
        _codes("POL006 POL007 POL014"),
        source="rl-doctor 0.2.0: 0.5 nats is high",
    ),
    Limit(
        "policy-kl",
        "actor/ppo_kl",
        "above",
        0.015,
        _codes("POL008 POL014 OFF001 OFF004 OFF010"),
        source="OpenAI Spinning Up stops an update of PPO at 1.5 times its target_kl of 0.01",
    ),
    Limit(
        "clipped-tokens",
        "clip_ratio/region_mean",
        "above",
        0.2,
        _codes("POL003 POL014 OFF001"),
        source="warning limit of rl-doctor 0.2.0",
    ),
    Limit(
        "gradient-spike",
        "grad_norm",
        "above",
        10.0,
        _codes("POL010 POL014 RWD012"),
        source="ten times the usual norm, in a single step; no trainer publishes a number",
        scale="usual",
        mean_of=1,
    ),
    Limit(
        "gradient-vanished",
        "grad_norm",
        "below",
        1e-7,
        _codes("POL012 RWD001"),
        source="SageMaker Debugger, VanishingGradient",
    ),
)

SAMPLING: Final = (
    Limit(
        "truncated",
        "completions/clipped_ratio",
        "above",
        0.15,
        _codes("GEN001 GEN002"),
        source="critical limit of rl-doctor 0.2.0; the documentation of AReaL says 5 %",
    ),
    Limit(
        "length-growth",
        "completions/mean_length",
        "above",
        1.5,
        _codes("GEN003 GEN001 RWD011"),
        source="rl-doctor 0.2.0: 50 % longer than at the start",
        scale="start",
    ),
    Limit(
        "length-drop",
        "completions/mean_length",
        "below",
        0.5,
        _codes("GEN004 RWD011"),
        source="half of the start, the reverse of length-growth",
        scale="start",
    ),
    Limit(
        "log-prob-gap",
        "sampling/sampling_logp_difference/mean",
        "above",
        0.0488,
        codes=_codes("OFF004 OFF006 OFF010"),
        source="NeMo RL: token_mult_prob_error, the mean of exp |gap|, is abnormal above 1.05, whose logarithm this is",
    ),
    Limit(
        "effective-samples",
        f"{OURS}ess_frac",
        "below",
        0.3,
        _codes("OFF005 OFF004 OFF001"),
        source="health check in the documentation of verl",
    ),
    Limit(
        "staleness",
        f"{OURS}staleness_p95",
        "above",
        4,
        _codes("OFF001"),
        source="TRL's default bound",
    ),
)

MACHINE: Final = (
    Limit(
        "learner-idle",
        f"{OURS}learner_wait_frac",
        "above",
        0.5,
        _codes("OFF016 SYS005 GEN015"),
        source="half of the resource; ART takes an underfed learner for severe from 0.5 on",
    ),
    Limit(
        "sampler-idle",
        f"{OURS}sampler_wait_frac",
        "above",
        0.5,
        _codes("OFF017"),
        source="half of the resource",
    ),
    Limit(
        "sync-share",
        f"{OURS}sync_wait_frac",
        "above",
        0.4,
        _codes("OFF012"),
        source="a sync that takes most of the time is the usual complaint; no trainer publishes a number",
    ),
    Limit(
        "slow-steps",
        "step_time",
        "above",
        2.0,
        _codes("SYS008 SYS005 OFF012 OFF016 GEN015"),
        source="twice the usual step; SageMaker's StepOutlier takes three standard deviations",
        scale="usual",
    ),
    Limit(
        "no-progress",
        f"{OURS}idle_s",
        "above",
        300,
        _codes("OFF011 OFF018"),
        source="TRL takes a rollout worker for dead after 300 s without a sign of life; NeMo RL waits 600 s",
        mean_of=1,
        severity="critical",
    ),
    Limit(
        "device-memory",
        f"{OURS}device_memory_frac",
        "above",
        0.95,
        _codes("SYS002 SYS003"),
        source="the usual alert on the memory of a GPU; no trainer publishes a number",
        mean_of=1,
    ),
    Limit(
        "host-memory",
        f"{OURS}host_memory_frac",
        "above",
        0.9,
        _codes("SYS003"),
        source="Awesome Prometheus Alerts, HostOutOfMemory: less than 10 % available",
        mean_of=1,
    ),
    Limit(
        "disk",
        f"{OURS}disk_used_frac",
        "above",
        0.85,
        _codes("SYS010"),
        source="open-instruct warns from 85 % on",
        mean_of=1,
    ),
)

LIMITS: Final = (*REWARD, *POLICY, *SAMPLING, *MACHINE)
"""Every threshold, each with a name of its own."""
