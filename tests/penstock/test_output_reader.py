"""Reading a job's output whole, from a stream that has some of it and nodes that may answer."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import output_reader
from penstock.output_reader import OutputReader
from penstock_bus import Append
from penstock_bus.memory import MemoryBus
from penstock_bus.port import Endpoint, LogLine
from penstock_executor.output_store import OutputStore
from penstock_log import Commit, RunStarted, subjects
from penstock_log.request_bodies import MOST_BYTES, OutputChannel, OutputEnd, OutputGrown, OutputOffset
from sweeps import examples

OUT, ERR = OutputChannel(1, "n1", 0, "stdout"), OutputChannel(1, "n1", 0, "stderr")
TEXT = b"".join(b"line %d\n" % i for i in range(60))


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_reader, "RESTART_S", 0.0)


async def started(bus: MemoryBus, epoch: int = 1, node_id: str = "n1") -> None:
    fact = RunStarted(job_id="j1", epoch=epoch, node_id=node_id, devices=(0,), resumed_step=0, at_s=1.0)
    commit = Commit(id=f"started-{epoch}-{node_id}", actor=f"executor/{node_id}", facts=(fact,))
    await bus.append(Append(subject=subjects.run("j1"), commit=commit, expected=None))


@asynccontextmanager
async def node(
    bus: MemoryBus, folder: Path, *printed: bytes, node_id: str = "n1", epoch: int = 1
) -> AsyncIterator[Path]:
    """A node that has the output of rank 0, and the folder where it is."""
    store = OutputStore(folder, node_id)
    path = store.create(("j1", epoch), 0)
    for name, data in zip(("stdout", "stderr"), (*printed, b"", b""), strict=False):
        (path / name).write_bytes(data)
    await started(bus, epoch, node_id)
    endpoint = Endpoint(name="output", subject=subjects.output(node_id), handler=store.answer)
    async with bus.serve("output", "1.0.0", [endpoint]):
        yield path


def text(lines: Sequence[LogLine]) -> bytes:
    return b"".join(line.data for line in lines)


async def whole(bus: MemoryBus) -> bytes:
    return text([line async for line in OutputReader(bus, "j1").stored()])


pieces = st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, 200)), max_size=12)


@settings(max_examples=examples(60), deadline=None)
@given(pieces, pieces, st.booleans(), st.integers(0, 70))
def test_whatever_of_it_the_stream_has_all_is_given_out_once_and_in_order(
    out: list[tuple[int, int]], err: list[tuple[int, int]], ended: bool, lines: int
) -> None:
    async def play(folder: Path) -> None:
        async with MemoryBus() as bus, node(bus, folder, TEXT, TEXT[::-1]):
            for channel, data, found in ((OUT, TEXT, sorted(out)), (ERR, TEXT[::-1], sorted(err))):
                for at, size in found:  # some dropped, some twice, some cut otherwise than before
                    await bus.write_output("j1", 0, data[at : at + size], OutputOffset(channel, at))
            if ended:
                await bus.write_output("j1", 0, b"", OutputEnd(1, "n1", 0, len(TEXT), len(TEXT)))
            reader = OutputReader(bus, "j1")
            given = [line async for line in reader.stored()]
            for channel, data in ((OUT, TEXT), (ERR, TEXT[::-1])):
                of_it = [
                    line for line in given if isinstance(line.place, OutputOffset) and line.place.channel == channel
                ]
                assert text(of_it) == data
            assert not [line async for line in reader.stored()]
            last = text(await OutputReader(bus, "j1").last(lines))
            assert text(given).endswith(last)
            assert last.count(b"\n") >= min(lines, text(given).count(b"\n"))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


async def test_a_complete_stream_is_believed_though_its_node_is_gone(memory_bus: MemoryBus) -> None:
    await started(memory_bus)
    await memory_bus.write_output("j1", 0, b"all\n", OutputOffset(OUT, 0))
    await memory_bus.write_output("j1", 0, b"", OutputEnd(1, "n1", 0, 4, 0))
    lines = [line async for line in OutputReader(memory_bus, "j1").stored()]
    assert (text(lines), [line.missing for line in lines if line.missing]) == (b"all\n", [])


async def test_what_is_nowhere_to_be_had_is_said_where_it_would_be(memory_bus: MemoryBus) -> None:
    await started(memory_bus)
    await memory_bus.write_output("j1", 0, b"begin\n", OutputOffset(OUT, 0))
    await memory_bus.write_output("j1", 0, b"end\n", OutputOffset(OUT, 100))
    await memory_bus.write_output("j1", 0, b"", OutputEnd(1, "n1", 0, 104, 0))
    lines = [line async for line in OutputReader(memory_bus, "j1").stored()]
    gone = "no executor of node n1 answers; it may be down, or gone for good"
    missing = f"missing here: 94 bytes of stdout of rank 0 in run 1: {gone}"
    assert [(line.data, line.missing) for line in lines] == [(b"begin\n", ""), (b"", missing), (b"end\n", "")]


async def test_the_end_of_output_most_of_which_is_nowhere_says_so_once(memory_bus: MemoryBus) -> None:
    await started(memory_bus)
    await memory_bus.write_output("j1", 0, b"end\n", OutputOffset(OUT, 10 * MOST_BYTES))
    await memory_bus.write_output("j1", 0, b"", OutputEnd(1, "n1", 0, 10 * MOST_BYTES + 4, 0))
    missing, end = await OutputReader(memory_bus, "j1").last(5)
    assert missing.missing.startswith(f"missing here: {10 * MOST_BYTES} bytes of stdout of rank 0 in run 1: ")
    assert end.data == b"end\n"


async def test_output_that_its_node_does_not_keep_any_more_is_said_to_be_gone(
    memory_bus: MemoryBus, tmp_path: Path
) -> None:
    async with node(memory_bus, tmp_path, TEXT) as path:
        for file in (path, *path.parents)[:2]:
            for name in ("stdout", "stderr"):
                (file / name).unlink(missing_ok=True)
            file.rmdir()
        lines = [line async for line in OutputReader(memory_bus, "j1").stored()]
    assert [line.missing for line in lines] == [
        "missing here: what more run 1 printed: node n1 does not keep it any more"
    ]


async def test_output_from_before_there_were_places_is_shown_as_it_is(memory_bus: MemoryBus) -> None:
    await started(memory_bus)
    await memory_bus.write_output("j1", 0, b"one\n")
    await memory_bus.write_output("j1", 0, b"one\n")
    lines = [line async for line in OutputReader(memory_bus, "j1").stored()]
    assert [(line.data, line.missing) for line in lines] == [(b"one\n", "")] * 2


async def test_who_follows_reads_from_the_node_what_is_not_streamed(memory_bus: MemoryBus, tmp_path: Path) -> None:
    async with node(memory_bus, tmp_path, b"") as path:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        following = aiter(OutputReader(memory_bus, "j1").follow(end))
        reading = asyncio.ensure_future(anext(following))
        await memory_bus.write_output("j1", 0, b"streamed\n", OutputOffset(OUT, 0))
        assert (await reading).data == b"streamed\n"
        with (path / "stdout").open("wb") as file:
            file.write(b"streamed\nnot streamed\n")
        reading = asyncio.ensure_future(anext(following))
        while not reading.done():
            grown = OutputGrown(channel=OUT, size=22)
            await memory_bus.publish(subjects.output_grown("j1"), msgspec.json.encode(grown))
            await memory_bus.publish(subjects.output_grown("j1"), b"of another version")
            await asyncio.wait([reading], timeout=0.01)
        assert reading.result().data == b"not streamed\n"
        with (path / "stdout").open("ab") as file:
            file.write(b"last\n")
        end.set_result(None)
        assert [line.data async for line in following] == [b"last\n"]


async def test_the_runs_of_a_job_are_read_in_order_from_several_nodes(memory_bus: MemoryBus, tmp_path: Path) -> None:
    async with (
        node(memory_bus, tmp_path / "n1", b"first run\n"),
        node(memory_bus, tmp_path / "n2", b"second run\n", node_id="n2", epoch=2),
    ):
        assert await whole(memory_bus) == b"first run\nsecond run\n"
