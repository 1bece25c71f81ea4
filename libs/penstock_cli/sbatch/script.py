"""
Scripts of sbatch: a file that begins with ``#!`` and holds ``#SBATCH`` lines.

:func:`is_script` says which files are such ones. :func:`read` returns a script with the options of its lines, read as
sbatch reads them: up to the first line that is a command.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock_cli.sbatch.options import GivenOption, SbatchError, read_words

SUFFIXES: Final = (".sbatch", ".slurm")
STDIN: Final = "<stdin>"
_MOST_BYTES: Final = 4 << 20
"""What Slurm takes of a script, if its administrator has not said otherwise."""
_LINE: Final = re.compile(r"#SBATCH(?=\s|$)(.*)")
_HEREDOC: Final = re.compile(r"(?<!<)<<-?\s*\\?['\"]?(\w+)['\"]?")
_HETEROGENEOUS: Final = ("hetjob", "packjob")


class SbatchScript(msgspec.Struct, frozen=True, kw_only=True):
    """
    A script as it was submitted.

    Attributes
    ----------
    name : str
        The last part of its path; what it is called on the node and, if nothing else is said, the job's name.
    given : list of GivenOption
        The options of its lines, in their order.
    unread : tuple of int
        The numbers of its lines that look like such ones, and stand below its first command.
    """

    name: str
    body: bytes
    given: list[GivenOption]
    unread: tuple[int, ...] = ()


def is_script(path: str) -> bool:
    """
    Say whether a file is one for sbatch: by its suffix, or by a ``#SBATCH`` line below its first one, ``#!``.

    A file that cannot be read is none.
    """
    if path.endswith(SUFFIXES):
        return True
    try:
        if not os.path.isfile(path):  # to open a FIFO waits for its writer
            return False
        with Path(path).open("rb") as file:
            head = file.read(1 << 16)
    except (OSError, ValueError):
        return False
    return head.startswith(b"#!") and any(
        _LINE.match(line.decode(errors="replace")) for line in head.splitlines() if line.startswith(b"#SBATCH")
    )


def read(path: str) -> SbatchScript:
    """
    Return the script of a path; ``-`` is standard input.

    Raises
    ------
    SbatchError
        If it cannot be read, is no script, or a line of it cannot be used; all such lines are told.
    """
    if path == "-":
        return of_text(STDIN, sys.stdin.buffer.read(_MOST_BYTES + 1))
    try:
        with Path(path).open("rb") as file:
            return of_text(path, file.read(_MOST_BYTES + 1))
    except OSError as error:
        raise SbatchError(f"{path} cannot be read ({error.strerror}); check the path") from error


def of_text(path: str, body: bytes) -> SbatchScript:
    """Return the script of a path with this content; errors as for :func:`read`."""
    _check(path, body)
    given: list[GivenOption] = []
    problems: list[str] = []
    lines = body.decode(errors="surrogateescape").split("\n")
    begin = len(lines) + 1
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            begin = number
            break  # a command: what stands below is a comment to sbatch
        if (found := _LINE.match(line)) is None:
            continue
        try:
            given += _of_line(found[1], f"{path}:{number}")
        except SbatchError as error:
            problems.append(str(error))
    if problems:
        raise SbatchError("\n".join(problems))
    name = "slurm_script" if path == STDIN else Path(path).name
    return SbatchScript(name=name, body=body, given=given, unread=tuple(_unread(lines, begin)))


def _unread(lines: Sequence[str], begin: int) -> Iterator[int]:
    """
    Yield the numbers of ``#SBATCH`` lines from a line on, but for those of texts within a script (``<< EOF``).

    Examples
    --------
    >>> list(_unread(["date", "#SBATCH -n 2", "cat > x << 'EOF'", "#SBATCH -n 3", "EOF", "#SBATCH -n 4"], 1))
    [2, 6]
    """
    end = ""
    for number, line in enumerate(lines[begin - 1 :], begin):
        if end:
            end = "" if line.strip() == end else end
        elif _LINE.match(line):
            yield number
        elif found := _HEREDOC.search(line):
            end = found[1]


def _check(path: str, body: bytes) -> None:
    """Refuse what is no script."""
    if len(body) > _MOST_BYTES:
        raise SbatchError(f"{path} is larger than {_MOST_BYTES:,} bytes; have the script read a file")
    if not body.strip():
        raise SbatchError(f"{path} is empty; expected a script that begins with #!")
    if b"\0" in body:
        raise SbatchError(f"{path} holds a NUL byte; expected a script, and no program: put that behind --wrap")
    if not body.startswith(b"#!"):
        raise SbatchError(f"{path} does not begin with #! and a shell; expected a first line such as #!/bin/bash")
    if b"\r\n" in body:
        raise SbatchError(
            f"{path} has line ends of Windows (CRLF), which no shell can read; write it anew: sed -i 's/\\r$//' {path}"
        )


def of_command(command: str) -> SbatchScript:
    """Return the script of one command, as ``--wrap`` makes it."""
    body = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command}\n"
    return SbatchScript(name="wrap", body=body.encode(errors="surrogateescape"), given=[])


def _of_line(text: str, place: str) -> list[GivenOption]:
    """
    Return the options of one line.

    Examples
    --------
    >>> [(one.name, one.value) for one in _of_line(' --job-name="two words" -N 2 # so many nodes', "a:2")]
    [('job-name', 'two words'), ('nodes', '2')]
    """
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise SbatchError(f"{place}: a quotation mark is open: {text.strip()}") from error
    if words and words[0] in _HETEROGENEOUS:
        raise SbatchError(f"{place}: {words[0]}: a job is of one kind; submit a job for each part")
    given, rest = read_words(words, place)
    if rest:
        raise SbatchError(f"{place}: {rest[0]!r} is no option; expected words such as --time=1:00:00")
    return given
