"""The planted faults of `[fault]`: what each of them does, by the place that asks.

    rollout        faulty_request
    scoring        scoring_delay_s, spoil_scores
    local_sampler  faulty_generate, batch_delay_s, weights_delay_s
    learner        spoil_reference, poisons_loss, disturb_update
    loop           faulty_knob, step_knobs, lost_events, filling_disk

A fault is in force from its onset on; `planted` is how everybody asks. What is said in an event about a fault is what
a run with the real defect would say. Imports no torch: the rollout process asks, too.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tocsin.schemas.events import Ledger
from tocsin.schemas.fault import REWARDING, FaultConfig, FaultName
from tocsin.schemas.knobs import Knobs, KnobValue
from tocsin.schemas.resources import ResourcesSampled
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.data import Completion, Failure, GroupRequest, Scored

if TYPE_CHECKING:
    from torch import Tensor, nn

HARD_SHARE: Final = 0.8
OUTAGE_SHARE: Final = 0.5
"""Shares of groups that `hard-prompts` and `verifier-outage` hit."""
NAN_SHARE: Final = 2 / 3
"""Of steps, so that the run goes on between them."""
TRUNCATED_TOKENS: Final = 4
"""Length limit of `truncated` on the embedded task, whose answers have seven tokens."""
CONSTANT_REWARD: Final = 0.5
"""What `constant-reward` makes of every reward: a value inside the range of the built-in verifiers."""
OUTLIER: Final = 10_000.0
"""Reward of one completion in 50 under `reward-outlier`."""
OUTLIER_SHARE: Final = 1 / 50
NOISE: Final = 1e-3
"""Half width of the uniform noise of `noisy-reward`."""
PLANTED_LABEL: Final = "planted"
"""Name of the reward function that the faults in `REWARDING` add."""
REWARD_PER_TOKEN: Final = 0.2
REWARD_PER_DESCENT: Final = 2.0
"""What `proxy-reward` gives for each character that is below the one before it. A sorted answer has none and the usual
mistake has one, so that a policy which still makes mistakes finds out."""
LOGPROB_NOISE: Final = 0.7
"""Standard deviation of `logprob-noise`, in nats."""
TOP_P: Final = 0.8
NARROWEST: Final = 1e-6
"""Of a nucleus: it leaves the likeliest token."""
NO_TOKEN: Final = -1
"""An end of sequence that is never sampled."""
REFERENCE_NOISE: Final = 0.1
"""Of `wrong-reference`, relative to the root mean square of each parameter."""
LEAK_FLOATS: Final = 2 << 20
"""Of 4 bytes each, on the learner's device, which `memory-leak` keeps at every step."""
DEVICE_LEAK: Final = 0.003
"""Growth of a simulated device's baseline per step, relative to it."""
SPIKE_EVERY: Final = 10
SPIKE_FACTOR: Final = 30.0
DISK_CHECKPOINTS: Final = 50
"""Free space that `disk-filling` begins with, in checkpoints; each step takes one."""

SLOW_S: Final = 0.6
"""What `slow-sampler` adds to a batch and `slow-learner` to a step: several times a step of the embedded task."""
SLOW_REWARD_S: Final = 0.5
SLOW_SYNC_S: Final = 0.3
"""What `slow-sync` adds to taking over weights: more than all the rest of a step of the embedded task."""
HUNG_S: Final = 3600.0
"""How long `hung-sync` sits on new weights and `hung-sampler` on a batch: as good as forever."""
STRAGGLER_EVERY: Final = 6
STRAGGLER_FACTOR: Final = 10.0

KNOBS: Final[dict[str, tuple[str, Callable[[Knobs, float], float]]]] = {
    # Enough to ruin the policy within a few steps, and little enough that lowering the rate again saves the run.
    "lr-too-high": ("learning_rate", lambda launched, dose: min(1.0, dose * 10 * launched.learning_rate)),
    "lr-too-low": ("learning_rate", lambda launched, dose: launched.learning_rate * 1e-4**dose),
    "entropy-bonus": ("entropy_coef", lambda launched, dose: min(1.0, dose * 0.3)),
}
"""By fault, the knob that it turns and its new value, made of the launch values and the dose."""

Generate = Callable[..., list[list[Completion]]]


def planted(fault: FaultConfig | None, step: int) -> FaultName | None:
    """The fault that is in force at optimizer step `step` (0-based)."""
    return fault.name if fault is not None and step >= fault.onset_step else None


def is_hit(number: int, share: float) -> bool:
    """Whether number `number` of an endless row belongs to the `share` of it that a fault hits, evenly spread."""
    return math.floor((number + 1) * share) > math.floor(number * share)


