"""
Seeded histories of a store under load and faults, which find every lost, stale or torn byte.

The store is seen as words of 8 bytes, from some odd byte on. A word that was written says where it belongs and which
version it is. Each word has one writer; readers know which versions of it were written before they read, and which had
been begun when they had read: any other is an error.
"""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random  # noqa: TID251 - the seed of a history is its name
from typing import Final

import numpy as np
from memory_stubs import AgentStub, DonorStub, donor_and_agent

from penstock.memory.block_store import BlockStore
from penstock.memory.slab_ranges import StoreStats

SLAB_BYTES: Final = 128 << 10
WRITERS: Final = 2
READERS: Final = 1
FAULTS: Final = ("hang", "hang_up", "half_frame", "wrong_crc", "stale")
TIMEOUT_S: Final = 0.03


class History:
    """One store with its writers and readers; ``problems`` is empty where every byte was right."""

    def __init__(self, seed: int, folder: Path, *, steps: int = 60) -> None:
        self.random = Random(seed)  # noqa: S311 - no secret
        self.seed, self.folder, self.steps = seed, folder, steps
        self.size = self.random.choice([3, 5, 8]) * SLAB_BYTES + self.random.choice([0, 1, 4097, 70_000])
        self.base = self.random.randrange(8)
        self.words = (self.size - self.base) // 8
        self.strip = self.random.choice([500, 4096, 30_000])
        self.begun = np.zeros(self.words, np.int64)
        self.done = np.zeros(self.words, np.int64)
        self.zeroed: list[tuple[int, int, int]] = []
        self.checked_bytes = 0
        self.problems: list[str] = []
        self.shared = self.random.random() < 0.5
        self.path = folder / "content" if self.random.random() < 0.5 else None
        self.settings = {
            "path": self.path,
            "local_bytes": self.random.choice([0, 128 << 10, 1 << 20]),
            "pending_bytes": self.random.choice([64 << 10, 1 << 20]),
            "timeout_s": TIMEOUT_S,
            "second_s": 0.01,
        }

    def run(self) -> StoreStats:
        """Live the history, and check all at its end, and once more after it was opened again."""
        with donor_and_agent(self.folder, slab_bytes=SLAB_BYTES, shared=self.shared) as (donor, agent):
            with BlockStore(self.size, socket=str(agent.path), **self.settings) as store:
                lives = [
                    threading.Thread(target=self._live, args=(each, store, donor, agent)) for each in self._roles()
                ]
                while not store.stats().sent_bytes:
                    store.write(0, bytes(self.size))  # zeros, as there are: until slabs take writes
                for life in lives:
                    life.start()
                for life in lives:
                    life.join()
                self._check_all(store)
                store.flush()
                stats = store.stats()
            if self.path is not None:
                with BlockStore(self.size, socket="", path=self.path) as store:
                    self._check_all(store)
        return stats

    def _roles(self) -> list[tuple[int, Random]]:
        seeds = [self.random.random() for _ in range(WRITERS + READERS)]
        return [(number, Random(seed)) for number, seed in enumerate(seeds)]  # noqa: S311 - no secret

    def _live(self, role: tuple[int, Random], store: BlockStore, donor: DonorStub, agent: AgentStub) -> None:
        number, random = role
        try:
            for version in range(1, self.steps + 1):
                if random.random() < 0.2:
                    self._disturb(random, donor, agent, store)
                if number < WRITERS and random.random() < 0.6:
                    self._write(number, version, random, store)
                else:
                    begin = random.randrange(self.words)
                    self._check(store, begin, min(self.words, begin + random.choice([1, 512, 5000, 40_000])))
        except Exception as error:  # whatever it is, it is a finding
            self.problems.append(f"{type(error).__name__}: {error}")

    def _write(self, writer: int, version: int, random: Random, store: BlockStore) -> None:
        """Write a part of a strip of words that is this writer's."""
        strips = range(writer, -(-self.words // self.strip), WRITERS)
        if not strips:
            return
        first = random.choice(strips) * self.strip
        last = min(self.words, first + self.strip)
        begin = random.randrange(first, last) if random.random() < 0.5 else first
        end = random.randrange(begin, last) + 1 if random.random() < 0.5 else last
        self.begun[begin:end] = version
        if random.random() < 0.1:
            self.zeroed.append((begin, end, version))
            store.zero(self.base + 8 * begin, 8 * (end - begin))
        else:
            store.write(self.base + 8 * begin, (np.arange(begin, end) + 1 << 32 | version).tobytes())
        self.done[begin:end] = version

    def _check_all(self, store: BlockStore) -> None:
        for begin in range(0, self.words, 10_000):
            self._check(store, begin, min(self.words, begin + 10_000))

    def _check(self, store: BlockStore, begin: int, end: int) -> None:
        least = self.done[begin:end].copy()
        found = np.empty(end - begin, np.int64)
        store.read_into(self.base + 8 * begin, found.view("u1").data)
        most = self.begun[begin:end].copy()
        versions = found & 0xFFFFFFFF
        good = (found >> 32 == np.arange(begin, end) + 1) & (least <= versions) & (versions <= most)
        zero = (found == 0) & (least == 0)
        for first, last, version in list(self.zeroed):
            at, to = max(first, begin) - begin, min(last, end) - begin
            if at < to:
                here = slice(at, to)
                zero[here] |= (found[here] == 0) & (least[here] <= version) & (version <= most[here])
        first_bytes = self.base + 8 * np.arange(begin, end)  # a word in two slabs may be torn while it is written
        good |= (first_bytes // SLAB_BYTES != (first_bytes + 7) // SLAB_BYTES) & (least < most)
        self.checked_bytes += found.nbytes
        wrong = np.flatnonzero(~(good | zero))
        if wrong.size:
            at = wrong[0]
            self.problems.append(
                f"{wrong.size} words from {begin + at} on: {found[at] >> 32} version {versions[at]}, "
                f"and {least[at]} to {most[at]} was to be there"
            )

    def _disturb(self, random: Random, donor: DonorStub, agent: AgentStub, store: BlockStore) -> None:
        """Do what donors and agents do to a client."""
        what = random.randrange(12)
        if what < 3:
            donor.fault_after = random.randrange(6)
            donor.fault = random.choice(FAULTS)
        elif what < 6:
            donor.fault = ""
        elif what < 9:
            agent.evict(random.randrange(8))
        elif what == 9:
            donor.break_connections()
        elif what == 10:
            agent.take_back(random.randrange(8))
        elif random.random() < 0.5:
            store.flush()
        else:
            agent.restart()
