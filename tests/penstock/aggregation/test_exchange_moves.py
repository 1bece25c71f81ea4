"""Parts that move, and aggregators that die, while ranks train: results are bit for bit as if nothing had happened."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from aggregator_harness import AggregatedRun, Training, aggregated, in_threads, plain_results

from penstock_log.aggregation_messages import UpdateRule, VectorLayout
from sweeps import sampled

MEAN, ADAMW = UpdateRule(), UpdateRule(name="adamw", lr=0.01, weight_decay=0.1)
EACH_WAY = [
    pytest.param(rule, shared, id=f"{rule.name}-{shared}") for shared in (True, False) for rule in (ADAMW, MEAN)
]
LAYOUT = VectorLayout(dtype="f4", parts=(40_000, 1, 4_000, 20_000))


@pytest.mark.parametrize(("rule", "shared"), sampled(EACH_WAY))
def test_thirty_moves_in_mid_training_change_no_result(tmp_path: Path, rule: UpdateRule, shared: bool) -> None:
    steps, moves = 150, 30
    with aggregated(tmp_path, LAYOUT, 2, rule, aggregators=2, shared=shared) as run:
        training = Training(run)
        names = sorted(run.processes)
        ended = threading.Event()
        paused = []

        def move() -> None:
            for number in range(moves):
                training.wait_for_step(1 + number * (steps - 10) // moves)
                parts = [0, 1, 2, 3] if number % 3 == 0 else [number % 4]
                paused.extend(each.pause_s for each in run.move(parts, names[number % 2]))
            ended.set()

        mover = threading.Thread(target=move, daemon=True)
        mover.start()
        results = training.train(steps)
        assert ended.wait(60)
        stats = [exchange.stats() for exchange in training.exchanges]
    assert results == [plain_results(LAYOUT, rule, 2, steps)] * 2
    assert [(each.rejoins, each.reconnects) for each in stats] == [(0, 0)] * 2
    assert min(each.moves for each in stats) >= moves
    assert min(paused) >= 0


def kill_and_replace(run: AggregatedRun, name: str) -> None:
    run.processes[name].kill()
    run.replace(name)


@pytest.mark.parametrize(("rule", "shared"), sampled(EACH_WAY))
def test_aggregators_that_are_killed_at_any_moment_change_no_result(
    tmp_path: Path, rule: UpdateRule, shared: bool
) -> None:
    steps, kills = 60, 4
    rng = np.random.default_rng([5, shared])
    moments = sorted(rng.integers(1, steps - 2, kills).tolist())
    with aggregated(tmp_path, LAYOUT, 2, rule, aggregators=2, shared=shared) as run:
        training = Training(run, snapshot_every=3)
        ended = threading.Event()

        def kill() -> None:
            for moment in moments:
                training.wait_for_step(moment)
                alive = sorted({at.aggregator for at in run.at})
                kill_and_replace(run, alive[int(rng.integers(len(alive)))])
            ended.set()

        threading.Thread(target=kill, daemon=True).start()
        results = training.train(steps)
        assert ended.wait(60)
        rejoins = [exchange.stats().rejoins for exchange in training.exchanges]
    assert results == [plain_results(LAYOUT, rule, 2, steps)] * 2
    assert min(rejoins) >= kills - 1


def test_no_update_is_lost_or_counted_twice_by_a_kill(tmp_path: Path) -> None:
    """Every step adds one to each parameter: lr is -1, and all gradients are ones."""
    layout, rule, steps = VectorLayout(dtype="f4", parts=(5, 5)), UpdateRule(name="sgd", lr=-1.0), 40
    with aggregated(tmp_path, layout, 2, rule, aggregators=1) as run:
        exchanges = [run.exchange(rank) for rank in range(2)]
        for exchange in exchanges:
            exchange.begin(np.zeros(10, "f4"))
        reached = threading.Semaphore(0)

        def kill() -> None:
            for _ in range(3):
                for _ in range(7):
                    reached.acquire()
                kill_and_replace(run, run.at[0].aggregator)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        counted: list[list[float]] = [[], []]

        def train(rank: int) -> None:
            for _ in range(steps):
                values = np.ones(10, "f4")
                exchanges[rank].exchange(values)
                counted[rank].extend({float(values.min()), float(values.max())})
                if rank == 0:
                    reached.release()

        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in [*threads, killer]:
            thread.join(60)
    assert counted == [[float(step) for step in range(1, steps + 1)]] * 2


def test_a_kill_during_a_move_loses_nothing(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2, ADAMW, aggregators=2) as run:
        training = Training(run)
        first, second = sorted(run.processes)
        ended = threading.Event()

        def disturb() -> None:
            training.wait_for_step(10)
            run.announce_move([0, 2], second)  # which nobody sends
            run.processes[first].kill()
            run.processes[second].kill()
            run.replace(second)
            run.replace(first)
            ended.set()

        threading.Thread(target=disturb, daemon=True).start()
        results = training.train(40)
        assert ended.wait(60)
    assert results == [plain_results(LAYOUT, ADAMW, 2, 40)] * 2


def test_a_broken_connection_is_made_again_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2, ADAMW) as run:
        training = Training(run)

        def cut(rank: int, step: int) -> None:
            if (rank + step) % 5 == 0:
                for connection in training.exchanges[rank]._talk.connections:
                    connection.socket.shutdown(2)

        results = training.train(40, before=cut)
        assert not run.lost
        assert min(exchange.stats().reconnects for exchange in training.exchanges) >= 7
    assert results == [plain_results(LAYOUT, ADAMW, 2, 40)] * 2


def test_an_aggregator_that_cannot_be_reached_is_reported_once(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 1) as run:
        training = Training(run)
        training.train(2)
        name = run.at[0].aggregator
        run.processes[name].kill()
        reported = threading.Event()
        run.on_lost = lambda lost: (run.lost.append(lost), reported.set())

        def replace() -> None:
            reported.wait(60)
            run.replace(name)

        threading.Thread(target=replace, daemon=True).start()
        results = training.train(4)
        assert [(lost.aggregator, lost.generation) for lost in run.lost] == [(name, 1)]
    assert results == [plain_results(LAYOUT, MEAN, 1, 4)]


def test_the_state_is_had_from_an_aggregator_that_has_just_been_joined(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2, ADAMW) as run:
        training = Training(run)
        training.train(7)
        before = in_threads(lambda rank: training.exchanges[rank].state(), 2)
        kill_and_replace(run, run.at[0].aggregator)
        after = in_threads(lambda rank: training.exchanges[rank].state(), 2)
        assert training.train(12) == [plain_results(LAYOUT, ADAMW, 2, 12)] * 2
    assert [state.tobytes() for state in after] == [state.tobytes() for state in before]


def disturb(run: AggregatedRun, training: Training, rng: np.random.Generator) -> None:
    """Move parts, kill an aggregator, cut connections, or kill one of both ends of a move."""
    alive = [name for name, process in sorted(run.processes.items()) if process.process.returncode is None]
    name = alive[rng.integers(len(alive))]
    match rng.integers(4):
        case 0:
            run.move([part for part in range(len(run.layout.parts)) if rng.random() < 0.6], name)
        case 1:
            kill_and_replace(run, name)
        case 2:
            for connection in training.exchanges[rng.integers(run.world_size)]._talk.connections:
                with suppress(OSError):  # it was closed just now
                    connection.socket.shutdown(socket.SHUT_RDWR)
        case _:
            before = run.announce_move([at.part for at in run.at if at.aggregator != name], name)
            run.send_parts(before, name)
            victim = [name, *before.values()][rng.integers(1 + len(before))]
            run.processes[victim].kill()
            if victim == name:
                run.replace(name)
            else:
                run.join_anew([part for part, source in before.items() if source == victim])


@pytest.mark.parametrize("seed", sampled(range(3, -1, -1)))
def test_results_stay_the_same_through_moves_kills_and_cuts(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule, world_size = (MEAN, ADAMW)[seed % 2], 2 + seed // 2
    with aggregated(tmp_path, LAYOUT, world_size, rule, aggregators=2, shared=bool(rng.integers(2))) as run:
        training = Training(run, snapshot_every=int(rng.integers(1, 6)))
        ended = threading.Event()

        def disturb_often() -> None:
            for step in range(1, 70, 6):
                training.wait_for_step(step)
                disturb(run, training, rng)
            ended.set()

        threading.Thread(target=disturb_often, daemon=True).start()
        results = training.train(80)
        assert ended.wait(60)
    assert results == [plain_results(LAYOUT, rule, world_size, 80)] * world_size
