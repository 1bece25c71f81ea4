"""Output on its way to the log: how much, how fast, and what it costs the disk and the neighbours."""

import asyncio
import os
import re
from pathlib import Path

from executing import World, python
from hypothesis import given
from hypothesis import strategies as st

from penstock_events import RunWarned
from penstock_executor.output import KEPT_BYTES, PUNCH_BYTES, Limit, Tail

FLOOD = """
import os, sys, time
for burst in range(10):
    for _ in range(160):
        sys.stdout.write('x' * 65535 + chr(10))
    sys.stdout.flush()
    while os.fstat(1).st_blocks * 512 > 20 * 2**20:  # for ever, where what was published keeps its room on the disk
        time.sleep(0.01)
print('the end')
sys.exit(1)
"""


async def test_a_job_that_prints_100_mb_fills_neither_the_log_nor_the_disk_nor_slows_its_neighbour(
    world: World,
) -> None:
    await world.node(log_rate_bytes_per_s=64 * 1024, log_burst_bytes=256 * 1024)
    await world.run("flood", *python(FLOOD))
    await world.submit("quiet", "echo", "still here")
    await world.place("quiet", 1)
    used = asyncio.create_task(most_disk(world.folder / "n1/runs/flood/1/0/stdout"))
    await world.ended("quiet")
    ended = await world.ended("flood")
    assert ended.exit_code == 1
    assert await world.output("quiet") == b"still here\n"
    output = await world.output("flood")
    assert len(output) < 2 * 2**20
    assert output.endswith(b"the end\n")
    dropped = sum(int(found) for found in re.findall(rb"\[penstock: (\d+) bytes of output dropped", output))
    assert dropped + len(re.sub(rb"\[penstock: .*?\]\n", b"", output)) == 1600 * 65536 + len("the end\n")
    warned = [name for name in await world.facts("flood") if name == "RunWarned"]
    assert len(warned) == 1
    assert "prints more than 65536 bytes/s" in (await world.fact(RunWarned, "flood")).warning
    assert await used < 40 * 2**20


async def most_disk(path: Path) -> int:
    most = 0
    while not path.exists():  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.01)
    while path.exists():
        most = max(most, path.stat().st_blocks * 512)
        await asyncio.sleep(0.05)
    return most


def tail_of(path: Path, rate: int = 1000, burst: int = 10_000) -> Tail:
    return Tail(path, Limit(rate, burst))


def read(tail: Tail, now_s: float, final: bool = False) -> bytes:
    out = b""
    while (piece := tail.look(now_s, final)) is not None:
        out += piece.data
        tail.done(piece)
    return out


def test_whole_lines_are_published_and_the_last_one_when_the_process_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    tail = tail_of(path)
    assert read(tail, 0.0) == b""
    path.write_bytes(b"one\ntwo")
    first = tail.look(0.1)
    assert first is not None
    assert first.data == b"one\n"
    tail.done(first)
    with path.open("ab") as file:
        file.write(b" more\nthree")
    assert read(tail, 0.2, final=True) == b"two more\nthree"


def test_a_restarted_executor_goes_on_where_publishing_ended(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"one\n")
    assert read(tail_of(path), 0.0) == b"one\n"
    with path.open("ab") as file:
        file.write(b"two\n")
    assert read(tail_of(path), 0.0) == b"two\n"


def test_a_flood_is_cut_and_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    path.write_bytes(b"y" * 200_000 + b"\nValueError: the reason\n")
    out = read(tail_of(path), 0.0, final=True)
    assert out.startswith(b"[penstock: ")
    assert out.endswith(b"ValueError: the reason\n")
    assert len(out) < 11_000


def test_what_was_published_takes_no_room_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    tail = tail_of(path, burst=64 * PUNCH_BYTES)
    path.write_bytes(os.urandom(8 * PUNCH_BYTES))
    before = path.stat().st_blocks
    read(tail, 0.0, final=True)
    assert path.stat().st_size == 8 * PUNCH_BYTES
    assert path.stat().st_blocks <= before // 4


@given(st.lists(st.tuples(st.integers(0, 60_000), st.floats(0, 2)), max_size=20))
def test_every_byte_is_either_published_or_counted_as_dropped(pieces: list[tuple[int, float]]) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"penstock-output-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    path = folder / "stdout"
    path.write_bytes(b"")
    (folder / "stdout.read").unlink(missing_ok=True)
    tail = tail_of(path, rate=5_000, burst=20_000)
    now_s, out, written = 0.0, b"", 0
    for size, wait_s in pieces:
        with path.open("ab") as file:
            file.write(b"z" * size)
        written += size
        now_s += wait_s
        out += read(tail, now_s)
    out += read(tail, now_s, final=True)
    tail.close()
    assert len(re.sub(rb"\[penstock: .*?\]\n", b"", out)) + tail.dropped_bytes == written
    assert len(out) <= 20_000 + 5_000 * now_s + KEPT_BYTES + 200 * (len(pieces) + 1)
