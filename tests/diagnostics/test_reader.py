"""Pages by cursor, what is open, and whether anybody writes."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.diagnostics.run_samples import action, coverage, diagnostic, evaluated
from tests.records import violations
from tocsin.diagnostics import jsonl, reader
from tocsin.diagnostics.feed import RunWriter
from tocsin.diagnostics.reader import BadCursor, FeedReader, NotAFeed, Unreadable, read_events
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.events import ClockTicked, UnknownEvent
from tocsin.schemas.feed import Page

NOW = 1_770_000_000.0


def seqs(page: Page) -> list[int]:
    return [record.seq for record in page.records]


def test_without_a_cursor_a_page_shows_what_is_open_and_the_tail_once_in_order(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.record(diagnostic("open-long-ago#1"))
        writer.record(diagnostic("over#1"))
        writer.record(diagnostic("over#1", state="resolved"))
        for number in range(4, 9):
            writer.record(action(f"act-{number}"))
        writer.record(diagnostic("open-now#1"))
        page = FeedReader(tmp_path).page(limit=3)
    assert seqs(page) == [1, 7, 8, 9]
    assert (page.has_more, page.reset, page.active.warning) == (False, False, 2)
    assert violations(json.loads(page.model_dump_json(exclude_none=True)), "page") == []


def test_a_cursor_delivers_what_came_later(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        feed = FeedReader(tmp_path)
        cursor = feed.page().next_cursor
        for number in range(5):
            writer.record(action(f"act-{number}"))
        first = feed.page(cursor, limit=3)
        second = feed.page(first.next_cursor, limit=3)
        third = feed.page(second.next_cursor, limit=3)
    assert [seqs(page) for page in (first, second, third)] == [[1, 2, 3], [4, 5], []]
    assert [page.has_more for page in (first, second, third)] == [True, False, False]
    assert third.next_cursor == second.next_cursor


def test_an_empty_page_still_says_what_is_open(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.record(diagnostic("a#1", severity="critical"))
        writer.record(diagnostic("b#1", state="no_data"))
        writer.record(diagnostic("c#1", severity="info"))
        writer.record(diagnostic("c#1", severity="info", state="resolved"))
    page = FeedReader(tmp_path).page(FeedReader(tmp_path).page().next_cursor)
    assert page.records == []
    assert page.active.model_dump() == {"critical": 1, "warning": 1, "info": 0, "explained": 0}


def test_a_filtered_poll_advances_over_what_it_left_out(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        feed = FeedReader(tmp_path)
        start = feed.page().next_cursor
        writer.record(diagnostic("a#1", severity="info"))
        writer.record(coverage())
        writer.record(diagnostic("b#1", severity="critical"))
        writer.record(action())
        page = feed.page(start, min_severity="warning")
        again = feed.page(page.next_cursor)
        newest = feed.page(min_severity="warning")
    assert (seqs(page), page.has_more, seqs(again), seqs(newest)) == ([3], False, [], [3])
    assert page.next_cursor.endswith(".4")
    assert page.active.info == 1


def test_a_filter_that_matches_nothing_looks_at_a_bounded_number_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reader, "SCAN_LIMIT", 4)
    with RunWriter(tmp_path, "run-a") as writer:
        feed = FeedReader(tmp_path)
        start = feed.page().next_cursor
        for _ in range(5):
            writer.record(coverage())
        writer.record(diagnostic())
        first = feed.page(start, min_severity="info")
        second = feed.page(first.next_cursor, min_severity="info")
    assert (seqs(first), first.has_more, first.next_cursor.endswith(".4")) == ([], True, True)
    assert (seqs(second), second.has_more) == ([6], False)


def test_a_replaced_file_resets_and_reading_starts_over(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.record(action("old-1"))
        writer.record(diagnostic("old#1"))
    feed = FeedReader(tmp_path)
    cursor = feed.page().next_cursor
    (tmp_path / "feed.jsonl").unlink()
    with RunWriter(tmp_path, "run-a") as writer:
        for number in range(3):
            writer.record(action(f"new-{number}"))
    page = feed.page(cursor, limit=2)
    assert (page.reset, seqs(page), page.has_more, page.active.warning) == (True, [1, 2], True, 0)
    following = feed.page(page.next_cursor)
    assert (following.reset, seqs(following)) == (False, [3])


def test_a_cut_file_resets_and_forgets_what_was_cut(tmp_path: Path):
    path = tmp_path / "feed.jsonl"
    with RunWriter(tmp_path, "run-a") as writer:
        writer.record(action())
        kept = path.stat().st_size
        writer.record(diagnostic())
    feed = FeedReader(tmp_path)
    cursor = feed.page().next_cursor
    os.truncate(path, kept)
    page = feed.page(cursor)
    assert (page.reset, seqs(page), page.active.warning) == (True, [1], 0)


@pytest.mark.parametrize(
    "cursor", ["", "1", "abc.1", "0123456789ab.-1", "0123456789ab.1\n", "0123456789ab." + "9" * 40]
)
def test_a_cursor_that_no_page_returned_is_refused(tmp_path: Path, cursor: str):
    RunWriter(tmp_path, "run-a").close()
    with pytest.raises(BadCursor, match="`cursor` must be a `next_cursor` as a page returned it"):
        FeedReader(tmp_path).page(cursor)


def test_a_limit_below_1_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="`limit` must be at least 1, got 0"):
        FeedReader(tmp_path).page(limit=0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 5)),
            st.tuples(st.just("poll"), st.integers(1, 4)),
            st.tuples(st.just("garbage"), st.sampled_from([b"{\n", b"torn", b"\n", b'{"record": "new", "seq": 0}\n'])),
            st.tuples(st.just("restart"), st.just(0)),
        ),
        max_size=25,
    )
)
def test_any_interleaving_of_appends_and_polls_delivers_each_record_once_in_order(
    steps: list[tuple[str, int | bytes]],
):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer = RunWriter(folder, "run-a")
        feed = FeedReader(folder)
        cursor, delivered, written = feed.page().next_cursor, [], 0
        for what, value in steps:
            if isinstance(value, bytes):
                with (folder / "feed.jsonl").open("ab") as file:
                    file.write(value)
            elif what == "append":
                for _ in range(value):
                    written = writer.record(action()).seq
            elif what == "restart":
                writer.close()
                writer, feed = RunWriter(folder, "run-a"), FeedReader(folder)
            else:
                page = feed.page(cursor, limit=value)
                assert len(page.records) <= value
                assert not page.reset
                cursor, delivered = page.next_cursor, delivered + seqs(page)
        while (page := feed.page(cursor, limit=3)).records:
            cursor, delivered = page.next_cursor, delivered + seqs(page)
        writer.close()
    assert delivered == list(range(1, written + 1))


@pytest.mark.corrupt_files_expected
def test_late_readers_of_a_long_damaged_feed_find_their_place_without_reading_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 2_000)
    with RunWriter(tmp_path, "run-a") as writer:
        for number in range(1, 1_001):
            writer.record(action(f"act-{number}"))
            if number % 7 == 0:
                with (tmp_path / "feed.jsonl").open("ab") as file:
                    file.write(b"x" * 3_000 + b"\n")
    feed = FeedReader(tmp_path)
    epoch = feed.page().next_cursor.split(".")[0]
    parsed = 0
    parse = reader.parse_record

    def counting(line: bytes | None) -> object:
        nonlocal parsed
        parsed += 1
        return parse(line)

    monkeypatch.setattr(reader, "parse_record", counting)
    for seq in (0, 1, 499, 500, 994, 998):
        assert seqs(feed.page(f"{epoch}.{seq}", limit=2)) == [seq + 1, seq + 2]
    assert parsed < 6 * 100


def test_history_is_everything_about_a_finding_or_an_action(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.record(diagnostic("a#1"))
        writer.record(action("a#1/fix", about="a#1"))
        writer.record(diagnostic("b#1"))
        writer.record(diagnostic("a#1", state="resolved"))
    feed = FeedReader(tmp_path)
    assert [record.seq for record in feed.history("a#1")] == [1, 2, 4]
    assert [record.seq for record in feed.history("a#1/fix")] == [2]
    assert feed.history("c#1") == []


def test_active_is_sorted_by_severity_then_by_onset(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.record(diagnostic("late#1", event_seq=9))
        writer.record(diagnostic("mild#1", severity="info"))
        writer.record(diagnostic("early#1", event_seq=3))
        writer.record(diagnostic("grave#1", severity="critical", event_seq=12))
    assert [record.id for record in FeedReader(tmp_path).active()] == ["grave#1", "early#1", "late#1", "mild#1"]


def test_coverage_is_the_newest_statement(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        assert FeedReader(tmp_path).coverage() is None
        writer.record(coverage(evaluated=("POL015",)))
        last = writer.record(coverage(evaluated=("POL015", "RWD001")))
        assert FeedReader(tmp_path).coverage() == last


def test_a_run_without_a_feed_is_refused_by_name(tmp_path: Path):
    with pytest.raises(NotAFeed, match=r"feed.jsonl` must be the feed of a run, and there is none"):
        FeedReader(tmp_path).page()


@pytest.mark.corrupt_files_expected
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got an empty file"),
        ('{"record": "header"', "got a first line without end"),
        ("step,loss\n", "must begin with a header line of Tocsin"),
        ('{"step": 1}\n', "must begin with a header line of Tocsin"),
    ],
)
def test_a_file_that_is_no_feed_is_refused_with_what_it_begins_with(tmp_path: Path, text: str, message: str):
    (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(NotAFeed, match=message):
        read_events(tmp_path / "events.jsonl")


def test_feed_and_events_are_not_confused(tmp_path: Path):
    RunWriter(tmp_path, "run-a").close()
    with pytest.raises(NotAFeed, match="must hold events, got feed"):
        read_events(tmp_path / "feed.jsonl")


@pytest.mark.corrupt_files_expected
def test_unreadable_lines_are_counted_with_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 2_000)
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(evaluated(0.1))
        with (tmp_path / "events.jsonl").open("ab") as file:
            file.write(b"not json\n" + b"y" * 5_000 + b"\n")
        writer.event(evaluated(0.2))
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"type": "clock')
    unreadable = Unreadable()
    assert [event.seq for event in read_events(tmp_path / "events.jsonl", unreadable)] == [1, 2]
    assert unreadable.count == 3
    assert [example.split(":")[0] for example in unreadable.examples] == ["line 3", "line 4", "line 6"]
    with RunWriter(tmp_path, "run-a") as writer:
        assert writer.last_event_seq == 2


@pytest.mark.corrupt_files_expected
def test_a_file_of_1_9_with_unknown_fields_events_and_records_is_read(tmp_path: Path):
    header = {"record": "header", "schema_version": "1.9.0", "run_id": "run-a", "epoch": "0123456789ab", "new": 1}
    header["created"] = "2026-01-31T12:00:00.000Z"
    tick = {"type": "clock_ticked", "seq": 1, "idle_s": 2.0, "moon_phase": {"full": True}}
    news = {"type": "sampler_migrated", "seq": 2, "step": 4, "from": "a"}
    known = json.loads(diagnostic().model_dump_json(exclude_none=True))
    records = [{**known, "seq": 1, "mood": "calm"}, {"record": "annotation", "seq": 2, "text": "hello"}]
    for contents, lines in (("events", [tick, news]), ("feed", records)):
        text = "".join(json.dumps(line) + "\n" for line in [{**header, "contents": contents}, *lines])
        (tmp_path / f"{contents}.jsonl").write_text(text)
    first, second = read_events(tmp_path / "events.jsonl")
    assert isinstance(first, ClockTicked)
    assert isinstance(second, UnknownEvent)
    assert (first.idle_s, second.type, second.step) == (2.0, "sampler_migrated", 4)
    page = FeedReader(tmp_path).page("0123456789ab.0")
    assert isinstance(page.records[0], Diagnostic)
    assert (seqs(page), page.active.warning) == ([1, 2], 1)


@pytest.mark.corrupt_files_expected
def test_a_file_of_the_next_major_version_is_refused(tmp_path: Path):
    RunWriter(tmp_path, "run-a").close()
    path = tmp_path / "events.jsonl"
    path.write_text(path.read_text().replace('"1.0.0"', '"2.0.0"'))
    with pytest.raises(NotAFeed, match=r"must have schema version 1.x, got 2.0.0"):
        read_events(path)
