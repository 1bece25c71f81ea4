"""What a training environment installs: ``libs/pyproject.toml``, with msgspec, nats-py and what proves a login."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

LIBS = Path(__file__).parents[2] / "libs"
INCLUDED = tomllib.loads((LIBS / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
BROKER_SIDE = {"fifo_owner.py", "lane_token.py", "slot_table.py", "token_broker.py"}
"""They travel in the package of the token, and no training script loads them."""
NEWER_ARGUMENTS = {("zip", "strict"), ("catch_warnings", "action")}
"""Function and argument that came after Python 3.9."""
FILES = sorted(
    file
    for name in INCLUDED["only-include"]
    for file in ([LIBS / name] if name.endswith(".py") else (LIBS / name).rglob("*.py"))
    if file.name not in BROKER_SIDE
)
LOADED = """
import json, sys
import penstock, penstock.estimate
from penstock import Client, JobSpec, Session, SweepSpec, session
from penstock_bus import nats
from penstock_sharing.token import LaneClient
with session() as s:
    for _ in s.iterations(range(3)):
        s.report(loss=1.0)
files = {name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}
print(json.dumps(files))
"""


def test_session_and_client_load_nothing_beside_msgspec_and_nats():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    files = {name: Path(path) for name, path in json.loads(done.stdout).items()}
    foreign = {name.partition(".")[0] for name, path in files.items() if "site-packages" in path.parts}
    ours = {path for path in files.values() if path.is_relative_to(LIBS)}
    assert foreign <= {"msgspec", "nats", "_distutils_hack", "typing_extensions"}
    assert ours <= set(FILES), "libs/pyproject.toml names what the SDK consists of"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(LIBS)))
def test_a_file_of_the_sdk_is_one_that_python_3_9_can_load(file):
    """Its syntax; its classes' annotations, which msgspec evaluates: 3.9 has no ``|`` between types; and arguments."""
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    fields = [
        node
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef) and [ast.unparse(base) for base in each.bases] != ["NamedTuple"]
        for field in each.body
        if isinstance(field, ast.AnnAssign)
        for node in ast.walk(field.annotation)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    ]
    calls = [(node, ast.unparse(node.func).rpartition(".")[2]) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = [node.args[1] for node, name in calls if name in {"isinstance", "issubclass"}]
    assert not [node.lineno for node in (*fields, *(node for node in asked if isinstance(node, ast.BinOp)))]
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Match)]
    assert not [node.lineno for node, name in calls for each in node.keywords if (name, each.arg) in NEWER_ARGUMENTS]
