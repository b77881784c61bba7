"""The embedded task: sort six digits. Small enough to learn on two cores, verifiable by comparison.

A prompt reads `402917>` and its answer `012479`. The teacher is right about half of the time; otherwise it exchanges
digits of the right answer. A model that imitates it passes at about the same rate, and has to learn from rewards
alone which of the two it should always do.
"""

import json
from pathlib import Path
from typing import Final

import numpy as np

DIGITS: Final = 6
"""Digits of a prompt."""
TEACHER_ACCURACY: Final = 0.48
"""Share of demonstrations that are left right; an exchange of equal digits adds about 0.04."""
ALPHABET: Final = "0123456789>"
ANSWER_TOKENS: Final = DIGITS + 1
"""The digits and the end of sequence."""


def row(digits: np.ndarray) -> dict[str, str]:
    """One row of the data set: prompt and right answer."""
    return {
        "prompt": "".join(map(str, digits)) + ">",
        "answer": "".join(map(str, sorted(digits.tolist()))),
    }


def split(seed: int, *, train: int, held_out: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Training and held-out rows without a common prompt."""
    rng = np.random.default_rng([seed, 1])
    numbers = rng.choice(10**DIGITS, size=train + held_out, replace=False)
    digits = (numbers[:, None] // 10 ** np.arange(DIGITS - 1, -1, -1)) % 10
    rows = [row(line) for line in digits]
    return rows[:train], rows[train:]


def demonstration(answer: str, rng: np.random.Generator, accuracy: float = TEACHER_ACCURACY) -> str:
    """What the teacher answers: right, or with one to three exchanged pairs of digits."""
    if rng.random() < accuracy:
        return answer
    letters = list(answer)
    for _ in range(rng.integers(1, 4)):
        i, j = rng.choice(len(letters), size=2, replace=False)
        letters[i], letters[j] = letters[j], letters[i]
    return "".join(letters)


def write_rows(rows: list[dict[str, str]], path: Path) -> None:
    """Write rows as JSON Lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in rows))
