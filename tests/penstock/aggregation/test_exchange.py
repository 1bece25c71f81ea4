"""Ranks that add up their vectors on real aggregators: the result is that of a plain sum in the order of ranks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from aggregator_harness import Training, aggregated, in_threads, plain_results, values_of

from penstock.aggregation import AggregationError, aggregator_talk
from penstock_log.aggregation_messages import RunMeasuredHere, UpdateRule, VectorLayout
from sweeps import sampled

MEAN = UpdateRule()
RULES = [
    UpdateRule(name="sgd", lr=0.1, weight_decay=0.01),
    UpdateRule(name="momentum", lr=0.1, momentum=0.9, weight_decay=0.01),
    UpdateRule(name="adamw", lr=0.01, weight_decay=0.1),
]
LAYOUT = VectorLayout(dtype="f4", parts=(70_001, 1, 4_000))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_mean_is_that_of_a_plain_sum_in_the_order_of_ranks(tmp_path: Path, world_size: int, shared: bool) -> None:
    with aggregated(tmp_path, LAYOUT, world_size, shared=shared, aggregators=2) as run:
        training = Training(run)
        results = training.train(12)
        shares = [exchange.stats().shared_parts for exchange in training.exchanges]
    assert results == [plain_results(LAYOUT, MEAN, world_size, 12)] * world_size
    assert shares == [3 if shared else 0] * world_size


@pytest.mark.parametrize("shared", sampled([True, False]))
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_updated_parameters_are_those_of_a_local_optimizer(tmp_path: Path, rule: UpdateRule, shared: bool) -> None:
    with aggregated(tmp_path, LAYOUT, 2, rule, shared=shared) as run:
        results = Training(run).train(50)
    assert results == [plain_results(LAYOUT, rule, 2, 50)] * 2


def test_a_vector_of_doubles_is_summed_up_in_doubles(tmp_path: Path) -> None:
    layout, rule = VectorLayout(dtype="f8", parts=(1000, 7)), UpdateRule(name="adamw", weight_decay=0.1)
    with aggregated(tmp_path, layout, 3, rule) as run:
        assert Training(run).train(9) == [plain_results(layout, rule, 3, 9)] * 3


def test_a_vector_of_many_megabytes_goes_over_sockets_whole(tmp_path: Path) -> None:
    layout = VectorLayout(dtype="f4", parts=(1 << 20, 1 << 20, 1 << 20, 123))
    with aggregated(tmp_path, layout, 2, aggregators=2) as run:
        assert Training(run).train(3) == [plain_results(layout, MEAN, 2, 3)] * 2


def test_results_of_more_parts_than_are_mapped_come_over_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregator_talk, "MOST_MAPPED", 1)
    with aggregated(tmp_path, LAYOUT, 2, shared=True) as run:
        assert Training(run).train(5) == [plain_results(LAYOUT, MEAN, 2, 5)] * 2


def test_a_slow_rank_is_waited_for(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2) as run:
        first, second = run.exchange(0), run.exchange(1)
        values = np.ones(sum(LAYOUT.parts), "f4")
        first.push(values)
        waits = threading.Event()

        def pull() -> bytes:
            into = np.zeros_like(values)
            waits.set()
            first.pull(into)
            return into.tobytes()

        def late(rank: int) -> bytes:
            if rank == 0:
                return pull()
            waits.wait()
            other = np.full_like(values, 3)
            second.exchange(other)
            return other.tobytes()

        assert in_threads(late, 2) == [np.full_like(values, 2).tobytes()] * 2


@pytest.mark.parametrize("waits", [False, True], ids=["before", "meanwhile"])
def test_a_rank_that_goes_on_after_another_has_ended_is_told_so(tmp_path: Path, waits: bool) -> None:
    with aggregated(tmp_path, LAYOUT, 2) as run:
        training = Training(run)
        results = training.train(3)
        first, second = training.exchanges
        values = np.ones(sum(LAYOUT.parts), "f4")
        if not waits:
            second.leave()
            second.close()
        first.push(values)
        if waits:
            threading.Thread(target=lambda: [second.leave(), second.close()]).start()
        with pytest.raises(AggregationError, match="RANK_LEFT: rank 1 has ended after step 3, and the others go on"):
            first.pull(values)
    assert results == [plain_results(LAYOUT, MEAN, 2, 3)] * 2


def test_a_rank_that_has_ended_leaves_the_last_result_and_the_state_to_the_others(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2, RULES[2]) as run:
        first, second = run.exchange(0), run.exchange(1)
        values = np.ones(sum(LAYOUT.parts), "f4")
        for each in (first, second):
            each.begin(np.zeros_like(values))
            each.push(values)
        last, its_last = np.zeros_like(values), np.zeros_like(values)

        def end(rank: int) -> None:
            if rank == 1:
                second.pull(its_last)
                second.leave()
                second.close()
            else:
                first.pull(last)

        in_threads(end, 2)
        assert last.tobytes() == its_last.tobytes()
        assert first.state().shape == (2, values.size)


def test_a_push_may_be_changed_at_once_and_the_result_pulled_later(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2) as run:
        exchanges = [run.exchange(rank) for rank in range(2)]

        def train(rank: int) -> float:
            values = np.full(sum(LAYOUT.parts), rank, "f4")
            exchanges[rank].push(values)
            values[:] = 100
            exchanges[rank].pull(values)
            return float(values.min() + values.max())

        assert in_threads(train, 2) == [1.0, 1.0]


def test_no_number_is_passed_on_and_counted(tmp_path: Path) -> None:
    layout = VectorLayout(dtype="f4", parts=(10, 10))
    with aggregated(tmp_path, layout, 2) as run:
        exchanges = [run.exchange(rank) for rank in range(2)]

        def train(rank: int) -> list[int]:
            found = []
            for step in range(1, 22):
                values = np.ones(20, "f4")
                if rank == 1 and step > 1:
                    values[3], values[15] = np.nan, np.inf
                exchanges[rank].exchange(values)
                found.append(int(np.count_nonzero(~np.isfinite(values))))
            return found

        assert in_threads(train, 2) == [[0] + [2] * 20] * 2
        measured = run.processes["n1/0"].wait_for(RunMeasuredHere)
    assert (measured.steps, measured.not_finite, measured.generation) == (20, 40, 1)
    assert sorted(measured.costs_s) == [0, 1]
    assert min(measured.iteration_s, *measured.costs_s.values()) > 0


def test_a_state_that_was_asked_for_goes_on_where_it_was(tmp_path: Path) -> None:
    rule = UpdateRule(name="adamw", weight_decay=0.1)
    elements = sum(LAYOUT.parts)
    with aggregated(tmp_path, LAYOUT, 2, rule) as run:
        training = Training(run)
        params = np.frombuffer(training.train(6)[0][-1], "f4")
        states = in_threads(lambda rank: training.exchanges[rank].state(), 2)
    assert states[0].tobytes() == states[1].tobytes()
    with aggregated(tmp_path, LAYOUT, 2, rule) as run:
        exchanges = [run.exchange(rank) for rank in range(2)]

        def go_on(rank: int) -> list[bytes]:
            exchanges[rank].begin(params, states[rank], step=6)
            results = []
            for step in range(7, 12):
                values = values_of(rank, step, elements)
                exchanges[rank].exchange(values)
                results.append(values.tobytes())
            return results

        assert in_threads(go_on, 2) == [plain_results(LAYOUT, rule, 2, 11)[6:]] * 2


def test_who_waits_too_long_is_told_the_step_and_for_whom(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2) as run:
        first, second = run.exchange(0, timeout_s=0.3), run.exchange(1)
        with pytest.raises(AggregationError, match=r"step 1 was not complete within 0\.3 s: 3 of 3 parts; their aggre"):
            first.exchange(np.ones(sum(LAYOUT.parts), "f4"))
        second.close()


def test_a_run_that_is_denied_ends_with_the_reason(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2) as run:
        first = run.exchange(0)
        first.denied("the pool has no aggregators")
        with pytest.raises(AggregationError, match="the pool has no aggregators"):
            first.exchange(np.ones(sum(LAYOUT.parts), "f4"))


def test_closing_ends_a_wait_in_another_thread(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2) as run:
        first = run.exchange(0)
        first.push(np.ones(sum(LAYOUT.parts), "f4"))

        def work(which: int) -> str:
            if which:
                first.close()
                return ""
            with pytest.raises(AggregationError) as error:
                first.pull(np.ones(sum(LAYOUT.parts), "f4"))
            return str(error.value)

        assert in_threads(work, 2)[0] == "the exchange is closed"


def test_a_forked_child_is_not_its_parents_rank(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 1) as run:
        exchange = run.exchange(0)
        values = np.ones(sum(LAYOUT.parts), "f4")
        exchange.exchange(values)
        child = os.fork()
        if child == 0:
            try:
                exchange.exchange(values)
            except AggregationError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        exchange.exchange(values)
        assert exchange.stats().reconnects == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.ones(3, "f4"), r"expected a contiguous vector of 74002 float32, not \(3,\) float32"),
        (np.ones(74_002, "f8"), "not .* float64"),
        (np.ones(2 * 74_002, "f4")[::2], "contiguous"),
    ],
)
def test_values_of_another_shape_or_type_are_refused_before_they_are_sent(
    tmp_path: Path, values: np.ndarray[tuple[int], np.dtype[np.float32]], said: str
) -> None:
    with aggregated(tmp_path, LAYOUT, 1) as run, pytest.raises(ValueError, match=said):
        run.exchange(0).push(values)


def test_steps_come_one_after_the_other(tmp_path: Path) -> None:
    values = np.ones(sum(LAYOUT.parts), "f4")
    with aggregated(tmp_path, LAYOUT, 1) as run:
        exchange = run.exchange(0)
        with pytest.raises(AggregationError, match="push the next step first"):
            exchange.pull(values)
        exchange.push(values)
        with pytest.raises(AggregationError, match="pull it before the next push"):
            exchange.push(values)
        with pytest.raises(AggregationError, match="between a pull and the next push"):
            exchange.state()
        exchange.pull(values)
        with pytest.raises(AggregationError, match="called once, before the first push"):
            exchange.begin(values)


def test_an_optimizer_needs_parameters_to_begin_with(tmp_path: Path) -> None:
    with (
        aggregated(tmp_path, LAYOUT, 1, RULES[0]) as run,
        pytest.raises(AggregationError, match="begin has to give the parameters"),
    ):
        run.exchange(0).push(np.ones(sum(LAYOUT.parts), "f4"))
