"""What the texts of a group look like: repetition, script, and an end that the sampler did not see.

Counted by the rollout process, off the learner's way: it takes milliseconds a group where completions are long.
"""

import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from tokenizers import Tokenizer

from tocsin.trainer.data import Completion, GroupTexts, Ints

LEAST_TOKENS: Final = 64
"""Shorter completions are not judged for repetition: tables and formulas repeat themselves, too."""
TAIL_TOKENS: Final = 512
REPEATED: Final = 0.5
"""Share of 4-grams that repeat an earlier one, above which a completion counts as repetitive."""
LEAST_LETTERS: Final = 20
TAIL_CHARACTERS: Final = 2000
"""Looked at for the script, so that the cost does not grow with the text."""

END_TOKENS: Final = (
    "</s>",
    "<eos>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""How families of models spell the end of a text or of a turn."""

SCRIPTS: Final = {"HIRAGANA": "CJK", "KATAKANA": "CJK"}
"""Scripts that one text mixes count as one."""


def end_ids(tokenizer: Tokenizer, eos_ids: Collection[int]) -> Ints:
    """Tokens that end an answer: those at which the run stops, and the usual spellings that the tokenizer knows."""
    spelled = [tokenizer.token_to_id(token) for token in END_TOKENS]
    return np.array(sorted({*eos_ids, *(index for index in spelled if index is not None)}), dtype=np.int32)


def distinct(completions: Sequence[Completion]) -> int:
    """How many different token sequences there are."""
    return len({completion.token_ids.tobytes() for completion in completions})


def group_texts(
    prompt: str, completions: Sequence[Completion], ends: Ints, unparsed: Mapping[str, Collection[int]]
) -> GroupTexts:
    """Counts over the completions of one prompt.

    `unparsed` holds, by reward function, positions of completions in which it found no answer.
    """
    long = [c.token_ids for c in completions if len(c.token_ids) >= LEAST_TOKENS]
    asked = main_script(prompt)
    answered = [script for c in completions if asked and (script := main_script(c.text))]
    cut = {i: c for i, c in enumerate(completions) if c.finish_reason == "length"}
    return GroupTexts(
        judged=len(long),
        repetitive=sum(is_repetitive(ids) for ids in long),
        script_judged=len(answered),
        other_script=sum(script != asked for script in answered),
        cut_with_end=sum(bool(np.isin(c.token_ids, ends).any()) for c in cut.values()),
        unparsed={label: sum(i not in cut for i in positions) for label, positions in unparsed.items()},
    )


def is_repetitive(ids: Ints) -> bool:
    """Whether more than half of the 4-grams among the last tokens repeat an earlier one of them.

    >>> is_repetitive(np.arange(100, dtype=np.int32)), is_repetitive(np.tile(np.arange(5, dtype=np.int32), 20))
    (False, True)
    """
    tail = ids[-TAIL_TOKENS:]
    data, width = tail.tobytes(), tail.itemsize
    num = len(tail) - 3
    grams = {data[i * width : (i + 4) * width] for i in range(num)}
    return 1 - len(grams) / num > REPEATED


def main_script(text: str) -> str | None:
    """The script of most letters near the end of `text`; None with fewer than 20 letters of it.

    >>> main_script("Wie viele Äpfel bleiben übrig?"), main_script("Сколько яблок осталось?"), main_script("2 + 2 = 4")
    ('LATIN', 'CYRILLIC', None)
    """
    letters: Counter[str] = Counter()
    for character, num in Counter(text[-TAIL_CHARACTERS:]).items():
        if character.isalpha():
            letters[_script(character)] += num
    (script, num), *_ = letters.most_common(1) or [("", 0)]
    return script if num >= LEAST_LETTERS else None


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    """The first word of a letter's Unicode name is its script."""
    name = unicodedata.name(letter, "OTHER").split(maxsplit=1)[0]
    return SCRIPTS.get(name, name)
