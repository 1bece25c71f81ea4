"""What a submitting client adds to a specification: whose job it is, where it runs, its script and its environment."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from penstock_log import JobSpec, SweepSpec, workload

EXPORTED: Final = ("PATH", "VIRTUAL_ENV", "PYTHONPATH", "HOME", "LANG")
"""
Variables of the submitting shell that a job gets by default, so that ``python`` means the same there as here. The rest
stays at home: Slurm exports everything, tokens and all, and the log is kept for ever.
"""

_SCRIPT: Final = re.compile(r"\.(py|sh|bash|pl|rb|jl|R|lua|js)$")
_MAGIC_OF_BINARIES: Final = b"\x7fELF"
_READ_BYTES: Final = 2**20
_FIRST_BYTES: Final = 4096


def fill(spec: JobSpec, environ: Mapping[str, str] = os.environ, *, is_known: bool = False) -> JobSpec:
    """
    Return the job with user, absolute working directory, script digest and environment filled in where they are empty.

    Variables that the job sets itself win over those of the shell. Where the server knows who submits (``is_known``),
    the user is left to the gateway. A job with an image gets none of the shell's: its paths are not those of the image.
    Where a folder is uploaded, the working directory is relative to it.

    Raises
    ------
    BadInput
        If the working directory does not lie in the folder that is uploaded.
    """
    if spec.workdir:
        return _fill_in_workdir(spec, environ, is_known=is_known)
    user, env = spec.user or ("" if is_known else user_name()), _exported(spec, environ) | spec.env
    if spec.code:  # its files were uploaded before, and need not be here
        return msgspec.structs.replace(spec, user=user, env=env)
    cwd = absolute(spec.cwd or ".")
    return msgspec.structs.replace(
        spec,
        user=user,
        cwd=cwd,
        digest=spec.digest or digest(spec.command, Path(cwd)),
        opaque=spec.opaque or is_opaque(spec.command, Path(cwd)),
        env=env,
    )


def _fill_in_workdir(spec: JobSpec, environ: Mapping[str, str], *, is_known: bool) -> JobSpec:
    workdir = absolute(spec.workdir)
    cwd = os.path.relpath(os.path.normpath(os.path.join(workdir, spec.cwd)), os.path.normpath(workdir))
    if cwd == ".." or cwd.startswith("../"):
        from penstock_log.validation import BadInput  # noqa: PLC0415 - most jobs upload nothing

        raise BadInput(f"cwd {spec.cwd} does not lie in workdir {workdir}; give a path relative to it")
    filled = fill(msgspec.structs.replace(spec, workdir="", cwd=os.path.join(workdir, cwd)), environ, is_known=is_known)
    return msgspec.structs.replace(filled, workdir=workdir, cwd="" if cwd == "." else cwd)


def in_place(spec: JobSpec) -> JobSpec:
    """Return a job that runs in its folder where that is, as on a file system that nodes share: nothing is uploaded."""
    if not spec.workdir:
        return spec
    return msgspec.structs.replace(spec, workdir="", cwd=os.path.join(absolute(spec.workdir), spec.cwd))


def own_files(spec: JobSpec) -> list[str]:
    """Return the files of its folder that a job's command names, relative to that folder."""
    if not spec.workdir:
        return []
    paths = (
        os.path.normpath(os.path.join(spec.cwd, word))
        for word in dict.fromkeys((script(spec.command), spec.command[0]))
    )
    return [
        path
        for path in paths
        if path != "." and (Path(spec.workdir) / path).is_file() and not path.startswith(("..", "/"))
    ]


def here(spec: JobSpec) -> Path:
    """Return the working directory of a job as it is where it is submitted."""
    return Path(in_place(spec).cwd or ".").absolute()


