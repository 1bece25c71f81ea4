"""
Whether a command line may start warm, and what a warm server has to know of it. Reads files, starts nothing.

Only an interpreter that is named ``python`` may, with a script, a module or a text, and only with options that a server
can have in the same way; all others start by exec, with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from penstock_cluster.host_limits import limits_of

_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")
_ELF: Final = b"\x7fELF"
_FLAGS: Final = frozenset("bBdEIOPqsSu")
"""Options of one letter that a server has as the program would."""
_AT_START: Final = (
    *("PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "PYTHONTRACEMALLOC"),
    *("PYTHONPERFSUPPORT", "PYTHONDUMPREFS", "LD_PRELOAD", "LD_AUDIT"),
)
"""Variables by which an interpreter does more at its start than a server could do for it."""
_READ_AT_START: Final = re.compile(r"PYTHON.*|LD_.*|LC_.*|LANG|LANGUAGE|PATH|HOME|TZ")
PER_RUN: Final = re.compile(
    r"PENSTOCK_.*|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|CUDA_VISIBLE_DEVICES|CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
)
"""Variables that differ from run to run, and are read by no module when it is imported."""
Kind = Literal["file", "module", "command"]
_KINDS: Final[dict[str, Kind]] = {"-c": "command", "-m": "module"}


class StartsCold(Exception):
    """A program cannot start warm, or not now; the message says why."""


class WarmCommand(NamedTuple):
    """
    A command line that may start warm.

    Attributes
    ----------
    executable : str
        The interpreter's file.
    interpreter : tuple of str
        Its name and options, as the command line has them.
    kind : {"file", "module", "command"}
        What it runs.
    target : str
        The script's path, the module's name, or the text.
    args : tuple of str
        What comes after that.
    data_bytes : tuple of int
        The limits on the process's data, soft and hard; empty: none.
    """

    executable: str
    interpreter: tuple[str, ...]
    kind: Kind
    target: str
    args: tuple[str, ...]
    data_bytes: tuple[int, ...] = ()

    def order(self) -> tuple[object, ...]:
        """Return what a server is told; plain values, as they are marshalled."""
        words = len(self.args) + (1 if self.kind == "file" else 2)
        return (self.kind, self.target, self.args, self.data_bytes, words, words + len(self.interpreter))


def warm_command(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, private: Collection[str] = frozenset()
) -> WarmCommand:
    """
    Return what a warm server has to know of a command line.

    Parameters
    ----------
    private : collection of str
        Variables that its server does not get.

    Raises
    ------
    StartsCold
        If it cannot start warm.
    """
    argv, data_bytes = limits_of(argv)
    executable = _interpreter(argv[0], env, cwd)
    for variable in _AT_START:
        if env.get(variable):
            raise StartsCold(f"{variable} is set")
    if read := sorted(filter(_READ_AT_START.fullmatch, private)):
        raise StartsCold(f"{read[0]} is a secret, and an interpreter reads it when it starts")
    if not all(map(os.path.isabs, env.get("PYTHONPATH", "/").split(os.pathsep))):
        raise StartsCold("PYTHONPATH has a relative path")
    begin = _end_of_options(argv)
    interpreter, (first, *rest) = tuple(argv[:begin]), argv[begin:] or ("-",)
    if first == "-":
        raise StartsCold("its program comes from standard input")
    if first not in _KINDS:
        return WarmCommand(executable, interpreter, "file", first, tuple(rest), data_bytes)
    if not rest:
        raise StartsCold(f"{first} has no argument")
    return WarmCommand(executable, interpreter, _KINDS[first], rest[0], tuple(rest[1:]), data_bytes)


def _interpreter(name: str, env: Mapping[str, str], cwd: str) -> str:
    """Return the file of a command line's interpreter."""
    if not _PYTHON.fullmatch(os.path.basename(name)):
        raise StartsCold("its program is not called python")
    if "/" in name and not os.path.isabs(name):
        raise StartsCold("its interpreter is named by a relative path")
    executable = shutil.which(os.path.join(cwd, name) if "/" in name else name, path=env.get("PATH", os.defpath))
    if executable is None or not os.path.isabs(executable):
        raise StartsCold(f"its interpreter {name} was not found at a full path")
    if not _is_elf(executable):
        raise StartsCold(f"its interpreter {executable} is a script, as pyenv has it; name the interpreter itself")
    return executable


def _end_of_options(argv: Sequence[str]) -> int:
    """Return where the options of an interpreter end."""
    place = 1
    while place < len(argv) and argv[place].startswith("-") and argv[place] not in {"-", *_KINDS}:
        word = argv[place]
        if not word.startswith("-W") and not set(word[1:]) <= _FLAGS:
            raise StartsCold(f"its interpreter has the option {word}")
        place += 2 if word == "-W" else 1
    return place


def _is_elf(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be anything: a user has named it
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode) and os.read(fd, len(_ELF)) == _ELF
    except OSError:
        return False
    finally:
        os.close(fd)


def shared_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program that its server has too: all but those that differ from run to run."""
    return {name: value for name, value in sorted(env.items()) if not PER_RUN.fullmatch(name)}
