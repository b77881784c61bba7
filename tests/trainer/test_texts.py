"""What is counted about texts, on texts that show it."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from tocsin.trainer.data import Completion, GroupTexts
from tocsin.trainer.texts import distinct, end_ids, group_texts, is_repetitive, main_script

ENDS = np.array([2, 9], dtype=np.int32)


def completion(ids: list[int], *, text: str = "", cut: bool = False) -> Completion:
    count = len(ids)
    return Completion(
        token_ids=np.array(ids, dtype=np.int32),
        logprobs=np.zeros(count, dtype=np.float32),
        finish_reason="length" if cut else "stop",
        versions=((0, count),),
        temperature=1.0,
        text=text,
    )


def counts(*completions: Completion, prompt: str = "", unparsed: dict[str, list[int]] | None = None) -> GroupTexts:
    return group_texts(prompt, completions, ENDS, unparsed or {})


def test_completions_with_the_same_tokens_count_once():
    assert distinct([completion([1, 2]), completion([1, 2]), completion([1, 2, 2])]) == 2


def test_a_loop_is_repetitive_and_only_the_last_512_tokens_count():
    loop, varied = [5, 6, 7] * 40, list(range(512))
    assert is_repetitive(np.array(loop, dtype=np.int32))
    assert not is_repetitive(np.array(loop + varied, dtype=np.int32))
    assert is_repetitive(np.array(varied + loop * 5, dtype=np.int32))


def test_short_completions_are_not_judged_for_repetition():
    found = counts(completion([5] * 63), completion([5] * 64), completion(list(range(64))))
    assert (found.judged, found.repetitive) == (2, 1)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("The answer is four, because two and two make four.", "LATIN"),
        ("Ответ четыре, потому что два плюс два равно четыре.", "CYRILLIC"),
        ("東京タワーはとても高いですから、上からの景色がきれいです。", "CJK"),
        ("x = 12 * (3 + 4) = 84", None),
        ("The answer is four. " + "Ответ четыре, потому что " * 100, "CYRILLIC"),
    ],
)
def test_the_main_script_is_that_of_most_letters_near_the_end(text: str, script: str | None):
    assert main_script(text) == script


def test_another_script_than_the_prompts_is_counted_where_both_have_enough_letters():
    english, russian = "Two and two make four, I think.", "Два плюс два равно четырём."
    found = counts(
        completion([1], text=english),
        completion([1], text=russian),
        completion([1], text="4"),
        prompt="What is two plus two, please?",
    )
    assert (found.script_judged, found.other_script) == (2, 1)
    assert counts(completion([1], text=russian), prompt="2 + 2 =").script_judged == 0


def test_a_cut_completion_with_an_end_inside_is_one_whose_end_nobody_saw():
    found = counts(completion([4, 9, 4], cut=True), completion([4, 4], cut=True), completion([4, 2]))
    assert found.cut_with_end == 1


def test_cut_completions_are_left_out_of_those_without_an_answer():
    found = counts(
        completion([4], cut=True), completion([4]), completion([4]), unparsed={"numeric": [0, 1], "math": []}
    )
    assert found.unparsed == {"numeric": 1, "math": 0}


def test_ends_are_the_tokens_of_the_run_and_the_spellings_that_the_tokenizer_knows():
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    assert end_ids(tokenizer, [1]).tolist() == [1, tokenizer.token_to_id("<|im_end|>")]