def faulty_request(fault: FaultConfig | None, request: GroupRequest) -> GroupRequest:
    """`request` as it is sampled: with a short limit, or with an answer that cannot be known from the prompt."""
    name = planted(fault, request.target_step)
    if fault is None or name is None:
        return request
    if name == "truncated" and is_hit(request.index, min(1.0, fault.dose)):
        return replace(request, max_tokens=min(request.max_tokens, TRUNCATED_TOKENS))
    if name == "hard-prompts" and is_hit(request.index, min(1.0, HARD_SHARE * fault.dose)):
        answer = str(request.prompt.columns["answer"])[::-1]
        return replace(request, prompt=replace(request.prompt, columns={**request.prompt.columns, "answer": answer}))
    return request


def scoring_delay_s(fault: FaultConfig | None, step: int) -> float:
    """Seconds that scoring a group takes longer."""
    if fault is None or planted(fault, step) != "slow-reward":
        return 0.0
    return fault.dose * SLOW_REWARD_S


def spoil_scores(
    fault: FaultConfig, seed: int, request: GroupRequest, completions: Sequence[Completion], scored: Scored
) -> None:
    """Change what the reward functions said about a group for training."""
    name, rng = planted(fault, request.target_step), np.random.default_rng([seed, request.index])
    if fault.name in REWARDING:
        # Before the onset the function is there, and gives nothing.
        values = fault.dose * _planted_rewards(completions, name)
        scored.components[PLANTED_LABEL] = values
        scored.rewards = scored.rewards + values
    elif name == "constant-reward" and is_hit(request.index, min(1.0, fault.dose)):
        scored.rewards = np.full_like(scored.rewards, CONSTANT_REWARD)
        scored.components = {label: np.full_like(v, CONSTANT_REWARD) for label, v in scored.components.items()}
    elif name == "reward-outlier":
        hit = rng.random(len(completions)) < OUTLIER_SHARE
        value = fault.dose * OUTLIER
        scored.rewards = np.where(hit, value, scored.rewards)
        scored.components = {label: np.where(hit, value, v) for label, v in scored.components.items()}
    elif name == "noisy-reward":
        scored.rewards = scored.rewards + fault.dose * rng.uniform(-NOISE, NOISE, len(completions))
    elif name == "verifier-outage" and is_hit(request.index, min(1.0, OUTAGE_SHARE * fault.dose)):
        scored.valid = np.zeros_like(scored.valid)
        error = 'exact: the function raised "ConnectionError: the verifier is down"'
        scored.failures = [Failure("reward_error", error, len(completions), whole_group=True)]


def _planted_rewards(completions: Sequence[Completion], name: FaultName | None) -> npt.NDArray[np.float64]:
    if name == "proxy-reward":
        return np.array([REWARD_PER_DESCENT * sum(b < a for a, b in pairwise(c.text)) for c in completions])
    per_token = {"length-reward": REWARD_PER_TOKEN, "short-reward": -REWARD_PER_TOKEN}.get(name or "", 0.0)
    return np.array([per_token * len(c.token_ids) for c in completions])


def faulty_generate(
    fault: FaultConfig | None, generate: Generate, model: Any, requests: Sequence[GroupRequest], **settings: Any
) -> list[list[Completion]]:
    """What `generate(model, requests, **settings)` gives in a sampler with `fault`."""
    step = requests[0].target_step
    name = planted(fault, step)
    dose = 1.0 if fault is None else fault.dose
    if name == "eos-ignored" and is_hit(step, min(1.0, dose)):
        settings["eos_ids"] = [NO_TOKEN]
    if name == "same-seed":
        # The random numbers of a group are those of its index, so groups of one with the same index draw the same.
        alone = [replace(request, size=1) for request in requests for _ in range(request.size)]
        drawn = iter(generate(model, alone, **settings))
        return [[completion for _ in range(request.size) for completion in next(drawn)] for request in requests]
    with _nucleus(model, max(NARROWEST, 1 - dose * (1 - TOP_P))) if name == "top-p" else nullcontext():
        groups = generate(model, requests, **settings)
    if name == "logprob-noise":
        deviation, seed = dose * LOGPROB_NOISE, settings["seed"]
        return [_noisy(group, deviation, [seed, r.index]) for group, r in zip(groups, requests, strict=True)]
    return groups


def _noisy(group: list[Completion], deviation: float, seed: list[int]) -> list[Completion]:
    rng = np.random.default_rng(seed)
    noise = [rng.normal(0.0, deviation, len(c.logprobs)).astype(np.float32) for c in group]
    return [replace(c, logprobs=c.logprobs + added) for c, added in zip(group, noise, strict=True)]


@contextmanager
def _nucleus(model: "nn.Module", top_p: float) -> Iterator[None]:
    """Inside of the block the model gives tokens outside of its nucleus no probability."""

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        p, order = output.logits.float().softmax(-1).sort(dim=-1, descending=True)
        outside = p.cumsum(-1) - p >= top_p
        output.logits = output.logits.masked_fill(outside.scatter(-1, order, outside), -math.inf)

    hook = model.register_forward_hook(keep)
    try:
        yield
    finally:
        hook.remove()


