"""What can be known to go wrong before anything is started, said in words that tell what to do."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock_events import workload

_INTERPRETERS: Final = {"python": ".py", "python3": ".py", "sh": ".sh", "bash": ".sh"}
_TAKES_VALUE: Final = {"-W", "-X", "--check-hash-based-pycs", "-o", "-O"}
_READ_BYTES: Final = 2**20


def problem(command: Sequence[str], cwd: str, path: str) -> str:
    """
    Return why a command cannot start; empty where nothing is known against it.

    Parameters
    ----------
    command : sequence of str
    cwd : str
        Absolute working directory.
    path : str
        The ``PATH`` that the command will have.
    """
    if not os.path.isdir(cwd):
        return f"the working directory {cwd} does not exist on this node; create it or set cwd to one that does"
    if not _program(command[0], cwd, path):
        if os.path.isfile(os.path.join(cwd, command[0])):
            return _not_started(command, cwd, path)
        where = cwd if "/" in command[0] else f"PATH ({path})"
        return f"program {command[0]!r} was not found; looked in {where}; install it on this node or give its full path"
    script = _script(command)
    if script and not os.path.isfile(os.path.join(cwd, script)):
        return (
            f"script {script!r} was not found; looked in {cwd}; "
            "submit from the folder that holds it, set cwd, or give its full path"
        )
    return ""


def _not_started(command: Sequence[str], cwd: str, path: str) -> str:
    """Return why a file that is there is no program to be started, and what starts it."""
    name = command[0]
    is_executable = os.access(os.path.join(cwd, name), os.X_OK)
    wrong = "is not executable" if "/" in name else f"is a file in {cwd}, and was not found on PATH ({path})"
    words = workload.run_by(command, is_executable=is_executable)
    other = f"chmod +x it in {cwd}" if "/" in name else "give its path, such as ./program"
    advice = f"submit it with what runs it: penstock submit -- {shlex.join(words)}" if words else other
    return f"program {name!r} {wrong}; {advice}"


def _program(name: str, cwd: str, path: str) -> str | None:
    return shutil.which(os.path.join(cwd, name) if "/" in name else name, path=path)


def _script(command: Sequence[str]) -> str:
    """Return the script that an interpreter is told to run; empty where it is none, or where that is not certain."""
    name = os.path.basename(command[0])
    suffix = _INTERPRETERS.get("python" if name.startswith("python") else name)
    if suffix is None:
        return ""
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-"):
            return argument if argument.endswith(suffix) else ""
        if argument in {"-", "-c", "-m"} or (suffix == ".sh" and "c" in argument):
            return ""
        if argument in _TAKES_VALUE and suffix == ".py":
            next(arguments, "")
    return ""


def opaque(command: Sequence[str], cwd: str) -> str:
    """Return why a command must not be sampled; empty where its script says that it uses Penstock."""
    if not workload.is_opaque(command, lambda path: _beginning(Path(cwd, path))):
        return ""
    return "opaque: no file of its command line mentions penstock, so that a sample could have side effects"


def _beginning(path: Path) -> bytes:
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_READ_BYTES)
    except (OSError, ValueError):
        return b""
