"""Streams of sessions: chunks come once, in order, and nobody holds more than a window of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest

from penstock_executor.session_streams import ChunkRefused, IncomingStream, OutgoingStream
from penstock_log.session_messages import WINDOW, ChunkRead, ChunkTaken

PATIENCE_S = 30.0


async def test_chunks_come_in_order_whatever_order_they_are_asked_for_in() -> None:
    reader, writer = os.pipe()
    stream = OutgoingStream(reader, chunk_bytes=4)
    asked = [asyncio.ensure_future(stream.read(number, 0, PATIENCE_S)) for number in (1, 0, 2)]
    await asyncio.sleep(0)
    os.write(writer, b"aaaabbbb")
    os.close(writer)
    assert [found.data for found in await asyncio.gather(*asked)] == [b"bbbb", b"aaaa", b""]
    assert (await stream.read(2, 2)).last
    stream.close()


async def test_a_chunk_that_is_asked_for_again_is_the_same_until_it_has_come() -> None:
    reader, writer = os.pipe()
    stream = OutgoingStream(reader)
    os.write(writer, b"once")
    assert [(await stream.read(0, 0)).data for _ in range(2)] == [b"once", b"once"]
    os.write(writer, b"more")
    assert (await stream.read(1, 1)).data == b"more"
    with pytest.raises(ChunkRefused):
        await stream.read(0, 1)
    stream.close()
    os.close(writer)


async def test_what_nobody_asks_for_stays_in_the_pipe() -> None:
    reader, writer = os.pipe()
    stream = OutgoingStream(reader)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(65_536))
    with pytest.raises(ChunkRefused):
        await stream.read(WINDOW, 0)
    asked = [asyncio.ensure_future(stream.read(number, 0, PATIENCE_S)) for number in range(WINDOW)]
    assert (await asked[0]).data
    stream.close()  # who still waits hears the end
    assert all(found.data or found.last for found in await asyncio.gather(*asked))
    os.close(writer)


async def test_a_client_that_says_that_more_has_come_than_was_sent_is_given_no_larger_window() -> None:
    reader, writer = os.pipe()
    stream = OutgoingStream(reader)
    for number in range(WINDOW, 3 * WINDOW):
        with pytest.raises(ChunkRefused):
            await stream.read(number, number, wait_s=0.0)
    assert (await stream.read(WINDOW - 1, WINDOW - 1, wait_s=0.0)).again
    stream.close()
    os.close(writer)


async def test_nothing_within_the_time_is_an_answer_too_and_loses_nothing() -> None:
    reader, writer = os.pipe()
    stream = OutgoingStream(reader)
    assert await stream.read(0, 0, wait_s=0.0) == ChunkRead(again=True)
    os.write(writer, b"late")
    assert (await stream.read(0, 0, PATIENCE_S)).data == b"late"
    stream.close()
    os.close(writer)


async def test_chunks_are_written_in_order_and_once() -> None:
    reader, writer = os.pipe()
    stream = IncomingStream(writer, "pipe")
    second = asyncio.ensure_future(stream.write(1, b"two", last=True))
    await asyncio.sleep(0)
    assert await stream.write(0, b"one ") == ChunkTaken()
    assert await stream.write(0, b"one ") == ChunkTaken(closed=True)  # again: it was taken, and the end was too
    assert await second == ChunkTaken()
    assert os.read(reader, 100) == b"one two"
    assert os.read(reader, 100) == b""
    os.close(reader)


async def test_a_writer_waits_for_a_reader_that_is_slow() -> None:
    reader, writer = os.pipe()
    stream = IncomingStream(writer, "pipe")
    chunk = bytes(range(256)) * 512
    writing = [asyncio.ensure_future(stream.write(number, chunk, wait_s=PATIENCE_S)) for number in range(WINDOW)]
    with pytest.raises(ChunkRefused):
        await stream.write(WINDOW, b"too early")
    await asyncio.sleep(0)
    assert not any(one.done() for one in writing)
    taken = bytearray()
    os.set_blocking(reader, False)
    while len(taken) < WINDOW * len(chunk):
        with contextlib.suppress(BlockingIOError):
            taken += os.read(reader, 65_536)
        await asyncio.sleep(0)
    assert bytes(taken) == chunk * WINDOW
    assert await asyncio.gather(*writing) == [ChunkTaken()] * WINDOW
    stream.close()
    os.close(reader)


async def test_a_stream_that_nobody_reads_any_more_says_so() -> None:
    reader, writer = os.pipe()
    stream = IncomingStream(writer, "pipe")
    os.close(reader)
    assert (await stream.write(0, b"lost")).closed
    assert (await stream.write(5, b"lost")).closed


async def test_a_connection_is_closed_one_way_at_a_time() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        fd = ours.detach()
        down, up = OutgoingStream(os.dup(fd)), IncomingStream(fd, "connection")
        assert await up.write(0, b"question", last=True) == ChunkTaken()
        assert await loop.sock_recv(theirs, 100) == b"question"
        assert await loop.sock_recv(theirs, 100) == b""
        await loop.sock_sendall(theirs, b"answer")
        assert (await down.read(0, 0, PATIENCE_S)).data == b"answer"
    assert (await down.read(1, 1, PATIENCE_S)).last
    down.close()
    up.close()
