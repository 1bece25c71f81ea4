"""
A job's checkpoints: folders ``step-<n>``, each complete or not there at all, the last two kept.

The user's function writes into a fresh folder; a manifest with the step and the size of every file goes beside its
files; everything is flushed to the disk, and only then is the folder renamed. What a crash left half-written never
bears the name of a checkpoint, and what lost its tail later is found out by its size.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Optional

import msgspec

from penstock.sessions.loop_position import LoopHistory, SamplerPosition
from penstock.sessions.setup import SessionError

FORMATS: Final = (1, 2)
"""Those that this version reads; it writes the second one only where the script has ``session.epochs()``."""
KEPT: Final = 2
MANIFEST: Final = "penstock-manifest.json"
STEP_PREFIX: Final = "step-"
_UNFINISHED: Final = ".unfinished-"
EPOCH_FILE: Final = ".epoch"
"""Says in a job's folder which run writes its checkpoints."""
_PIECE_BYTES: Final = 1 << 20

_GANG: Final = (
    "{path} cannot be loaded: {error!r}; this process does not take the one before by itself, since the others of its "
    "gang may have loaded this one; repair the load function, or move this checkpoint away to go on from the one before"
)

_log = logging.getLogger("penstock.session")


class CheckpointDamaged(SessionError):
    """There are checkpoints, and none of them can be loaded."""


class Superseded(SessionError):
    """A newer run of the job has these checkpoints now; this one was cut off and must not write any more."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the session keeps of its own beside the user's files.

    Attributes
    ----------
    files : dict of str to int
        Sizes in bytes by relative paths.
    checksums : dict of str to int
        CRC-32 of each file, by which a copy is checked. The process that trains waits for it, so it is a cheap one:
        what nobody has tampered with is to be found damaged, and a SHA-256 would take as long as the writing does.
    generation : int
        Epoch of the run that wrote it; of two checkpoints the one of the later generation counts.
    place : SamplerPosition or None
        Of the session's sampler, where it has one.
    batch_size, world_size : int
        Of the run that wrote it; 0 where they are not known.
    """

    format: int
    step: int
    history: LoopHistory
    files: dict[str, int]
    checksums: dict[str, int] = {}
    generation: int = 0
    place: Optional[SamplerPosition] = None
    batch_size: int = 0
    world_size: int = 0