def _exported(spec: JobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    return {} if spec.image else {name: environ[name] for name in EXPORTED if name in environ}


def fill_sweep(spec: SweepSpec, environ: Mapping[str, str] = os.environ, *, is_known: bool = False) -> SweepSpec:
    """Return the sweep with its job filled in."""
    return msgspec.structs.replace(spec, job=fill(spec.job, environ, is_known=is_known))


def sweep_fields(space: Mapping[str, Any], script: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the fields of a sweep over a space, each trial of which runs a script; its default name is the script's.

    Raises
    ------
    TypeError
        If there is no script, and no job.
    """
    if not script and "job" not in fields:
        raise TypeError("a space was given without a script; expected tune(space, 'train.py', metric=...), or job=...")
    named = {"name": name_from([script])} if script else {}
    job = {"job": {**named, "command": ("python", script)}} if script else {}
    return {**named, **job, "space": dict(space), **fields}


def absolute(path: str) -> str:
    """Return a path that does not depend on where one stands."""
    return str(Path(path).expanduser().absolute())


def user_name() -> str:
    """Return the submitting user's name; ``uid-<n>`` where the system has none."""
    import getpass  # noqa: PLC0415 - where the server knows who submits, nobody asks

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def digest(command: Sequence[str], cwd: Path) -> str:
    """
    Return the SHA-256 of the script: the first word of the command that is a readable file and no binary program.

    Empty where there is none; jobs then differ by their command lines alone.
    """
    for word in command:
        try:
            with _opened(cwd / word) as file:
                if file.read(4) == _MAGIC_OF_BINARIES:
                    continue
                file.seek(0)
                import hashlib  # noqa: PLC0415 - it loads OpenSSL, and many commands have no script

                found = hashlib.sha256()
                while piece := file.read(_READ_BYTES):
                    found.update(piece)
                return found.hexdigest()
        except (OSError, ValueError):
            continue
    return ""


def is_opaque(command: Sequence[str], cwd: Path) -> bool:
    """Return whether it is certain that no file of the command line mentions Penstock: its script, if any, is here."""
    named = script(command)
    return not (named and not (cwd / named).is_file()) and workload.is_opaque(
        command, lambda word: beginning_of(cwd / word)
    )


def beginning_of(path: Path, most_bytes: int = _READ_BYTES) -> bytes:
    """
    Return the beginning of a file, where a script names what it imports; empty where no regular file can be read.

    It never waits for what a job may have named in place of a file, such as a pipe that nobody writes to.
    """
    try:
        with _opened(path) as file:
            return file.read(most_bytes)
    except (OSError, ValueError):
        return b""


def _opened(path: Path) -> BinaryIO:
    """Open a regular file for reading; raise OSError where there is none."""
    if not path.is_file():  # to open a device may already do something
        raise FileNotFoundError(f"{path} is no regular file")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be a pipe by now
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileNotFoundError(f"{path} is no regular file")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def script(command: Sequence[str]) -> str:
    """
    Return the word of the command that looks like its script; empty where none does.

    Examples
    --------
    >>> script(("python", "-u", "train.py", "--init", "weights.py"))
    'train.py'
    >>> script(("python", "-m", "json.tool"))
    ''
    """
    if "-m" in command[:3] or "-c" in command[:3]:
        return ""
    return next((word for word in command if _SCRIPT.search(word) and not word.startswith("-")), "")


def start_problem(spec: JobSpec, verb: str) -> str:
    """
    Return why a file that a command begins with does not start as it is, and what does; empty where nothing is known.

    A command whose file is not here may be on the nodes.

    Parameters
    ----------
    verb : str
        The command of ``penstock`` that the advice is for.
    """
    word = spec.command[0]
    path = here(spec) / word
    if not path.is_file():
        return ""
    import shlex  # noqa: PLC0415 - most commands begin with a program that is not here
    import shutil  # noqa: PLC0415

    is_executable = os.access(path, os.X_OK)
    if is_executable and "/" in word:
        return workload.first_line_problem(shlex.quote(word), beginning_of(path), lambda _program: True)
    if is_executable if "/" in word else shutil.which(word, path=spec.env.get("PATH")):
        return ""
    if "/" in word:
        wrong, other = f"{word} is not executable", f"make it so: chmod +x {shlex.quote(str(path))}"
    else:
        wrong, other = f"{word} is a file here, and programs are looked for on PATH", "give its path, such as ./program"
    words = workload.run_by(spec.command, is_executable=is_executable)
    how = "give its path" if is_executable else "put what runs it before it"
    advice = f"{how}: penstock {verb} -- {shlex.join(words)}" if words else other
    return f"{wrong}; {advice} (or give --no-check, if the nodes differ)"


def line_ends_warning(spec: JobSpec) -> str:
    """Return what is to be known of a script whose lines a shell reads otherwise than its author; empty for others."""
    word = script(spec.command)
    if not word or os.path.basename(spec.command[0]) not in workload.SHELLS:
        return ""
    path = here(spec) / word
    if b"\r\n" not in beginning_of(path)[:_FIRST_BYTES]:
        return ""
    import shlex  # noqa: PLC0415 - few scripts are from Windows

    advice = workload.WITHOUT_CR.format(name=shlex.quote(str(path)))
    shell = spec.command[0]
    return f"the lines of {word} end as on Windows (CRLF), and {shell} takes the CR for a part of each line; {advice}"


def missing_script(spec: JobSpec) -> Path | None:
    """Return where the job's script should be but is not; None where it is there, or the command names no script."""
    word = script(spec.command)
    path = here(spec) / word
    return path if word and not path.exists() else None


def name_from(command: Sequence[str]) -> str:
    """
    Return a name for a job that was given none: that of its script or, failing that, its program.

    Examples
    --------
    >>> name_from(("python", "train.py")), name_from(("/bin/echo", "hi")), name_from(("./x y!",))
    ('train', 'echo', 'x-y')
    """
    stem = Path(script(command) or command[0]).stem
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:63] or "job"
