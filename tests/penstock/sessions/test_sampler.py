"""Each epoch sees each sample once: over any number of processes, and over resumes at other widths and batch sizes."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from executor_stub import overlay
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.sessions.loop_position import SamplerPosition
from penstock.sessions.sampler import DataSampler, Rows
from penstock.sessions.setup import SessionError, read
from sweeps import examples


class Stopped(Exception):
    """A run was cut off."""


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> Iterator[None]:
    """No power fails here: some hundred checkpoints need not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.sessions.checkpoint.flush", lambda _: None)
        yield


def run(
    folder: Path, size: int, epochs: int, *, batch: int, stop_after: int | None = None, **env: str
) -> list[tuple[int, list[int]]]:
    """
    Train one rank, with a checkpoint after each step; return the epoch and the rows of each step that it did.

    ``stop_after``: it is cut off in the step after so many.
    """
    return trained(folder, size, epochs, batch=batch, stop_after=stop_after, **env)[0]


def trained(
    folder: Path, size: int, epochs: int, *, batch: int, stop_after: int | None = None, **env: str
) -> tuple[list[tuple[int, list[int]]], int]:
    """Train one rank as :func:`run` does; return also how many samples it says are done."""
    done: list[tuple[int, list[int]]] = []
    setup = read(overlay({}, CHECKPOINT_DIR=str(folder), CHECKPOINT_S="1e-9", BATCH_SIZE=str(batch), **env))
    try:
        with penstock.Session(setup) as session:
            session.on_checkpoint(lambda path: (path / "state").touch(), lambda path: (path / "state").stat())
            sampler = session.sampler(size)
            for epoch in range(epochs):
                for rows in session.iterations(sampler):
                    if len(done) == stop_after:
                        raise Stopped
                    assert sampler.epoch == epoch
                    done.append((epoch, rows.tolist()))
    except Stopped:
        pass
    return done, session.samples


def gang(
    folder: Path, size: int, epochs: int, world_size: int, *, batch: int, stop_after: int | None = None, lose: int = 0
) -> tuple[Counter[tuple[int, int]], int]:
    """
    Train all ranks, one after the other and rank 0 last, since it writes.

    ``lose``: the last checkpoint is lost where there are two, as if the run had crashed before it was complete.

    Returns
    -------
    Counter, int
        How often each sample of each epoch was seen in steps that were kept, and the samples that are said to be done.
    """
    envs = [{"RANK": str(rank), "WORLD_SIZE": str(world_size)} for rank in reversed(range(world_size))]
    ranks = [trained(folder, size, epochs, batch=batch, stop_after=stop_after, **env) for env in envs]
    parts, (samples, *others) = zip(*ranks, strict=True)
    assert set(others) <= {samples}, "all ranks count alike"
    saved = sorted(folder.glob("step-*"), key=lambda path: int(path.name[5:]))
    kept = len(parts[0])
    if lose and kept and len(saved) > 1:
        kept -= 1
        shutil.rmtree(saved[-1])
        samples -= sum(len(part[kept][1]) for part in parts)
    return Counter((epoch, row) for part in parts for epoch, rows in part[:kept] for row in rows), samples


widths = st.integers(1, 4)
runs = st.lists(st.tuples(widths, st.integers(4, 9), st.integers(0, 7), st.integers(0, 1)), max_size=4)


