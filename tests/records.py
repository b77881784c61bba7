"""Judges record files against the JSON Schemas that are committed, as a reader in any language would.

jsonschema tries every branch of a union, so a line goes straight to the branch that its `type` or `record` names.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parents[1] / "schemas" / "json"
TAGS = {"event": "type", "feed_record": "record"}
"""Unions by file stem, with the field that names the branch."""
RECORD_FILES = {"events.jsonl": "event", "feed.jsonl": "feed_record", "run.json": "manifest"}


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `ValueError` for anything else, the tokens NaN and Infinity included."""
    return json.loads(text, parse_constant=_refuse)


def violations(record: Any, schema: str) -> list[str]:
    """Every way in which `record` breaks the committed schema `schema`, as `path: message`; empty when valid."""
    validator = _validator(schema, record.get(TAGS[schema]) if schema in TAGS and isinstance(record, dict) else None)
    return [
        f"{'.'.join(str(part) for part in error.absolute_path) or '(record)'}: {error.message[:200]}"
        for error in validator.iter_errors(record)
    ]


def problems(folder: Path) -> Iterator[str]:
    """Every invalid record in the run folders at or below `folder`, as `file:line: what is wrong`."""
    for name, schema in RECORD_FILES.items():
        for file in sorted(folder.rglob(name)):
            lines = file.read_bytes().splitlines() if name.endswith(".jsonl") else [file.read_bytes()]
            for number, line in enumerate(lines, start=1):
                for problem in _judge(line, schema):
                    yield f"{file}:{number}: {problem}"


def _judge(line: bytes, schema: str) -> list[str]:
    try:
        record = parse(line)
    except ValueError as error:
        return [f"not JSON: {error}"]
    is_header = isinstance(record, dict) and record.get("record") == "header"
    return violations(record, "header" if is_header else schema)


def _refuse(token: str) -> Any:
    raise ValueError(f"`{token}` is not a JSON number")


@cache
def _validator(schema: str, tag: str | None) -> Draft202012Validator:
    """Validator of one branch. No tag, or one that no branch names, gets the whole union."""
    body = json.loads((SCHEMAS / f"{schema}.schema.json").read_text())
    definitions = body.get("$defs", {})
    for definition in definitions.values():
        if tag is not None and definition.get("properties", {}).get(TAGS[schema], {}).get("const") == tag:
            return Draft202012Validator(_inlined(definition, definitions))
    return Draft202012Validator(_inlined(body, definitions))


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """`node` with every `$ref` replaced by what it points at: resolving them per value costs more than the checks."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    siblings = {key: _inlined(value, definitions) for key, value in node.items() if key not in {"$ref", "$defs"}}
    if "$ref" in node:
        return {**_inlined(definitions[node["$ref"].removeprefix("#/$defs/")], definitions), **siblings}
    return siblings
