"""
Families of metrics as text: OpenMetrics 1.0, or Prometheus' text form 0.0.4.

prometheus_client's own encoders check the name of every label of every sample, at a tenth of a millisecond each: a
thousand nodes with eight GPUs would take longer than a scraper waits. Here names are the catalogue's, or have been
through its parser, and only values are looked at. Whose form it is to be, its ``choose_encoder`` says.

References
----------
OpenMetrics 1.0, https://github.com/prometheus/OpenMetrics, section "ABNF".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

_OPEN_METRICS: Final = "application/openmetrics-text"
_SPECIAL: Final = re.compile(r'[\\\n"]')
_ESCAPED: Final = {"\\": r"\\", "\n": r"\n", '"': r"\""}


def exposed(families: Iterable[Metric], accept: str) -> tuple[str, str]:
    """
    Return families in the form that a scraper takes, and its content type.

    Parameters
    ----------
    accept : str
        What the scraper says that it takes, as its header ``Accept`` has it.

    Notes
    -----
    O(samples), some microseconds for each.

    Examples
    --------
    >>> from prometheus_client.core import CounterMetricFamily
    >>> rounds = CounterMetricFamily("rounds", "Rounds decided.", labels=["pool"])
    >>> rounds.add_metric(["a"], 2)
    >>> print(exposed([rounds], "text/plain")[0], end="")
    # HELP rounds_total Rounds decided.
    # TYPE rounds_total counter
    rounds_total{pool="a"} 2.0
    """
    _, content_type = choose_encoder(accept)
    is_open = content_type.startswith(_OPEN_METRICS)
    lines = [line for family in families for line in _lines(family, is_open=is_open)]
    return "".join(f"{line}\n" for line in (*lines, *(["# EOF"] if is_open else []))), content_type


def _lines(family: Metric, *, is_open: bool) -> Iterator[str]:
    name, type_ = family.name, family.type
    if not is_open:
        name = f"{name}_total" if type_ == "counter" else name
        type_ = "untyped" if type_ == "unknown" else type_
    yield f"# HELP {name} {_escaped(family.documentation, quotes=is_open)}"
    yield f"# TYPE {name} {type_}"
    for sample in family.samples:
        labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(sample.labels.items()))
        shown = f"{{{labels}}}" if labels else ""
        yield f"{sample.name}{shown} {floatToGoString(sample.value)}"  # type: ignore[no-untyped-call]  # it has no types


def _escaped(text: str, *, quotes: bool = True) -> str:
    if _SPECIAL.search(text) is None:
        return text
    return "".join(_ESCAPED.get(char, char) if quotes or char != '"' else char for char in text)
