import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.records import SCHEMAS, parse, violations
from tests.schemas.examples import ENVELOPE, EVENT_EXAMPLES, HEADER, MANIFEST, PAGE, RECORD_EXAMPLES, RUN_CONFIG
from tests.schemas.test_events import future
from tocsin.schemas.base import Model
from tocsin.schemas.export import EXPORTED, stale
from tocsin.schemas.knobs import KNOBS, KnobRegistry

WRITTEN: list[tuple[str, Model]] = [
    *(("event", event) for event in EVENT_EXAMPLES),
    *(("feed_record", record) for record in RECORD_EXAMPLES),
    ("header", HEADER),
    ("page", PAGE),
    ("manifest", MANIFEST),
    ("run_config", RUN_CONFIG),
    ("knobs", KnobRegistry(knobs=list(KNOBS))),
]
each_written = pytest.mark.parametrize(
    ("schema", "value"), WRITTEN, ids=[f"{schema}-{type(value).__name__}" for schema, value in WRITTEN]
)
each_schema = pytest.mark.parametrize("schema", sorted(EXPORTED))


def committed(schema: str) -> Any:
    return json.loads((SCHEMAS / f"{schema}.schema.json").read_text())


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from nodes(item)


def test_the_committed_schemas_are_what_the_models_say():
    assert stale() == []


def test_every_exported_type_has_a_committed_file_and_no_other_file_is_there():
    assert {path.name for path in SCHEMAS.iterdir()} == {f"{name}.schema.json" for name in EXPORTED}


@each_schema
def test_a_schema_is_valid_draft_2020_12(schema: str):
    Draft202012Validator.check_schema(committed(schema))
    assert committed(schema)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@each_schema
def test_no_schema_forbids_the_fields_of_a_later_version(schema: str):
    assert [node for node in nodes(committed(schema)) if node.get("additionalProperties") is False] == []


@each_written
def test_what_is_written_is_valid(schema: str, value: Model):
    for dumped in (value.model_dump_json(), value.model_dump_json(exclude_none=True)):
        assert violations(parse(dumped), schema) == []


@each_written
def test_what_is_written_matches_the_whole_schema_and_not_only_its_branch(schema: str, value: Model):
    Draft202012Validator(committed(schema)).validate(parse(value.model_dump_json(exclude_none=True)))


@each_written
def test_what_a_later_version_writes_is_valid(schema: str, value: Model):
    assert violations(parse(json.dumps(future(value))), schema) == []


@pytest.mark.parametrize("event", EVENT_EXAMPLES, ids=lambda event: event.type)
def test_a_text_in_place_of_a_count_is_refused_in_every_event(event: Model):
    record = {**parse(event.model_dump_json()), "step": "three"}
    assert violations(record, "event") == ["step: 'three' is not of type 'integer'"]


@pytest.mark.parametrize("event", EVENT_EXAMPLES, ids=lambda event: event.type)
def test_a_known_event_without_its_fields_does_not_pass_as_an_unknown_one(event: Model):
    bare = {"type": parse(event.model_dump_json())["type"]}
    assert not Draft202012Validator(committed("event")).is_valid(bare)


def test_an_event_of_a_later_version_is_valid():
    assert violations({**ENVELOPE, "type": "sampler_migrated", "from": "a"}, "event") == []


def test_a_record_without_its_tag_is_refused():
    assert violations({"step": 3}, "event") != []
    assert violations({"seq": 3}, "feed_record") != []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"severity": "fatal"}, "severity: 'fatal' is not one of ['info', 'warning', 'critical']"),
        ({"code": "rwd-1"}, "code: 'rwd-1' does not match '^[A-Z]{3}\\\\d{3}$'"),
        ({"summary": "x" * 161}, f"summary: '{'x' * 161}' is too long"),
        ({"evidence": []}, "evidence: [] should be non-empty"),
        ({"episode": 0}, "episode: 0 is less than the minimum of 1"),
    ],
)
def test_a_diagnostic_that_breaks_a_promise_is_refused(change: dict[str, Any], complaint: str):
    record = {**parse(RECORD_EXAMPLES[0].model_dump_json()), **change}
    assert violations(record, "feed_record") == [complaint[:210]]


def test_a_configuration_in_the_editor_may_leave_every_default_out():
    minimal = {
        "steps": 10,
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "rewards": [{"function": "exact"}],
    }
    assert violations(minimal, "run_config") == []
    del minimal["rewards"]
    assert violations(minimal, "run_config") == ["(record): 'rewards' is a required property"]


def test_every_field_of_an_event_is_described_or_named_by_its_unit():
    described = committed("event")["$defs"]["StepCompleted"]["properties"]
    assert described["update_ratio"]["description"] == (
        "L2 norm of the parameter change over the L2 norm of the parameters."
    )
