"""Advice about the configuration, and how much of the data is left after reading it. No library for models is needed.

Advice is arithmetic or what a failure mode of the catalogue names, and always of severity info: nothing here can be
known to be wrong before it was tried.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tocsin.diagnostics.proposals import look
from tocsin.diagnostics.render import plural
from tocsin.diagnostics.rewards import expected_share
from tocsin.diagnostics.rule import Proposal
from tocsin.schemas.actions import Patch
from tocsin.schemas.check import Gate
from tocsin.schemas.config import BUILTIN_REWARDS, RunConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.knobs import LIMITS, Knobs
from tocsin.trainer.gates import fact, finding, gate
from tocsin.trainer.prompts import PromptSet
from tocsin.trainer.sources import FILES

SMALL_GROUP: Final = 4
"""Groups below it fail by chance too often; the catalogue's limit for a warning."""
GROUP_FLOOR: Final = 8
"""prime-rl's floor, and the default of TRL and of Tocsin."""
LONG_RUN: Final = 100
"""Steps from which it matters that a run is saved and evaluated on the way."""
LOST_PROMPTS: Final = 0.01
"""Share of rows too long or unusable that is no accident any more."""


def configuration_gate(config: RunConfig) -> Gate:
    """Advice that the configuration alone can give."""
    found = [*_group_size(config), *_denominator(config), *_evaluation(config), *_checkpoints(config)]
    knobs = config.knobs
    planned = f"{config.steps} steps of {knobs.groups_per_step} x {knobs.group_size} completions"
    return gate("configuration", f"{planned}, {plural(len(found), 'remark')}" if found else planned, found)


def prompts_gate(train: PromptSet, held_out: PromptSet) -> Gate:
    """How many rows became prompts. Rows that cannot be used are skipped by the run, which may be most of the data."""
    refused = [row for part in (train, held_out) for row in part.refused]
    total = len(train.prompts) + len(held_out.prompts) + len(refused)
    share = len(refused) / total
    too_long = sum(row.cause == "prompt_too_long" for row in refused)
    summary = f"{len(train.prompts)} for training, {len(held_out.prompts)} held out"
    if refused:
        summary += f"; {len(refused)} rows refused, row {refused[0].row}: {refused[0].error}"
    found = []
    if share > LOST_PROMPTS:
        found.append(
            finding(
                "GEN014",
                "warning",
                f"{len(refused)} of {total} rows cannot become prompts, {too_long} of them are too long",
                fact("refused rows / rows", share, ">", LOST_PROMPTS, unit="share of rows", n=total),
                look("mend-rows", "mend these rows, raise model.max_length or lower max_completion_tokens"),
                where="data",
            )
        )
    return gate("prompts", summary, found, measured={"rows": total, "refused": len(refused), "too_long": too_long})


def _group_size(config: RunConfig) -> Iterator[Diagnostic]:
    """A reward of 0 or 1 leaves p^G + (1 - p)^G of the groups without a signal, by chance alone."""
    knobs, size = config.knobs, config.knobs.group_size
    if size >= SMALL_GROUP or any(reward.function not in BUILTIN_REWARDS for reward in config.rewards):
        return
    groups = max(1, knobs.groups_per_step * size // GROUP_FLOOR)
    chance, better = expected_share(0.5, size), expected_share(0.5, GROUP_FLOOR)
    yield finding(
        "RWD005",
        "info",
        f"Groups of {size} with rewards of 0 or 1: chance alone leaves {chance:.0%} without spread at a pass rate of "
        f"0.5, {better:.1%} in groups of {GROUP_FLOOR}",
        fact("knobs.group_size", size, "<", SMALL_GROUP, unit="completions"),
        Proposal(
            verb="raise-group-size",
            title=f"set knobs.group_size = {GROUP_FLOOR} and knobs.groups_per_step = {groups}",
            applicability="review",
            patches=(_patch(knobs, "group_size", GROUP_FLOOR), _patch(knobs, "groups_per_step", groups)),
        ),
    )


def _denominator(config: RunConfig) -> Iterator[Diagnostic]:
    if config.loss.zero_spread_tokens == "ignore":
        yield finding(
            "RWD014",
            "info",
            "Tokens of groups without spread are left out of the denominator: at a share of 0.86 the gradient is seven "
            "times as large",
            fact("loss.zero_spread_tokens = ignore", 1, "==", 1),
            look("count-tokens", 'set loss.zero_spread_tokens = "count" for steps of one size'),
            where="loss",
        )


def _evaluation(config: RunConfig) -> Iterator[Diagnostic]:
    data, every = config.data, config.evaluation.every
    one_file = Path(data.train).suffix in FILES
    same = data.evaluation == data.train and (one_file or data.evaluation_split == data.split)
    gap = every or config.steps
    if data.evaluation is None:
        summary = "There are no held-out prompts, so a reward that is gamed cannot be told from one that is earned"
        evidence = fact("data.evaluation", 0, "==", 0, unit="files")
        advice = look("add-evaluation", "set data.evaluation to prompts that are not trained on")
    elif same:
        summary = "The held-out prompts are the training prompts, so they show no reward that is gamed"
        evidence = fact("data.evaluation = data.train", 1, "==", 1)
        advice = look("split-data", "set data.evaluation to prompts that are not trained on")
    elif gap > LONG_RUN:
        summary = f"Held-out prompts are looked at every {gap} steps only"
        evidence = fact("steps between evaluations", gap, ">", LONG_RUN, unit="steps")
        advice = look("evaluate-more-often", f"set evaluation.every to {LONG_RUN} or less")
    else:
        return
    yield finding("SYS013", "info", summary, evidence, advice, where="evaluation")


def _checkpoints(config: RunConfig) -> Iterator[Diagnostic]:
    if config.checkpoint.every == 0 and config.steps > LONG_RUN:
        yield finding(
            "SYS011",
            "info",
            f"A checkpoint is taken at the end only: a run that is killed loses up to {config.steps} steps",
            fact("steps between checkpoints", config.steps, ">", LONG_RUN, unit="steps"),
            look("save-more-often", f"set checkpoint.every to {LONG_RUN} or less"),
            where="checkpoint",
        )


def _patch(knobs: Knobs, path: str, to: int) -> Patch:
    """A change of the launch value; the run that it is for has not begun."""
    limits = LIMITS[path]
    before: int = getattr(knobs, path)
    return Patch(path=path, expect=before, to=to, min=int(limits.low), max=int(limits.high), effective="restart")
