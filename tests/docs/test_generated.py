import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/docs.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_generated_documents_are_those_of_the_code():
    run = generate("--check")
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_a_stale_document_is_named_and_written_again(tmp_path):
    assert generate(str(tmp_path)).returncode == 0
    stale = tmp_path / "states.md"
    fresh = stale.read_text()
    stale.write_text(fresh + "an edit by hand\n")
    run = generate("--check", str(tmp_path))
    assert (run.returncode, run.stderr) == (1, "docs/states.md is stale; run `make docs` and commit it\n")
    assert generate(str(tmp_path)).returncode == 0
    assert stale.read_text() == fresh


@pytest.fixture(scope="module")
def asyncapi() -> dict:
    return json.loads((ROOT / "docs/asyncapi.json").read_text())


def test_every_reference_of_the_asyncapi_document_resolves(asyncapi):
    def references(node):
        if isinstance(node, dict):
            yield from ([node["$ref"]] if "$ref" in node else [])
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    for reference in set(references(asyncapi)):
        place = asyncapi
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
        assert place


def test_the_asyncapi_document_has_a_channel_for_each_kind_of_entity(asyncapi):
    assert asyncapi["channels"]["round"]["address"] == "penstock.evt.round.{id}"
    assert {"job", "run", "node", "profile", "rank", "round", "sweep", "request"} <= set(asyncapi["channels"])
    assert asyncapi["channels"]["extension"]["address"] == "penstock.evt.ext.{name}.{id}"
    commit = asyncapi["components"]["schemas"]["Commit"]["properties"]["facts"]["items"]
    assert {"$ref": "#/components/schemas/UnknownFact"} in commit["anyOf"]
    assert "UnknownFact" not in commit["discriminator"]["mapping"]
