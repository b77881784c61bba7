"""The registry of failure modes: every way of going wrong that Tocsin knows by a code, with a rule or without one.

Codes and names are fixed: feeds, configurations and people refer to them, so none is ever reused or renamed. A mode
has either a rule in `rules/` or an entry in `gaps`, never both; a test says so.
"""

from dataclasses import dataclass
from typing import Final, Literal

from tocsin.diagnostics import gaps

Why = Literal["no_rule_yet", "not_in_events", "cannot_occur"]

WORDS: Final[dict[Why, str]] = {
    "no_rule_yet": "no rule yet",
    "not_in_events": "not in the events",
    "cannot_occur": "cannot occur here",
}
"""Why a mode has no rule, for people."""

NAMES: Final[dict[str, str]] = {
    "RWD001": "zero-std-groups",
    "RWD002": "prompts-too-hard",
    "RWD003": "prompts-too-easy",
    "RWD004": "proxy-only-variance",
    "RWD005": "group-size-small",
    "RWD006": "identical-completions",
    "RWD007": "duplicate-prompts",
    "RWD008": "group-index-corruption",
    "RWD009": "dynamic-sampling-starvation",
    "RWD010": "dead-reward-component",
    "RWD011": "reward-component-dominance",
    "RWD012": "reward-scale-outlier",
    "RWD013": "tiny-std-advantage",
    "RWD014": "normalisation-bias",
    "RWD015": "reward-plateau",
    "POL001": "entropy-collapse",
    "POL002": "entropy-explosion",
    "POL003": "clip-fraction-high",
    "POL004": "onpolicy-ratio-deviation",
    "POL005": "clip-zero-off-policy",
    "POL006": "ref-kl-runaway",
    "POL007": "reference-misconfigured",
    "POL008": "policy-kl-spike",
    "POL009": "reward-collapse",
    "POL010": "grad-spike",
    "POL011": "always-clipped-grad",
    "POL012": "zero-gradient",
    "POL013": "lr-too-low",
    "POL014": "lr-too-high",
    "POL015": "nan-inf",
    "POL016": "bf16-update-loss",
    "POL017": "adam-eps-dominates",
    "OFF001": "staleness-high",
    "OFF002": "stale-drop-waste",
    "OFF003": "simplicity-bias",
    "OFF004": "train-infer-mismatch",
    "OFF005": "ess-low",
    "OFF006": "sampling-truncation-bias",
    "OFF007": "missing-correction",
    "OFF008": "over-masking",
    "OFF009": "moe-routing-mismatch",
    "OFF010": "sync-not-applied",
    "OFF011": "weight-sync-hang",
    "OFF012": "weight-sync-slow",
    "OFF013": "stale-prefix-cache",
    "OFF014": "mixed-version-rollouts",
    "OFF015": "queue-growth",
    "OFF016": "trainer-starved",
    "OFF017": "generator-backpressure",
    "OFF018": "worker-hang",
    "OFF019": "gradient-alignment",
    "GEN001": "truncation-high",
    "GEN002": "eos-missing",
    "GEN003": "length-growth",
    "GEN004": "length-collapse",
    "GEN005": "repetition-gibberish",
    "GEN006": "language-drift",
    "GEN007": "retokenisation",
    "GEN008": "chat-template-mismatch",
    "GEN009": "format-gaming",
    "GEN010": "heldout-gap",
    "GEN011": "verifier-errors",
    "GEN012": "parse-failures",
    "GEN013": "env-failures",
    "GEN014": "prompt-truncated",
    "GEN015": "scoring-bound",
    "SYS001": "vram-underused",
    "SYS002": "vram-near-oom",
    "SYS003": "memory-fragmentation",
    "SYS004": "kv-preemption",
    "SYS005": "straggler-tail",
    "SYS006": "engine-imbalance",
    "SYS007": "cpu-bound",
    "SYS008": "throughput-regression",
    "SYS009": "padding-waste",
    "SYS010": "disk-full",
    "SYS011": "checkpoint-old",
    "SYS012": "telemetry-gap",
    "SYS013": "eval-missing",
    "SYS014": "resume-inconsistency",
    "SYS015": "hardware",
}
"""Name of every mode by its code, in the order in which they are listed."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A mode that no rule evaluates. Its silence says nothing about the run."""

    code: str
    title: str
    why: Why
    detail: str
    """Why there is no rule, one or two sentences."""

    @property
    def name(self) -> str:
        """As in the registry."""
        return NAMES[self.code]


_TEXTS: Final[dict[Why, dict[str, tuple[str, str]]]] = {
    "no_rule_yet": gaps.NO_RULE_YET,
    "not_in_events": gaps.NOT_IN_EVENTS,
    "cannot_occur": gaps.CANNOT_OCCUR,
}

GAPS: Final[tuple[Gap, ...]] = tuple(
    Gap(code, title, why, detail) for why, texts in _TEXTS.items() for code, (title, detail) in texts.items()
)
"""Every mode without a rule."""
