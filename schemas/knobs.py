"""Knobs: everything that can be changed while a run goes on, with bounds.

`Knobs` holds the values and is the registry: type, default, bounds and documentation stand in one place.
`KNOBS` is the same registry as data, which `tocsin` prints and agents read.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import Field, FiniteFloat, StrictBool, StrictInt, model_validator

from tocsin.schemas.base import Model

KnobValue = StrictBool | StrictInt | FiniteFloat
Effective = Literal["next_step", "next_opened_step", "next_sampler_batch", "next_sync"]
Reader = Literal["learner", "rollout", "sampler"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far and when a knob may move."""

    low: float
    high: float
    step_ratio: float = 2.0
    """Largest factor, either way, of one change."""
    drift_ratio: float = 16.0
    """Largest factor, either way, from the launch value over the whole run."""
    effective: Effective
    moves: tuple[str, ...]
    """Metrics whose baselines restart when the knob moves. Outcome metrics never do."""
    read_by: tuple[Reader, ...]
    unit: str = ""


class Knob(Model):
    """One entry of the registry."""

    path: str
    type: Literal["float", "int", "bool"]
    default: KnobValue
    min: FiniteFloat
    max: FiniteFloat
    step_ratio: FiniteFloat
    """Largest factor, either way, of one change."""
    drift_ratio: FiniteFloat
    """Largest factor, either way, from the launch value over the whole run."""
    effective: Effective
    moves: list[str]
    read_by: list[str]
    unit: str
    description: str