def batch_delay_s(fault: FaultConfig | None, step: int, number: int, seconds: float) -> float:
    """Seconds that batch `number` of a sampler, for `step`, takes longer than the `seconds` that it took."""
    name = planted(fault, step)
    if fault is None or name is None:
        return 0.0
    if name == "straggler":
        return max(0.0, fault.dose * STRAGGLER_FACTOR - 1) * seconds if number % STRAGGLER_EVERY == 0 else 0.0
    return {"slow-sampler": fault.dose * SLOW_S, "hung-sampler": HUNG_S}.get(name, 0.0)


def weights_delay_s(fault: FaultConfig | None, version: int) -> float:
    """Seconds that taking over weights takes longer."""
    # The weights of the onset itself are those that the step before it made.
    name = planted(fault, version - 1)
    if fault is None or name is None:
        return 0.0
    return {"slow-sync": fault.dose * SLOW_SYNC_S, "hung-sync": HUNG_S}.get(name, 0.0)


def ignores_weights(fault: FaultConfig | None, version: int) -> bool:
    """Whether a sampler claims a new version and keeps its old weights."""
    hits = fault is not None and is_hit(version - 1, min(1.0, fault.dose))
    return hits and planted(fault, version - 1) == "stale-weights"


def spoil_reference(fault: FaultConfig | None, reference: "nn.Module | None", seed: int) -> None:
    """Make the reference another model than the one that was named, from the start on."""
    if fault is None or fault.name != "wrong-reference" or reference is None:
        return
    rng = np.random.default_rng(seed)
    for parameter in reference.parameters():
        noise = parameter.data.new_tensor(rng.standard_normal(tuple(parameter.shape)))
        parameter.data += fault.dose * REFERENCE_NOISE * parameter.data.square().mean().sqrt() * noise


def poisons_loss(fault: FaultConfig | None, step: int) -> bool:
    """Whether the loss of `step` is not a number."""
    hits = fault is not None and is_hit(step + 1, min(1.0, NAN_SHARE * fault.dose))
    return hits and planted(fault, step) == "nan"


_LEAKED: Final[list["Tensor"]] = []


def disturb_update(fault: FaultConfig | None, step: int, parameters: Sequence["Tensor"]) -> float:
    """What happens between gradient and update; returns the factor by which a simulated device's baseline grows."""
    name = planted(fault, step)
    if fault is None or name is None:
        return 1.0
    if name == "slow-learner":
        time.sleep(fault.dose * SLOW_S)
    elif name == "frozen" and is_hit(step, min(1.0, fault.dose)):
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
    elif name == "memory-leak":
        _LEAKED.append(parameters[0].data.new_ones(round(fault.dose * LEAK_FLOATS)))
        return 1 + fault.dose * DEVICE_LEAK
    return 1.0


def faulty_knob(fault: FaultConfig | None, step: int, launched: Knobs) -> tuple[str, KnobValue] | None:
    """The knob that a fault turns at the barrier of `step`, and its new value.

    Made of the launch value: a run that is resumed at this very step may hold the new one already.
    """
    if fault is None or step != fault.onset_step or fault.name not in KNOBS:
        return None
    path, value = KNOBS[fault.name]
    # Without the noise of a product, so that people and agents can write the value down.
    return path, float(f"{value(launched, fault.dose):.6g}")


def step_knobs(fault: FaultConfig | None, step: int, knobs: Knobs) -> Knobs:
    """The knobs that the learner gets for `step`."""
    if fault is None or planted(fault, step) != "lr-spike" or (step - fault.onset_step) % SPIKE_EVERY:
        return knobs
    return knobs.model_copy(update={"learning_rate": min(1.0, fault.dose * SPIKE_FACTOR * knobs.learning_rate)})


def lost_events(
    fault: FaultConfig | None, step: int, completed: StepCompleted, ledger: Ledger
) -> tuple[StepCompleted, Ledger]:
    """The report of a step that lost its entropy, and of a ledger that lost a group."""
    if fault is None or planted(fault, step) != "lost-events" or not is_hit(step, min(1.0, fault.dose)):
        return completed, ledger
    lost = {"launched": ledger.launched + 1}
    return completed.model_copy(update={"entropy": None}), ledger.model_copy(update=lost)


def filling_disk(
    fault: FaultConfig | None, step: int, event: ResourcesSampled, checkpoint_bytes: int
) -> ResourcesSampled:
    """A sample that claims a disk which gets full by a checkpoint a step."""
    if fault is None or planted(fault, step) != "disk-filling":
        return event
    left = max(0, round(DISK_CHECKPOINTS - fault.dose * (step - fault.onset_step))) * checkpoint_bytes
    return event.model_copy(update={"disk_free_bytes": min(event.disk_free_bytes, left)})
