import pytest

from penstock_bus.health import Metrics


def test_the_same_name_and_labels_are_the_same_metric() -> None:
    metrics = Metrics()
    metrics.counter("jobs_total", pool="a").inc()
    metrics.counter("jobs_total", pool="a").inc(2)
    metrics.counter("jobs_total", pool="b").inc()
    assert metrics.render().splitlines()[2:] == ['jobs_total{pool="a"} 3', 'jobs_total{pool="b"} 1']


def test_labels_are_quoted_and_no_terminal_obeys_them() -> None:
    metrics = Metrics()
    metrics.counter("jobs_total", pool='a"\\b\nc\x1b[2J\u202e').inc()
    assert metrics.render().splitlines()[2:] == [r'jobs_total{pool="a\"\\b\nc\\x1b[2J\\u202e"} 1']


def test_a_gauge_holds_its_last_value() -> None:
    metrics = Metrics()
    metrics.gauge("last_seq").set(3)
    metrics.gauge("last_seq").set(2.5)
    assert "last_seq 2.5\n" in metrics.render()


def test_large_numbers_keep_all_their_digits() -> None:
    metrics = Metrics()
    metrics.gauge("last_seq").set(12_345_678)
    metrics.counter("read_seconds_total").inc(1_234_567.25)
    lines = metrics.render().splitlines()
    assert "last_seq 12345678" in lines
    assert "read_seconds_total 1234567.25" in lines


def test_a_histogram_counts_up_to_each_bound() -> None:
    metrics = Metrics()
    for value in (0.0005, 0.003, 60.0):
        metrics.histogram("wait_seconds").observe(value)
    lines = metrics.render().splitlines()
    assert 'wait_seconds_bucket{le="0.0005"} 1' in lines
    assert 'wait_seconds_bucket{le="0.005"} 2' in lines
    assert 'wait_seconds_bucket{le="+Inf"} 3' in lines
    assert lines[-2:] == ["wait_seconds_sum 60.0035", "wait_seconds_count 3"]


def test_labels_are_escaped() -> None:
    metrics = Metrics(service='a"b\\c\n')
    metrics.counter("x").inc()
    assert r'x{service="a\"b\\c\n"} 1' in metrics.render()


def test_one_name_cannot_be_two_kinds() -> None:
    metrics = Metrics()
    metrics.counter("x")
    with pytest.raises(ValueError, match="x is a counter already; give the gauge another name"):
        metrics.gauge("x")


def test_a_gauge_that_follows_something_says_what_that_is_by_now():
    metrics, waiting = Metrics(), ["a"]
    metrics.gauge("waiting").follow(lambda: len(waiting))
    waiting.append("b")
    assert "waiting 2\n" in metrics.render()
