"""A node's memory goes to its jobs first: one that declares host memory has a donor's slabs taken back, live."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from clusters import Cluster, until

from penstock.memory.block_store import BlockStore
from penstock_log import JobSpec
from penstock_memory.pressure import host_memory
from penstock_testing import eventually

MIB = 1 << 20
SLABS = 6
YIELDS_S = 2.0
BUSY_S = 3.0
"""What a busy machine may add to it."""


class ReadingClient:
    """A store whose blocks say which they are, read on and on until it is closed; ``wrong`` counts what is not so."""

    def __init__(self, socket: Path) -> None:
        self.store = BlockStore(SLABS * MIB, socket=str(socket), local_bytes=0)
        self.words = np.arange(SLABS * MIB // 8)
        self.checked_bytes = self.wrong = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read_on)

    def __enter__(self) -> ReadingClient:
        self.store.write(0, self.words.view("u1").data)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self.store.close()

    def _read_on(self) -> None:
        found = np.empty(16_384, np.int64)
        while not self._ending.wait(0.01):
            for begin in range(0, len(self.words), len(found)):
                self.store.read_into(8 * begin, found.view("u1").data)
                self.checked_bytes += found.nbytes
                self.wrong += int((found != self.words[begin : begin + len(found)]).sum())


@pytest.mark.thorough
async def test_a_job_that_declares_host_memory_has_the_slabs_of_its_node_taken_back_within_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = host_memory().available_bytes // MIB
    monkeypatch.setenv("PENSTOCK_MEMORY_SLAB_BYTES", str(MIB))
    monkeypatch.setenv("PENSTOCK_MEMORY_MOST_LENT_BYTES", str(2 * SLABS * MIB))
    monkeypatch.setenv("PENSTOCK_MEMORY_HEADROOM_BYTES", str(available // 2 * MIB))
    cluster = Cluster(tmp_path / "data", "--emulate", "fast:1@1.0:4GiB")
    try:
        await asyncio.to_thread(cluster.up)
        with ReadingClient(cluster.data / "memory" / "memory.sock") as reading:
            await eventually(lambda: reading.store.stats().bound == SLABS, why="all is borrowed")
            async with cluster.client() as client:
                command = (sys.executable, "-c", "import time; time.sleep(60)")
                need = available * 3 // 4 * MIB
                large = JobSpec(id="large", name="large", command=command, profile="off", host_memory_bytes=need)
                await client.submit(large)
                loop = asyncio.get_running_loop()
                begun_s = loop.time()
                await eventually(lambda: not reading.store.stats().bound, why="the slabs go", within_s=30)
                taken_s = loop.time() - begun_s
                assert reading.store.stats().evicted == SLABS
                assert taken_s < YIELDS_S + BUSY_S, f"evicted {taken_s:.2f} s after the job was accepted"
                await until(client, "large", "run.started.v1")
            await eventually(lambda: reading.checked_bytes > 4 * SLABS * MIB)
            assert reading.wrong == 0
    finally:
        cluster.kill_all()
