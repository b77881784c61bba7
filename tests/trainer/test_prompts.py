"""Prompts: every kind of source, every kind of bad row, and the order that a resumed run repeats."""

import datetime
import hashlib
import json
import os
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tocsin.schemas.config import DataConfig
from tocsin.trainer.prompts import DataError, PromptOrder, Refused, Room, load_prompts

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


def tokenizer(*, template=TEMPLATE):
    """One token per character of a small alphabet, others dropped; `<s>` is added in front of plain text."""
    letters = "abcdefghijklmnopqrstuvwxyz 0123456789+=:;?"
    vocabulary = {"<s>": 0, "</s>": 1, **{letter: i + 2 for i, letter in enumerate(letters)}}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>", chat_template=template
    )


def load(source, *, max_prompt_tokens=40, split="train", on_progress=None, tokenizer=tokenizer(), **config):  # noqa: B008
    return load_prompts(
        str(source),
        split=split,
        config=DataConfig(train=str(source), **config),
        tokenizer=tokenizer,
        room=Room(max_prompt_tokens, "raise `model.max_length`"),
        on_progress=on_progress,
    )


def written(tmp_path, *lines, name="rows.jsonl"):
    path = tmp_path / name
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


def test_a_plain_prompt_has_its_text_its_tokens_its_identity_and_the_other_columns(tmp_path):
    path = written(tmp_path, {"prompt": "1+2=", "answer": 3, "tags": ["easy", None], "level": {"of": 1.5}})
    (prompt,) = load(path).prompts
    assert prompt.text == "1+2="
    assert prompt.token_ids.tolist() == [0, 30, 39, 31, 40]
    assert prompt.token_ids.dtype == np.int32
    assert prompt.id == "1-" + hashlib.sha256(b"1+2=").hexdigest()[:8]
    assert prompt.columns == {"answer": 3, "tags": ["easy", None], "level": {"of": 1.5}}


def test_bad_rows_are_refused_one_by_one_with_their_line_and_the_good_ones_stay(tmp_path):
    path = written(
        tmp_path,
        b'\xef\xbb\xbf{"prompt": "a"}\r',
        b'{"prompt": "a',
        b"",
        b'\xff\xfe{"prompt": "a"}',
        [1, 2],
        {"question": "a"},
        {"prompt": " \n"},
        {"prompt": 7},
        b'{"prompt": "\\ud800"}',
        {"prompt": "日本"},
        b'{"prompt": "a", "answer": NaN}',
        b"[" * 100_000,
        {"prompt": "b" * 40},
        {"prompt": "b" * 39},
    )
    result = load(path)
    assert [prompt.id.split("-")[0] for prompt in result.prompts] == ["1", "14"]
    assert [(refused.row, refused.cause) for refused in result.refused] == [
        *((row, "bad_row") for row in (2, 4, 5, 6, 7, 8, 9, 10, 11, 12)),
        (13, "prompt_too_long"),
    ]
    errors = {refused.row: refused.error for refused in result.refused}
    assert errors[2].startswith("must be a JSON object, got JSONDecodeError: Unterminated string")
    assert errors[4].startswith("must be a JSON object, got UnicodeDecodeError")
    assert errors[5] == "must be a JSON object, got list"
    assert errors[6] == ("there is no column `prompt`; the columns are `question`: set `data.prompt_column`")
    assert errors[7] == "`prompt` must not be empty"
    assert errors[8] == "`prompt` must be text, got int; messages need `data.chat_template = true`"
    assert errors[10] == "`prompt` must have at least one token, and the tokenizer finds none"
    assert errors[11] == "must be a JSON object, got ValueError: NaN, which is not JSON"
    assert errors[12].startswith("must be a JSON object, got RecursionError")
    assert errors[13] == ("`prompt` must have at most 40 tokens, got 41; shorten it or raise `model.max_length`")
    assert all("\n" not in error for error in errors.values())


def test_a_text_that_is_far_too_long_is_refused_by_its_characters_without_tokenising_it(tmp_path):
    limit = 64 * 40 + 4096
    path = written(tmp_path, {"prompt": "b" * limit}, {"prompt": "b" * (limit + 1)}, {"prompt": "a"})
    tail = "; shorten it or raise `model.max_length`"
    assert [refused.error for refused in load(path).refused] == [
        f"`prompt` must have at most 40 tokens, got {limit + 1}{tail}",
        f"`prompt` must have at most 40 tokens, got {limit + 1:,} characters{tail}",
    ]
    assert {refused.cause for refused in load(path).refused} == {"prompt_too_long"}


def test_a_refused_row_has_an_identity_for_events():
    assert Refused(7, "bad_row", "x").prompt_id == "7-refused"


def test_a_chat_prompt_is_one_user_message_with_one_start_token(tmp_path):
    path = written(tmp_path, {"prompt": "hi"})
    (prompt,) = load(path, chat_template=True).prompts
    assert prompt.text == "<s>u:hi;a:"
    assert prompt.token_ids.tolist() == [0, 22, 41, 9, 10, 42, 2, 41]


def test_messages_are_used_as_they_are_after_the_system_prompt(tmp_path):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    path = written(tmp_path, {"prompt": messages})
    (prompt,) = load(path, chat_template=True, system_prompt="be brief").prompts
    assert prompt.text == "<s>s:be brief;u:a;a:b;u:c;a:"


