"""The learner: groups to one optimizer step, and everything that happened on the way.

    groups -> advantages -> micro-batches -> loss -> backward ... -> clip -> AdamW

One rank. Running out of device memory halves the token budget and tries the step again, which changes nothing but
memory and time; a loss, gradient or log-prob that is not finite skips the update and says so.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from torch import Tensor

from tocsin.schemas.config import RunConfig
from tocsin.schemas.knobs import LIMITS, Knobs
from tocsin.schemas.step import MicrobatchStats, StepCompleted
from tocsin.trainer import batching
from tocsin.trainer.advantages import StepSamples, samples
from tocsin.trainer.coordinates import UpdateWatch
from tocsin.trainer.data import Group, Ints
from tocsin.trainer.devices import SimulatedMeter, memory_meter
from tocsin.trainer.faults import disturb_update, planted, poisons_loss, spoil_reference
from tocsin.trainer.loss import policy_loss, token_logprobs
from tocsin.trainer.messages import LearnerFacts
from tocsin.trainer.models import eos_ids, first_line, load_model, load_tokenizer, max_length, pad_id, resolve_device
from tocsin.trainer.pipes import Stopwatch
from tocsin.trainer.processes import keep_freed_memory
from tocsin.trainer.sampling import sequence_logprobs
from tocsin.trainer.stats import StepTokens

OPTIMIZER_FILE: Final = "optimizer.pt"


class OutOfMemory(RuntimeError):
    """Not even the smallest token budget fits into the device's memory."""


@dataclass
class _Gradient:
    """What one pass over all micro-batches left behind, besides the gradients in the parameters."""

    loss: float = 0.0
    tokens: StepTokens = field(default_factory=StepTokens)
    microbatches: MicrobatchStats | None = None


