"""Data set rows to prompts: read, rendered, tokenised once, and put into an endless deterministic order.

A bad row is recorded and skipped; only a source that cannot be used at all is a `DataError`. Row numbers start at 1:
the line of a JSON Lines file (blank lines are counted and ignored), the row of a table.
"""

import hashlib
import json
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from tocsin.schemas.config import DataConfig, RunConfig
from tocsin.trainer.data import Ints, Prompt
from tocsin.trainer.rewards import one_line
from tocsin.trainer.sources import DataError, empty, read_rows, without_column

__all__ = ["DataError", "PromptOrder", "PromptSet", "Refused", "Room", "load_prompt_sets", "load_prompts"]

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MOST_CHARACTERS_PER_TOKEN: Final = 64
"""No tokenizer averages that many over a text that is meant to be read."""
SPARE_CHARACTERS: Final = 4096
"""On top, for short prompts out of a few very long tokens, such as runs of blanks."""

Progress = Callable[[int, int], None]
"""`on_progress(done, total)`, in bytes of a JSON Lines file, in rows of a table."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that cannot become a prompt. It is reported once and never sampled."""

    row: int
    cause: Literal["bad_row", "prompt_too_long"]
    error: str
    """One line. From the data, so untrusted."""

    @property
    def prompt_id(self) -> str:
        """Stands for `Prompt.id` in events; there is no content to hash."""
        return f"{self.row}-refused"


