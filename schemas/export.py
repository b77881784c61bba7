"""JSON Schemas (draft 2020-12), generated from the models and committed in `schemas/json/`."""

import json
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from tocsin.schemas.alerts import Alert
from tocsin.schemas.base import SCHEMA_VERSION
from tocsin.schemas.check import CheckReport
from tocsin.schemas.config import RunConfig
from tocsin.schemas.control import ControlRequest
from tocsin.schemas.events import EVENT_TYPES, Event
from tocsin.schemas.feed import RECORD_KINDS, FeedRecord, Header, Page
from tocsin.schemas.knobs import KnobRegistry
from tocsin.schemas.manifest import Manifest

FOLDER: Final = Path(__file__).parent / "json"

EXPORTED: Final[dict[str, Any]] = {
    "event": Event,
    "feed_record": FeedRecord,
    "header": Header,
    "page": Page,
    "control_request": ControlRequest,
    "run_config": RunConfig,
    "knobs": KnobRegistry,
    "manifest": Manifest,
    "check_report": CheckReport,
    "alert": Alert,
}
"""File stem to type."""


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one exported type. Raises `KeyError` for a name that is not in `EXPORTED`."""
    adapter = TypeAdapter(EXPORTED[name])
    written_by_people = name == "run_config"
    body = adapter.json_schema(mode="validation" if written_by_people else "serialization")
    opened = open_for_readers(body)
    close_unknown(opened.get("$defs", {}))
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"https://tocsin.dev/schemas/{SCHEMA_VERSION}/{name}.schema.json",
        **opened,
    }


def open_for_readers(node: Any) -> Any:
    """What a reader may rely on: fields of a later version are allowed, and a field that was not measured is absent."""
    if isinstance(node, dict):
        opened = {k: open_for_readers(v) for k, v in node.items() if not (k == "additionalProperties" and v is False)}
        if isinstance(node.get("properties"), dict) and isinstance(node.get("required"), list):
            optional = {k for k, v in node["properties"].items() if v.get("default", ...) is None}
            opened["required"] = [k for k in node["required"] if k not in optional]
        return opened
    if isinstance(node, list):
        return [open_for_readers(item) for item in node]
    return node


def close_unknown(definitions: dict[str, Any]) -> None:
    """Says of the models for what a later version adds that they are never one of the kinds known today."""
    known = {"UnknownEvent": ("type", sorted(EVENT_TYPES)), "UnknownRecord": ("record", list(RECORD_KINDS))}
    for title, (field, names) in known.items():
        if title in definitions:
            definitions[title]["properties"][field]["not"] = {"enum": names}


def render(name: str) -> str:
    """The text of the committed file."""
    return json.dumps(schema(name), indent=2, sort_keys=True) + "\n"


def path_of(name: str) -> Path:
    """Where the committed file lies."""
    return FOLDER / f"{name}.schema.json"


def write() -> list[Path]:
    """Write every schema; returns the files that changed."""
    changed = []
    FOLDER.mkdir(exist_ok=True)
    for name in EXPORTED:
        if not path_of(name).exists() or path_of(name).read_text() != render(name):
            path_of(name).write_text(render(name))
            changed.append(path_of(name))
    return changed


def stale() -> list[Path]:
    """Committed files that differ from what the models say."""
    return [path_of(n) for n in EXPORTED if not path_of(n).exists() or path_of(n).read_text() != render(n)]
