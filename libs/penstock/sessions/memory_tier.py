"""
Checkpoints whose tier is memory: written into a folder in memory, and copied to two other nodes before they count.

Where that cannot be done, a checkpoint is on the disk before it counts, as it is without a tier. The folder in memory
is one more place from which a process loads; the executor copies what is in it to the disk, and removes it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.sessions.checkpoint import MANIFEST, Checkpoints, Manifest, Superseded
from penstock.sessions.loop_position import LoopHistory, SamplerPosition
from penstock_log.spec import CheckpointTier

KEPT: Final = 1
"""Checkpoints in memory beside one that is being written: the one before is held by peers, or on the disk."""
_log = logging.getLogger("penstock.session")


class SavedCheckpoint(NamedTuple):
    """
    A checkpoint that counts as saved.

    Attributes
    ----------
    digest : str
        SHA-256 of its manifest.
    tier : {"disk", "memory"}
        Where it is complete.
    peers : tuple of str
        Nodes that keep a copy each.
    fallback : str
        Why it is on the disk, where memory was asked for; else empty.
    """

    digest: str
    tier: CheckpointTier = "disk"
    peers: tuple[str, ...] = ()
    fallback: str = ""


class _NoMemoryTier(Exception):
    """The checkpoint goes to the disk; the message says why."""


class MemoryTier:
    """
    A job's checkpoints above its disk.

    Parameters
    ----------
    disk : Checkpoints
        Where a checkpoint goes that cannot be in memory.
    folder : Path
        In memory, the job's own.
    most_bytes : int
        The largest checkpoint that may be there.
    agent : str
        Path of the socket of the node's memory agent; empty where there is none.
    job_id, epoch : str, int
        Of this run.
    """

    def __init__(
        self, disk: Checkpoints, folder: Path, most_bytes: int, *, agent: str, job_id: str, epoch: int
    ) -> None:
        self._disk, self._folder, self._most_bytes = disk, folder, most_bytes
        self._memory = Checkpoints(folder, epoch, kept=KEPT)
        self._agent, self._job_id, self._epoch = agent, job_id, epoch
        self._told = ""

    def claim(self) -> None:
        """Claim the folder, as :meth:`Checkpoints.claim` does; raises as that one."""
        self._memory.claim()

    def save(
        self,
        step: int,
        history: LoopHistory,
        write: Callable[[Path], object],
        place: SamplerPosition | None = None,
        *,
        batch_size: int = 0,
        world_size: int = 0,
    ) -> SavedCheckpoint:
        """
        Write the checkpoint after a step, and return once two peers have it, or the disk.

        Raises
        ------
        Exception
            As :meth:`Checkpoints.save` does.
        """
        self._disk.refuse_if_superseded()
        try:
            digest = self._memory.save(step, history, write, place, batch_size=batch_size, world_size=world_size)
        except Superseded:
            raise
        except OSError as error:  # of the folder in memory, or of the script: then the disk's will raise it too
            fallback = f"it was not written into memory: {error.strerror or error}"
            digest = self._disk.save(step, history, write, place, batch_size=batch_size, world_size=world_size)
            return SavedCheckpoint(digest, fallback=self._tell(fallback))
        path = self._memory.path(step)
        try:
            peers = self._copy_to_peers(path, step, digest)
        except _NoMemoryTier as error:
            self._disk.take(path, step)
            shutil.rmtree(path, ignore_errors=True)
            return SavedCheckpoint(digest, fallback=self._tell(str(error)))
        self._told = ""
        return SavedCheckpoint(digest, "memory", peers)

    def _copy_to_peers(self, path: Path, step: int, digest: str) -> tuple[str, ...]:
        if not self._agent:
            raise _NoMemoryTier("there is no memory agent on this node")
        try:
            from penstock.memory.checkpoint_copies import (  # noqa: PLC0415 - it needs a package that few jobs have
                CopiesUnavailable,
                CopyAgent,
                archive_bytes,
                write_copies,
            )
        except ImportError as error:
            raise _NoMemoryTier(str(error)) from error
        body = (path / MANIFEST).read_bytes()
        files = msgspec.json.decode(body, type=Manifest).files
        size = archive_bytes(body, files.values())
        if size > self._most_bytes:
            raise _NoMemoryTier(
                f"it has {size} bytes, and {self._most_bytes} may be in memory (checkpoint_memory_bytes)"
            )
        try:
            with CopyAgent(self._agent, f"checkpoint {step}") as agent:
                write_copies(agent.place(size), path, body, list(files))
                return agent.keep(self._job_id, generation=self._epoch, step=step, digest=digest)
        except (CopiesUnavailable, OSError) as error:
            raise _NoMemoryTier(str(error)) from error

    def _tell(self, why: str) -> str:
        if why != self._told:
            _log.warning("checkpoint_on_disk_instead_of_memory reason=%s", why)
        self._told = why
        return why[:1000]
