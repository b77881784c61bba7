"""`RunSetup`: what was decided at launch and does not change during the attempt, as far as rules ask for it."""

from pydantic import FiniteFloat

from tocsin.schemas.base import Count, Model, Number


class RewardSetup(Model):
    """One reward function."""

    label: str
    """Name in `batch_consumed.components`."""
    weight: FiniteFloat
    """Factor in the total reward."""
    low: FiniteFloat | None = None
    """Smallest value, unweighted; absent when the function does not declare it."""
    high: FiniteFloat | None = None
    """Largest value, unweighted."""
    passes: bool
    """Whether its best value decides what a pass is."""


class TemplateSetup(Model):
    """The tokenizer's chat template, and how the prompts that were looked at begin."""

    has: bool
    """The tokenizer has a chat template."""
    used: bool
    """Prompts are rendered with it."""
    doubled_start: Count
    """Prompts that begin with two beginning-of-sequence tokens."""
    looked_at: Count
    """Prompts looked at, the first ones of the data."""


class RunSetup(Model):
    """The parts of the configuration and of the data that rules judge. A foreign run may state some of them only."""

    rewards: list[RewardSetup] = []
    scale_advantages: bool | None = None
    """Advantages are divided by the standard deviation of their group."""
    zero_spread_tolerance: FiniteFloat | None = None
    """A group has zero spread when its largest reward exceeds its smallest by at most this."""
    train_prompts: Count | None = None
    """Usable prompts to train on."""
    refused_prompts: dict[str, Count] = {}
    """Rows for training that were refused, by cause: `bad_row`, `prompt_too_long`."""
    evaluation_prompts: Count | None = None
    """Held-out prompts used; 0 means that nothing is evaluated."""
    evaluation_every: Count | None = None
    """Optimizer steps between evaluations; 0 means at the first and the last step only."""
    checkpoint_every: Count | None = None
    """Optimizer steps between checkpoints; 0 means at the end only."""
    schedule: str | None = None
    """Of the learning rate: `constant`, `linear`, `cosine`."""
    warmup_steps: Count | None = None
    template: TemplateSetup | None = None
    sampling: dict[str, Number] | None = None
    """Filters of the sampler that are not neutral, such as `top_p` or `repetition_penalty`. Empty: the sampler draws
    from the model's own distribution. Absent: not known."""
    processors: Count | None = None
    """Processors that this machine lets the learner use; its children share them."""
