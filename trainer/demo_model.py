"""The embedded model: a character-level Llama of about 300,000 parameters, pre-trained on noisy demonstrations.

Nothing is downloaded: the tokenizer is a table of twelve characters and the weights are trained here in seconds.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tocsin.trainer.demo_task import ALPHABET, TEACHER_ACCURACY, demonstration

PAD: Final = "<pad>"
EOS: Final = "<eos>"
PRETRAIN_STEPS: Final = 500
BATCH: Final = 64
PEAK_LEARNING_RATE: Final = 3e-3


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character; no token is added at the start."""
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Fresh weights, fixed by `seed`."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,  # 32 dimensions a head: the least that vLLM computes with
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def pretrain(
    folder: Path,
    rows: list[dict[str, str]],
    *,
    seed: int,
    steps: int = PRETRAIN_STEPS,
    accuracy: float = TEACHER_ACCURACY,
    on_progress: Callable[[int, int, float], None] = lambda done, total, loss: None,
) -> None:
    """Train on demonstrations of `rows` and write model and tokenizer to `folder`.

    The teacher is right with probability `accuracy`, and so is a model that imitates it.
    `on_progress` is called with steps done, steps in all, and the loss in nats per answer token.
    """
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed)
    rng = np.random.default_rng([seed, 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LEARNING_RATE * min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
        ids, labels = _demonstrations(tokenizer, rows, rng, accuracy)
        logits = model(input_ids=ids[:, :-1]).logits
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 19 or step == steps - 1:
            on_progress(step + 1, steps, float(loss.detach()))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _demonstrations(
    tokenizer: Any, rows: list[dict[str, str]], rng: np.random.Generator, accuracy: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch of token ids [B, L] and labels [B, L], which are -100 on prompts and on padding at the end."""
    chosen = [rows[i] for i in rng.integers(len(rows), size=BATCH)]
    prompts = [len(line["prompt"]) for line in chosen]
    texts = [line["prompt"] + demonstration(line["answer"], rng, accuracy) for line in chosen]
    encoded = [[*line, tokenizer.eos_token_id] for line in tokenizer(texts)["input_ids"]]
    longest = max(map(len, encoded))
    ids = torch.tensor([[*line, *[tokenizer.pad_token_id] * (longest - len(line))] for line in encoded])
    labels = ids.clone()
    for row, (prompt, line) in enumerate(zip(prompts, encoded, strict=True)):
        labels[row, :prompt] = labels[row, len(line) :] = -100
    return ids, labels
