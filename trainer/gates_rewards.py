"""Reward functions on a known good and a known bad answer, in processes of their own that can be killed.

A built-in verifier must pass the data's own answer and fail a wrong one. A callable is shown the same two, or what
`rewards.good` and `rewards.bad` say; only with these can it fail critically, because what a completion should look
like is known to its author alone.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tocsin.diagnostics.proposals import look
from tocsin.schemas.check import Gate
from tocsin.schemas.config import BUILTIN_REWARDS, RewardConfig, RunConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.trainer.data import Prompt, Scores
from tocsin.trainer.gates import fact, finding, gate, spread
from tocsin.trainer.preflight import check_arguments
from tocsin.trainer.reward_workers import RewardTimeout, RewardWorkerDied, RewardWorkers

WRONG: Final = "-73939133.25"
"""The wrong answer: a number, so that every verifier can read it, and one that no data set asks for."""

AS_COMPLETION: Final[dict[str, Callable[[str], str]]] = {
    "math": lambda answer: answer if "$" in answer or "boxed" in answer else f"${answer}$"
}
"""How a bare answer becomes one that a built-in verifier recognises, where it needs more than the answer."""


@dataclass(slots=True)
class Trial:
    """What one reward function said about a good and a bad completion per prompt."""

    config: RewardConfig
    n: int = 0
    """Prompts tried."""
    right: int = 0
    """Good completions that got what they should."""
    wrong: int = 0
    """Bad completions that got what they should not."""
    equal: int = 0
    """Prompts whose two completions got the same value."""
    errors: int = 0
    """Completions, out of 2 n, that could not be scored."""
    unknown: int = 0
    """Prompts about which the function had no opinion."""
    error: str = ""
    """The first error, one line; from the function or the data, so untrusted."""

    @property
    def stated(self) -> bool:
        """Whether the configuration says what is good and bad; else it is the answer in the data and a wrong one."""
        return self.config.good is not None

    @property
    def builtin(self) -> bool:
        """Whether the function is one of ours, tried with the answers of the data."""
        return self.config.function in BUILTIN_REWARDS and not self.stated

    @property
    def proves(self) -> bool:
        """Whether a failure is the function's: nobody knows what a callable is meant to reward but its author."""
        return self.stated or self.builtin

    def failed(self, errors: int, text: str) -> None:
        """Count completions that could not be scored."""
        self.errors += errors
        self.error = self.error or text.removeprefix(f"{self.config.label}: ")

    def compared(self, good: float | None, bad: float | None) -> None:
        """Count what a good and a bad completion were worth."""
        if good is None or bad is None:
            self.unknown += 1
            return
        self.equal += good == bad
        # A verifier says 1 or 0, whatever its weight makes of that; an author says which text is worth more.
        better = self.config.weight * good > self.config.weight * bad
        self.right += good == 1.0 if self.builtin else better
        self.wrong += bad == 1.0 if self.builtin else not better


def rewards_gate(config: RunConfig, prompts: Sequence[Prompt]) -> Gate:
    """Every reward function on trial, all at once.

    Raises `RewardError` for one that cannot be loaded, `ValueError` for one that the data cannot satisfy.
    """
    trials = asyncio.run(_trials(config, prompts))
    return gate(
        "rewards",
        "; ".join(_described(trial) for trial in trials),
        [item for trial in trials for item in _judged(trial)],
        measured={f"{trial.config.label}.{name}": value for trial in trials for name, value in _numbers(trial).items()},
        evaluated=any(trial.n for trial in trials),
    )


async def _trials(config: RunConfig, prompts: Sequence[Prompt]) -> list[Trial]:
    return await asyncio.gather(*(_trial(config, reward, prompts) for reward in config.rewards))


async def _trial(config: RunConfig, reward: RewardConfig, prompts: Sequence[Prompt]) -> Trial:
    """Prompts one after the other, as in a run, for no longer than one group may take there."""
    trial = Trial(reward)
    clock = asyncio.get_running_loop().time
    workers = RewardWorkers(config.reward_workers.model_copy(update={"num": 1}), [reward])
    await workers.start()
    try:
        check_arguments(workers.requires, prompts)
        began = clock()
        for prompt in spread(prompts):
            pair = _pair(reward, prompt.columns)
            if pair is None or clock() - began > config.reward_workers.timeout_s:
                break
            trial.n += 1
            columns = {name: [value] * 2 for name, value in prompt.columns.items()}
            _count(trial, await workers.score(list(pair), [prompt.text] * 2, columns))
    except (RewardTimeout, RewardWorkerDied) as error:
        trial.failed(2, str(error))
    finally:
        await workers.close()
    return trial


