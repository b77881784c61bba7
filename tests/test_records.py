from pathlib import Path

import pytest

from tests.records import problems
from tests.schemas.examples import EVENT_EXAMPLES, HEADER, MANIFEST, RECORD_EXAMPLES
from tocsin.schemas.base import Model
from tocsin.schemas.events import ClockTicked

TICK = ClockTicked(idle_s=1.0).model_dump_json()
COVERAGE = RECORD_EXAMPLES[2].model_dump_json()
HEADER_LINE = HEADER.model_dump_json()
MANIFEST_TEXT = MANIFEST.model_dump_json()


def write(folder: Path, name: str, *lines: str) -> Path:
    file = folder / "runs" / "one" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(line + "\n" for line in lines))
    return file


def as_lines(*records: Model) -> list[str]:
    return [record.model_dump_json(exclude_none=True) for record in records]


def test_a_run_folder_of_valid_records_has_no_problems(tmp_path: Path):
    write(tmp_path, "events.jsonl", *as_lines(HEADER.model_copy(update={"contents": "events"}), *EVENT_EXAMPLES))
    write(tmp_path, "feed.jsonl", *as_lines(HEADER, *RECORD_EXAMPLES))
    write(tmp_path, "run.json", MANIFEST.model_dump_json(indent=2))
    assert list(problems(tmp_path)) == []


@pytest.mark.corrupt_files_expected
@pytest.mark.parametrize(
    ("name", "line", "problem"),
    [
        ("events.jsonl", TICK.replace("1.0", "NaN"), "not JSON: `NaN` is not a JSON number"),
        ("events.jsonl", TICK.replace("1.0", '"1"'), "idle_s: '1' is not of type 'number'"),
        ("events.jsonl", TICK.replace("1.0", "-1"), "idle_s: -1 is less than the minimum of 0"),
        ("events.jsonl", TICK.replace('"idle_s":1.0,', ""), "(record): 'idle_s' is a required property"),
        (
            "feed.jsonl",
            COVERAGE.replace('"ok"', '"fine"'),
            "health: 'fine' is not one of ['ok', 'degraded', 'unknown']",
        ),
        ("feed.jsonl", HEADER_LINE.replace("0bad", "0BAD"), "epoch: '0BADcafe0BAD' does not match '^[0-9a-f]{12}$'"),
        (
            "run.json",
            MANIFEST_TEXT.replace('"host":"localhost"', '"host":7'),
            "attempts.0.host: 7 is not of type 'string'",
        ),
    ],
)
def test_an_invalid_record_is_reported_with_its_file_and_line(tmp_path: Path, name: str, line: str, problem: str):
    file = write(tmp_path, name, line)
    assert list(problems(tmp_path)) == [f"{file}:1: {problem}"]


@pytest.mark.corrupt_files_expected
def test_a_torn_line_is_reported_and_the_lines_around_it_are_judged(tmp_path: Path):
    write(tmp_path, "events.jsonl", TICK, TICK[:20], TICK, TICK.replace("1.0", "null"))
    found = [problem.split("events.jsonl")[1] for problem in problems(tmp_path)]
    assert len(found) == 2
    assert found[0].startswith(":2: not JSON: ")
    assert found[1] == ":4: idle_s: None is not of type 'number'"


@pytest.mark.corrupt_files_expected
def test_a_record_that_is_not_an_object_is_reported(tmp_path: Path):
    write(tmp_path, "feed.jsonl", "3")
    assert len(list(problems(tmp_path))) == 1
