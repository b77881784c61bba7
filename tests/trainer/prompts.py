"""Prompts out of token ids, for what does not care for texts."""

from typing import Any

import numpy as np

from tocsin.trainer.data import Prompt


def prompt(index: int, token_ids: list[int], text: str = "", **columns: Any) -> Prompt:
    """One prompt; `columns` are the row's others."""
    return Prompt(
        id=f"{index}-0badcafe", text=text, token_ids=np.array(token_ids, dtype=np.int32), columns=dict(columns)
    )