class Checkpoints:
    """
    The checkpoint folder of one job.

    Parameters
    ----------
    folder : Path
        Made where it is not there. Other files in it are left alone.
    epoch : int
        Of this run. Once a run of a later epoch has claimed the folder, this one saves nothing more: it may be the
        run of a node that was declared lost and does not know it.
    beside : Path or None
        Another folder from which is loaded too, before this one: in memory.
    kept : int
        How many are kept.
    """

    def __init__(self, folder: Path, epoch: int = 0, *, beside: Path | None = None, kept: int = KEPT) -> None:
        self._folder, self._beside = folder, beside
        self._epoch, self._kept = epoch, kept
        self._good: list[int] = []

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint after a step."""
        return self._folder / f"{STEP_PREFIX}{step}"

    def claim(self) -> None:
        """
        Keep runs of earlier epochs from writing, and remove what a crash left unfinished; for the one that writes.

        Raises
        ------
        Superseded
            If a later epoch has claimed it.
        OSError
            If the folder cannot be written.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.refuse_if_superseded()
        fresh = self._folder / f"{EPOCH_FILE}-{self._epoch}"
        fresh.write_text(str(self._epoch))
        fresh.replace(self._folder / EPOCH_FILE)
        self.sweep()

    def save(
        self,
        step: int,
        history: LoopHistory,
        write: Callable[[Path], object],
        place: SamplerPosition | None = None,
        *,
        batch_size: int = 0,
        world_size: int = 0,
    ) -> str:
        """
        Write the checkpoint after a step and drop all but the last; return the SHA-256 of its manifest.

        Raises
        ------
        Superseded
            If a later epoch has claimed the folder.
        Exception
            Whatever ``write`` or the file system raise; the checkpoints from before are untouched then.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._folder))
        try:
            write(fresh)
            about = Manifest(
                format=FORMATS[history.has_epochs],
                step=step,
                history=history,
                files=_sizes(fresh),
                checksums=_checksums(fresh),
                generation=self._epoch,
                place=place,
                batch_size=batch_size,
                world_size=world_size,
            )
            digest = self._seal(fresh, about)
            self._complete(fresh, step)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return digest

    def take(self, path: Path, step: int) -> None:
        """
        Copy a complete checkpoint from another folder; raises as :meth:`save` does.

        It must not be larger than what there is room for, or the ones before are kept and OSError is raised.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._folder))
        try:
            shutil.copytree(path, fresh, dirs_exist_ok=True)
            _flush_all(fresh)
            self._complete(fresh, step)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

    def _complete(self, fresh: Path, step: int) -> None:
        self.refuse_if_superseded()  # last, so that little time is left in which a newer run could claim it
        self._publish(fresh, self.path(step))
        self._good = [*self._good, step][-self._kept :]
        self._prune()

    def load(
        self, read: Callable[[Path], object], *, alone: bool = True, at_most: int | None = None
    ) -> Manifest | None:
        """
        Hand the newest checkpoint to ``read``, or the one before where that is damaged; None where there is none.

        Parameters
        ----------
        alone : bool
            Whether no other process loads too. Where others do, ``read`` may have failed here only: they would go on
            from another step than this one, if it took the checkpoint before.
        at_most : int or None
            The step of the newest one that counts; None for the newest there is.

        Raises
        ------
        CheckpointDamaged
            If ``read`` failed on each of them, or on the newest where it is not alone: the job's state may be half
            loaded, so it must not start from there.
        """
        failed = []
        for path, manifest in self.complete():
            if at_most is not None and manifest.step > at_most:
                continue
            try:
                read(path)
            except Exception as error:  # whatever the user's function raises, an older one may do
                if not alone:
                    raise CheckpointDamaged(_GANG.format(path=path, error=error)) from error
                _log.warning("checkpoint_damaged path=%s error=%r; trying the one before", path, error)
                failed.append(f"{path.name}: {error!r}")
            else:
                self._good = [manifest.step]
                return manifest
        if failed:
            message = (
                f"no checkpoint in {self._folder} can be loaded ({'; '.join(failed)}); "
                "repair the load function, or move the folder away to start from step 0"
            )
            raise CheckpointDamaged(message)
        return None

    def complete(self) -> Iterator[tuple[Path, Manifest]]:
        """Yield the complete checkpoints, the newest first; what is incomplete is warned about and left out."""
        found = [*(step_folders(self._beside) if self._beside is not None else ()), *step_folders(self._folder)]
        for path in sorted(found, key=_step_of, reverse=True):
            try:
                yield path, _verified(path)
            except (OSError, ValueError) as error:
                _log.warning("checkpoint_incomplete path=%s error=%s; trying the one before", path, error)

    def sweep(self) -> None:
        """Remove what a crash left unfinished; for the one process that writes."""
        for path in self._folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(path, ignore_errors=True)

    def refuse_if_superseded(self) -> None:
        """Raise Superseded if a later epoch has claimed the folder."""
        try:
            newest = int((self._folder / EPOCH_FILE).read_text())
        except (FileNotFoundError, ValueError):  # nobody has claimed it, or a crash took the claim's text
            return
        if newest > self._epoch:
            message = f"run {newest} of this job has its checkpoints now; this is run {self._epoch}, which was given up"
            raise Superseded(message)

    def _seal(self, fresh: Path, manifest: Manifest) -> str:
        body = msgspec.json.encode(manifest)
        (fresh / MANIFEST).write_bytes(body)
        _flush_all(fresh)
        return hashlib.sha256(body).hexdigest()

    def _publish(self, fresh: Path, path: Path) -> None:
        if path.exists():  # damaged, or else this step would not have been done again
            path.rename(fresh.with_name(f"{fresh.name}-replaced"))
        fresh.rename(path)
        flush(self._folder)

    def _prune(self) -> None:
        """Keep the last two that this process wrote or began from; all others are older, or damaged."""
        for path in step_folders(self._folder):
            if _step_of(path) not in self._good:
                (path / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)
        self.sweep()


def step_folders(folder: Path) -> list[Path]:
    """Return the folders of a job's checkpoints, complete or not."""
    return [path for path in folder.glob(f"{STEP_PREFIX}*") if path.name.removeprefix(STEP_PREFIX).isdecimal()]


def _verified(path: Path) -> Manifest:
    manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
    if manifest.format not in FORMATS:
        message = f"format is {manifest.format}, this version of penstock reads {FORMATS[0]} to {FORMATS[-1]}"
        raise ValueError(message)
    for name, size in manifest.files.items():
        found = (path / name).stat().st_size
        if found != size:
            message = f"{name} has {found} bytes, {size} were written"
            raise ValueError(message)
    return manifest


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in _files(folder)}


def _checksums(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): _checksum(path) for path in _files(folder)}


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            found = zlib.crc32(piece, found)
    return found


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix(STEP_PREFIX))


def _flush_all(folder: Path) -> None:
    for path in [*_files(folder), *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        flush(path)


def flush(path: Path) -> None:
    """Have a file or folder on the disk before this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
