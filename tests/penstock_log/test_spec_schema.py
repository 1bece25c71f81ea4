from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import JobSpec
from penstock_log.spec import job_schema, sweep_schema
from penstock_log.validation import BadInput, convert


@pytest.mark.parametrize("schema", [job_schema(), sweep_schema()])
def test_the_schemas_are_valid_and_identified(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"].startswith("https://")
    assert schema["title"].startswith("Penstock ")
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize("schema", [job_schema(), sweep_schema()])
def test_every_field_is_described(schema: dict[str, Any]) -> None:
    assert [name for name, field in schema["properties"].items() if not field.get("description")] == []
    assert schema["description"]


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(jsonschema.ValidationError, match="gpu"):
        jsonschema.validate({"name": "a", "command": ["x"], "gpu": 1}, job_schema())


def test_making_the_schemas_twice_gives_the_same() -> None:
    assert sweep_schema() == sweep_schema()


@given(st.integers(-2, 3), st.text(max_size=5), st.sampled_from(["auto", "off", "on"]), st.integers(-1, 101))
def test_the_schema_and_the_gateway_agree(gpus: int, name: str, profile: str, retries: int) -> None:
    raw = {"name": name, "command": ["x"], "gpus": gpus, "profile": profile, "retries": retries}
    try:
        spec = convert(raw, JobSpec)
    except BadInput:
        if not name.endswith("\n"):  # where regular expressions differ
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(raw, job_schema())
    else:
        jsonschema.validate(raw, job_schema())
        jsonschema.validate(json.loads(msgspec.json.encode(spec)), job_schema())
