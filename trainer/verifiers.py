"""Built-in verifiers: rewards that need no code. Each compares a completion with the answer in its data row.

To add one: write a function from its `RewardConfig` to a callable, add it to `VERIFIERS` and to `BUILTIN_REWARDS`.
"""

import logging
import operator
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, Final

from tocsin.schemas.config import RewardConfig

MATH_TIMEOUT_S: Final = 2
"""For one parse or one comparison by math-verify, in whole seconds (it uses `alarm`)."""

MATH_TAIL: Final = 4000
"""Characters at the end of a completion in which `math` looks for the answer; its patterns are slow on long texts."""


class RewardError(ValueError):
    """A reward function cannot be loaded, or a verifier cannot judge a row; says why and what to change."""


class Judged(list[float]):
    """Rewards of a verifier."""

    unparsed: Sequence[int] = ()
    """Positions of the completions in which it found no answer."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """A built-in reward: 1.0 where the completion agrees with the row's answer, 0.0 where it does not."""

    column: str
    reference: Callable[[str], Any]
    """Answer of the row to what completions are compared with. Raises `RewardError` when it cannot be used."""
    extract: Callable[[str], Any]
    """Answer of a completion; None when there is none."""
    agrees: Callable[[Any, Any], bool]
    """Whether the answer of a completion is that of the row."""
    searches: bool = True
    """Looks for the answer within the completion; otherwise the whole completion is the answer."""

    def __call__(self, *, completions: list[str], **columns: list[Any]) -> Judged:
        """Raises `RewardError` for a row without a usable answer."""
        if self.column not in columns:
            remedy = "set `rewards.answer_column`"
            raise RewardError(f"column `{self.column}` is missing, the row has {names(columns)}; {remedy}")
        answers = [self._text(answer) for answer in columns[self.column]]
        references = {answer: self.reference(answer) for answer in set(answers)}
        found = [self.extract(completion) for completion in completions]
        judged = Judged(
            float(one is not None and self.agrees(one, references[answer]))
            for one, answer in zip(found, answers, strict=True)
        )
        judged.unparsed = [position for position, one in enumerate(found) if one is None]
        return judged

    def _text(self, answer: Any) -> str:
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise RewardError(f"column `{self.column}` must hold a text or a number, got {type(answer).__name__}")
        return str(answer)


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The match that ends a search from left to right."""
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def last_number(text: str) -> Decimal | None:
    """The last number in `text`, exactly; None without one.

    Digits with or without thousands separators, a decimal point, an exponent, a sign that does not follow a word,
    and plain fractions. Units and per cent signs are ignored.

    >>> [str(last_number(text)) for text in ("first 7, then $1,234.50.", "x=-3", "10-4", "3/4", "2e3", "none")]
    ['1234.50', '-3', '4', '0.75', '2E+3', 'None']
    """
    found = last_match(NUMBER, text.replace("\N{MINUS SIGN}", "-"))
    # Longer ones are noise, and their exponents could fill the memory.
    if found is None or len(found[0]) > 200:
        return None
    with localcontext(prec=60):
        try:
            top = Decimal(found["sign"] + found["top"].replace(",", ""))
            return top / Decimal(found["bottom"].replace(",", "")) if found["bottom"] else top
        except ArithmeticError:
            return None


_DIGITS: Final = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
NUMBER: Final = re.compile(
    rf"(?P<sign>(?<![\w.)])[-+]|)(?P<top>(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
    rf"(?:/(?P<bottom>{_DIGITS}(?:\.[0-9]+)?))?"
)


def same_number(left: Decimal, right: Decimal) -> bool:
    """Integers must be equal; others may differ by 1e-9 of the larger one, for float noise in the data."""
    if left == right:
        return True
    with localcontext(prec=60):
        try:
            if left == left.to_integral_value() and right == right.to_integral_value():
                return False
            return abs(left - right) <= Decimal("1e-9") * max(abs(left), abs(right))
        except ArithmeticError:
            return False


def _exact(config: RewardConfig) -> Verifier:
    """The whole completion is the answer; white space around either does not count."""
    return Verifier(config.answer_column, str.strip, str.strip, operator.eq, searches=False)


def _numeric(config: RewardConfig) -> Verifier:
    """The last number of the completion equals the last number of the answer (so `#### 72` works as it is)."""

    def reference(answer: str) -> Decimal:
        if (number := last_number(answer)) is None:
            raise RewardError(f"column `{config.answer_column}` must hold a number, got {answer[:60]!r}")
        return number

    return Verifier(config.answer_column, reference, last_number, same_number)


def _regex(config: RewardConfig) -> Callable[..., list[float]]:
    """The last match of the pattern: its first group is the answer, or there is a match when it has no group."""
    try:
        pattern = re.compile(config.pattern or "")
    except re.error as error:
        raise RewardError(f"`rewards.pattern` must be a regular expression, got {config.pattern!r}: {error}") from error

    def found(completions: list[str], **_: list[Any]) -> list[float]:
        return [float(pattern.search(completion) is not None) for completion in completions]

    def extract(completion: str) -> str | None:
        match = last_match(pattern, completion)
        return match[1].strip() if match is not None and match[1] is not None else None

    return Verifier(config.answer_column, str.strip, extract, operator.eq) if pattern.groups else found


def _math(config: RewardConfig) -> Verifier:
    """Symbolic equality by math-verify: fractions, LaTeX, sets, intervals, equations."""
    try:
        import math_verify  # noqa: F401, PLC0415  # half a second that only `math` pays
    except ImportError as error:
        raise RewardError("`math` needs the package math-verify; run `pip install 'tocsin[train]'`") from error
    # On a timeout it would log the whole completion.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def reference(answer: str) -> list[Any]:
        if threading.current_thread() is not threading.main_thread():
            raise RewardError("`math` must run in a main thread: math-verify's timeouts are alarm signals")
        # A bare formula is only recognised between dollars.
        marked = answer if "$" in answer or "boxed" in answer else f"${answer}$"
        if not (parsed := _parse_math(marked) or _parse_math(answer)):
            raise RewardError(f"column `{config.answer_column}` must hold a mathematical answer, got {answer[:60]!r}")
        return parsed

    def extract(completion: str) -> list[Any] | None:
        return _parse_math(completion[-MATH_TAIL:]) or None

    return Verifier(config.answer_column, reference, extract, _same_math)


def _parse_math(text: str) -> list[Any]:
    """Candidates for the answer in `text`; empty when there is none. Raises `RewardError` when it takes too long."""
    from math_verify import parse  # noqa: PLC0415
    from math_verify.errors import TimeoutException  # noqa: PLC0415

    try:
        return list(parse(text, parsing_timeout=MATH_TIMEOUT_S, raise_on_error=True))
    except TimeoutException:
        raise RewardError(f"math-verify took longer than {MATH_TIMEOUT_S} s to parse a text") from None
    except Exception:  # protects the other completions: the parsers beneath raise many classes on malformed LaTeX
        return []


def _same_math(candidates: list[Any], answer: list[Any]) -> bool:
    """Whether any reading of a completion equals any of the answer; undecided in time is an error, not a no."""
    from math_verify import verify  # noqa: PLC0415
    from math_verify.errors import TimeoutException  # noqa: PLC0415

    undecided = False
    for candidate in candidates:
        for expected in answer:
            try:
                if verify(expected, candidate, timeout_seconds=MATH_TIMEOUT_S, raise_on_error=True):
                    return True
            except TimeoutException:
                undecided = True
            except Exception:  # protects the other readings: sympy raises many classes on odd expressions
                continue
    if undecided:
        raise RewardError(f"math-verify took longer than {MATH_TIMEOUT_S} s to compare a completion with the answer")
    return False


def names(of: Iterable[str]) -> str:
    """Column names for a message."""
    return ", ".join(f"`{name}`" for name in sorted(of))


VERIFIERS: Final[dict[str, Callable[[RewardConfig], Callable[..., list[float]]]]] = {
    "exact": _exact,
    "numeric": _numeric,
    "regex": _regex,
    "math": _math,
}
"""Makers by name; `BUILTIN_REWARDS` lists the same names for the configuration."""
