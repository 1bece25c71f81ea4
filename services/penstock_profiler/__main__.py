"""
The profiler on a bus, and how replicas divide the keys: ``python -m penstock_profiler``.

All replicas decide, each about its own workloads. They divide the workloads without talking: :func:`owner` hashes each
key with the replicas that are alive (rendezvous hashing).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Final

from penstock_bus import shell
from penstock_bus.follower import background
from penstock_bus.replica import Replica
from penstock_bus.shell import Shell
from penstock_profiler.machine import ProfilerSettings, ProfilerState, decider

LOOK_S: Final = 0.5


async def run(shell: Shell, settings: ProfilerSettings) -> None:
    """Profile workloads until the shell is stopping; other replicas take over the workloads of one that dies."""
    machine = decider(settings, mine=lambda key: mine(key, shell.peers(), shell.replica_id))
    replica = Replica(shell, machine)
    async with background(_wake_on_change(shell, replica)):
        await replica.run()


async def _wake_on_change(shell: Shell, replica: Replica[ProfilerState]) -> None:
    peers = shell.peers()
    while True:
        await asyncio.sleep(LOOK_S)
        before, peers = peers, shell.peers()
        if peers != before:
            shell.log.info("replicas_changed", replicas=peers)
            replica.wake()


def owner(key: str, replicas: Iterable[str]) -> str:
    """
    Return the replica that a key belongs to: the one whose hash with the key is highest.

    When a replica goes, only its own keys move; when one comes, it takes an equal part from each of the others.
    For a moment replicas may see different sets and both act: the log's expected sequences settle it.

    Raises
    ------
    ValueError
        If there is no replica.

    Examples
    --------
    >>> owner("k1", ["a", "b"]) == owner("k1", ["b", "a"])
    True
    """
    return max(replicas, key=lambda replica: (_weight(key, replica), replica))


def mine(key: str, replicas: Iterable[str], me: str) -> bool:
    """
    Return whether a key belongs to the replica ``me``, which counts as alive even if it is not listed.

    Examples
    --------
    >>> mine("k1", [], "a")
    True
    """
    return owner(key, {*replicas, me}) == me


def _weight(key: str, replica: str) -> bytes:
    return hashlib.blake2b(f"{replica}|{key}".encode(), digest_size=8).digest()


if __name__ == "__main__":
    shell.main("profiler", ProfilerSettings, run)
