"""What the first event says about the launch."""

from types import SimpleNamespace

import numpy as np

from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.setup import RewardSetup, TemplateSetup
from tocsin.trainer.data import Prompt
from tocsin.trainer.prompts import PromptSet, Refused
from tocsin.trainer.run_setup import LOOKED_AT, run_setup


def prompt(*ids: int) -> Prompt:
    return Prompt("1-0badcafe", "x", np.array(ids, dtype=np.int32), {})


def config(*rewards: RewardConfig) -> RunConfig:
    return RunConfig(steps=9, model=ModelConfig(path="x"), data=DataConfig(train="x"), rewards=list(rewards))


def test_reward_functions_are_stated_with_their_ranges_and_who_decides_a_pass():
    shaping = RewardConfig(function="m:brief", weight=0.1)
    train = PromptSet([prompt(5)], [])
    setup = run_setup(config(RewardConfig(function="exact"), shaping), train, PromptSet([], []), tokenizer())
    assert setup.rewards == [
        RewardSetup(label="exact", weight=1.0, low=0.0, high=1.0, passes=True),
        RewardSetup(label="brief", weight=0.1, passes=False),
    ]


def test_prompts_and_refused_rows_are_counted():
    refused = [Refused(1, "bad_row", "x"), Refused(2, "prompt_too_long", "x"), Refused(3, "bad_row", "x")]
    setup = run_setup(
        config(RewardConfig(function="exact")),
        PromptSet([prompt(5)] * 3, refused),
        PromptSet([prompt(5)] * 2, []),
        tokenizer(),
    )
    assert (setup.train_prompts, setup.evaluation_prompts) == (3, 2)
    assert setup.refused_prompts == {"bad_row": 2, "prompt_too_long": 1}


def test_doubled_starts_are_counted_among_the_first_prompts():
    train = PromptSet([prompt(7, 7, 5), prompt(7, 5), prompt(7)] + [prompt(7, 7)] * LOOKED_AT, [])
    setup = run_setup(config(RewardConfig(function="exact")), train, PromptSet([], []), tokenizer(bos=7))
    assert setup.template == TemplateSetup(has=False, used=False, doubled_start=LOOKED_AT - 2, looked_at=LOOKED_AT)


def test_a_tokenizer_without_a_first_token_doubles_none():
    setup = run_setup(
        config(RewardConfig(function="exact")), PromptSet([prompt(0, 0)], []), PromptSet([], []), tokenizer()
    )
    assert setup.template is not None
    assert setup.template.doubled_start == 0


def tokenizer(bos: int | None = None) -> SimpleNamespace:
    """As much of one as is asked."""
    return SimpleNamespace(bos_token_id=bos, chat_template=None)