class Learner:
    """Policy, optimizer and reference model. Not thread-safe; one owner."""

    def __init__(self, config: RunConfig, model_path: str | Path, knobs: Knobs):
        torch.set_num_threads(config.device.threads)
        keep_freed_memory()
        self.config = config
        self.device = resolve_device(config.device.learner)
        self.tokenizer = load_tokenizer(model_path)
        self.model = self._load(model_path)
        self.pad_id = pad_id(self.tokenizer)
        self.eos_ids = eos_ids(self.model, self.tokenizer)
        self.max_length = max_length(self.model, config.model)
        self.reference = self._load(config.model.path) if knobs.kl_beta > 0 else None
        spoil_reference(config.fault, self.reference, config.seed)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        settings = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=knobs.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        weight_bytes = sum(p.numel() * p.element_size() for p in self.parameters)
        self.meter = memory_meter(config.device, self.device, weight_bytes)
        self.last_microbatches: MicrobatchStats | None = None
        self.watch = UpdateWatch(self.parameters, self.optimizer, config.seed)

    def _load(self, path: str | Path) -> Any:
        # float32 whatever `model.dtype` says: updates of 1e-6 vanish in bfloat16 weights. Autocast does the rest.
        return load_model(path, dtype="float32", attention=self.config.model.attention, device=self.device)

    def _precision(self) -> torch.autocast:
        dtype = getattr(torch, self.config.model.dtype)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not torch.float32)

    def learning_rate(self, step: int, knobs: Knobs) -> float:
        """Learning rate of the update number `step` (0-based): peak times warm-up times decay."""
        settings = self.config.optimizer
        if step < settings.warmup_steps:
            return knobs.learning_rate * (step + 1) / settings.warmup_steps
        done = (step - settings.warmup_steps) / max(1, self.config.steps - settings.warmup_steps)
        decay = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
        return knobs.learning_rate * decay[settings.schedule]

    def step(self, groups: Sequence[Group], knobs: Knobs, step: int) -> StepCompleted:
        """One attempt at optimizer step number `step`. Raises `OutOfMemory`."""
        watch = Stopwatch()
        chosen = samples(groups, self.config.loss, knobs, step=step)
        rate = self.learning_rate(step, knobs)
        facts: dict[str, Any] = {
            "learning_rate": rate,
            "groups": chosen.groups,
            "groups_trained": chosen.groups_trained,
            "tokens": chosen.tokens,
            "tokens_trained": chosen.tokens_trained,
        }
        if not chosen.trained:
            watch.lap("forward_backward")
            return StepCompleted(outcome="no_signal", seconds=watch.laps, **facts)
        gradient, retries = self._fitting_gradient(chosen, knobs, step)
        self.last_microbatches = gradient.microbatches
        watch.lap("forward_backward")
        self._disturb(step)
        with self.meter.phase("optimizer"):
            self.watch.before()
            grad_norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, knobs.grad_clip))
            wrong = gradient.tokens.nonfinite()
            wrong += [n for n, v in (("loss", gradient.loss), ("grad_norm", grad_norm)) if not math.isfinite(v)]
            if not wrong:
                facts |= {"update_ratio": self._update(rate), **self.watch.after()}
            self.optimizer.zero_grad(set_to_none=True)
        watch.lap("optimizer")
        return StepCompleted(
            outcome="nonfinite" if wrong else "updated",
            nonfinite=wrong,
            loss=gradient.loss,
            grad_norm=grad_norm,
            grad_clip=knobs.grad_clip,
            microbatches=gradient.microbatches,
            oom_retries=retries,
            seconds=watch.laps,
            **facts,
            **vars(gradient.tokens.finish(knobs)),
        )

    def _fitting_gradient(self, chosen: StepSamples, knobs: Knobs, step: int) -> tuple[_Gradient, int]:
        """Gradients of the step, with the token budget halved until it fits; and how often it was halved."""
        budget, retries = knobs.microbatch_tokens, 0
        while True:
            batches = batching.microbatches(chosen.trained, budget, pad_id=self.pad_id)
            try:
                with self.meter.phase("forward_backward"):
                    return self._gradient(batches, knobs, budget, step), retries
            except torch.OutOfMemoryError as error:
                budget, retries = _smaller_budget(budget, batches, chosen, error), retries + 1
            # Only now: the error held the frames of the pass, and they held its tensors.
            self.optimizer.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _gradient(self, batches: list[batching.MicroBatch], knobs: Knobs, budget: int, step: int) -> _Gradient:
        result = _Gradient(microbatches=batching.describe(batches, budget))
        for batch in batches:
            self.meter.before_microbatch(batch.padded_tokens)
            tensors = batching.to_tensors(batch, self.device)
            logp_BT, entropy_BT = self._logprobs(self.model, tensors)
            if planted(self.config.fault, step) == "recomputed-logprobs":
                tensors = replace(tensors, sampler_logprobs=logp_BT.detach())
            ref_BT = None
            if self.reference is not None:
                with torch.no_grad():
                    ref_BT, _ = self._logprobs(self.reference, tensors)
            terms = policy_loss(
                logp_BT, entropy_BT, tensors, variant=self.config.loss.variant, knobs=knobs, ref_logp_BT=ref_BT
            )
            loss = terms.loss * math.nan if poisons_loss(self.config.fault, step) else terms.loss
            loss.backward()  # type: ignore[no-untyped-call]
            result.loss += float(loss.detach())
            result.tokens.append(terms)
        return result

    def _logprobs(self, model: Any, batch: batching.TensorBatch) -> tuple[Tensor, Tensor]:
        with self._precision():
            logits_BTV = model(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
                use_cache=False,
                logits_to_keep=batch.num_logits,
            ).logits[:, :-1]
        return token_logprobs(logits_BTV, batch.completion_ids, batch.temperature)

    def _update(self, rate: float) -> float:
        """Apply the gradients; returns the L2 norm of the change over that of the parameters."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        # One change at a time: all of them together would be a second copy of the weights.
        changed = _norm(self._change(p, rate) for p in self.parameters if p.grad is not None)
        return float(changed / _norm(p.detach() for p in self.parameters))

    def _change(self, parameter: Tensor, rate: float) -> Tensor:
        """What AdamW just subtracted, from its own state: a copy of all weights would cost their memory again.

        The decay is taken of the new value instead of the old one, an error of rate x decay of its own size.
        """
        settings, state = self.config.optimizer, self.optimizer.state[parameter]
        count = float(state["step"])
        mean = state["exp_avg"] / (1 - settings.beta1**count)
        square = state["exp_avg_sq"] / (1 - settings.beta2**count)
        change: Tensor = mean / (square.sqrt() + settings.eps) + settings.weight_decay * parameter.detach()
        return change * rate

    def probe(self, ids: Ints) -> Tensor:
        """[rows, L - 1] log-probs of the probe tokens under the weights held now, on the CPU."""
        with self._precision():
            return sequence_logprobs(self.model, torch.from_numpy(ids).long().to(self.device)).cpu()

    def weights(self, *, is_aliased: bool = False, is_local: bool = False) -> dict[str, Tensor]:
        """Every parameter by name, in the sampler's precision, on the CPU unless it `is_local` to the learner's device.

        A tied parameter appears once, as it does in a sampler that ties it itself. With `is_aliased` it appears under
        each of its names: vLLM keeps an output layer that is tied to the embedding as it was unless it is sent too.
        """
        dtype = getattr(torch, self.config.model.dtype)
        where = self.device if is_local else torch.device("cpu")
        named = self.model.named_parameters(remove_duplicate=not is_aliased)
        # Copies: two names of one tensor cannot be written to one file, and a broadcast must not see the next update.
        return {name: p.detach().to(where, dtype, copy=is_aliased).contiguous() for name, p in named}

    @property
    def checkpoint_bytes(self) -> int:
        """About what `save` writes: weights and two moments of float32."""
        return sum(12 * parameter.numel() for parameter in self.parameters)

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def facts(self, weights_folder: Path) -> LearnerFacts:
        """What a sampler must agree with."""
        return LearnerFacts(self.vocab_size, self.max_length, tuple(self.eos_ids), weights_folder)

    def save_model(self, folder: Path) -> None:
        """Write model and tokenizer; the folder can be used as `model.path`."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def save(self, folder: Path) -> None:
        """Write model, tokenizer and optimizer state. Raises `OSError` when the disk refuses."""
        rng, gradient = torch.get_rng_state(), self.watch.previous
        state = {"optimizer": self.optimizer.state_dict(), "rng": rng, "gradient": gradient}
        try:
            self.save_model(folder)
            torch.save(state, folder / OPTIMIZER_FILE)
        except (SafetensorError, RuntimeError) as error:  # what the two libraries make of a full disk
            raise OSError(f"`{folder}` must be a folder that can be written, got: {first_line(error)}") from error

    def restore(self, folder: Path) -> None:
        """Read the optimizer state of a checkpoint; the weights were loaded with the model."""
        state = torch.load(folder / OPTIMIZER_FILE, weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.watch.previous = state["gradient"]

    def _disturb(self, step: int) -> None:
        """Planted faults between gradient and update."""
        growth = disturb_update(self.config.fault, step, self.parameters)
        if isinstance(self.meter, SimulatedMeter):
            self.meter.baseline = int(self.meter.baseline * growth)


def _smaller_budget(
    budget: int, batches: list[batching.MicroBatch], chosen: StepSamples, error: torch.OutOfMemoryError
) -> int:
    """Half of what did not fit, but never under one completion or the knob's bound. Raises `OutOfMemory`."""
    longest = max(sample.num_tokens for sample in chosen.trained)
    least = max(longest, int(LIMITS["microbatch_tokens"].low))
    tried = min(budget, max(batch.padded_tokens for batch in batches))
    if tried <= least:
        raise OutOfMemory(
            f"a single completion of {longest} tokens does not fit into the device's memory; "
            "lower `max_completion_tokens` or use a smaller model"
        ) from error
    return max(tried // 2, least)


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    norms = torch.stack([torch.linalg.vector_norm(tensor.float()) for tensor in tensors])
    total: Tensor = torch.linalg.vector_norm(norms)
    return total
