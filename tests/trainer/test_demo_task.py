"""The embedded task: right answers, disjoint splits, and a teacher who is right as often as promised."""

import json
from pathlib import Path

import numpy as np

from tocsin.trainer.demo_model import build_tokenizer
from tocsin.trainer.demo_task import (
    ANSWER_TOKENS,
    TEACHER_ACCURACY,
    demonstration,
    row,
    split,
    write_rows,
)


def test_the_answer_is_the_digits_in_order():
    assert row(np.array([4, 0, 2, 9, 1, 7])) == {"prompt": "402917>", "answer": "012479"}
    assert row(np.array([0, 0, 0, 5, 5, 0])) == {"prompt": "000550>", "answer": "000055"}


def test_splits_share_no_prompt_and_depend_on_the_seed_alone():
    train, held_out = split(3, train=4096, held_out=512)
    prompts = [line["prompt"] for line in train + held_out]
    assert len(prompts) == len(set(prompts)) == 4608
    assert split(3, train=4096, held_out=512) == (train, held_out)
    assert split(4, train=4096, held_out=512)[0] != train
    for line in train[:200]:
        assert line["answer"] == "".join(sorted(line["prompt"][:-1]))


def test_the_teacher_is_right_as_often_as_promised():
    rng = np.random.default_rng(0)
    n = 20_000
    right = sum(demonstration("012345", rng) == "012345" for _ in range(n)) / n
    # A wrong teacher exchanges 1, 2 or 3 pairs of six distinct digits. Two exchanges undo each other in 1 of 15
    # cases; three are an odd permutation and never undo each other.
    expected = TEACHER_ACCURACY + (1 - TEACHER_ACCURACY) / 3 / 15
    assert abs(right - expected) < 3.3 * np.sqrt(expected * (1 - expected) / n)


def test_a_wrong_demonstration_has_the_same_digits():
    rng = np.random.default_rng(1)
    answers = {demonstration("001234", rng) for _ in range(300)}
    assert len(answers) > 20
    assert {"".join(sorted(answer)) for answer in answers} == {"001234"}


def test_rows_are_written_as_json_lines(tmp_path: Path):
    rows = split(0, train=3, held_out=0)[0]
    write_rows(rows, tmp_path / "rows.jsonl")
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == rows


def test_every_character_of_the_task_is_one_token():
    tokenizer = build_tokenizer()
    ids = tokenizer("402917>012479")["input_ids"]
    assert len(ids) == 13
    assert len(ids[7:]) + 1 == ANSWER_TOKENS
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "402917>012479"
    assert len(tokenizer) == 13
