"""What the first event of an attempt says about its configuration and its data."""

import os
import sys
from collections import Counter
from typing import Any, Final

from tocsin.schemas.config import RunConfig
from tocsin.schemas.fault import REWARDING
from tocsin.schemas.setup import RewardSetup, RunSetup, TemplateSetup
from tocsin.trainer.data import Prompt
from tocsin.trainer.faults import PLANTED_LABEL
from tocsin.trainer.prompts import PromptSet

LOOKED_AT: Final = 64
"""Prompts whose beginning is looked at."""


def run_setup(config: RunConfig, train: PromptSet, held_out: PromptSet, tokenizer: Any) -> RunSetup:
    """The launch as rules see it."""
    return RunSetup(
        rewards=_rewards(config),
        scale_advantages=config.loss.scales,
        zero_spread_tolerance=config.loss.zero_spread_tolerance,
        train_prompts=len(train.prompts),
        refused_prompts=dict(Counter(row.cause for row in train.refused)),
        evaluation_prompts=len(held_out.prompts),
        evaluation_every=config.evaluation.every,
        checkpoint_every=config.checkpoint.every,
        schedule=config.optimizer.schedule,
        warmup_steps=config.optimizer.warmup_steps,
        template=_template(config, train.prompts[:LOOKED_AT], tokenizer),
        # The local sampler has no filters, and every request to a server states neutral ones.
        sampling={},
        processors=_processors(),
    )


def _rewards(config: RunConfig) -> list[RewardSetup]:
    deciding = config.pass_tops or {}
    found = []
    for reward in config.rewards:
        low, high = reward.span or (None, None)
        passes = reward.label in deciding
        found.append(RewardSetup(label=reward.label, weight=reward.weight, low=low, high=high, passes=passes))
    if config.fault is not None and config.fault.name in REWARDING:
        found.append(RewardSetup(label=PLANTED_LABEL, weight=1.0, passes=False))
    return found


def _template(config: RunConfig, prompts: list[Prompt], tokenizer: Any) -> TemplateSetup:
    twice = [tokenizer.bos_token_id] * 2
    return TemplateSetup(
        has=tokenizer.chat_template is not None,
        used=config.data.chat_template,
        doubled_start=sum(prompt.token_ids[:2].tolist() == twice for prompt in prompts),
        looked_at=len(prompts),
    )


def _processors() -> int | None:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
