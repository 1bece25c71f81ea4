"""
Archived jobs: their story and a list of them, read from the files of the archive.

The files hold the log as text, and the gateway's own code answers, as it does of a live log. Of a job only the lines
are read that name it: rounds and ranks of others do not concern it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from gzip import BadGzipFile
from gzip import open as unpacked
from pathlib import Path
from typing import Final

from penstock_gateway import answers
from penstock_log.request_bodies import JobsRequest
from penstock_log.views import JobsView, StoryView
from penstock_simulator import log_query

PATTERN: Final = "*.jsonl.gz"
_SUBMITTED: Final = b'"type":"job.submitted.v1"'
_OF_JOBS: Final = (b'"subject":"penstock.evt.job.', b'"subject":"penstock.evt.run.', b'"subject":"penstock.evt.round.')


class ArchiveError(ValueError):
    """Files that are no archive; the message says what to do."""


def files(folder: Path) -> list[Path]:
    """
    Return the files of an archive, the oldest first.

    Raises
    ------
    ArchiveError
        If there are none.
    """
    found = sorted(folder.glob(PATTERN)) if folder.is_dir() else []
    if not found:
        advice = "name its folder in PENSTOCK_GATEWAY_ARCHIVE_DIR"
        raise ArchiveError(f"there is no archive in {folder}: expected files {PATTERN}; {advice}")
    return sorted(found, key=_first_seq)


def story(folder: Path, job_id: str) -> StoryView:
    """
    Return an archived job's story.

    Raises
    ------
    ServiceError
        If no job of the archive has this id or beginning.
    ArchiveError
        If the folder has no archive, or a file of it is damaged.
    """
    return log_query.tell(_naming(files(folder), job_id.encode()), job_id)


def jobs(folder: Path, asked: JobsRequest) -> JobsView:
    """Return the newest archived jobs that match; the oldest files are not read where the newest have enough."""
    chosen: list[Path] = []
    count = 0
    for path in reversed(files(folder)):
        if count >= asked.limit:
            break
        chosen.insert(0, path)
        count += sum(_SUBMITTED in line for line in _lines([path]))
    about_jobs = (line for line in _lines(chosen) if any(begin in line for begin in _OF_JOBS))
    return answers.jobs(log_query.model(about_jobs), asked)


def _naming(paths: Iterable[Path], job_id: bytes) -> Iterator[bytes]:
    return (line for line in _lines(paths) if job_id in line)


def _lines(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        try:
            with unpacked(path, "rb") as text:
                yield from text
        except (BadGzipFile, EOFError, zlib.error) as error:
            raise ArchiveError(
                f"{path} is damaged: {error}; `sha256sum --check SHA256SUMS` there says which files are whole"
            ) from error


def _first_seq(path: Path) -> tuple[str, ...]:
    """Return what files are sorted by: the sequence, since a clock may have gone back."""
    return tuple(path.name.partition("_")[::-1])
