"""Write the generated documents, or say which of them are stale: ``python tools/docs.py [--check]``."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docgen import asyncapi, events_md, states

from penstock_events import schema

DOCS = Path(__file__).parent.parent / "docs"
DOCUMENTS: dict[str, Callable[[], str]] = {
    "events.md": events_md.render,
    "asyncapi.json": asyncapi.render,
    "states.md": states.render,
    "job.schema.json": lambda: _json(schema.job_schema()),
    "sweep.schema.json": lambda: _json(schema.sweep_schema()),
}


def main() -> int:
    """Return 1 if a document is stale under ``--check``."""
    check = sys.argv[1:] == ["--check"]
    stale = [name for name, render in DOCUMENTS.items() if _differs(name, render())]
    for name in stale:
        if check:
            print(f"docs/{name} is stale; run `make docs` and commit it", file=sys.stderr)
        else:
            (DOCS / name).write_text(DOCUMENTS[name]())
            print(f"wrote docs/{name}")
    return int(check and bool(stale))


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _differs(name: str, text: str) -> bool:
    path = DOCS / name
    return not path.exists() or path.read_text() != text


if __name__ == "__main__":
    sys.exit(main())
