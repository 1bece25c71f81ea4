"""
The command lines of bubblewrap and Apptainer for a job's image, which is a folder or a file: they need no engine.

Both run as the job's user. The image is read-only; the folders of the host that a run needs are bound at their own
paths, and ``/tmp`` is the run's own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from penstock_executor.launchers import sandbox
from penstock_log import Device


def problem(image: str) -> str:
    """Return why bubblewrap cannot run programs of an image, and what to do; empty where nothing is known against."""
    env, shell = Path(image, "usr/bin/env"), Path(image, "bin/sh")
    if not os.path.isdir(image):
        return f"image {image} is no folder on this node; put it there, on a file system that all nodes share"
    try:
        is_whole, program = env.exists() and shell.exists(), env.resolve().name
    except OSError as error:
        return f"image {image} cannot be looked at on this node: {error}; let the executor's user read it"
    if not is_whole:
        return f"image {image} has no usr/bin/env or no bin/sh; unpack a whole root file system there"
    if program == "busybox":
        return f"image {image} has busybox for env, which cannot reset signals; use an image with GNU coreutils"
    return ""


def bubblewrap(
    image: str, *, folders: Mapping[str, str], hidden: Iterable[str], devices: Iterable[Device]
) -> tuple[str, ...]:
    """
    Return what comes before a program's command line.

    Parameters
    ----------
    folders : mapping of str to str
        Where in the image → which folder of the host.
    hidden : iterable of str
        What of these is not to be seen.
    """
    mounts: dict[str, tuple[str, ...]] = {path: ("--tmpfs", path) for path in hidden}
    mounts |= {where: ("--bind", folder, where) for where, folder in folders.items()}
    for path in ("/tmp", "/var/tmp"):  # noqa: S108 - within the image
        mounts.setdefault(path, ("--tmpfs", path))
    nodes = (word for path in sandbox.device_nodes(devices) for word in ("--dev-bind-try", path, path))
    files = (word for words in _files(Path(image), {*mounts, "/dev", "/proc", "/sys"}) for word in words)
    return (
        *(shutil.which(sandbox.PROGRAM) or sandbox.PROGRAM, "--die-with-parent", *files),
        *("--dev-bind", "/proc", "/proc", "--ro-bind-try", "/sys", "/sys"),
        *("--dev", "/dev", "--bind", "/dev/shm", "/dev/shm", *nodes),  # noqa: S108 - which gangs share
        *(word for _, words in sorted(mounts.items()) for word in words),
        *("--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf", "--ro-bind-try", "/etc/hosts", "/etc/hosts"),
        *("--", *sandbox.RESET),
    )


def _files(image: Path, mounts: set[str], below: str = "/") -> Iterator[tuple[str, ...]]:
    """
    Yield how the files of an image are bound.

    A folder in which something is mounted is made anew and filled, as nothing can be made in one that is read-only.
    """
    for entry in sorted(os.scandir(Path(image, below.lstrip("/"))), key=lambda entry: entry.name):
        path = os.path.join(below, entry.name)
        if path in mounts:
            continue
        if entry.is_symlink():
            yield "--symlink", os.readlink(entry.path), path
        elif entry.is_dir() and (path == "/etc" or any(mount.startswith(f"{path}/") for mount in mounts)):
            yield "--dir", path
            yield from _files(image, mounts, path)
        elif path not in {"/etc/resolv.conf", "/etc/hosts"}:
            yield "--ro-bind", entry.path, path


def apptainer(image: str, *, folders: Mapping[str, str], cwd: str, devices: Iterable[Device]) -> tuple[str, ...]:
    """
    Return what comes before a program's command line.

    With GPUs, Apptainer attaches the nodes of all of the node's: the run's are said in ``CUDA_VISIBLE_DEVICES``.
    """
    binds = (word for where, folder in sorted(folders.items()) for word in ("--bind", f"{folder}:{where}"))
    shared = "/dev/shm"  # noqa: S108 - which gangs share
    return (
        *(shutil.which("apptainer") or "apptainer", "--silent", "exec", "--contain", "--no-home", "--no-umask"),
        *("--no-eval", "--bind", f"{shared}:{shared}", *binds, "--pwd", cwd),
        *(["--nv"] if any(device.backend == "cuda" for device in devices) else []),
        image,
    )
