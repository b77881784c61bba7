"""`python -m tocsin.diagnostics.serve.openapi [--check]`: write `docs/openapi.json`, or fail when it is stale.

The document is the table of `routes` and the models that answer, and nothing else.
"""

import json
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from tocsin.diagnostics.serve.problems import KINDS, MEDIA_TYPE, ProblemDocument
from tocsin.diagnostics.serve.routes import EVERYWHERE, QUESTIONS, WITH_BODY, Question, method
from tocsin.schemas.export import close_unknown, open_for_readers
from tocsin.schemas.page import write_or_check

PATH: Final = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
REF: Final = "#/components/schemas/{model}"
EXAMPLES: Final = {"run": "latest", "code": "RWD001"}
DESCRIPTIONS: Final = {
    "run": "Id of a run, unique prefix of one, or `latest`.",
    "code": "Code or name of a failure mode.",
}

INTRODUCTION: Final = """\
What runs of Tocsin say, and the door to change them.

Reading needs no token on the machine itself; every change needs one (`Authorization: Bearer TOKEN`), which also says
who asks. A change is a dry run unless its body says `"apply": true`. Everything that fails is answered with
`application/problem+json`; branch on its `type`. Answers leave out absent values, and may gain fields in later
versions. Poll with the `next_cursor` of the last page: every record comes once and in order."""


@cache
def document() -> dict[str, Any]:
    """The whole document, OpenAPI 3.1."""
    modes: list[Any] = [(ProblemDocument, "serialization")]
    modes += [(question.answer, "serialization") for question in QUESTIONS]
    modes += [(question.body, "validation") for question in QUESTIONS if question.body is not None]
    references, definitions = models_json_schema(list(dict.fromkeys(modes)), ref_template=REF)
    asked = {references[mode]["$ref"].rpartition("/")[2] for mode in modes if mode[1] == "validation"}
    found = definitions["$defs"]
    schemas = {name: found[name] if name in asked else open_for_readers(found[name]) for name in sorted(found)}
    close_unknown(schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tocsin",
            "version": version("tocsin"),
            "description": INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {question.path: {method(question): _operation(question, references)} for question in QUESTIONS},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(question: Question, references: dict[Any, Any]) -> dict[str, Any]:
    kinds = [*question.problems, *EVERYWHERE, *(WITH_BODY if question.body is not None else ("bad-cursor",))]
    if question.body is None:
        kinds.append("no-token")
    operation: dict[str, Any] = {
        "operationId": question.name,
        "summary": question.summary,
        "parameters": [*_path_parameters(question.path), *_query_parameters(question)],
        "responses": {**_answers(question, references), **_problems(kinds, references)},
    }
    if question.body is not None:
        schema = references[question.body, "validation"]
        required = any(field.is_required() for field in question.body.model_fields.values())
        operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
        operation["security"] = [{"token": []}]
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [name for name in EXAMPLES if f"{{{name}}}" in path]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": DESCRIPTIONS[name],
            "schema": {"type": "string", "minLength": 1},
            "example": EXAMPLES[name],
        }
        for name in names
    ]


def _query_parameters(question: Question) -> list[dict[str, Any]]:
    schema = question.query.model_json_schema(mode="validation")
    found = []
    for name, described in schema.get("properties", {}).items():
        rules = _without_null(described)
        text = rules.pop("description", "")
        rules.pop("title", None)
        required = name in schema.get("required", [])
        found.append({"name": name, "in": "query", "required": required, "description": text, "schema": rules})
    if question.is_stream:
        text = "Cursor of the last event that came; goes before `cursor`."
        cursor = next(parameter["schema"] for parameter in found if parameter["name"] == "cursor")
        found.append({"name": "Last-Event-ID", "in": "header", "description": text, "schema": cursor})
    return found


def _without_null(described: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is not wanted is left out; there is no null in an address."""
    rules = {name: part for name, part in described.items() if name not in ("anyOf", "default")}
    for choice in described.get("anyOf", []):
        rules |= choice if choice != {"type": "null"} else {}
    return rules | ({"default": described["default"]} if described.get("default") is not None else {})


def _answers(question: Question, references: dict[Any, Any]) -> dict[str, Any]:
    if question.is_stream:
        text = (
            "Events `diagnostic`, `action` and `coverage` with a record each and its cursor as `id`, and events `page` "
            "with the page without its records."
        )
        fields = {name: {"type": "string"} for name in ("id", "event", "data")}
        event = {"type": "object", "description": "One event; `data` is JSON.", "properties": fields}
        stream = {"description": text, "content": {"text/event-stream": {"schema": event}}}
        return {"200": stream, "204": {"description": "All of a run that is over has been read; do not come back."}}
    content = {"application/json": {"schema": references[question.answer, "serialization"]}}
    answers = {"200": {"description": "The answer.", "content": content}}
    if question.body is not None:
        answers["202"] = {"description": "Accepted; the step barrier had not come yet.", "content": content}
    return answers


def _problems(kinds: list[str], references: dict[Any, Any]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for kind in dict.fromkeys(kinds):
        by_status.setdefault(KINDS[kind][0], []).append(kind)
    content = {MEDIA_TYPE: {"schema": references[ProblemDocument, "serialization"]}}
    return {
        str(status): {
            "description": " ".join(f"`{kind}`: {KINDS[kind][1]}." for kind in by_status[status]),
            "content": content,
        }
        for status in sorted(by_status)
    }


def rendered() -> str:
    """The text of the committed file."""
    return json.dumps(document(), indent=2, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """The exit code of `write_or_check`."""
    return write_or_check(PATH, rendered, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
