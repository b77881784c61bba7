"""What a server must be to generate for a run. Each mismatch is one line: what, which rule, the remedy."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tocsin.trainer.samplers import MisfitSampler
from tocsin.trainer.vllm.answers import ServerFacts
from tocsin.trainer.vllm.client import Refused, VllmClient

SHAPE_KEYS: Final = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)
"""Of config.json: what decides whether weights of one model fit another."""

BAD_REQUEST: Final = 400
LOGPROBS_MODE: Final = "processed_logprobs"
"""Log-probs at the sampling temperature, which is the distribution that a token was drawn from."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The run's side of the comparison."""

    model: str
    """`model.path` of the configuration."""
    policy: Path
    """Folder of the run's own copy."""
    vocab_size: int
    """Rows of the learner's output layer."""
    max_length: int
    """Longest prompt plus completion."""
    eos_ids: tuple[int, ...]
    backend: str
    """Weight-transfer back-end."""

    def check(self, facts: ServerFacts, url: str) -> None:
        """Raises `MisfitSampler` with one line per fault."""
        faults = [
            self._model_fault(facts),
            _unless(
                facts.logprobs_mode == LOGPROBS_MODE,
                f"must state log-probs at the sampling temperature: start it with --logprobs-mode {LOGPROBS_MODE}, got "
                f"{facts.logprobs_mode}",
            ),
            _unless(
                facts.transfer_backend == self.backend,
                f'must take weights by `{self.backend}`: start it with --weight-transfer-config \'{{"backend": '
                f'"{self.backend}"}}\', got {facts.transfer_backend or "none"}',
            ),
            _unless(
                facts.max_model_len >= self.max_length,
                f"must take {self.max_length} tokens: start it with --max-model-len {self.max_length}, or set "
                f"`model.max_length`, got {facts.max_model_len}",
            ),
        ]
        if found := [f"{url} {fault}" for fault in faults if fault]:
            raise MisfitSampler("\n".join(found))

    def _model_fault(self, facts: ServerFacts) -> str:
        if facts.model == self.model or _same_folder(facts.model, self.model, str(self.policy)):
            return ""
        theirs, ours = _shape(Path(facts.model)), _shape(self.policy)
        remedy = f"start it with `{self.model}`"
        if theirs is None:
            return f"must run the model that is trained: {remedy}, got `{facts.model}`"
        differing = [key for key in SHAPE_KEYS if theirs.get(key) != ours.get(key)] if ours else []
        if differing:
            shown = ", ".join(f"{key} {theirs.get(key)} instead of {ours.get(key)}" for key in differing if ours)
            return f"must run the model that is trained: {remedy}, got `{facts.model}` with {shown}"
        return ""

    async def check_vocabulary(self, client: VllmClient) -> None:
        """Ask for the last token of the vocabulary and for the one behind it. Raises `MisfitSampler`, `ServerError`."""
        import numpy as np  # noqa: PLC0415

        last = np.array([self.vocab_size - 1, self.vocab_size - 1], dtype=np.int32)
        fits = f"must have the learner's vocabulary of {self.vocab_size} tokens: start it with `{self.model}`"
        try:
            await client.prompt_logprobs(last)
        except Refused as error:
            if error.status != BAD_REQUEST:
                raise MisfitSampler(
                    f"{error}; start it with --enable-scale-out, or with `tocsin vllm serve`"
                ) from error
            raise MisfitSampler(f"{client.url} {fits}, got a smaller one") from error
        try:
            await client.prompt_logprobs(last + 1)
        except Refused:
            return
        raise MisfitSampler(f"{client.url} {fits}, got a larger one")


def _unless(holds: bool, fault: str) -> str:
    return "" if holds else fault


def _same_folder(theirs: str, *ours: str) -> bool:
    folder = Path(theirs)
    return folder.is_dir() and any(Path(own).is_dir() and folder.samefile(own) for own in ours)


def _shape(folder: Path) -> Mapping[str, Any] | None:
    """The model's configuration; None for a folder that cannot be read, a hub id for instance."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
