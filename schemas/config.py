"""Configuration of a run, as `CONFIG.toml` states it. Unknown keys are errors; nothing is read from the environment.

What can change during the run stands in `[knobs]` (see `knobs`), everything else is fixed at launch.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, PositiveInt, model_validator

from tocsin.schemas.alerts import AlertConfig
from tocsin.schemas.autotune import AutotuneConfig
from tocsin.schemas.base import Count, Model, PositiveSeconds
from tocsin.schemas.fault import REWARDING, FaultConfig
from tocsin.schemas.knobs import Knobs
from tocsin.schemas.sampler import SamplerConfig


def _as_tuple(value: Any) -> Any:
    """TOML has arrays only, and strict validation would refuse one where a tuple belongs."""
    return tuple(value) if isinstance(value, list) else value


class ModelConfig(Model):
    """`[model]`: the policy."""

    path: str
    """Folder or hub id of a transformers causal language model with a fast tokenizer."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the forward pass and of the sampler's weights. The learner keeps float32 weights, and log-probs are
    always taken in float32."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention kernel of transformers: `sdpa` is fused, `eager` is the reference."""
    max_length: PositiveInt | None = None
    """Longest prompt plus completion, in tokens; by default what the model's configuration allows."""


class DataConfig(Model):
    """`[data]`: prompts."""

    train: str
    """JSONL or Parquet file, folder written by `datasets.save_to_disk`, or id of a `datasets` data set."""
    evaluation: str | None = None
    """Held-out prompts in the same form; none means no evaluation."""
    split: str = "train"
    """Split of a `datasets` data set for `train`."""
    evaluation_split: str = "test"
    """Split of a `datasets` data set for `evaluation`."""
    prompt_column: str = "prompt"
    """Text, or a list of messages with `role` and `content` when `chat_template` is on."""
    chat_template: bool = False
    """Render prompts with the tokenizer's chat template; a text becomes one user message."""
    shuffle: bool = True
    """Take the prompts in an order of their own in each epoch, fixed by `seed`; off, in the order of the data, as a
    curriculum wants it."""
    system_prompt: str | None = None
    """Prepended as system message; needs `chat_template`."""

    @model_validator(mode="after")
    def _system_prompt_needs_template(self) -> "DataConfig":
        if self.system_prompt is not None and not self.chat_template:
            raise ValueError("`data.system_prompt` needs `data.chat_template = true`")
        return self


class RewardConfig(Model):
    """`[[rewards]]`: one reward function."""

    function: str
    """Built-in verifier (`exact`, `numeric`, `regex`, `math`) or import path `package.module:callable`.

    A callable gets `completions: list[str]`, `prompts: list[str]` and every other data column as a list, and
    returns one float per completion, or None where it cannot tell.
    """
    name: str | None = None
    """Name in events; by default the last part of `function`."""
    weight: FiniteFloat = 1.0
    """Factor of this function in the total reward. May be negative."""
    answer_column: str = "answer"
    """Column that a built-in verifier compares with."""
    pattern: str | None = None
    """Regular expression for `regex`; its first group is compared with the answer if there is one."""
    range: Annotated[tuple[FiniteFloat, FiniteFloat], BeforeValidator(_as_tuple)] | None = None
    """Smallest and largest value of a callable; built-in verifiers have (0, 1). Enables pass rates."""
    passes: bool | None = None
    """Decides what counts as a pass, which is its best value; by default the built-in verifiers do, and where no
    function does the callables with a `range`."""
    good: str | None = None
    """With `bad`, for the check before a run: a completion that must be worth more than `bad`. `{column}` stands for
    the row's value. Built-in verifiers are tried with the answers of the data, callables and `regex` with these."""
    bad: str | None = None
    """A completion that must be worth less than `good`."""

    @property
    def span(self) -> tuple[float, float] | None:
        """Smallest and largest value, unweighted; None when a callable does not declare them."""
        return (0.0, 1.0) if self.function in BUILTIN_REWARDS else self.range

    @property
    def label(self) -> str:
        """Name in events."""
        return self.name or self.function.replace(":", ".").rsplit(".", 1)[-1]

    @model_validator(mode="after")
    def _consistent(self) -> "RewardConfig":
        if self.function not in BUILTIN_REWARDS and ":" not in self.function:
            raise ValueError(
                f"`rewards.function` must be one of {', '.join(BUILTIN_REWARDS)} or `package.module:callable`, "
                f"got `{self.function}`"
            )
        if (self.function == "regex") != (self.pattern is not None):
            raise ValueError('`rewards.pattern` goes with `function = "regex"` and only with it')
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError(f"`rewards.range` must rise, got {list(self.range)}")
        if self.passes and self.span is None:
            raise ValueError("`rewards.passes` needs `rewards.range`: a pass is the best value of the function")
        if (self.good is None) != (self.bad is None):
            raise ValueError("`rewards.good` and `rewards.bad` go together: the one must be worth more than the other")
        return self


