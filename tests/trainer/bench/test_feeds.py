"""Which run becomes the feed of a fault, and what is written of it."""

import lzma
from pathlib import Path

import pytest

from tests.diagnostics.recordings.record import FOLDER
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.feed import Header
from tocsin.trainer.bench.cases import FAULTS as KINDS
from tocsin.trainer.bench.cases import TEST, Case
from tocsin.trainer.bench.feeds import chosen, feed, main
from tocsin.trainer.bench.judge import Judged

KIND = KINDS[0]


def judged(dose: float, *, harm: bool, first: str | None) -> Judged:
    case = Case(name=f"{KIND.name}/{dose:g}/1", split="test", material=TEST[0], kind=KIND, dose=dose)
    return Judged(case=case, steps=120, harm=("slower",) if harm else (), first=first)


def test_the_last_dose_is_taken_unless_only_the_first_did_harm_and_has_a_first_cause():
    small, large = KIND.doses
    weak = judged(small, harm=True, first="lr-too-high")
    strong = judged(large, harm=True, first="grad-spike")
    assert chosen(KIND, [weak, strong]) is strong
    for silent in (judged(large, harm=False, first="grad-spike"), judged(large, harm=True, first=None)):
        assert chosen(KIND, [weak, silent]) is weak
        assert chosen(KIND, [judged(small, harm=False, first=None), silent]) is silent
    assert chosen(KINDS[1], [weak, strong]) is None


def test_a_feed_has_its_header_every_finding_and_the_last_coverage(tmp_path: Path):
    recording = tmp_path / "recording.jsonl"
    recording.write_bytes(lzma.decompress((FOLDER / "two-rewards.jsonl.xz").read_bytes()))
    header, *records = feed(recording)
    assert isinstance(header, Header)
    assert header.contents == "feed"
    assert {type(record) for record in records} >= {Coverage, Diagnostic}
    assert sum(isinstance(record, Coverage) for record in records) == 1
    numbers = [record.seq for record in records if not isinstance(record, Header)]
    assert numbers == sorted(set(numbers))
    assert list(feed(recording)) == [header, *records]


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 2
    assert "BENCH_DIR must hold the finished run `healthy/plain/" in capsys.readouterr().err
    occupied = tmp_path / "file"
    occupied.touch()
    assert main([str(tmp_path), str(occupied)]) == 2
    error = capsys.readouterr().err
    assert "OUT_DIR must be a folder" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
