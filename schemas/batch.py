"""`BatchConsumed`: everything about the groups of one optimizer step, in columns.

One event a step, arrays over groups, histograms over completions, nothing per token: about 18 KiB for
128 groups of 8. The completions themselves go to the rollout data set (`rollouts/*.parquet`).
"""

from typing import Literal

from pydantic import model_validator

from tocsin.schemas.base import Count, Model, Number
from tocsin.schemas.event import BaseEvent


class GroupColumns(Model):
    """One entry per group, all columns the same length, in the order of consumption.

    Rewards are the weighted totals before advantages are taken. `zero_spread` is judged by
    `reward_max - reward_min <= tolerance`, never by a standard deviation of zero, which float noise breaks.
    """

    group_index: list[Count]
    """Position in the endless sequence of groups; fixes the random numbers of the group."""
    prompt_id: list[str]
    """Identity of the prompt: row number and content hash, never its text."""
    size: list[Count]
    """Completions with a valid reward, the G of this group."""
    num_failed: list[Count]
    """Completions left out because scoring them failed. They count as nothing, not as reward 0."""
    reward_mean: list[Number]
    reward_std: list[Number]
    """Population standard deviation (ddof 0)."""
    reward_min: list[Number]
    reward_max: list[Number]
    zero_spread: list[bool]
    tokens: list[Count]
    """Completion tokens generated for the group."""
    truncated: list[Count]
    """Completions that ended at the length limit (finish reason `length`)."""
    staleness: list[Count]
    """Optimizer steps between the weights of the group's oldest token and the weights that train on it."""
    staleness_flight: list[Count]
    """The part of `staleness` that passed while the group was being generated and scored."""
    config_generation: list[Count]
    """Configuration under which the group was generated; rises with each knob change."""
    passed: list[Count] | None = None
    """Completions that pass, as in `BatchConsumed.pass_rate`; absent when no reward function decides."""
    distinct: list[Count] | None = None
    """Different token sequences among the group's completions."""

    @model_validator(mode="after")
    def _same_length(self) -> "GroupColumns":
        lengths = {len(column) for column in self.__dict__.values() if column is not None}
        if len(lengths) > 1:
            raise ValueError(f"columns of `groups` must have one length, got {sorted(lengths)}")
        return self


class Histogram(Model):
    """Counts between edges: `counts[i]` holds values in `[edges[i], edges[i + 1])`, the last one closed."""

    edges: list[float]
    counts: list[Count]


class Quantiles(Model):
    """A distribution; the field that holds it says of what."""

    mean: Number
    p50: Number
    p95: Number
    max: Number


class ComponentStats(Model):
    """One reward function over the completions of the step that it scored, unweighted."""

    n: Count
    """Completions scored."""
    min: Number
    max: Number
    std_within: Number | None = None
    """Root of the mean, over the groups of which it scored at least two completions, each counting once, of the
    population variance (ddof 0) within the group; absent without such a group."""


class TextStats(Model):
    """What the texts of the step's completions look like, in counts of completions. None of it changes a reward."""

    judged: Count
    """Long enough to be judged for repetition: 64 tokens or more."""
    repetitive: Count
    """Of these, those where more than half of the 4-grams among the last 512 tokens repeat an earlier one."""
    script_judged: Count
    """With at least 20 letters of one script near the end, to a prompt of which the same is true."""
    other_script: Count
    """Of these, those whose main Unicode script is not that of their prompt. Chinese and Japanese count as one."""
    cut_with_end: Count
    """Ended at the length limit although they contain a token that ends an answer."""
    unparsed: dict[str, Count] = {}
    """By reward function that looks for an answer in the text, completions in which it found none. Those that ended at
    the length limit are left out."""


class BatchConsumed(BaseEvent):
    """The groups that one optimizer step took from the queue, before any of them is filtered."""

    type: Literal["batch_consumed"] = "batch_consumed"
    groups: GroupColumns
    reward_range: tuple[Number, Number] | None = None
    """Smallest and largest reward that is possible, when the task declares it."""
    reward_mean: Number
    """Mean over all scored completions."""
    pass_rate: Number | None = None
    """Share of completions for which every reward function that decides what a pass is gave its best value; absent
    when none decides. A shaping reward beside a verifier does not change it."""
    components: dict[str, Number] = {}
    """Mean of each reward function, unweighted, over the completions it scored."""
    component_stats: dict[str, ComponentStats] = {}
    """Range and spread of each reward function; the same functions as in `components`."""
    length: Quantiles
    """Tokens per completion."""
    length_histogram: Histogram
    length_passed: Number | None = None
    """Mean tokens of the completions that pass, taken in each group that has both kinds, then over these groups, each
    counting once; absent without such a group."""
    length_failed: Number | None = None
    """The same of the completions that do not pass, over the same groups."""
    texts: TextStats | None = None
    """Absent when the texts were not looked at."""
    staleness: Quantiles
    """Optimizer steps, over completions; see `GroupColumns.staleness`."""
    version_span: Quantiles | None = None
    """Optimizer steps between the weights of a completion's oldest token and those of its newest, over completions;
    above 0 where weights changed while it was generated."""
    mixed_frac: Number | None = None
    """Share of completions whose tokens come from more than one version of the weights."""
    finish_reasons: dict[str, Count]
    """Completions by finish reason: `stop`, `length`, `abort`."""
    max_staleness: Count
    """The bound in force for these groups."""
