"""The published JSON Schemas of job and sweep specifications, made from the Structs and their docstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

import msgspec

from penstock_events import spec

BASE: Final = "https://penstock.example/schemas"
RANGE: Final = r"^\s*[1-9]\d{0,4}\s*\.\.\s*[1-9]\d{0,4}\s*$"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_ATTRIBUTE: Final = re.compile(r"^(\w[\w, ]*?)(?: : .*)?\n((?:    .*\n?)+)", re.MULTILINE)


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job specification."""
    made = _published(spec.JobSpec, "job", "Penstock job")
    _take_ranges(made["properties"])
    return made


def sweep_schema() -> dict[str, Any]:
    """Return the JSON Schema of a sweep specification."""
    made = _published(spec.SweepSpec, "sweep", "Penstock sweep")
    made["$defs"]["JobSpec"]["required"].remove("name")  # it has the sweep's, where it has none of its own
    return made


def _take_ranges(fields: dict[str, Any]) -> None:
    """Have ``gpus`` take ``"1..8"`` too: how people write it, which is written out before it is decoded."""
    number = fields["gpus"]
    about = {name: number.pop(name) for name in ("description", "default") if name in number}
    ranged = {"type": "string", "pattern": RANGE, "examples": ["1..8"]}
    fields["gpus"] = {**about, "anyOf": [number, ranged]}


def _published(type_: type[msgspec.Struct], name: str, title: str) -> dict[str, Any]:
    made = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(type_)))  # defaults may be tuples
    definitions: dict[str, Any] = made["$defs"]
    for defined, schema in definitions.items():
        _document(schema, getattr(spec, defined))
    top = definitions.pop(type_.__name__)
    rest = {"$defs": definitions} if definitions else {}
    return {"$schema": DIALECT, "$id": f"{BASE}/{name}.json", **top, "title": title, **rest}


def _document(schema: dict[str, Any], type_: type) -> None:
    doc = inspect.cleandoc(type_.__doc__ or "")
    schema["description"] = _joined(doc.partition("\n\nAttributes\n")[0])
    schema["additionalProperties"] = False
    described = _attributes(doc)
    for name, field in schema["properties"].items():
        if name in described:
            field["description"] = described[name]


def _attributes(doc: str) -> dict[str, str]:
    _, _, section = doc.partition("\n\nAttributes\n----------\n")
    return {
        name.strip(): _joined(text) for names, text in _ATTRIBUTE.findall(f"{section}\n") for name in names.split(",")
    }


def _joined(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