def _count(trial: Trial, scores: Scores) -> None:
    # A function that returns None everywhere leaves no reward, which is an error of the group and not of the function.
    raised = [text for _, text in scores.errors.values() if text.startswith(f"{trial.config.label}: ")]
    if raised:
        trial.failed(len(raised), raised[0])
    else:
        trial.compared(*scores.components[trial.config.label])


def _pair(reward: RewardConfig, columns: Mapping[str, Any]) -> tuple[str, str] | None:
    """A good and a bad completion for one row; None when nothing says what they are."""
    if reward.good is not None and reward.bad is not None:
        return _filled(reward.good, columns), _filled(reward.bad, columns)
    answer = columns.get(reward.answer_column)
    if reward.function == "regex" or (answer is None and reward.function not in BUILTIN_REWARDS):
        return None
    form = AS_COMPLETION.get(reward.function, str)
    return form("" if answer is None else str(answer)), form(WRONG)


def _filled(text: str, columns: Mapping[str, Any]) -> str:
    """`text` with every `{column}` replaced by the row's value. Other braces stay: LaTeX is full of them."""
    for name, value in columns.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _described(trial: Trial) -> str:
    label, n = trial.config.label, trial.n
    if not n:
        return f"{label}: not tried without `rewards.good` and `rewards.bad`"
    parts = []
    if trial.errors:
        parts.append(f"{trial.errors} of {2 * n} completions not scored ({trial.error})")
    if trial.unknown:
        parts.append(f"no opinion about {trial.unknown} of {n} prompts")
    if trial.proves and trial.errors < 2 * n:
        parts.append(f"{trial.right} of {n} right answers pass, {trial.wrong} of {n} wrong ones")
    elif not parts:
        parts.append(f"finite for {2 * n} completions, {n - trial.equal} of {n} pairs differ")
    return f"{label}: {', '.join(parts)}"


def _numbers(trial: Trial) -> dict[str, int]:
    counted = ("n", "right", "wrong", "equal", "errors", "unknown")
    return {name: getattr(trial, name) for name in counted}


def _judged(trial: Trial) -> Iterator[Diagnostic]:
    where, n = f"reward:{trial.config.label}", trial.n
    name = f"Reward function {trial.config.label[:60]}"
    lost = n - trial.unknown - trial.right
    if trial.errors:
        total = trial.errors == 2 * n
        yield finding(
            "GEN011",
            "critical" if total and trial.proves else "warning",
            f"{name} could not score {trial.errors} of {2 * n} completions that were made up for it",
            fact("completions not scored", trial.errors, ">", 0, unit="completions", n=2 * n),
            look("mend-reward", _remedy(trial)),
            where=where,
        )
    elif trial.proves and (lost or trial.wrong):
        misjudged = max(lost, trial.wrong)
        yield finding(
            "GEN012",
            "critical" if misjudged == n else "warning",
            f"{name} passes {trial.right} of {n} right answers and {trial.wrong} of {n} wrong ones",
            fact("prompts judged wrongly", misjudged, ">", 0, unit="prompts", n=n),
            look("mend-reward", _remedy(trial)),
            where=where,
        )
    elif n and trial.equal == n:
        yield finding(
            "RWD010",
            "info",
            f"{name} gave {n} right answers and {n} wrong ones the same value",
            fact("pairs with one value", trial.equal, "==", n, unit="pairs", n=n),
            look("state-examples", "set rewards.good and rewards.bad to completions that it must tell apart"),
            where=where,
        )


def _remedy(trial: Trial) -> str:
    if trial.builtin:
        return "correct rewards.answer_column or the answers in the data"
    if trial.stated:
        return "mend the reward function, or correct rewards.good and rewards.bad"
    return "mend the reward function, or set rewards.good and rewards.bad to completions made for it"