@dataclass(frozen=True, slots=True)
class Room:
    """How long a prompt may be, and what decides that."""

    tokens: int
    remedy: str
    """What gives a prompt more room; one phrase for error messages."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """What `load_prompts` made of a source, in row order."""

    prompts: list[Prompt]
    refused: list[Refused]


@dataclass(slots=True)
class PromptOrder:
    """Which prompt the group with a given index gets: endless, each epoch a permutation of its own if `shuffle`.

    A function of (seed, index) alone, so that a resumed run goes on in the same order. Sorting the raw output of
    Philox is used because, unlike `Generator.permutation`, it does not change between numpy versions.

    >>> order = PromptOrder(3, seed=0)
    >>> sorted(order(index) for index in range(3)), sorted(order(index) for index in range(3, 6))
    ([0, 1, 2], [0, 1, 2])
    """

    num_prompts: int
    seed: int
    shuffle: bool = True
    _epochs: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict, repr=False)
    """Permutations of the last two epochs asked for: around a boundary both are in use."""

    def __call__(self, index: int) -> int:
        """Number of the prompt, in [0, num_prompts)."""
        epoch, position = divmod(index, self.num_prompts)
        if not self.shuffle:
            return position
        if epoch not in self._epochs:
            raw = np.random.Philox(np.random.SeedSequence([self.seed, epoch])).random_raw(self.num_prompts)
            if len(self._epochs) == 2:
                del self._epochs[min(self._epochs)]
            self._epochs[epoch] = np.argsort(raw, kind="stable")
        return int(self._epochs[epoch][position])


def load_prompts(
    source: str,
    *,
    split: str,
    config: DataConfig,
    tokenizer: "PreTrainedTokenizerFast",
    room: Room,
    on_progress: Progress | None = None,
) -> PromptSet:
    """Prompts of a data source, and the rows that were refused. Raises `DataError`.

    `sources` says what `source` may be. `split` counts for `datasets` data sets only.
    """
    if room.tokens < 1:
        raise DataError(f"room for a prompt must be at least 1 token, got {room.tokens}; {room.remedy}")
    if config.chat_template and tokenizer.chat_template is None:
        raise DataError(
            "`data.chat_template` needs a tokenizer with a chat template, and this model's has none; turn it off or "
            "take an instruction-tuned model"
        )
    renderer = _Renderer(config, tokenizer, room)
    result = PromptSet([], [])
    for rows, done, total in read_rows(source, split=split, column=config.prompt_column):
        for number, row in rows:
            outcome = Refused(number, "bad_row", row) if isinstance(row, str) else renderer.prompt(number, row)
            if isinstance(outcome, Refused):
                result.refused.append(outcome)
            else:
                result.prompts.append(outcome)
        if on_progress is not None:
            on_progress(done, total)
    if not result.prompts:
        raise DataError(_no_prompts(source, result.refused))
    return result


def load_prompt_sets(
    config: RunConfig, tokenizer: "PreTrainedTokenizerFast", positions: int
) -> tuple[PromptSet, PromptSet]:
    """Training and held-out prompts for a model that takes `positions` tokens. Raises `DataError`."""
    room, data = _room(config, positions), config.data
    train = load_prompts(data.train, split=data.split, config=data, tokenizer=tokenizer, room=room)
    if data.evaluation is None:
        return train, PromptSet([], [])
    held_out = load_prompts(data.evaluation, split=data.evaluation_split, config=data, tokenizer=tokenizer, room=room)
    return train, PromptSet(held_out.prompts[: config.evaluation.prompts], held_out.refused)


def _room(config: RunConfig, positions: int) -> Room:
    """What a model that takes `positions` tokens leaves for a prompt, and which setting to blame for it."""
    answer = config.knobs.max_completion_tokens
    if config.model.max_length == positions:
        return Room(positions - answer, "raise `model.max_length` or lower `knobs.max_completion_tokens`")
    own = f"the model has {positions} positions and {answer} are for the completion"
    return Room(positions - answer, f"lower `knobs.max_completion_tokens`: {own}")


def _no_prompts(source: str, refused: list[Refused]) -> str:
    if not refused:
        return empty(source)
    first = refused[0]
    return (
        f"`{source}` must hold at least one usable row, and all {len(refused)} were refused; "
        f"row {first.row}: {first.error}"
    )


class _RowError(ValueError):
    """The value of a prompt column is no prompt."""

    cause: Literal["bad_row", "prompt_too_long"] = "bad_row"


class _TooLong(_RowError):
    """A text that cannot fit, whatever its tokens are."""

    cause = "prompt_too_long"


@dataclass(frozen=True, slots=True)
class _Renderer:
    """Turns one row into a prompt."""

    config: DataConfig
    tokenizer: "PreTrainedTokenizerFast"
    room: Room

    def prompt(self, number: int, row: dict[str, Any]) -> Prompt | Refused:
        """The row's prompt, or why it has none."""
        column = self.config.prompt_column
        if column not in row:
            return Refused(number, "bad_row", without_column(column, list(row)))
        try:
            text = self._text(row[column])
            if len(text) > self._most_characters:
                raise _TooLong(f"{self._rule}, got {len(text):,} characters; shorten it or {self.room.remedy}")
            # A rendered template holds its special tokens already; adding them again would double the first one.
            special = not self.config.chat_template
            ids = self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
            digest = hashlib.sha256(text.encode()).hexdigest()
            columns = {name: _plain(value) for name, value in row.items() if name != column}
        except _RowError as error:
            return Refused(number, error.cause, str(error))
        except Exception as error:  # protects the run from one row: chat templates and tokenizers raise anything
            return Refused(number, "bad_row", one_line(error))
        added = self.tokenizer.num_special_tokens_to_add() if special else 0
        if len(ids) <= added:
            return Refused(number, "bad_row", f"`{column}` must have at least one token, and the tokenizer finds none")
        if len(ids) > self.room.tokens:
            too_long = f"{self._rule}, got {len(ids)}; shorten it or {self.room.remedy}"
            return Refused(number, "prompt_too_long", too_long)
        return Prompt(f"{number}-{digest[:8]}", text, _ints(ids), columns)

    @property
    def _rule(self) -> str:
        return f"`{self.config.prompt_column}` must have at most {self.room.tokens} tokens"

    @property
    def _most_characters(self) -> int:
        """Longest text that is worth tokenising: some take minutes for megabytes, and cannot be interrupted."""
        return MOST_CHARACTERS_PER_TOKEN * self.room.tokens + SPARE_CHARACTERS

    def _text(self, value: Any) -> str:
        """What the model sees. Raises `_RowError` for a value that is no prompt."""
        column = self.config.prompt_column
        if isinstance(value, str):
            if not value.strip():
                raise _RowError(f"`{column}` must not be empty")
            if not self.config.chat_template:
                return value
            messages = [{"role": "user", "content": value}]
        elif not self.config.chat_template:
            raise _RowError(
                f"`{column}` must be text, got {type(value).__name__}; messages need `data.chat_template = true`"
            )
        else:
            messages = _messages(column, value)
        if self.config.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self.config.system_prompt})
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def _messages(column: str, value: Any) -> list[dict[str, str]]:
    """The row's own messages, checked; further keys are kept for the template. Raises `_RowError`."""
    rule = f"`{column}` must be text or a list of messages with a text `role` and a text `content`"
    if not isinstance(value, list) or not value:
        raise _RowError(f"{rule}, got {type(value).__name__ if value else 'an empty value'}")
    for message in value:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise _RowError(f"{rule}, got {json.dumps(message, default=str)[:80]}")
    if not any(message["content"].strip() for message in value):
        raise _RowError(f"`{column}` must not be empty")
    return list(value)


def _ints(ids: list[int]) -> Ints:
    return np.array(ids, dtype=np.int32)


def _plain(value: Any) -> Any:
    """`value` as JSON could hold it: dates and decimals as text; missing numbers and binary data as None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = int(value) if isinstance(value, numbers.Integral) else float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return value if isinstance(value, bool | str) else None
