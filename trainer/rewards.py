"""Completions to rewards: built-in verifiers, callables by import path, and what counts as an answer.

A completion without a valid reward is an error with a cause, never reward 0: a zero would teach the policy that
the completion was bad. Runs inside the reward workers (`reward_workers`); imports neither torch nor transformers.
"""

import asyncio
import importlib
import inspect
import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tocsin.schemas.config import BUILTIN_REWARDS, RewardConfig
from tocsin.trainer.data import FailureCause, Scores
from tocsin.trainer.verifiers import VERIFIERS, Judged, RewardError, Verifier, names

__all__ = ["RewardError", "RewardFunction", "load_reward", "load_rewards", "one_line", "passed", "score", "total"]

PASS_TOLERANCE: Final = 1e-9
"""A value this close to the best one passes; rewards carry float noise."""

LARGEST_REWARD: Final = 1e30
"""Beyond it advantages overflow in float32."""

QUOTED_CHARACTERS: Final = 120
"""What an event shows of an exception's text."""

Error = tuple[FailureCause, str]


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A reward function that is ready to be called.

    `call` gets keyword arguments only: `completions`, `prompts` and the data columns, each a list with one entry
    per completion, and of these only what its signature takes.
    """

    label: str
    call: Callable[..., Any]
    accepts: frozenset[str] | None
    """Argument names it takes; None when it takes any (`**columns`)."""
    requires: frozenset[str] = frozenset()
    """Argument names without a default."""
    searches: bool = False
    """A verifier that looks for an answer within the completion, and may find none."""

    def __call__(self, arguments: Mapping[str, list[Any]]) -> Any:
        """What the function answers. Raises `RewardError` when the row lacks a column it requires."""
        if missing := self.requires - arguments.keys():
            raise RewardError(f"needs {names(missing)}, the row has {names(arguments)}")
        # Copies, so that a function that edits its arguments cannot change what the next one sees.
        given = {
            name: list(values) for name, values in arguments.items() if self.accepts is None or name in self.accepts
        }
        answer = self.call(**given)
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer


def load_rewards(configs: Sequence[RewardConfig]) -> list[RewardFunction]:
    """The functions behind `[[rewards]]`. Raises `RewardError` for the first that cannot be loaded."""
    return [load_reward(config) for config in configs]


def load_reward(config: RewardConfig) -> RewardFunction:
    """One reward function, its signature inspected once."""
    if config.function in BUILTIN_REWARDS:
        verifier = VERIFIERS[config.function](config)
        searches = isinstance(verifier, Verifier) and verifier.searches
        return RewardFunction(config.label, verifier, accepts=None, searches=searches)
    call = _imported(config.function)
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError) as error:
        raise RewardError(_refused(config.function, f"have a readable signature, got {one_line(error)}")) from error
    if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters):
        raise RewardError(_refused(config.function, "take its arguments by name, but some are positional only"))
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if not takes_any and "completions" not in {parameter.name for parameter in named}:
        raise RewardError(_refused(config.function, "take an argument named `completions`"))
    return RewardFunction(
        label=config.label,
        call=call,
        accepts=None if takes_any else frozenset(parameter.name for parameter in named),
        requires=frozenset(p.name for p in named if p.default is p.empty),
    )


def score(
    functions: Sequence[RewardFunction],
    completions: list[str],
    prompts: list[str],
    columns: Mapping[str, list[Any]],
) -> Scores:
    """Every function's answer for the completions of one group.

    >>> exact = load_reward(RewardConfig(function="exact"))
    >>> score([exact], ["4", "5"], ["2+2=", "2+2="], {"answer": ["4", "4"]}).components
    {'exact': [1.0, 0.0]}
    """
    arguments = {**columns, "completions": completions, "prompts": prompts}
    scores = Scores()
    for function in functions:
        answers = _answers(function, arguments, len(completions))
        scores.components[function.label] = answers.values
        scores.errors = {**answers.errors, **scores.errors}
        if function.searches:
            scores.unparsed[function.label] = answers.unparsed
    for position in range(len(completions)):
        if all(values[position] is None for values in scores.components.values()):
            scores.errors.setdefault(position, ("reward_invalid", "no reward: every function returned None"))
    return scores


def total(scores: Scores, weights: Mapping[str, float]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Weighted sum over the functions that answered, and where it is a reward; NaN where it is not. Both [G].

    >>> total(Scores({"a": [1.0, None], "b": [0.5, 2.0]}), {"a": 1.0, "b": 2.0})[0].tolist()
    [2.0, 4.0]
    """
    table = np.array([scores.components[label] for label in weights], dtype=np.float64)
    answered = ~np.isnan(table)
    with np.errstate(over="ignore"):  # a weight near the largest float; the sum is then no reward
        rewards = np.array(list(weights.values())) @ np.where(answered, table, 0.0)
    valid = answered.any(axis=0) & np.isfinite(rewards)
    valid[list(scores.errors)] = False
    return np.where(valid, rewards, np.nan), valid


