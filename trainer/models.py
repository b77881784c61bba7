"""Loading a policy: the same way in the learner and in the local sampler, so that both hold the same function."""

from pathlib import Path
from typing import Any

import torch

from tocsin.schemas.config import ModelConfig


def silence_transformers() -> None:
    """No progress bars and no advice from transformers: standard error belongs to the run's own display."""
    from transformers.utils import logging  # noqa: PLC0415

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


class ModelError(ValueError):
    """The model cannot be used; the message says why and what to do."""


def resolve_device(name: str) -> torch.device:
    """`auto` is the first accelerator, else the CPU. Raises `ModelError` for a device that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[name]:
        raise ModelError(f"`device` must be one that this machine has, got `{name}`; use `auto` or `cpu`")
    return torch.device(name)


def load_model(path: str | Path, *, dtype: str, attention: str, device: torch.device) -> Any:
    """A causal language model in evaluation mode (no dropout: the importance ratio needs one fixed function).

    Raises `ModelError` with one line when `path` is neither a folder with a model nor a reachable hub id.
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  seconds of import, paid only by who needs it

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), attn_implementation=attention, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"`model.path` must be a model folder or hub id, got `{path}`: {first_line(error)}") from error
    return model.to(device).eval()


def load_tokenizer(path: str | Path) -> Any:
    """A fast tokenizer. Raises `ModelError` when there is none or it has no end-of-sequence token."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"`model.path` must hold a tokenizer, got `{path}`: {first_line(error)}") from error
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer of `{path}` must be a fast one (tokenizer.json); convert it with transformers")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of `{path}` must have an end-of-sequence token; set `eos_token`")
    return tokenizer


def eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a completion: the model's generation settings and the tokenizer's own."""
    stated = model.generation_config.eos_token_id
    several = stated if isinstance(stated, list) else [] if stated is None else [stated]
    return sorted({*several, tokenizer.eos_token_id})


def pad_id(tokenizer: Any) -> int:
    """A token for padding; masked everywhere, so any will do."""
    return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)


def max_length(model: Any, config: ModelConfig) -> int:
    """Longest prompt plus completion in tokens. Raises `ModelError` when neither the model nor `config` limits it."""
    try:
        own = model.config.get_text_config().max_position_embeddings
    except AttributeError:
        own = config.max_length  # a model without positions, for instance a recurrent one
    if own is None:
        raise ModelError("`model.max_length` must be set for a model that states no `max_position_embeddings`")
    return int(min(own, config.max_length or own))


def first_line(error: BaseException) -> str:
    """The first line of an exception's message; libraries append advice that does not fit one line."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
