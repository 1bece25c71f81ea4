"""
Files that outlive the executor.

A later executor finds its runs again by their folders. ``<data>/runs/<job>/<epoch>/run.json`` says what was started,
``stop.json`` how far the run's end had come, and ``series`` has its metrics. Each rank's folder holds ``pid``, ``exit``
and ``kept`` (which the shim writes), how far the rank's output was streamed (``stdout.read``, ``stderr.read``),
``hello`` if the process spoke the agent protocol, ``done`` if it reported its end, ``stopped`` if it ended as its node
was being stopped, and ``warned`` if it was told that its time is short. Output is elsewhere, since it stays longer.

Processes of a run that was parked keep their folder in every later run of theirs. It has ``parked`` in place of
``run.json`` then, and ``home`` of a later run's ``run.json`` names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog

from penstock_executor import job_folders
from penstock_executor.run_state import Ending, Key, LocalRun, RunProcess, Sharing
from penstock_log.records import compose

Mark = Literal["hello", "done", "warned", "stopped"]
PARKED: Final = "parked"
SERIES: Final = "series"
"""Name of the file with the run's metrics, on the node of its first process."""
_TRIES: Final = 10
_log = structlog.get_logger("penstock.executor")


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a :class:`LocalRun` that do not change while it lasts; of its processes, the ranks."""

    job_id: str
    epoch: int
    devices: tuple[int, ...]
    world_size: int
    ranks: tuple[int, ...]
    started_s: float
    hold_s: float = 0.0
    sharing: Sharing = "exclusive"
    resumed_step: int = 0
    resumed_generation: int = 0
    resumed_digest: str = ""
    begun_from: str = ""
    copied_from: str = ""
    uid: int | None = None
    home: int = 0
    start: str = ""


class StopRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a :class:`LocalRun` that say how far its end has come; written before each step of the end."""

    ending: Ending
    asked_s: float
    termed_s: float
    killed_s: float
    stop_step: int | None
    why: str = ""


_started: Final = msgspec.json.Decoder(RunRecord)
_stopping: Final = msgspec.json.Decoder(StopRecord)


def path_of(runs: Path, key: Key) -> Path:
    """Return the folder of one run."""
    return runs / key[0] / str(key[1])


def rank_path(runs: Path, key: Key, rank: int) -> Path:
    """Return the folder of one process."""
    return path_of(runs, key) / str(rank)


def create(runs: Path, run: LocalRun) -> None:
    """Make the folders of a run that is about to start, though an earlier run of its job is just being removed."""
    folder = path_of(runs, run.key)
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # the job's folder has gone with its earlier run
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            break
    for rank in run.ranks:
        (folder / str(rank)).mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "run.json").write_bytes(msgspec.json.encode(compose(RunRecord, run, ranks=tuple(run.ranks))))


def note_stopping(runs: Path, run: LocalRun) -> None:
    """Write down how far the run's end has come; a failure to write matters only to a restart during the end."""
    replace_file(path_of(runs, run.key) / "stop.json", msgspec.json.encode(compose(StopRecord, run)))


def note_mark(runs: Path, run: LocalRun, rank: int, mark: Mark) -> None:
    """Write down what has become known of a process, for an executor that comes later."""
    replace_file(rank_path(runs, run.key, rank) / mark, b"")


def replace_file(path: Path, body: bytes) -> None:
    """Write a file as a whole; what cannot be written is told in the executor's log."""
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(body)
        fresh.replace(path)
    except OSError as error:
        _log.warning("run_folder_not_written", path=str(path), error=str(error))


def scan(runs: Path) -> Iterator[LocalRun]:
    """Yield every run that has a folder, as it was noted; remove runs that were never completely started."""
    for folder in sorted(runs.glob("*/*")):
        if (folder / PARKED).exists():
            continue
        try:
            started = _started.decode((folder / "run.json").read_bytes())
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            _log.warning("run_folder_without_a_run_removed", folder=str(folder), error=str(error))
            job_folders.remove(folder)
            continue
        records: list[RunRecord | StopRecord] = [started]
        with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
            records.append(_stopping.decode((folder / "stop.json").read_bytes()))
        has = {rank: {path.name for path in (folder / str(rank)).glob("*")} for rank in started.ranks}
        ranks = {
            rank: RunProcess(greeted="hello" in names, done="done" in names, stopped="stopped" in names)
            for rank, names in has.items()
        }
        warned = any("warned" in names for names in has.values())
        yield compose(LocalRun, *records, ranks=ranks, warned=warned)


def leave_parked(runs: Path, home: Key) -> None:
    """Have a folder be the one of processes that outlive their run, and not of a run."""
    folder = path_of(runs, home)
    with suppress(OSError):  # of a full disk: what is there counts as a run that has ended, and its processes end
        (folder / PARKED).touch()
        for name in ("run.json", "stop.json", SERIES):
            (folder / name).unlink(missing_ok=True)


def parked(runs: Path) -> Iterator[Key]:
    """Yield the runs whose folders are those of processes that have outlived them."""
    for mark in runs.glob(f"*/*/{PARKED}"):
        if mark.parent.name.isdecimal():
            yield mark.parent.parent.name, int(mark.parent.name)


def remove(runs: Path, key: Key) -> None:
    """Remove a run's folder, and the job's folder after its last run."""
    folder = path_of(runs, key)
    if not _remove_plain(folder):
        job_folders.remove(folder)
    try:
        os.rmdir(folder.parent)
    except OSError:
        return  # other epochs are still there


def _remove_plain(folder: Path, *, deeper: int = 1) -> bool:
    """Remove a folder of files, and of folders of files, as a run's is; return False where there is more in it."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry)
                elif not (deeper and _remove_plain(Path(entry), deeper=deeper - 1)):
                    return False
        os.rmdir(folder)
    except OSError:
        return False
    return True


def last_line(path: Path, most_bytes: int = 4096) -> str:
    """Return the last line of a file that has more than white space in it; empty where there is none."""
    try:
        with os.fdopen(job_folders.open_plainly(path), "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - most_bytes))
            lines = file.read().replace(b"\0", b"").splitlines()
    except OSError:
        return ""
    return next((text for line in reversed(lines) if (text := line.decode(errors="replace").strip())), "")[:500]


class ExecutorError(Exception):
    """The executor cannot work here; the message says what to do."""