class Knobs(Model):
    """The value of every knob. Raises `pydantic.ValidationError` outside the bounds."""

    learning_rate: Annotated[
        float,
        Limits(
            low=0.0,
            high=1.0,
            effective="next_step",
            moves=("update_ratio", "clip_frac", "logprob_gap", "grad_norm"),
            read_by=("learner",),
        ),
    ] = 1e-6
    """Peak learning rate; the schedule multiplies it. The schedule goes on when the peak changes."""

    grad_clip: Annotated[
        float,
        Limits(low=1e-4, high=1e4, effective="next_step", moves=("update_ratio",), read_by=("learner",)),
    ] = 1.0
    """Gradients with a larger L2 norm are scaled down to it."""

    clip_low: Annotated[
        float,
        Limits(low=0.0, high=1.0, effective="next_step", moves=("clip_frac",), read_by=("learner",)),
    ] = 0.2
    """Trust region below: importance ratios under 1 - clip_low get no gradient when the advantage is negative."""

    clip_high: Annotated[
        float,
        Limits(low=0.0, high=10.0, effective="next_step", moves=("clip_frac",), read_by=("learner",)),
    ] = 0.2
    """Trust region above: importance ratios over 1 + clip_high get no gradient when the advantage is positive."""

    dual_clip: Annotated[
        float,
        Limits(low=1.0, high=100.0, effective="next_step", moves=("dual_clip_frac",), read_by=("learner",)),
    ] = 3.0
    """Bound on the ratio for negative advantages (dual-clip PPO, arXiv 1912.09729). Above 1 + clip_high."""

    kl_beta: Annotated[
        float,
        Limits(low=0.0, high=10.0, effective="next_step", moves=("kl_ref",), read_by=("learner",)),
    ] = 0.0
    """Weight of the k3 penalty to the reference model. Live only in a run that loaded one (launch value > 0)."""

    entropy_coef: Annotated[
        float,
        Limits(low=0.0, high=1.0, effective="next_step", moves=("entropy",), read_by=("learner",)),
    ] = 0.0
    """Weight of the entropy bonus."""

    max_staleness: Annotated[
        int,
        Limits(
            low=0,
            high=64,
            step_ratio=8.0,  # a smaller step leaves the staleness above what its own check asks for
            effective="next_opened_step",
            moves=("staleness", "logprob_gap", "clip_frac", "waits"),
            read_by=("rollout",),
            unit="optimizer steps",
        ),
    ] = 1
    """Largest distance between the weights that sampled a group and the weights that train on it; 0 is on-policy."""

    weight_sync_every: Annotated[
        int,
        Limits(
            low=1,
            high=64,
            effective="next_sync",
            moves=("staleness", "logprob_gap", "clip_frac", "waits"),
            read_by=("learner",),
            unit="optimizer steps",
        ),
    ] = 1
    """Optimizer steps between weight syncs; at most max_staleness + 1."""

    in_flight_groups: Annotated[
        int,
        Limits(
            low=1,
            high=65536,
            step_ratio=8.0,  # only speed depends on it, and too small a step leaves the learner waiting
            effective="next_sampler_batch",
            moves=("waits",),
            read_by=("rollout",),
            unit="groups",
        ),
    ] = 1024
    """Cap on groups that are being generated or scored at one time; the slots of `max_staleness` bound it as well."""

    microbatch_tokens: Annotated[
        int,
        Limits(
            low=16,
            high=16_777_216,
            step_ratio=4.0,
            drift_ratio=256.0,
            effective="next_step",
            moves=("memory", "step_time"),
            read_by=("learner",),
            unit="padded tokens",
        ),
    ] = 4096
    """Largest number of padded tokens per forward pass. Changes memory and speed, never the gradient."""

    temperature: Annotated[
        float,
        Limits(
            low=0.01,
            high=2.0,
            effective="next_sampler_batch",
            moves=("entropy", "length"),
            read_by=("sampler", "learner"),
        ),
    ] = 1.0
    """Sampling temperature, recorded per completion; the loss divides the logits by the recorded value. vLLM takes
    none above 2."""

    max_completion_tokens: Annotated[
        int,
        Limits(
            low=1,
            high=1_048_576,
            effective="next_sampler_batch",
            moves=("length", "truncation", "memory"),
            read_by=("sampler",),
            unit="tokens",
        ),
    ] = 256
    """Completions end here with finish reason `length`."""

    groups_per_step: Annotated[
        int,
        Limits(
            low=1,
            high=65536,
            effective="next_opened_step",
            moves=("grad_norm", "waits"),
            read_by=("rollout",),
            unit="groups",
        ),
    ] = 16
    """Groups that one optimizer step consumes."""

    group_size: Annotated[
        int,
        Limits(
            low=2, high=1024, effective="next_opened_step", moves=("zero_spread", "grad_norm"), read_by=("rollout",)
        ),
    ] = 8
    """Completions per prompt, the G of GRPO."""

    skip_zero_spread: Annotated[
        bool,
        Limits(low=0, high=1, effective="next_step", moves=("step_time",), read_by=("learner",)),
    ] = True
    """Leave groups without reward spread out of the forward pass while nothing else gives them a gradient."""

    @model_validator(mode="after")
    def _within_limits(self) -> "Knobs":
        for path, limits in LIMITS.items():
            value = getattr(self, path)
            if not limits.low <= value <= limits.high:
                raise ValueError(f"`{path}` must be between {limits.low:g} and {limits.high:g}, got {value}")
        if self.weight_sync_every > self.max_staleness + 1:
            raise ValueError(
                f"`weight_sync_every` must be at most `max_staleness` + 1 = {self.max_staleness + 1}, "
                f"got {self.weight_sync_every}: later groups could never be sampled in time. Raise `max_staleness`"
            )
        if self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"`dual_clip` must be above 1 + `clip_high` = {1 + self.clip_high:g}, got {self.dual_clip:g}"
            )
        return self

    def changed(self, path: str, value: Any) -> "Knobs":
        """These knobs with one other value. Raises `KeyError` for an unknown path, `ValidationError` out of bounds."""
        if path not in LIMITS:
            raise KeyError(unknown_knob(path))
        return Knobs.model_validate({**self.model_dump(), path: value})


def unknown_knob(path: str) -> str:
    """The message for a knob that does not exist."""
    return f"unknown knob `{path}`; the knobs are: {', '.join(sorted(LIMITS))}"


LIMITS: Final[dict[str, Limits]] = {
    name: next(item for item in field.metadata if isinstance(item, Limits))
    for name, field in Knobs.model_fields.items()
}
"""Limits by knob path."""


def _type_name(annotation: Any) -> Literal["float", "int", "bool"]:
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    names: dict[Any, Literal["float", "int", "bool"]] = {float: "float", int: "int", bool: "bool"}
    return names[plain]


KNOBS: Final[tuple[Knob, ...]] = tuple(
    Knob(
        path=name,
        type=_type_name(field.annotation),
        default=field.default,
        min=float(LIMITS[name].low),
        max=float(LIMITS[name].high),
        step_ratio=LIMITS[name].step_ratio,
        drift_ratio=LIMITS[name].drift_ratio,
        effective=LIMITS[name].effective,
        moves=list(LIMITS[name].moves),
        read_by=list(LIMITS[name].read_by),
        unit=LIMITS[name].unit,
        description=field.description or "",
    )
    for name, field in Knobs.model_fields.items()
)
"""The registry as data, in reading order."""


class KnobRegistry(Model):
    """All knobs, as `schemas/json/knobs.schema.json` describes them."""

    knobs: Annotated[list[Knob], Field(min_length=1)]