def passed(
    components: Mapping[str, npt.NDArray[np.float64]], tops: Mapping[str, float], size: int
) -> npt.NDArray[np.bool_]:
    """Where every function in `tops` gave its best value; [size]. One without an entry could not tell: no pass.

    >>> passed({"exact": np.array([1.0, 0.0]), "brief": np.array([0.2, 1.0])}, {"exact": 1.0}, 2).tolist()
    [True, False]
    """
    unknown = np.full(size, np.nan)
    result = np.ones(size, dtype=np.bool_)
    for label, top in tops.items():
        result &= np.abs(components.get(label, unknown) - top) <= PASS_TOLERANCE
    return result


def one_line(error: BaseException) -> str:
    """Class and message of `error`, fit for an event: one line, valid UTF-8, at most 300 characters."""
    try:
        text = " ".join(str(error)[:2000].split())
    except Exception:  # protects the report of an error from a message that cannot be rendered
        text = "(its message cannot be shown)"
    text = text.encode("utf-8", "replace").decode("utf-8")
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= 300 else f"{line[:297]}..."


@dataclass(slots=True)
class _Answers:
    """One function's answers for the completions of one group."""

    values: list[float | None]
    errors: dict[int, Error] = field(default_factory=dict)
    """By position."""
    unparsed: list[int] = field(default_factory=list)


def _answers(function: RewardFunction, arguments: Mapping[str, list[Any]], size: int) -> _Answers:
    """One value per completion. A failed call is repeated one completion at a time."""
    try:
        return _checked(function.label, function(arguments), size)
    except BaseException as error:  # protects the worker from user code; math-verify's timeout is no `Exception`
        if size == 1:
            return _Answers([None], {0: _raised(function.label, error)})
    result = _Answers([])
    for position in range(size):
        single = {name: column[position : position + 1] for name, column in arguments.items()}
        one = _answers(function, single, 1)
        result.values += one.values
        result.errors.update((position, error) for error in one.errors.values())
        result.unparsed += [position for _ in one.unparsed]
    return result


def _checked(label: str, answer: Any, size: int) -> _Answers:
    """Numbers out of what a function returned; raises nothing that it did not return itself."""
    shape = "one number or None per completion"
    if isinstance(answer, str | bytes | Mapping | AbstractSet) or not isinstance(answer, Iterable):
        problem = f"{label}: must return {shape}, got {type(answer).__name__}"
        return _Answers([None] * size, dict.fromkeys(range(size), ("reward_error", problem)))
    entries = list(answer)
    if len(entries) != size:
        problem = f"{label}: must return {shape}, got {len(entries)} values for {size} completions"
        return _Answers([None] * size, dict.fromkeys(range(size), ("reward_error", problem)))
    result = _Answers([], unparsed=list(answer.unparsed) if isinstance(answer, Judged) else [])
    for position, entry in enumerate(entries):
        value = None if entry is None else _number_or_nan(entry)
        if value is not None and not abs(value) <= LARGEST_REWARD:
            rule = f"a reward must be a number within ±{LARGEST_REWARD:g} or None"
            result.errors[position] = ("reward_invalid", f"{label}: {rule}, got {_shown(entry)}")
            value = None
        result.values.append(value)
    return result


def _number_or_nan(entry: Any) -> float:
    """Any number, numpy's and torch's included, as a float; text is no number."""
    if isinstance(entry, str | bytes):
        return math.nan
    try:
        return float(entry)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def _shown(entry: Any) -> str:
    return repr(entry)[:60] if isinstance(entry, int | float | str) else f"a {type(entry).__name__}"


def _raised(label: str, error: BaseException) -> Error:
    if isinstance(error, RewardError):
        return "reward_error", f"{label}: {error}"
    # What it says may come from a completion: marked as data, and short.
    text = one_line(error).replace('"', "'")
    shown = text if len(text) <= QUOTED_CHARACTERS else f"{text[: QUOTED_CHARACTERS - 3]}..."
    return "reward_error", f'{label}: the function raised "{shown}"'


def _refused(path: str, rule: str) -> str:
    return f"reward function `{path}` must {rule}; correct `rewards.function` or the function"


def _imported(path: str) -> Callable[..., Any]:
    """The callable at `package.module:attribute`; the working directory counts, as with `python -m`."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # protects the start of the run: importing runs code of the user
        raise RewardError(_refused(path, f"be in a module that can be imported, got {one_line(error)}")) from error
    try:
        found = operator.attrgetter(attribute)(found)
    except AttributeError as error:
        raise RewardError(_refused(path, f"exist: `{module_name}` has no `{attribute}`")) from error
    if not callable(found):
        raise RewardError(_refused(path, f"be callable, got {type(found).__name__}"))
    return found  # type: ignore[no-any-return]