BUILTIN_REWARDS = ("exact", "numeric", "regex", "math")
"""Verifiers that need no code."""


class LossConfig(Model):
    """`[loss]`: which objective."""

    variant: Literal["grpo", "dapo", "dr_grpo", "cispo", "gspo"] = "dapo"
    """`grpo`: mean over completions of their token means (arXiv 2402.03300). `dapo`: mean over the tokens of the
    step (2503.14476). `dr_grpo`: sum over tokens divided by completions times length limit, advantages not divided
    by the spread (2503.20783). `cispo`: clipped ratio as a constant weight (2506.13585). `gspo`: one length-normalised
    ratio per completion (2507.18071)."""
    scale_advantages: bool | None = None
    """Divide advantages by the group's standard deviation; by default yes, except for `dr_grpo`."""
    advantage_eps: Annotated[FiniteFloat, Field(ge=0)] = 1e-4
    """Added to the population standard deviation (ddof 0)."""
    zero_spread_tolerance: Annotated[FiniteFloat, Field(ge=0)] = 1e-6
    """A group has zero spread when max - min is at most this. Its advantages are exactly zero."""
    zero_spread_tokens: Literal["count", "ignore"] = "count"
    """Whether tokens of groups without spread stay in the denominator. `ignore` makes the step larger the fewer
    groups carry a signal: seven-fold at a share of 0.86."""

    @property
    def scales(self) -> bool:
        """Whether advantages are divided by the group's standard deviation."""
        return self.variant != "dr_grpo" if self.scale_advantages is None else self.scale_advantages


