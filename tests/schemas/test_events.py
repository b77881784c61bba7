import json
import math
import re
from typing import Any

import pytest
from pydantic import ValidationError

from tests.schemas.examples import ENVELOPE, EVENT_EXAMPLES, GROUPS, RECORD_EXAMPLES
from tocsin.schemas.base import Model, NonFinite, read
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EVENT, EVENTS, ClockTicked, EvaluationCompleted, Ledger, QueueSampled, UnknownEvent
from tocsin.schemas.feed import FEED_RECORD, UnknownRecord
from tocsin.schemas.step import LogProbGap, StepCompleted

each_event = pytest.mark.parametrize("event", EVENT_EXAMPLES, ids=lambda event: event.type)
each_record = pytest.mark.parametrize("record", RECORD_EXAMPLES, ids=lambda record: record.record)


def future(value: Any) -> Any:
    """What a writer of version 1.9 would dump: every model has one more field, lists and plain dicts do not."""
    if isinstance(value, Model):
        fields = {name: future(getattr(value, name)) for name in type(value).model_fields}
        return {**fields, "added_in_1_9": {"deep": [1, None]}}
    if isinstance(value, list | tuple):
        return [future(item) for item in value]
    if isinstance(value, dict):
        return {key: future(item) for key, item in value.items()}
    return value


def as_line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False)


def test_every_event_class_has_an_example_here():
    assert list(dict.fromkeys(type(event) for event in EVENT_EXAMPLES)) == list(EVENTS)


def test_the_type_of_an_event_is_its_class_name_in_snake_case():
    for cls in EVENTS:
        assert cls.model_fields["type"].default == re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


@each_event
def test_an_event_reads_back_as_it_was_written(event: BaseEvent):
    assert read(EVENT, event.model_dump_json()) == event


@each_event
def test_an_event_reads_back_when_absent_fields_are_left_out(event: BaseEvent):
    assert read(EVENT, event.model_dump_json(exclude_none=True)) == event


@each_record
def test_a_feed_record_reads_back_as_it_was_written(record: Model):
    assert read(FEED_RECORD, record.model_dump_json(exclude_none=True)) == record


@each_event
def test_a_writer_may_not_add_a_field(event: BaseEvent):
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        type(event).model_validate({**event.model_dump(), "surprise": 1})


@each_event
def test_an_event_cannot_be_changed_after_it_was_made(event: BaseEvent):
    with pytest.raises(ValidationError, match="frozen"):
        event.step = 4


@each_event
def test_a_reader_of_1_0_ignores_what_1_9_added_at_every_level(event: BaseEvent):
    line = as_line(future(event))
    assert line.count("added_in_1_9") >= 1
    assert read(EVENT, line) == event


@each_record
def test_a_reader_of_1_0_ignores_what_1_9_added_to_a_feed_record(record: Model):
    newer = {**future(record), "schema_version": "1.9.0"}
    assert read(FEED_RECORD, as_line(newer)) == record.model_copy(update={"schema_version": "1.9.0"})


def test_a_reader_of_1_0_reads_a_non_finite_number_of_1_9():
    event = EvaluationCompleted(name="held-out", version=0, n=0, failed=0, reward_mean=math.nan, reward_se=0.0)
    line = as_line(future(event))
    assert line.count("added_in_1_9") == 2
    read_back = read(EVENT, line)
    assert isinstance(read_back, EvaluationCompleted)
    assert read_back.reward_mean == NonFinite(nonfinite="nan")


def test_an_event_type_of_a_later_version_keeps_its_envelope_and_its_fields():
    line = as_line({**ENVELOPE, "type": "sampler_migrated", "from": "a", "to": "b"})
    event = read(EVENT, line)
    assert isinstance(event, UnknownEvent)
    assert (event.type, event.seq, event.step, event.mono) == ("sampler_migrated", 42, 3, 12.5)


def test_a_feed_record_of_a_later_version_keeps_its_kind_and_its_place():
    record = read(FEED_RECORD, b'{"record": "verdict", "seq": 7, "schema_version": "1.9.0", "vote": true}')
    assert isinstance(record, UnknownRecord)
    assert (record.record, record.seq) == ("verdict", 7)


def test_a_known_event_with_a_wrong_type_is_refused_and_never_read_as_unknown():
    with pytest.raises(ValidationError, match="idle_s"):
        read(EVENT, b'{"type": "clock_ticked", "idle_s": "long"}')


def test_a_line_that_is_not_json_is_refused():
    with pytest.raises(ValidationError, match="Invalid JSON"):
        read(EVENT, b'{"type": "clock_ti')


def test_a_timestamp_has_one_width_so_that_text_sorts_as_time():
    assert ClockTicked(ts="2026-01-31T12:00:00.000Z", idle_s=0.0).ts == "2026-01-31T12:00:00.000Z"
    for wrong in ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000+00:00", "2026-01-31 12:00:00.000Z"):
        with pytest.raises(ValidationError, match="ts"):
            ClockTicked(ts=wrong, idle_s=0.0)


def test_the_ledger_balances_when_every_group_is_somewhere():
    event = next(event for event in EVENT_EXAMPLES if isinstance(event, QueueSampled))
    assert event.ledger.balance() == 0


def test_the_ledger_says_how_many_groups_are_missing():
    ledger = Ledger(launched=10, in_flight=2, queued=1, consumed=4, dropped={}, failed={"bad_row": 1})
    assert ledger.balance() == 2


def test_group_columns_of_different_lengths_are_refused():
    with pytest.raises(ValidationError, match=r"columns of `groups` must have one length, got \[1, 2\]"):
        type(GROUPS).model_validate({**GROUPS.model_dump(), "size": [4]})


def test_a_count_is_never_negative():
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        ClockTicked(step=-1, idle_s=0.0)


def test_a_measured_field_that_is_left_out_is_absent_and_not_zero():
    event = StepCompleted(
        outcome="no_signal", learning_rate=1e-4, groups=0, groups_trained=0, tokens=0, tokens_trained=0, seconds={}
    )
    assert event.loss is None
    assert "loss" not in event.model_dump(exclude_none=True)


def test_the_gap_between_sampler_and_learner_keeps_its_sign():
    gap = LogProbGap(k1=-0.5, k3=0.1, abs_mean=0.5, abs_p95=0.5, abs_p99=0.5, abs_max=0.5)
    assert gap.k1 == -0.5
