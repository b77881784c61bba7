"""`StepCompleted`: what one optimizer step did, with the moments that a clip or mask would hide.

Every mean says what it is averaged over, because trainers log one name with four meanings.
"""

from typing import Literal

from tocsin.schemas.base import Count, Fraction, Model, Number, Seconds
from tocsin.schemas.event import BaseEvent


class RatioMoments(Model):
    """Importance ratio pi_learner / pi_sampler per trained token, before any truncation, clip or mask."""

    staleness: Count
    """Bucket: optimizer steps between the token's weights and the weights that train on it."""
    tokens: Count
    mean: Number
    mean_square: Number
    max: Number
    log_mean: Number | None = None
    """Mean of log pi_learner - log pi_sampler, in nats. Signed."""
    k3: Number | None = None
    """Mean of r - 1 - log r with r = pi_learner / pi_sampler. Never negative."""


class LogProbGap(Model):
    """Sampler log-prob minus learner log-prob on the trained tokens: drift and numeric mismatch together."""

    k1: Number
    """Mean of log pi_sampler - log pi_learner, in nats. Signed."""
    k3: Number
    """Mean of r - 1 - log r with r = pi_learner / pi_sampler. Never negative per token."""
    abs_mean: Number
    abs_p95: Number
    abs_p99: Number
    abs_max: Number


class MicrobatchStats(Model):
    """How the step was cut into forward passes."""

    num: Count
    token_budget: Count
    """Largest number of padded tokens per micro-batch in force."""
    max_tokens: Count
    """Padded tokens of the largest micro-batch."""
    padded_frac: Fraction
    """Share of forwarded tokens that are padding."""


class StepCompleted(BaseEvent):
    """One attempt at an optimizer step, before its weights go to the sampler. Token means are over trained tokens.

    A trained token belongs to a completion that went through the forward pass; groups without reward spread do
    not when they carry no gradient.
    """

    type: Literal["step_completed"] = "step_completed"
    outcome: Literal["updated", "no_signal", "nonfinite"]
    """`no_signal`: every group had zero spread, so there was nothing to update. `nonfinite`: the update was
    skipped because the loss, the gradient or a log-prob was not finite."""
    nonfinite: list[str] = []
    """What was not finite: `loss`, `grad_norm`, `learner_logprob`, `sampler_logprob`."""
    loss: Number | None = None
    """Sum over tokens times their weights; near zero on-policy by construction, so no sign of progress."""
    grad_norm: Number | None = None
    """L2 norm over all parameters before clipping."""
    grad_clip: Number | None = None
    """The norm above which the gradient is scaled down."""
    learning_rate: Number
    """In force for this update, schedule included."""
    update_ratio: Number | None = None
    """L2 norm of the parameter change over the L2 norm of the parameters."""
    grad_cosine: Number | None = None
    """Cosine between this gradient and that of the update before, both before clipping, on 4,096 coordinates that were
    chosen at random at the start; standard error about 1/64. Absent in the first update, and where one of the two is
    zero."""
    adam_eps_frac: Fraction | None = None
    """Share of the same coordinates, of those that ever had a gradient, where AdamW's eps exceeds the root of its mean
    of squares, bias corrected. Every 50th update, else absent."""
    clip_low_frac: Number | None = None
    """Share of trained tokens with ratio < 1 - clip_low and advantage < 0."""
    clip_high_frac: Number | None = None
    """Share of trained tokens with ratio > 1 + clip_high and advantage > 0."""
    dual_clip_frac: Number | None = None
    """Share of trained tokens with advantage < 0 whose ratio exceeds the dual clip."""
    entropy: Number | None = None
    """Mean entropy per trained token under the learner at the sampling temperature, in nats."""
    ratio: list[RatioMoments] = []
    """One entry per staleness bucket."""
    ess_frac: Number | None = None
    """Effective sample size of the ratios over their number: (sum r)^2 / (n sum r^2)."""
    logprob_gap: LogProbGap | None = None
    kl_ref: Number | None = None
    """Mean k3 to the reference model; absent without one."""
    groups: Count
    """Groups consumed."""
    groups_trained: Count
    """Groups that went through the forward pass."""
    tokens: Count
    """Completion tokens consumed."""
    tokens_trained: Count
    microbatches: MicrobatchStats | None = None
    oom_retries: Count = 0
    """Times the step ran out of device memory and was retried with half the token budget."""
    seconds: dict[str, Seconds]
    """Wall-clock parts: `wait` for groups, `forward_backward`, `optimizer`, `sync_wait`, `total`."""
