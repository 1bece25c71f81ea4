"""Metrics as text, read again by prometheus_client's own parsers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from scrapes import OPEN_METRICS

from penstock_dashboard.exposition import exposed


def families(value: float = 7.5, label: str = "a", help_: str = "What it is.") -> list[Metric]:
    gauge = GaugeMetricFamily("penstock_jobs", help_, labels=["pool", "team"])
    gauge.add_metric([label, ""], value)
    gauge.add_metric(["other", label], -value)
    counter = CounterMetricFamily("penstock_rounds", help_)
    counter.add_metric([], abs(value))
    histogram = HistogramMetricFamily("penstock_wait_seconds", help_, labels=["pool"])
    histogram.add_metric([label], [("0.5", 1), ("1.0", 2), ("+Inf", 3)], 2.25)
    return [gauge, counter, histogram, GaugeMetricFamily("penstock_empty", help_)]


class Registry(CollectorRegistry):
    def __init__(self, found: list[Metric]) -> None:
        super().__init__()
        self.found = found

    def collect(self) -> list[Metric]:  # type: ignore[override]
        return self.found


def test_the_text_is_what_prometheus_client_writes() -> None:
    found = families()
    for accept, generate in (("text/plain", generate_latest), (OPEN_METRICS, generate_open_metrics)):
        text, _ = exposed(found, accept)
        assert text == generate(Registry(found)).decode()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20))
def test_every_label_comes_back_as_it_was(label: str) -> None:
    for accept, read in (("text/plain", read_text), (OPEN_METRICS, read_open_metrics)):
        text, _ = exposed(families(label=label), accept)
        found = {family.name: family for family in read(text)}
        assert [sample.labels for sample in found["penstock_jobs"].samples] == [
            {"pool": label, "team": ""},
            {"pool": "other", "team": label},
        ]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_value_comes_back_as_it_was(value: float) -> None:
    text, _ = exposed(families(value), OPEN_METRICS)
    found = {family.name: family for family in read_open_metrics(text)}
    assert [sample.value for sample in found["penstock_jobs"].samples] == [value, -value]


@pytest.mark.parametrize("help_", ['say "it"', "two\nlines", "a \\ b"])
def test_help_is_read_as_it_was_written(help_: str) -> None:
    text, _ = exposed(families(help_=help_), OPEN_METRICS)
    assert next(iter(read_open_metrics(text))).documentation == help_