@settings(max_examples=examples(25), deadline=None)
@given(size=st.integers(1, 40), epochs=st.integers(1, 3), cut=runs, last=st.tuples(widths, st.integers(4, 9)))
def test_each_epoch_sees_each_sample_once_over_all_widths_batch_sizes_and_resumes(
    tmp_path_factory: pytest.TempPathFactory,
    size: int,
    epochs: int,
    cut: list[tuple[int, int, int, int]],
    last: tuple[int, int],
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    seen: Counter[tuple[int, int]] = Counter()
    for world_size, batch, steps, lose in cut:
        now, samples = gang(folder, size, epochs, world_size, batch=batch, stop_after=steps, lose=lose)
        seen += now
        assert samples == seen.total()
    now, samples = gang(folder, size, epochs, last[0], batch=last[1])
    assert seen + now == Counter((epoch, row) for epoch in range(epochs) for row in range(size))
    assert samples == size * epochs


@settings(max_examples=examples(50), deadline=None)
@given(size=st.integers(1, 200), batch=st.integers(8, 30), world_size=st.integers(1, 8), seed=st.integers(0, 99))
def test_the_parts_of_a_step_are_the_batch_whatever_the_width(
    size: int, batch: int, world_size: int, seed: int
) -> None:
    alone = steps(DataSampler(size, batch_size=batch, seed=seed))
    parts = [
        steps(DataSampler(size, batch_size=batch, rank=r, world_size=world_size, seed=seed)) for r in range(world_size)
    ]
    for step, rows in enumerate(alone):
        assert sorted(np.concatenate([part[step] for part in parts])) == sorted(rows)
        assert max(len(part[step]) for part in parts) - min(len(part[step]) for part in parts) <= 1
    assert {len(part) for part in parts} == {len(alone)}


def steps(sampler: DataSampler) -> list[Rows]:
    sampler.open()
    return list(sampler)


def test_epochs_have_orders_of_their_own_and_every_process_draws_the_same() -> None:
    one, other = DataSampler(100, batch_size=10), DataSampler(100, batch_size=30, rank=1, world_size=2)
    assert one.order(3).tolist() == other.order(3).tolist() != one.order(4).tolist()
    assert one.order(3).tolist() != DataSampler(100, batch_size=10, seed=1).order(3).tolist()


def test_a_resumed_epoch_says_how_many_steps_are_left_of_it(tmp_path: Path) -> None:
    run(tmp_path, 20, 2, batch=4, stop_after=3)
    with penstock.Session(read(overlay({}, CHECKPOINT_DIR=str(tmp_path)))) as session:
        session.on_checkpoint(lambda _: None, lambda _: None)
        sampler = session.sampler(20, batch_size=5)
        assert (len(sampler), len(list(session.iterations(sampler)))) == (2, 2)  # 8 samples
        assert (len(sampler), len(list(session.iterations(sampler)))) == (4, 4)


def test_a_sampler_may_be_made_before_the_checkpoint_is_loaded(tmp_path: Path) -> None:
    run(tmp_path, 20, 1, batch=4, stop_after=3)
    with penstock.Session(read(overlay({}, CHECKPOINT_DIR=str(tmp_path)))) as session:
        sampler = session.sampler(20, batch_size=4)
        session.on_checkpoint(lambda _: None, lambda _: None)
        assert len(list(session.iterations(sampler))) == 2


def test_a_break_leaves_out_the_rest_of_its_epoch() -> None:
    with penstock.Session(read({})) as session:
        sampler = session.sampler(10, batch_size=2, shuffle=False)
        for _ in session.iterations(sampler):
            break
        assert next(rows.tolist() for rows in session.iterations(sampler)) == [0, 1]
        assert sampler.epoch == 1


def test_a_job_with_more_epochs_goes_on_after_those_that_another_one_did(tmp_path: Path) -> None:
    first = run(tmp_path / "a", 10, 2, batch=4, SAVE_AT_END="1")
    second = run(tmp_path / "b", 10, 3, batch=5, BEGIN_DIR=str(tmp_path / "a"))
    assert [epoch for epoch, _ in first] == [0, 0, 0, 1, 1, 1]
    assert [epoch for epoch, _ in second] == [2, 2]


def test_other_loops_leave_the_sampler_where_it_is(tmp_path: Path) -> None:
    def train(stop_at: int | None) -> list[list[int]]:
        seen = []
        try:
            with penstock.Session(read(overlay({}, CHECKPOINT_DIR=str(tmp_path), CHECKPOINT_S="1e-9"))) as session:
                session.on_checkpoint(lambda _: None, lambda _: None)
                sampler = session.sampler(4, batch_size=2, shuffle=False)
                for _ in range(2):
                    seen += [rows.tolist() for rows in session.iterations(sampler)]
                    for _ in session.iterations(range(3)):
                        if session.step == stop_at:
                            raise Stopped
        except Stopped:
            pass
        return seen

    assert train(stop_at=4) == [[0, 1], [2, 3]]  # in the second loop between the two epochs
    assert train(stop_at=None) == [[0, 1], [2, 3]]


def test_a_loaders_batch_sampler_is_known_as_the_sampler() -> None:
    class Loader:
        def __init__(self, sampler: DataSampler) -> None:
            self.batch_sampler = sampler

        def __iter__(self):
            return (("batch", rows.tolist()) for rows in self.batch_sampler)

    with penstock.Session(read({})) as session:
        loader = Loader(session.sampler(4, batch_size=2, shuffle=False))
        assert [list(session.iterations(loader)) for _ in range(2)] == [[("batch", [0, 1]), ("batch", [2, 3])]] * 2


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")
@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_loader_reads_ahead_and_nothing_is_lost_or_repeated(tmp_path: Path, workers: int) -> None:
    from torch.utils.data import DataLoader  # noqa: PLC0415 - only where it is

    seen: list[int] = []
    for batch, stop_after in ((4, 3), (5, None)):  # 12 of 20 samples, then 5 and 3
        setup = read(overlay({}, CHECKPOINT_DIR=str(tmp_path), CHECKPOINT_S="1e-9", BATCH_SIZE=str(batch)))
        with penstock.Session(setup) as session, contextlib.suppress(Stopped):
            session.on_checkpoint(lambda _: None, lambda _: None)
            loader = DataLoader(range(20), batch_sampler=session.sampler(20), num_workers=workers)
            for number, items in enumerate(session.iterations(loader)):
                if number == stop_after:
                    raise Stopped
                seen += items.tolist()
    assert sorted(seen) == list(range(20))


def test_a_checkpoint_of_a_loop_without_a_sampler_is_not_gone_on_with(tmp_path: Path) -> None:
    setup = read(overlay({}, CHECKPOINT_DIR=str(tmp_path), CHECKPOINT_S="1e-9"))
    with penstock.Session(setup) as session, contextlib.suppress(Stopped):
        session.on_checkpoint(lambda _: None, lambda _: None)
        for item in session.iterations(range(5)):
            if item == 3:
                raise Stopped
    with penstock.Session(setup) as session:
        session.on_checkpoint(lambda _: None, lambda _: None)
        with pytest.raises(SessionError, match="taken in a loop without a sampler, after 3 items"):
            next(session.iterations(session.sampler(20, batch_size=4)))


def test_a_sampler_behind_something_else_is_refused_since_nobody_would_count() -> None:
    with penstock.Session(read({})) as session:
        sampler = session.sampler(4, batch_size=2)
        with pytest.raises(SessionError, match="hand it over itself, or as the batch_sampler of a DataLoader"):
            session.iterations(rows for rows in sampler)


@pytest.mark.parametrize(
    ("size", "batch", "message"),
    [(0, 4, "the data set has 0 samples"), (9, 1, "a batch of 1 cannot be divided among 2"), (9, 0, "set batch_size")],
)
def test_what_cannot_be_sampled_is_refused(size: int, batch: int, message: str) -> None:
    with (
        penstock.Session(read(overlay({}, WORLD_SIZE="2", RANK="0"))) as session,
        pytest.raises(SessionError, match=message),
    ):
        session.sampler(size, batch)


def test_a_session_has_one_sampler() -> None:
    with penstock.Session(read({})) as session:
        session.sampler(4, 2)
        with pytest.raises(SessionError, match="this session has a sampler already"):
            session.sampler(4, 2)


def test_the_jobs_batch_size_overrules_the_scripts() -> None:
    with penstock.Session(read(overlay({}, BATCH_SIZE="3"))) as session:
        assert session.sampler(9, batch_size=2).batch_size == 3


@pytest.mark.parametrize(("size", "seed"), [(11, 0), (10, 1)])
def test_an_epoch_cannot_go_on_over_another_data_set_or_in_another_order(size: int, seed: int) -> None:
    place = SamplerPosition(epoch=2, seen=4, size=10, seed=0)
    with pytest.raises(SessionError, match="taken after 4 of 10 samples in the order of seed 0"):
        DataSampler(size, batch_size=2, seed=seed).resume(place)


def test_the_next_epoch_may_be_over_a_data_set_that_has_grown() -> None:
    sampler = DataSampler(12, batch_size=4)
    sampler.resume(SamplerPosition(epoch=2, seen=10, closed=True, size=10))
    sampler.open()
    assert (sampler.epoch, len(list(sampler))) == (3, 3)
