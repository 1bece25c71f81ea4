"""Output on the node: kept whole, streamed in pieces that say their place, handed out, and removed in the end."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest
from executor_cases import World, python
from hypothesis import given
from hypothesis import strategies as st

from penstock.output_reader import OutputReader
from penstock_bus import Request
from penstock_executor.output_store import LAST_BYTES, PIECE_BYTES, OutputStore, OutputTail
from penstock_executor.run_folders import last_line
from penstock_log import RunWarned
from penstock_log.request_bodies import OutputAnswer, OutputChannel, OutputOffset, OutputRequest

CHANNEL = OutputChannel(1, "n1", 0, "stdout")
BOTH = """
import sys
for i in range(20_000):
    print('line', i)
    if i % 10_000 == 0:
        sys.stdout.flush()
        print('error', i, file=sys.stderr)
sys.stdout.flush()
sys.stdout.buffer.write(bytes(range(256)) * 2_000)
sys.stdout.write('no end of line')
"""
PRINTED = b"".join(b"line %d\n" % i for i in range(20_000)) + bytes(range(256)) * 2_000 + b"no end of line"
FLOOD = """
import sys
for i in range(64):
    sys.stdout.write('x' * 65_535 + chr(10))
print('the end')
sys.exit(1)
"""


async def whole(world: World, job_id: str, stream: str = "stdout") -> bytes:
    """Return all that a job has printed, from wherever it is."""
    lines = [line async for line in OutputReader(world.bus, job_id).stored()]
    assert not [line.missing for line in lines if line.missing]
    return b"".join(
        line.data for line in lines if isinstance(line.place, OutputOffset) and line.place.channel.stream == stream
    )


@pytest.mark.parametrize("streamed_bytes", [0, 100_000, 1 << 26])
async def test_what_a_job_prints_at_once_is_read_whole_however_little_of_it_is_streamed(
    world: World, streamed_bytes: int
) -> None:
    await world.node(output_stream_bytes=streamed_bytes)
    await world.run("j1", *python(BOTH))
    assert (await world.ended("j1")).outcome == "completed"
    assert await whole(world, "j1") == PRINTED
    assert await whole(world, "j1", "stderr") == b"error 0\nerror 10000\n"
    assert len(await world.output("j1")) <= max(streamed_bytes, len(PRINTED)) + LAST_BYTES + 100
    assert await world.facts("j1") == ["RunStarted", "RunEnded"]


async def test_over_the_limit_the_end_is_kept_and_what_is_dropped_is_said_on_lines_of_their_own(world: World) -> None:
    await world.node(output_bytes=1_000_000)
    await world.run("flood", *python(FLOOD))
    await world.submit("quiet", "echo", "still here")
    await world.place("quiet", 1)
    await world.ended("quiet")
    assert (await world.ended("flood")).exit_code == 1
    assert await whole(world, "quiet") == b"still here\n"
    output = (await whole(world, "flood")).splitlines()
    first, *dropped = [line for line in output if line.startswith(b"[penstock: ")]
    assert first == b"[penstock: the limit of 1000000 bytes is reached; of more, the end is kept]"
    assert dropped == [
        b"[penstock: %d bytes dropped: over the limit of 1000000 bytes]" % (64 * 65_536 + 8 - 1_000_000 - 8 * 1024)
    ]
    assert output[-1] == b"the end"
    assert set(b"".join(output[:15])) == {ord("x")}
    warning = (await world.fact(RunWarned, "flood")).warning
    assert warning.startswith("rank 0's stdout has more than 1000000 bytes; the excess is dropped")


async def test_output_is_read_after_the_run_and_the_executor_have_gone_and_a_new_executor_has_come(
    world: World,
) -> None:
    node = await world.node(output_stream_bytes=1000)
    await world.run("j1", *python(BOTH))
    await world.ended("j1")
    await node.kill()
    await node.start()
    assert await whole(world, "j1") == PRINTED


async def test_the_output_of_a_preempted_and_resumed_job_is_read_in_the_order_of_its_runs(world: World) -> None:
    await world.node("n1", output_stream_bytes=1000)
    await world.node("n2", output_stream_bytes=1000)
    code = "epoch = os.environ['PENSTOCK_EPOCH']; print(epoch * 50_000, flush=True); time.sleep(600 * (epoch == '1'))"
    await world.run("j1", *python(f"import os, time; {code}"))
    await world.says("j1", "1")
    await world.preempt("j1")
    await world.ended("j1")
    await world.place("j1", epoch=2, node_id="n2")
    await world.ended("j1", epoch=2, node_id="n2")
    assert await whole(world, "j1") == b"1" * 50_000 + b"\n" + b"2" * 50_000 + b"\n"
    last = await OutputReader(world.bus, "j1").last(1)
    assert b"".join(line.data for line in last).endswith(b"1\n" + b"2" * 50_000 + b"\n")


def tail_of(folder: Path, most_bytes: int = 1 << 30) -> OutputTail:
    return OutputTail(folder / "stdout", folder / "stdout.read", CHANNEL, most_bytes)


def read(tail: OutputTail, final: bool = False) -> list[tuple[int, bytes]]:
    out = []
    while (piece := tail.look(final)) is not None:
        assert piece.place.channel == CHANNEL
        out.append((piece.place.offset, piece.data))
        tail.done(piece)
    return out


def test_whole_lines_are_published_and_the_last_one_when_the_process_has_ended(tmp_path: Path) -> None:
    path, tail = tmp_path / "stdout", tail_of(tmp_path)
    assert read(tail) == []
    path.write_bytes(b"one\ntwo")
    assert read(tail)[0] == (0, b"one\n")
    with path.open("ab") as file:
        file.write(b" more\nthree")
    assert b"".join(data for _, data in read(tail, final=True)).endswith(b" more\nthree")
    tail.close()


def test_a_restarted_executor_goes_on_where_publishing_ended(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"one\n")
    assert read(tail_of(tmp_path)) == [(0, b"one\n")]
    with path.open("ab") as file:
        file.write(b"two\n")
    assert read(tail_of(tmp_path)) == [(4, b"two\n")]


@given(
    st.lists(st.binary(max_size=40).map(lambda data: data * 5_000), max_size=6),
    st.sampled_from([0, 1000, 3 * PIECE_BYTES, 1 << 30]),
)
def test_of_a_file_the_beginning_and_the_end_are_published_once_and_in_order(
    printed: list[bytes], most_bytes: int
) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"penstock-output-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    (folder / "stdout").write_bytes(b"")
    (folder / "stdout.read").unlink(missing_ok=True)
    tail, pieces = tail_of(folder, most_bytes), []
    for data in printed:
        with (folder / "stdout").open("ab") as file:
            file.write(data)
        pieces += read(tail)
    pieces += read(tail, final=True)
    tail.close()
    whole, at, gaps = b"".join(printed), 0, 0
    for offset, data in pieces:
        gaps += offset > at
        assert offset >= at
        assert data == whole[offset : offset + len(data)]
        at = offset + len(data)
    assert at == len(whole)
    assert gaps <= (len(whole) > most_bytes + LAST_BYTES)


# --- handing out and removing


async def answered(store: OutputStore, ask: OutputRequest) -> OutputAnswer:
    reply = await store.answer(Request(body=msgspec.json.encode(ask)))
    assert not reply.code, reply.error
    return msgspec.msgpack.decode(reply.body, type=OutputAnswer)


async def test_a_node_says_which_channels_it_has_and_hands_them_out_in_pieces(tmp_path: Path) -> None:
    store = OutputStore(tmp_path / "output", "n1")
    (store.create(("j1", 1), 0) / "stdout").write_bytes(b"0123456789")
    sizes = (await answered(store, OutputRequest(job_id="j1"))).sizes
    assert sizes == [(OutputChannel(1, "n1", 0, "stderr"), 0), (CHANNEL, 10)]
    piece = await answered(store, OutputRequest(job_id="j1", epoch=1, offset=4, most_bytes=3))
    assert (piece.data, piece.sizes) == (b"456", [(CHANNEL, 10)])
    assert (await answered(store, OutputRequest(job_id="j1", epoch=1, offset=10))).data == b""
    assert (await answered(store, OutputRequest(job_id="j2"))).sizes == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"job_id": "../j1"}', 400),
        (b'{"job_id": "."}', 400),
        (b'{"job_id": "j1", "epoch": 1, "stream": "../../secret"}', 400),
        (b'{"job_id": "j1", "epoch": 99999999999999999999999999}', 400),
        (b'{"job_id": "j1", "epoch": 7}', 404),
        (b"not json", 400),
        (b"", 400),
    ],
)
async def test_what_is_no_question_about_output_is_refused(tmp_path: Path, body: bytes, code: int) -> None:
    store = OutputStore(tmp_path / "output", "n1")
    (tmp_path / "secret").write_text("x")
    store.create(("j1", 1), 0)
    assert (await store.answer(Request(body=body))).code == code


@pytest.mark.parametrize("kind", ["link", "pipe", "socket", "folder"])
async def test_what_a_job_has_put_in_place_of_its_output_is_not_read_nor_waited_for(tmp_path: Path, kind: str) -> None:
    store = OutputStore(tmp_path / "output", "n1")
    (tmp_path / "secret").write_text("x")
    path = store.create(("j1", 1), 0) / "stderr"
    if kind == "link":
        path.symlink_to(tmp_path / "secret")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    ask = b'{"job_id": "j1", "epoch": 1, "rank": 0, "stream": "stderr"}'
    assert (await store.answer(Request(body=ask))).code == 404
    tail = OutputTail(path, tmp_path / "mark", OutputChannel(1, "n1", 0, "stderr"), 1000)
    assert (tail.look(), tail.size) == (None, 0)
    assert last_line(path) == ""


def test_output_is_kept_until_it_is_old_or_too_much_and_that_of_living_runs_in_any_case(tmp_path: Path) -> None:
    store = OutputStore(tmp_path / "output", "n1")
    for number, job_id in enumerate(("old", "older", "new", "lives")):
        path = store.create((job_id, 1), 0)
        (path / "stdout").write_bytes(b"x" * 100_000)
        at_s = {"old": 2_000, "older": 1_000, "new": 9_000, "lives": 500}[job_id]
        for each in (path / "stdout", path, path.parent, path.parent.parent):
            os.utime(each, (at_s + number, at_s + number))
    assert store.expire(10_000.0, {"lives"}, age_s=8_500.0, most_bytes=1 << 30) == ["older"]
    assert store.expire(10_000.0, {"lives"}, age_s=99_000.0, most_bytes=250_000) == ["old"]
    assert sorted(path.name for path in store.folder.iterdir()) == ["lives", "new"]


async def test_output_checkpoints_and_run_folders_are_open_to_the_executors_user_alone(world: World) -> None:
    await world.node(checkpoint_dir="")
    await world.run("j1", *python("print('up', flush=True); import time; time.sleep(600)"))
    await world.says("j1", "up")
    data = world.folder / "n1"
    for path in (data / "output", data / "runs", data / "checkpoints"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert (data / "output/j1/1/0/stdout").stat().st_mode & 0o077 == 0
    await world.cancel("j1")


UNFLUSHED = """
import json, os, socket, sys
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["PENSTOCK_SOCKET"])
def say(kind, **fields):
    agent.sendall(json.dumps({"type": kind, **fields}).encode() + b"\\n")
say("hello", version=1, job_id=os.environ["PENSTOCK_JOB_ID"], epoch=1, rank=0, pid=os.getpid())
if sys.argv[1] == "done":
    say("done", step=40, loop_steps=40, loop_s=1.0)
os._exit(int(sys.argv[2]))
"""
"""Leaves as Python does when it cannot flush its standard output."""


@pytest.mark.parametrize(
    ("said", "code", "expected"),
    [
        ("done", 120, ("completed", 0, 40)),
        ("nothing", 120, ("failed", 120, 0)),
        ("done", 1, ("failed", 1, 40)),
    ],
)
async def test_a_job_that_had_done_all_and_could_not_flush_its_output_is_completed(
    world: World, said: str, code: int, expected: tuple[str, int, int]
) -> None:
    await world.node()
    await world.run("j1", *python(UNFLUSHED, said, str(code)))
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code, ended.steps) == expected
    warned = "RunWarned" in await world.facts("j1")
    assert warned == (expected == ("completed", 0, 40))
