"""Tables of all metrics within the document about them, from the dashboard's catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from penstock_dashboard import metric_catalogue as catalogue
from penstock_dashboard.metric_catalogue import MetricKind

BEGIN: Final = "<!-- metrics, from the catalogue: make docs -->"
END: Final = "<!-- end of metrics -->"
_TABLES: Final = (
    ("The cluster, as a gateway counts it", catalogue.OF_CLUSTER),
    ("Devices, as nodes tell of them", catalogue.OF_DEVICES),
    ("Lanes, as nodes tell of them", catalogue.OF_LANES),
    ("Replicas and streams, as the dashboard sees them", catalogue.OF_DASHBOARD),
    ("Replicas, as each counts itself", catalogue.OF_REPLICAS),
)


def render(path: Path) -> str:
    """Return the document with the tables between its two marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    _, _, after = rest.partition(f"{END}\n")
    lines = [line for title, kinds in _TABLES for line in _table(title, kinds)]
    return "\n".join([f"{before}{BEGIN}", *lines, f"{END}\n{after}"])


def _table(title: str, kinds: Iterable[MetricKind]) -> Iterator[str]:
    yield from (f"### {title}", "", "| metric | type | labels | |", "|---|---|---|---|")
    for kind in kinds:
        labels = ", ".join(f"`{label}`" for label in kind.labels)
        yield f"| `{kind.name}` | {kind.type} | {labels} | {kind.help} |"
    yield ""
