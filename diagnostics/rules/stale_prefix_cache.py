"""OFF013: prompts are read from a cache that older weights filled."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.engines import PrefixCaches
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.generation import WeightsSynced


@dataclass(frozen=True, kw_only=True)
class StalePrefixCache(Rule):
    """Weights change, and the servers go on using prompts that they cached under the old ones.

    ## What it means
    After a sync the server's prefix cache still answers new requests, with keys and values that the old weights
    computed. New tokens then come from a mixture of two policies that no version number describes.

    ## Why it matters
    The log-probs of the completions no longer are those of the weights that they are credited to, so every importance
    ratio is off, most of all near the prompt. Prompts that come back are hit hardest, and it grows with the learning
    rate.

    ## How it is detected
    At least `syncs` syncs in a row say that the prefix cache was kept, and one of the last six looks at the servers
    since then found prompt tokens in the cache. Hits alone prove nothing: the completions of one group share their
    prompt, which is what the cache is for. So it is what becomes of the cache at a sync that decides; one that is
    reset, out of reach (salted by version) or absent is never reported. It resolves with the first such sync. The
    published critical level, k3 of tokens behind a hit three times that of others, is not evaluated: no event tells
    the two apart.

    ## Known false alarms
    A sequence that was under way goes on with its own old keys and values in pipelined training. That is by design,
    costs little, and is not counted. Kept caches without a single hit do no harm and are not reported.

    ## What to do
    Reset the prefix cache at every sync, or salt it with the version of the weights. If neither can be had, start the
    servers without prefix caching.

    ## Sources
    `clear_kv_cache_on_weight_sync` and `use_cache_salt` of SkyRL; `recompute_kv_cache_after_weight_updates` of
    NeMo-RL; PipelineRL and Magistral on going on with old keys; prime-rl#1650, NeMo-RL#4018, vllm#9744, lmdeploy#4917,
    vllm-omni#6739.
    """

    code = "OFF013"
    name = "stale-prefix-cache"
    title = "Prefix cache of old weights in use"
    kind = "fault"
    proof = "scenario"
    where = "sampler"
    reads = (
        "weights_synced.prefix_cache",
        "engine_sampled.prefix_hit_tokens",
        "engine_sampled.prefix_query_tokens",
    )
    trigger = WeightsSynced
    timing = Timing(unit="syncs", window=2, warm_up=1, persistence=1, clear_persistence=1)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="nothing resets the cache when weights change",
            weight=0.7,
            check="`weights_synced.prefix_cache` is `kept` at every sync",
        ),
        Cause(
            text="the reset is asked for and refused",
            weight=0.3,
            check="the server's log at a sync: a cache is not reset while requests hold it",
        ),
    )

    syncs: float = threshold(2, "Syncs in a row that must have kept the cache", low=1, unit="syncs")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Whether the cache outlived the last syncs and is used."""
        caches = features.prefix_caches
        if caches.state is None:
            if features.engines.is_local:
                return not_evaluated("not_applicable", "the local sampler computes every prompt anew")
            return not_evaluated("missing_input", "syncs do not say what became of the prefix cache")
        if caches.kept < self.syncs:
            return None
        if not caches.polls:
            return not_evaluated("missing_input", "no server was looked at since its prefix cache was kept")
        found = any(poll.hits for poll in caches.polls if poll.kept >= self.syncs)
        return self._finding(caches) if found else None

    def _finding(self, caches: PrefixCaches) -> Finding:
        hits, queries = sum(poll.hits for poll in caches.polls), sum(poll.queries for poll in caches.polls)
        return Finding(
            severity="warning",
            summary=(
                f"Servers kept their prefix caches over the last {caches.kept} weight syncs and found {hits} of "
                f"{queries} prompt tokens there since"
            ),
            evidence=(
                Evidence(
                    metric="weights_synced.prefix_cache kept in a row",
                    observed=caches.kept,
                    operator=">=",
                    threshold=self.syncs,
                    unit="syncs",
                    window=caches.kept,
                    window_unit="syncs",
                    n=caches.kept,
                    baseline=0,
                ),
                Evidence(
                    metric="engine_sampled.prefix_hit_tokens",
                    observed=hits,
                    operator=">",
                    threshold=0,
                    unit="tokens",
                    window=len(caches.polls),
                    window_unit="polls",
                    n=len(caches.polls),
                ),
            ),
            proposals=ranked(
                look("reset-prefix-cache", "reset the prefix cache at every weight sync, or salt it with the version"),
                look("disable-prefix-caching", "start the servers without prefix caching"),
            ),
        )
