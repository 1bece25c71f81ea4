"""Write the generated documents, or say which of them are stale: ``python tools/docs.py [--check] [FOLDER]``."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docgen import asyncapi, events_md, metric_tables, policy_tables, sbatch_tables, states

from penstock_log import spec

DOCS = Path(__file__).parent.parent / "docs"
DOCUMENTS: dict[str, Callable[[], str]] = {
    "events.md": events_md.render,
    "asyncapi.json": asyncapi.render,
    "states.md": states.render,
    "metrics.md": lambda: metric_tables.render(DOCS / "metrics.md"),
    "ranking.md": lambda: policy_tables.ranking(DOCS / "ranking.md"),
    "simulation.md": lambda: policy_tables.simulation(DOCS / "simulation.md"),
    "sbatch.md": lambda: sbatch_tables.render(DOCS / "sbatch.md"),
    "job.schema.json": lambda: _json(spec.job_schema()),
    "sweep.schema.json": lambda: _json(spec.sweep_schema()),
}


def main() -> int:
    """Return 1 if a document is stale under ``--check``."""
    check = "--check" in sys.argv
    folder = next((Path(word) for word in sys.argv[1:] if word != "--check"), DOCS)
    stale = [name for name, render in DOCUMENTS.items() if _differs(folder / name, render())]
    for name in stale:
        if check:
            print(f"docs/{name} is stale; run `make docs` and commit it", file=sys.stderr)
        else:
            (folder / name).write_text(DOCUMENTS[name]())
            print(f"wrote {folder / name}")
    return int(check and bool(stale))


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text() != text


if __name__ == "__main__":
    sys.exit(main())
