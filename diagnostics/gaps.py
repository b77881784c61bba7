"""Failure modes without a rule, and why: title and reason by code, told by `tocsin explain` and `docs/rules.md`.

A rule that is added takes its entry out of here. Fields are named as `event_type.field`.
"""

from typing import Final

NO_RULE_YET: Final[dict[str, tuple[str, str]]] = {}
"""The events carry what a rule needs."""

NOT_IN_EVENTS: Final[dict[str, tuple[str, str]]] = {
    "OFF009": (
        "Router of a mixture of experts disagrees between engines",
        "Needs the expert choices of both engines for the same tokens, which neither reports. OFF004 sees the gap that "
        "it leaves in the log-probs.",
    ),
}
"""The events do not carry what a rule needs."""

CANNOT_OCCUR: Final[dict[str, tuple[str, str]]] = {
    "RWD008": (
        "Completions end up in a wrong group",
        "A group travels as one object with its prompt from the sampler to the loss; nothing is ever regrouped.",
    ),
    "RWD009": (
        "Resampling finds no groups with spread",
        "The trainer does not sample again until groups have spread: a step takes the groups it gets, and those "
        "without spread are counted and skipped.",
    ),
    "POL004": (
        "Ratio off one on data of the same weights",
        "Ratios are taken against the sampler's log-probs and never against recomputed ones, so on the same weights "
        "they measure what OFF004 reports.",
    ),
    "POL016": (
        "Updates lost to rounding",
        "The learner keeps its weights in float32 whatever `model.dtype` says; only the forward pass is shorter.",
    ),
    "OFF002": (
        "Finished work is thrown away as stale",
        "A group starts only if it will be fresh enough for its step. No group is dropped for its age.",
    ),
    "OFF003": (
        "Asynchrony prefers short completions",
        "A step waits for the groups that hold its slots, in their order; a slow group delays it and is not replaced "
        "by a fast one.",
    ),
    "OFF007": (
        "Old data without a correction",
        "Every loss variant clips or weights the ratio to the sampler's own log-probs; there is none without.",
    ),
    "OFF008": (
        "Too much data masked or rejected",
        "No variant masks or rejects completions by their ratio. What the clip leaves without gradient is POL003.",
    ),
    "OFF015": (
        "The queue grows without bound",
        "The queue holds at most `groups_per_step` times `max_staleness` + 1 groups, by slots. A queue that is always "
        "full is OFF017.",
    ),
    "GEN007": (
        "Text and tokens do not match",
        "The learner trains on the sampler's token ids. Text is made from them for the reward functions and is never "
        "turned back.",
    ),
    "GEN013": (
        "Tools or environments fail",
        "Completions are single answers to a prompt; the trainer runs no tools and no environments.",
    ),
}
"""The trainer is built so that it cannot happen."""
