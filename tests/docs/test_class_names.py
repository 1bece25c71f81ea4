"""The glossary's first rule: the name of a public class is used once in the tree."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_name_of_a_public_class_is_used_once():
    places: dict[str, list[str]] = defaultdict(list)
    for package in ("libs", "services"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