def test_malformed_messages_are_refused_and_a_template_that_raises_costs_one_row(tmp_path):
    path = written(
        tmp_path,
        {"prompt": []},
        {"prompt": ["hi"]},
        {"prompt": [{"role": "user"}]},
        {"prompt": [{"role": "user", "content": ""}]},
        {"prompt": [{"role": "wizard", "content": "hi"}]},
        {"prompt": None},
        {"prompt": "hi"},
    )
    result = load(path, chat_template=True)
    assert len(result.prompts) == 1
    assert [refused.cause for refused in result.refused] == ["bad_row"] * 6
    assert result.refused[2].error.endswith('got {"role": "user"}')
    assert result.refused[4].error == "TemplateError: unknown role wizard"


def test_a_model_without_chat_template_is_one_error_for_the_whole_source(tmp_path):
    path = written(tmp_path, {"prompt": "hi"})
    with pytest.raises(DataError, match="needs a tokenizer with a chat template"):
        load(path, chat_template=True, tokenizer=tokenizer(template=None))


def test_parquet_rows_become_prompts_and_columns_that_json_could_hold(tmp_path):
    table = pa.table(
        {
            "question": ["a", None, "c"],
            "when": [datetime.date(2026, 1, 31)] * 3,
            "price": [Decimal("1.50")] * 3,
            "score": [float("nan"), 1.0, 2.0],
            "image": [b"\x00", b"", b""],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    result = load(tmp_path / "rows.parquet", prompt_column="question")
    assert [prompt.text for prompt in result.prompts] == ["a", "c"]
    assert result.prompts[0].columns == {"when": "2026-01-31", "price": "1.50", "score": None, "image": None}
    assert [(refused.row, refused.cause) for refused in result.refused] == [(2, "bad_row")]


def test_a_folder_of_saved_splits_is_read_by_split(tmp_path):
    import datasets  # noqa: PLC0415  # over a second, for this test only

    datasets.disable_progress_bars()
    splits = {name: datasets.Dataset.from_dict({"prompt": [name], "answer": [1]}) for name in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "both"))
    splits["train"].save_to_disk(str(tmp_path / "single"))
    (prompt,) = load(tmp_path / "both", split="test").prompts
    assert (prompt.text, prompt.columns) == ("test", {"answer": 1})
    assert load(tmp_path / "single", split="whatever").prompts[0].text == "train"
    with pytest.raises(DataError, match=r"there is no split `dev`; the splits are `train`, `test`: set `data.split`"):
        load(tmp_path / "both", split="dev")
    with pytest.raises(DataError, match="there is no column `question`; the columns are `prompt`, `answer`"):
        load(tmp_path / "both", prompt_column="question")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.jsonl", None, "must be a readable file, and there is none"),
        ("missing.parquet", None, "must be a readable file, and there is none"),
        ("empty.jsonl", b"", "must hold at least one row, and it is empty"),
        ("blank.jsonl", b"\n\n", "must hold at least one row, and it is empty"),
        ("rows.csv", b"prompt\na\n", "must end in .jsonl, .json or .parquet, got `.csv`"),
        ("array.json", b'[\n{"prompt": "a"}]', "must hold one JSON object per line, got an array; convert it: `jq"),
        ("damaged.parquet", b"PAR1 no", "must be a readable Parquet file, got ArrowInvalid"),
        ("folder/state.json", b"{", "must be a folder written by `save_to_disk`, got FileNotFoundError"),
        ("other.jsonl", b'{"q": "a"}', "all 1 were refused; row 1: there is no column `prompt`; the columns are `q`"),
    ],
)
def test_a_source_that_cannot_be_used_is_one_clear_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        load(path.parent if name.startswith("folder") else path)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_parquet_file_without_the_prompt_column_names_the_columns_it_has(tmp_path):
    pq.write_table(pa.table({"question": ["a"], "answer": ["b"]}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"the columns are `question`, `answer`: set `data.prompt_column`"):
        load(tmp_path / "rows.parquet")


def test_a_model_without_room_for_a_prompt_is_refused_before_any_row(tmp_path):
    with pytest.raises(DataError, match="room for a prompt must be at least 1 token, got 0"):
        load(tmp_path / "missing.jsonl", max_prompt_tokens=0)


def test_a_data_set_that_cannot_be_fetched_is_one_clear_line():
    code = (
        "from tocsin.trainer.sources import DataError, read_rows\n"
        "try: list(read_rows('nobody/nothing:main', split='train', column='prompt'))\n"
        "except DataError as error: print(error)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert line.startswith(
        "`nobody/nothing:main` must be a file, a folder or a data set that can be loaded (split `train`), got "
    )


def test_progress_is_reported_up_to_the_end(tmp_path):
    seen = []
    path = written(tmp_path, *({"prompt": "a"} for _ in range(2500)))
    load(path, on_progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == 3
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_each_epoch_visits_every_prompt_once_in_an_order_of_its_own():
    order = PromptOrder(50, seed=3)
    epochs = [[order(epoch * 50 + position) for position in range(50)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_depends_on_seed_and_index_only_and_is_the_same_in_every_version():
    asked_backwards = PromptOrder(5, seed=0)
    backwards = [asked_backwards(index) for index in reversed(range(15))][::-1]
    forwards = PromptOrder(5, seed=0)
    assert backwards == [forwards(index) for index in range(15)]
    assert [forwards(index) for index in range(5)] == [0, 3, 1, 2, 4]
    assert [PromptOrder(5, seed=2**62)(index) for index in range(5)] != [forwards(index) for index in range(5)]


def test_without_shuffling_every_epoch_has_the_order_of_the_data():
    order = PromptOrder(4, seed=3, shuffle=False)
    assert [order(index) for index in range(10)] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_the_order_of_a_single_prompt_is_that_prompt():
    assert [PromptOrder(1, seed=9)(index) for index in (0, 1, 10**12)] == [0, 0, 0]
