"""`[fault]` of the configuration: a deliberate defect, for tests and demonstrations."""

from typing import Annotated, Final, Literal

from pydantic import Field, FiniteFloat

from tocsin.schemas.base import Count, Model

FaultName = Literal[
    "constant-reward",
    "truncated",
    "nan",
    "stale-weights",
    "slow-sampler",
    "slow-learner",
    "lr-too-high",
    "slow-sync",
    "hung-sync",
    "stale-prefix-cache",
    "hard-prompts",
    "verifier-outage",
    "reward-outlier",
    "noisy-reward",
    "proxy-reward",
    "length-reward",
    "short-reward",
    "slow-reward",
    "same-seed",
    "logprob-noise",
    "top-p",
    "eos-ignored",
    "straggler",
    "hung-sampler",
    "recomputed-logprobs",
    "frozen",
    "wrong-reference",
    "memory-leak",
    "lr-spike",
    "lr-too-low",
    "entropy-bonus",
    "disk-filling",
    "lost-optimizer",
    "lost-events",
]

LOCAL_ONLY: Final[frozenset[FaultName]] = frozenset(
    {
        "stale-weights",
        "slow-sampler",
        "slow-sync",
        "hung-sync",
        "same-seed",
        "logprob-noise",
        "top-p",
        "eos-ignored",
        "straggler",
        "hung-sampler",
    }
)
"""Planted in the local sampler; a server has none of it."""
SERVER_ONLY: Final[frozenset[FaultName]] = frozenset({"stale-prefix-cache"})
"""Planted in vLLM servers."""
REWARDING: Final[frozenset[FaultName]] = frozenset({"proxy-reward", "length-reward", "short-reward"})
"""These add a reward of their own to the run's."""


class FaultConfig(Model):
    """`[fault]`: a deliberate defect, for tests and demonstrations."""

    name: FaultName
    """What goes wrong. `stale-prefix-cache` needs `sampler.kind = "vllm"`, the faults of the sampler `local`,
    `wrong-reference` a launch value of `kl_beta` above 0; `lost-optimizer` shows when the run is resumed."""
    onset_step: Count
    """First optimizer step that is affected."""
    dose: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    """How much goes wrong, as a multiple of the amount that the fault is known by: of its size (delays, added rewards,
    noise, the decades of `lr-too-low`) or of the share of groups, steps or syncs that it hits, which is at most all."""

    def misfit(self, *, sampler: str, kl_beta: float) -> str | None:
        """What a run with this kind of sampler and this weight of the penalty would need; None when it can show it."""
        if self.name in LOCAL_ONLY and sampler != "local":
            return f'`fault.name` = `{self.name}` needs `sampler.kind = "local"`, got `{sampler}`'
        if self.name in SERVER_ONLY and sampler != "vllm":
            return f'`fault.name` = `{self.name}` needs `sampler.kind = "vllm"`, got `{sampler}`'
        if self.name == "wrong-reference" and kl_beta == 0:
            return "`fault.name` = `wrong-reference` needs `knobs.kl_beta` > 0: without it there is no reference model"
        return None
