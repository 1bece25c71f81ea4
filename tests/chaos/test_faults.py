"""What the suite does to disks and networks is what it says it does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import permutations
from pathlib import Path

import pytest

from chaos import disk, server_clock
from chaos.disk import LoopDisk
from chaos.proxy import RouteProxies, TcpProxy
from chaos.server_clock import ProcessClock

WITHIN_S = 10.0
A_WHILE_S = 0.2
"""How long it is looked whether nothing comes."""
Route = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def loop_disk(tmp_path: Path) -> Iterator[LoopDisk]:
    if why := disk.problem(tmp_path):
        pytest.skip(f"no disk can be mounted here: {why}")
    made = LoopDisk(tmp_path)
    yield made
    made.remove()


def written(path: Path, text: str, *, flushed: bool) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        if flushed:
            os.fsync(file.fileno())


@pytest.mark.slow
def test_a_power_cut_loses_what_was_not_flushed_and_nothing_else(loop_disk: LoopDisk) -> None:
    written(loop_disk.folder / "flushed", "here", flushed=True)
    written(loop_disk.folder / "unflushed", "gone", flushed=False)
    loop_disk.cut_power()
    written(loop_disk.folder / "late", "gone", flushed=True)
    loop_disk.restore_power()
    assert {path.name: path.read_text() for path in loop_disk.folder.iterdir() if path.is_file()} in (
        {"flushed": "here"},
        {"flushed": "here", "unflushed": ""},
    )


@pytest.mark.slow
def test_a_full_disk_takes_nothing_until_there_is_room(loop_disk: LoopDisk) -> None:
    loop_disk.fill()
    with pytest.raises(OSError, match="No space left"):
        written(loop_disk.folder / "a", "x" * 100_000, flushed=True)
    loop_disk.make_room()
    written(loop_disk.folder / "a", "x" * 100_000, flushed=True)


@pytest.mark.slow
async def test_a_frozen_disk_lets_writers_wait(loop_disk: LoopDisk) -> None:
    freezing = asyncio.ensure_future(asyncio.to_thread(loop_disk.freeze, A_WHILE_S))
    longest_s, clock = 0.0, asyncio.get_running_loop().time
    async with asyncio.timeout(WITHIN_S):
        while not freezing.done():
            began_s = clock()
            await asyncio.to_thread(written, loop_disk.folder / "a", "x", flushed=True)
            longest_s = max(longest_s, clock() - began_s)
    assert longest_s > A_WHILE_S / 2


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[TcpProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect through a proxy to somebody who sends back what he hears."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        proxy = TcpProxy(*server.sockets[0].getsockname())
        await proxy.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        writer.write(b"1")
        assert await reader.readexactly(1) == b"1"
        yield proxy, reader, writer
        writer.close()
        await proxy.stop()


@pytest.mark.parametrize("mode", ["stall", "half", "mute"])
async def test_what_a_stalled_network_holds_back_arrives_when_it_is_mended(mode: str) -> None:
    async with echo() as (proxy, reader, writer), asyncio.timeout(WITHIN_S):
        proxy.cut(mode)
        writer.write(b"2")
        reading = asyncio.ensure_future(reader.readexactly(1))
        done, _ = await asyncio.wait([reading], timeout=A_WHILE_S)
        assert not done
        proxy.mend()
        assert await reading == b"2"


@pytest.mark.parametrize("mode", ["refuse", "blackhole"])
async def test_what_was_cut_off_never_arrives_and_the_connection_is_gone(mode: str) -> None:
    async with echo() as (proxy, reader, writer), asyncio.timeout(WITHIN_S):
        proxy.cut(mode)
        writer.write(b"2")
        proxy.mend()
        try:
            assert await reader.read(1) == b""
        except ConnectionResetError:
            return


async def test_a_delayed_network_takes_its_time_and_loses_nothing() -> None:
    async with echo() as (proxy, reader, writer), asyncio.timeout(WITHIN_S):
        began_s = asyncio.get_running_loop().time()
        proxy.cut("delay", A_WHILE_S)
        writer.write(b"23")
        assert await reader.readexactly(2) == b"23"
        assert asyncio.get_running_loop().time() - began_s >= 2 * A_WHILE_S


@asynccontextmanager
async def three_that_listen() -> AsyncIterator[tuple[RouteProxies, dict[tuple[int, int], Route]]]:
    """Connect each of three members of a cluster with the two others, as servers do with their routes."""
    routes, ends = RouteProxies(3), dict[tuple[int, int], Route]()
    async with AsyncExitStack() as stack, asyncio.timeout(WITHIN_S):
        accepted = asyncio.Queue[Route]()
        for member in routes.members:
            host, _, port = member.listen.partition(":")
            taking = await asyncio.start_server(lambda *end: accepted.put_nowait(end), host, int(port))
            await stack.enter_async_context(taking)
        await routes.start()
        stack.push_async_callback(routes.stop)
        for one, other in permutations(routes.members, 2):
            if one.number < other.number:
                continue
            place = one.others[[to for to in (1, 2, 3) if to != one.number].index(other.number)]
            ends[one.number, other.number] = await asyncio.open_connection(*place.split(":"))
            ends[other.number, -one.number] = await accepted.get()
        yield routes, ends
        for _, writer in ends.values():
            writer.close()


async def heard(ends: dict[tuple[int, int], Route]) -> set[tuple[int, int]]:
    """Let everybody speak to everybody, on routes of either's making; return who was heard by whom in a while."""
    for _, writer in ends.values():
        writer.write(b"1")

    async def listens(end: Route) -> bool:
        try:
            async with asyncio.timeout(A_WHILE_S):
                return bool(await end[0].read(100))
        except TimeoutError:
            return False

    found = await asyncio.gather(*map(listens, ends.values()))
    return {(abs(to), by) for (by, to), got in zip(ends, found, strict=True) if got}


@pytest.mark.parametrize(
    ("mode", "lost"),
    [("stall", {(1, 2), (2, 1), (3, 2), (2, 3)}), ("half", {(1, 2), (3, 2)}), ("mute", {(2, 1), (2, 3)})],
)
async def test_an_isolated_server_does_not_hear_the_others_or_is_not_heard_and_those_hear_each_other(
    mode: str, lost: set[tuple[int, int]]
) -> None:
    everybody = set(permutations((1, 2, 3), 2))
    async with three_that_listen() as (routes, ends):
        routes.isolate(2, mode)
        assert await heard(ends) == everybody - lost
        routes.mend(2)
        assert await heard(ends) == everybody


TELLING = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"


@pytest.mark.slow
@pytest.mark.skipif(bool(why := server_clock.problem()), reason=why)
def test_the_clock_of_a_process_that_asks_the_kernel_is_set_and_what_ticks_is_left_alone() -> None:
    command = [sys.executable, "-I", "-S", "-c", TELLING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def told() -> tuple[float, float]:
            """Return the time of day in seconds of what ticks, and what ticks."""
            process.stdin.write("\n")
            day_s, ticks_s = map(float, process.stdout.readline().split())
            return day_s - ticks_s, ticks_s

        before_s, last_s = told()
        clock = ProcessClock(process.pid)
        for by_s in (0.0, 86400.0, -3600.0):
            clock.set(by_s)
            ahead_s, ticks_s = told()
            assert round(ahead_s - before_s) == by_s
            assert 0 <= ticks_s - last_s < 1800
        process.stdin.close()
        assert process.wait() == 0
        clock.set(0.0)  # which nobody notices
        clock.close()
