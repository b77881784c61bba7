"""Events of the samplers: what they generated, how their servers are, and which weights they hold."""

from typing import Literal

from tocsin.schemas.base import Count, Fraction, Number, Seconds
from tocsin.schemas.event import BaseEvent

PrefixCache = Literal["reset", "kept", "none"]


class WeightSyncStarted(BaseEvent):
    """New weights are on their way to the sampler. `weights_synced` follows, unless the sync hangs or fails."""

    type: Literal["weight_sync_started"] = "weight_sync_started"
    version: Count
    attempt_number: Count = 1
    """2 when the same weights are sent once more in full, because the first proof failed."""


class WeightsSynced(BaseEvent):
    """The sampler acknowledged new weights, and a probe compared both sides on them."""

    type: Literal["weights_synced"] = "weights_synced"
    version: Count
    """Version that the sampler echoed."""
    seconds: dict[str, Seconds]
    """`write` by the learner, `pause` until the sampler was between batches, `load` by the sampler, `verify`,
    `resume`, `total`. With several servers the longest of each."""
    bytes: Count
    probe_gap: Number
    """Largest absolute difference of log-probs on the probe tokens, sampler against learner, same weights."""
    probe_moved: Number
    """Largest absolute change of the learner's own log-probs on the probe since the previous sync."""
    probe_tolerance: Number
    """Calibrated at the first sync of the run."""
    verified: bool
    """`probe_gap <= probe_tolerance`."""
    attempt_number: Count = 1
    """2 for the full resend after a proof that failed."""
    prefix_cache: PrefixCache | None = None
    """What became of cached prefixes of the old weights: dropped or out of reach, still usable for new requests, or
    there is no cache. Absent when unknown."""
    checksums: dict[str, str] = {}
    """By server, a digest over the weights that its workers hold; absent where servers give none."""


class SamplerSampled(BaseEvent):
    """One batch of groups that the sampler finished."""

    type: Literal["sampler_sampled"] = "sampler_sampled"
    sampler: str
    version: Count
    groups: Count
    completions: Count
    tokens: Count
    seconds: Seconds
    purpose: Literal["train", "eval"] = "train"


class EngineSampled(BaseEvent):
    """One look at a generation server's own metrics. Counters are increases since the previous look."""

    type: Literal["engine_sampled"] = "engine_sampled"
    engine: str
    """Which server, for instance `vllm-0`."""
    interval_s: Seconds
    """Since the previous look at this server."""
    running: Count
    """Sequences in the running batch now."""
    waiting: Count
    """Sequences that wait for room in the KV cache or the batch now."""
    kv_usage: Fraction | None = None
    """Share of the KV cache in use now."""
    preemptions: Count = 0
    """Sequences thrown out of the KV cache, whose work must be done again."""
    prompt_tokens: Count = 0
    generated_tokens: Count = 0
    prefix_hit_tokens: Count = 0
    """Prompt tokens that were found in the prefix cache."""
    prefix_query_tokens: Count = 0
    """Prompt tokens that were looked up in it."""
    requests_finished: Count = 0
    """Requests of this run that the server answered."""
    requests_failed: Count = 0
    """Requests of this run that failed there for reasons of the server: connection, 5xx, no answer in time."""