class OptimizerConfig(Model):
    """`[optimizer]`: AdamW and the learning-rate schedule. The peak is the knob `learning_rate`."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """`linear` and `cosine` decay to zero at the last step."""
    warmup_steps: Count = 0
    """Optimizer steps in which the learning rate rises linearly to its peak."""
    beta1: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.9
    """AdamW: decay of the mean of the gradients."""
    beta2: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.999
    """AdamW: decay of the mean of their squares."""
    eps: Annotated[FiniteFloat, Field(gt=0)] = 1e-8
    """AdamW: added to the root of the mean of squares."""
    weight_decay: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    """AdamW: decoupled decay per step, times the learning rate."""
    max_nonfinite_steps: PositiveInt = 3
    """Consecutive skipped updates after which the run stops, with a checkpoint of the last good weights."""


class RewardWorkerConfig(Model):
    """`[reward_workers]`: processes that run the reward functions and can be killed."""

    num: PositiveInt = 1
    """Worker processes; each scores one group at a time."""
    timeout_s: PositiveSeconds = 30.0
    """For one group. Its completions then count as failed, not as reward 0."""
    max_consecutive_failures: PositiveInt = 64
    """Groups failing in a row, for whatever cause, before the run stops: nothing would ever be trained."""


class EvaluationConfig(Model):
    """`[evaluation]`: held-out prompts, sampled once each at the training temperature."""

    every: Count = 50
    """Optimizer steps between evaluations, besides the first and the last; 0 turns the ones between off."""
    prompts: PositiveInt = 256
    """Held-out prompts used, the first ones of the data."""


class CheckpointConfig(Model):
    """`[checkpoint]`: taken at the step barrier."""

    every: Count = 100
    """Optimizer steps; 0 keeps only the last one of the run."""
    keep: PositiveInt = 2
    """Newest checkpoints that are kept; the one with the best held-out mean reward stays beside them."""


class DeviceConfig(Model):
    """`[device]`: where the learner computes."""

    learner: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device of the learner; `auto` is the first accelerator, else the CPU."""
    sampler: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device of the local sampler; `auto` is that of the learner."""
    threads: PositiveInt = 1
    """CPU threads of the learner and of the local sampler, each."""
    simulated_memory_gib: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """Report the memory of a pretended accelerator of this size, computed from the micro-batches that ran. For
    testing the memory rules on a machine without one."""
    simulated_bytes_per_token: PositiveInt = 4_000_000
    """Activation memory of the pretended accelerator."""


class DiagnosticsConfig(Model):
    """`[diagnostics]`: the engine beside the run."""

    tick_s: PositiveSeconds = 5.0
    """Interval of clock events."""
    disable: list[str] = []
    """Rule codes or names that are not evaluated."""
    thresholds: dict[str, dict[str, FiniteFloat]] = {}
    """Thresholds by rule code, for instance `thresholds.OFF001.fire = 6`."""


class RunConfig(Model):
    """The whole configuration."""

    steps: PositiveInt
    """Optimizer steps; a skipped or empty step counts."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Fixes the order of the prompts and the random numbers of every group."""
    model: ModelConfig
    data: DataConfig
    rewards: Annotated[list[RewardConfig], Field(min_length=1)]
    knobs: Knobs = Knobs()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    sampler: SamplerConfig = SamplerConfig()
    reward_workers: RewardWorkerConfig = RewardWorkerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    device: DeviceConfig = DeviceConfig()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    autotune: AutotuneConfig | None = None
    alerts: list[AlertConfig] = []
    fault: FaultConfig | None = None

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Smallest and largest total reward, when every reward function declares its range."""
        if self.fault is not None and self.fault.name in REWARDING:
            return None
        low = high = 0.0
        for reward in self.rewards:
            if reward.span is None:
                return None
            ends = (reward.weight * reward.span[0], reward.weight * reward.span[1])
            low, high = low + min(ends), high + max(ends)
        return low, high

    @property
    def pass_tops(self) -> dict[str, float] | None:
        """By label, the best value of each reward function that decides what a pass is; None when none does.

        A function with a negative weight is at its best at the low end of its range.
        """
        is_builtin = [reward.function in BUILTIN_REWARDS for reward in self.rewards]
        chosen = [own if r.passes is None else r.passes for r, own in zip(self.rewards, is_builtin, strict=True)]
        if not any(chosen):
            chosen = [reward.passes is None for reward in self.rewards]
        deciding = [reward for reward, decides in zip(self.rewards, chosen, strict=True) if decides]
        tops = {r.label: r.span[0] if r.weight < 0 else r.span[1] for r in deciding if r.span is not None}
        return tops or None

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        labels = [reward.label for reward in self.rewards]
        if len(set(labels)) < len(labels):
            raise ValueError(f"`rewards` need distinct names, got {labels}: set `name`")
        if self.optimizer.warmup_steps >= self.steps:
            raise ValueError(
                f"`optimizer.warmup_steps` must be below `steps` = {self.steps}, got {self.optimizer.warmup_steps}"
            )
        if self.fault is not None and self.fault.onset_step >= self.steps:
            raise ValueError(
                f"`fault.onset_step` must be below `steps` = {self.steps}, got {self.fault.onset_step}: "
                "the fault would never begin"
            )
        misfit = self.fault and self.fault.misfit(sampler=self.sampler.kind, kl_beta=self.knobs.kl_beta)
        if misfit:
            raise ValueError(misfit)
        limit = self.model.max_length
        if limit is not None and self.knobs.max_completion_tokens >= limit:
            raise ValueError(
                f"`knobs.max_completion_tokens` must be below `model.max_length` = {limit}, "
                f"got {self.knobs.max_completion_tokens}: no room is left for a prompt"
            )
        return self


def describe_errors(errors: list[Any], *, source: str) -> str:
    """One line per pydantic error: what, which rule, and what was given.

    `errors` is `ValidationError.errors()`; `source` names the file or option they came from.
    """
    lines = []
    for error in errors:
        where = ".".join(str(part) for part in error["loc"]) or "configuration"
        message = str(error["msg"]).removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            message = "unknown key; remove it or check its spelling"
        elif error["type"] == "missing":
            message = "is required and missing"
        else:
            given = error.get("input")
            shown = repr(given)
            message += "" if len(shown) > 80 or isinstance(given, dict) else f", got {shown}"
        lines.append(f"{source}: `{where}`: {message}")
    return "\n".join(lines)
