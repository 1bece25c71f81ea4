"""What an aggregator refuses, by raw sockets: named to who asked, counted, and never summed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from aggregator_harness import LOCAL, AggregatedRun, aggregated

from penstock.aggregation.aggregator_connection import dial
from penstock.aggregation.frames import (
    HEADER_BYTES,
    JOINED,
    MAGIC,
    PAUSED,
    SHARED_AT,
    PartFlag,
    PartFrame,
    PartFrameError,
    PartRequest,
    PartStatus,
    decoded,
    encoded,
)
from penstock.aggregation.shared_vectors import SharedVectors
from penstock.leased_connection import LEASE_BYTES, receive
from penstock_aggregator.process import MOST_OF_RANK
from penstock_log.aggregation_messages import COPY_RANK, CloseRun, DropPart, OpenPart, UpdateRule, VectorLayout

LAYOUT = VectorLayout(dtype="f4", parts=(4, 6))
ONES = np.ones(4, "f4").tobytes()


class Answer(NamedTuple):
    status: PartStatus
    frame: PartFrame
    payload: bytes

    @property
    def reason(self) -> str:
        return self.payload.decode()


class RawRank:
    """A rank that says whatever a test wants."""

    def __init__(self, run: AggregatedRun, rank: int, **address: str) -> None:
        self.socket = dial(msgspec.structs.replace(run.lease("n1/0", rank), **address))
        self.socket.settimeout(20)

    def ask(self, kind: int, payload: bytes = b"", **fields: int) -> None:
        self.send(PartFrame(kind, **{"generation": 1, "dtype": 4, "length": len(payload), **fields}), payload)

    def send(self, frame: PartFrame, payload: bytes = b"") -> None:
        self.socket.sendall(encoded(frame) + payload)

    def answer(self) -> Answer:
        header = memoryview(bytearray(HEADER_BYTES))
        receive(self.socket, header)
        frame = decoded(header)
        payload = bytearray(frame.length)
        receive(self.socket, memoryview(payload))
        return Answer(PartStatus(frame.status), frame, bytes(payload))

    def join(self, part: int = 0, step: int = 0) -> None:
        self.ask(PartRequest.JOIN, JOINED.pack(step + 1, 0), part=part, step=step)

    def push(self, payload: bytes = ONES, **fields: int) -> None:
        self.ask(PartRequest.PUSH, payload, **{"step": 1, **fields})

    def pull(self, **fields: int) -> None:
        self.ask(PartRequest.PULL, **{"step": 1, **fields})

    def is_over(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


class Pair:
    """Two ranks that have joined part 0, and what came of it in the end."""

    def __init__(self, run: AggregatedRun) -> None:
        self.run = run
        self.process = run.processes["n1/0"]
        self.ranks = [RawRank(run, rank) for rank in range(2)]
        for rank in self.ranks:
            rank.join()
        for rank in self.ranks:
            assert rank.answer().status == PartStatus.OK

    def refused(self) -> dict[str, int]:
        return self.process.ping().refused

    def step_is_good(self, step: int = 1) -> None:
        """Both push ones, and get ones: nothing else was summed."""
        ranks = [RawRank(self.run, rank) for rank in range(2)]
        for rank in ranks:
            rank.push(step=step)
            rank.pull(step=step)
        for rank in ranks:
            answer = rank.answer()
            if answer.status == PartStatus.COUNTED:
                answer = rank.answer()
            assert (answer.status, answer.payload) == (PartStatus.OK, ONES)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with aggregated(tmp_path, LAYOUT, 2, shared=True) as run:
        yield Pair(run)


@pytest.mark.parametrize(
    ("fields", "payload", "status", "said"),
    [
        ({"generation": 2}, ONES, "STALE", "part 0 is here since generation 1, not 2"),
        ({"generation": 0}, ONES, "STALE", "not 0"),
        ({"part": 7}, ONES, "UNKNOWN_PART", "part 7 of run j1/1 is not here"),
        ({}, ONES[:-4], "WRONG_SHAPE", "part 0 has 16 bytes, and this push 12"),
        ({}, ONES + ONES, "WRONG_SHAPE", "and this push 32"),
        ({}, b"", "WRONG_SHAPE", "and this push 0"),
        ({"dtype": 8}, ONES, "WRONG_TYPE", "the run's elements have 4 bytes, and these 8"),
        ({"dtype": 0}, ONES, "WRONG_TYPE", "and these 0"),
        ({"step": 2}, ONES, "TOO_EARLY", "step 1 comes before step 2"),
        ({"step": 2**63}, ONES, "TOO_EARLY", "step 1 comes before"),
        ({"step": 0}, ONES, "COUNTED", "step 0 was counted"),
        ({"flags": PartFlag.SHARED}, SHARED_AT.pack(0), "BAD_FRAME", "no memory is shared"),
        ({"part": 1, "step": 1}, np.ones(6, "f4").tobytes(), "TOO_EARLY", "not all ranks have joined"),
    ],
)
def test_a_push_that_is_not_right_is_refused_by_name_and_not_summed(
    pair: Pair, fields: dict[str, int], payload: bytes, status: str, said: str
) -> None:
    pair.ranks[0].push(payload, **fields)
    answer = pair.ranks[0].answer()
    assert (answer.status.name, said in answer.reason) == (status, True), answer.reason
    assert pair.refused() == {status: 1}
    pair.step_is_good()


def test_after_a_refused_frame_the_next_one_counts(pair: Pair) -> None:
    pair.ranks[0].push(ONES * 1000)
    pair.ranks[0].push()
    assert pair.ranks[0].answer().status == PartStatus.WRONG_SHAPE
    pair.ranks[1].push(np.full(4, 3, "f4").tobytes())
    pair.ranks[0].pull()
    assert pair.ranks[0].answer().payload == np.full(4, 2, "f4").tobytes()


def test_a_push_counts_once_however_often_it_comes(pair: Pair) -> None:
    first, second = pair.ranks
    first.push()
    first.push()
    assert (first.answer().status, pair.refused()) == (PartStatus.COUNTED, {"COUNTED": 1})
    again = RawRank(pair.run, 0)
    again.push(np.full(4, 50, "f4").tobytes())
    assert again.answer().status == PartStatus.COUNTED
    second.push()
    second.push()
    assert second.answer().status == PartStatus.COUNTED
    second.pull()
    assert second.answer().payload == ONES
    first.push()
    assert first.answer().status == PartStatus.COUNTED


def test_pulls_that_are_not_right_are_refused_by_name(pair: Pair) -> None:
    rank = pair.ranks[0]
    rank.pull(step=3)
    assert rank.answer().status == PartStatus.TOO_EARLY
    rank.pull(step=0)
    assert rank.answer().status == PartStatus.NOT_KEPT
    rank.ask(PartRequest.PULL, b"12345678", step=1)
    assert rank.answer().status == PartStatus.WRONG_SHAPE
    rank.pull(step=1)
    rank.pull(step=1)
    assert rank.answer().status == PartStatus.COUNTED
    pair.step_is_good()
    pair.step_is_good(2)
    late = RawRank(pair.run, 0)
    late.pull(step=1)
    assert late.answer().status == PartStatus.COUNTED


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (PartFrame(PartRequest.PUSH, generation=1, step=1, dtype=4, length=1 << 30), "TOO_LONG"),
        (PartFrame(PartRequest.COPY, generation=1, step=1, dtype=4, length=16), "BAD_FRAME"),
        (PartFrame(PartRequest.HELLO), "BAD_FRAME"),
        (PartFrame(99), "BAD_FRAME"),
        (PartFrame(PartRequest.SHARE), "BAD_FRAME"),
    ],
)
def test_what_is_no_request_of_a_rank_ends_the_connection(pair: Pair, frame: PartFrame, status: str) -> None:
    pair.ranks[0].send(frame)
    assert pair.ranks[0].answer().status.name == status
    assert pair.ranks[0].is_over()
    assert pair.refused() == {status: 1}
    pair.step_is_good()


@pytest.mark.parametrize("at", range(0, HEADER_BYTES, 5))
def test_a_damaged_header_ends_the_connection(pair: Pair, at: int) -> None:
    header = bytearray(encoded(PartFrame(PartRequest.PUSH, generation=1, step=1, dtype=4, length=16)))
    header[at] ^= 0x40
    pair.ranks[0].socket.sendall(bytes(header) + ONES)
    assert pair.ranks[0].answer().status == PartStatus.BAD_FRAME
    assert pair.ranks[0].is_over()
    pair.step_is_good()


@pytest.mark.parametrize("length", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 15])
def test_half_a_push_counts_nothing(pair: Pair, length: int) -> None:
    push = encoded(PartFrame(PartRequest.PUSH, generation=1, step=1, dtype=4, length=16)) + ONES
    pair.ranks[0].socket.sendall(push[:length])
    pair.ranks[0].socket.shutdown(socket.SHUT_WR)
    assert pair.ranks[0].is_over()
    assert pair.refused() == {"HALF_FRAME": 1}
    pair.step_is_good()


def test_a_wrong_token_and_an_unknown_lease_are_refused_alike(pair: Pair) -> None:
    for change in ({"token": "00" * 32}, {"lease": "00" * LEASE_BYTES}):
        with pytest.raises(PartFrameError) as error:
            RawRank(pair.run, 0, **change)
        assert error.value.status == PartStatus.BAD_PROOF
    assert pair.refused() == {"BAD_PROOF": 2}


def test_who_speaks_another_protocol_is_told_so(pair: Pair) -> None:
    with socket.create_connection((LOCAL, pair.process.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * LEASE_BYTES)
        rest = b""
        while chunk := stranger.recv(4096):
            rest += chunk
    assert str(MAGIC).encode() in rest
    assert pair.refused() == {"BAD_FRAME": 1}


def test_a_rank_of_another_run_has_none_of_its_parts(pair: Pair, tmp_path: Path) -> None:
    run = pair.run
    run.job_id = "j2"
    stranger = RawRank(run, 0)
    run.job_id = "j1"
    stranger.push()
    answer = stranger.answer()
    assert (answer.status, answer.reason) == (PartStatus.UNKNOWN_PART, "part 0 of run j2/1 is not here")
    pair.step_is_good()


def test_a_dropped_part_and_a_closed_run_say_so_to_who_waits(pair: Pair) -> None:
    first, second = pair.ranks
    first.push()
    first.pull()
    pair.process.order(DropPart(job_id="j1", epoch=1, part=0, generation=2))
    pair.process.order(DropPart(job_id="j1", epoch=1, part=0, generation=1))
    assert first.answer().status == PartStatus.UNKNOWN_PART
    second.join(part=1)
    pair.process.order(CloseRun(job_id="j1", epoch=1, reason="the job has ended"))
    answer = second.answer()
    assert (answer.status, answer.reason) == (PartStatus.RUN_OVER, "the job has ended")
    second.push()
    assert second.answer().status == PartStatus.RUN_OVER


def test_a_part_that_is_opened_anew_refuses_the_generation_before(pair: Pair) -> None:
    first = pair.ranks[0]
    first.push()
    first.pull()
    pair.process.order(
        OpenPart(
            job_id="j1",
            epoch=1,
            part=0,
            generation=5,
            elements=4,
            dtype="f4",
            world_size=2,
            rule=UpdateRule(),
            how="join",
        )
    )
    assert first.answer().status == PartStatus.STALE
    first.push()
    assert first.answer().status == PartStatus.STALE


# --- shared memory


def share(rank: RawRank, descriptor: int) -> None:
    socket.send_fds(rank.socket, [encoded(PartFrame(PartRequest.SHARE))], [descriptor])


def test_memory_that_could_be_cut_off_is_refused(pair: Pair) -> None:
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    share(pair.ranks[0], descriptor)
    os.close(descriptor)
    answer = pair.ranks[0].answer()
    assert (answer.status, "F_SEAL_SHRINK" in answer.reason) == (PartStatus.BAD_FRAME, True)
    pair.step_is_good()


@pytest.mark.parametrize("at", [1 << 40, 2, 2**64 - 8])
def test_a_place_outside_of_the_shared_memory_is_refused(pair: Pair, at: int) -> None:
    memory = SharedVectors(4, "f4", 2)
    rank = pair.ranks[0]
    share(rank, memory.descriptor)
    assert rank.answer().status == PartStatus.OK
    rank.push(SHARED_AT.pack(at), flags=PartFlag.SHARED)
    answer = rank.answer()
    assert (answer.status, "are not elements within" in answer.reason) == (PartStatus.WRONG_SHAPE, True)
    memory.close()
    pair.step_is_good()


# --- copies


def test_a_copy_comes_from_an_aggregator_only_and_once(pair: Pair) -> None:
    process, run = pair.process, pair.run
    at = run.at[1]
    process.order(
        OpenPart(
            job_id="j1",
            epoch=1,
            part=1,
            generation=3,
            elements=6,
            dtype="f4",
            world_size=2,
            rule=UpdateRule(),
            how="copy",
        )
    )
    assert at.part == 1
    sender = RawRank(run, COPY_RANK)
    values = np.arange(6, dtype="f4").tobytes()
    copy = {"part": 1, "generation": 3, "step": 8, "safe_step": 7}
    sender.ask(PartRequest.COPY, PAUSED.pack(0) + values[:-4], **copy)
    assert sender.answer().status == PartStatus.WRONG_SHAPE
    half = RawRank(run, COPY_RANK)
    half.ask(PartRequest.COPY, PAUSED.pack(0) + values[:-4], **{**copy, "length": PAUSED.size + 24})
    half.socket.close()
    sender.ask(PartRequest.COPY, PAUSED.pack(0) + values, **copy)
    assert sender.answer().status == PartStatus.OK
    sender.ask(PartRequest.COPY, PAUSED.pack(0) + values, **copy)
    assert sender.answer().status == PartStatus.COUNTED
    rank = RawRank(run, 1)
    rank.ask(PartRequest.PULL, part=1, generation=3, step=8)
    assert rank.answer().payload == values
    sender.ask(PartRequest.PUSH, values, part=1, generation=3, step=9)
    assert sender.answer().status == PartStatus.BAD_FRAME


def test_a_rank_has_only_so_many_connections(pair: Pair) -> None:
    ranks = [RawRank(pair.run, 0) for _ in range(MOST_OF_RANK - 1)]
    with pytest.raises(PartFrameError, match="there are 32 connections of rank 0"):
        RawRank(pair.run, 0)
    for rank in ranks:
        rank.socket.close()
    pair.step_is_good()
