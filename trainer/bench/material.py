"""Models and data of the benchmark: small verifiable tasks, each with a model that imitates a noisy teacher.

Made once per folder and used by every run that names the same `Material`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from tocsin.trainer.demo_task import TEACHER_ACCURACY, write_rows

TaskName = Literal["sort", "swap-halves", "reverse", "complement", "rotate"]
TASKS: Final[dict[TaskName, Callable[[str], str]]] = {
    "sort": lambda digits: "".join(sorted(digits)),
    "swap-halves": lambda digits: digits[len(digits) // 2 :] + digits[: len(digits) // 2],
    "reverse": lambda digits: digits[::-1],
    "complement": lambda digits: "".join(str(9 - int(digit)) for digit in digits),
    "rotate": lambda digits: digits[1:] + digits[:1],
}
"""What becomes of the digits of a prompt, by the name of the task."""

DIGITS: Final = 6
LONGEST: Final = 14
"""Digits of a prompt where lengths vary."""
TRAIN_ROWS: Final = 4096
HELD_OUT_ROWS: Final = 256
PRETRAIN_STEPS: Final = 500
MADE: Final = "made.json"


@dataclass(frozen=True, slots=True)
class Material:
    """A model with its data."""

    task: TaskName
    seed: int
    accuracy: float = TEACHER_ACCURACY
    """Of the teacher that the model imitates, and so about its pass rate before training."""
    lengths: Literal["equal", "long-tail", "rising"] = "equal"
    """Digits per prompt: always six; 3 and a geometric number more; or short ones first and long ones at the end of
    the data, as a curriculum has it."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.task}-{self.seed}-{self.accuracy:g}-{self.lengths}"

    def rows(self) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
        """Training and held-out rows, without a common prompt."""
        rng = np.random.default_rng([self.seed, 7])
        wanted = TRAIN_ROWS + HELD_OUT_ROWS
        prompts: dict[str, None] = {}
        while len(prompts) < wanted:
            size = self._digits(rng, len(prompts) / wanted)
            prompts["".join(map(str, rng.integers(10, size=size)))] = None
        answer = TASKS[self.task]
        rows = [{"prompt": f"{digits}>", "answer": answer(digits)} for digits in prompts]
        held_out = set(rng.choice(wanted, HELD_OUT_ROWS, replace=False).tolist())
        train = [row for number, row in enumerate(rows) if number not in held_out]
        return train, [row for number, row in enumerate(rows) if number in held_out]

    def _digits(self, rng: np.random.Generator, share: float) -> int:
        if self.lengths == "long-tail":
            return int(min(LONGEST, 3 + rng.geometric(0.3)))
        if self.lengths == "rising":
            # Halfway through the groups of a run, which sees about a third of the data.
            return DIGITS - 1 if share < 0.2 else DIGITS + 1
        return DIGITS


def prepare(material: Material, folder: Path) -> Path:
    """The folder below `folder` that holds `model`, `train.jsonl` and `held_out.jsonl`; made if it is not there."""
    place = folder / material.name
    if (place / MADE).exists():
        return place
    from tocsin.trainer.demo_model import pretrain  # noqa: PLC0415  imports torch

    place.mkdir(parents=True, exist_ok=True)
    train, held_out = material.rows()
    write_rows(train, place / "train.jsonl")
    write_rows(held_out, place / "held_out.jsonl")
    pretrain(place / "model", train, seed=material.seed, steps=PRETRAIN_STEPS, accuracy=material.accuracy)
    (place / MADE).write_text(json.dumps({"rows": len(train)}))
    return place
