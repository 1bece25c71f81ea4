"""
The command line of bubblewrap around a job: the node read-only, the run's own ``/tmp``, and the devices of its grant.

`bubblewrap <https://github.com/containers/bubblewrap>`_ runs as the job's user, in a user namespace, so that it takes
no more rights than this user has. It needs hosts that let users have such namespaces: :func:`problem` tries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock_executor.launchers.confinement import is_temporary
from penstock_log import Device

PROGRAM: Final = "bwrap"
_SHARED_GPU_NODES: Final = (
    *("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"),
    *("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels", "/dev/infiniband", "/dev/gdrdrv"),
)
"""What any process with a GPU needs beside the nodes of its own GPUs."""
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_SIGNALS: Final = "TERM,INT,HUP,QUIT,USR1,USR2,ALRM,TSTP,PIPE"
"""Bubblewrap's own process ignores what is sent to the job's group (the shim sees to it); the program does not."""
RESET: Final = ("/usr/bin/env", f"--default-signal={_SIGNALS}")
_TRY_S: Final = 20.0


def bubblewrap(
    *, tmp: str, passed: Iterable[str], writable: Iterable[str], devices: Iterable[Device], gpus: Path = _GPUS
) -> tuple[str, ...]:
    """
    Return what comes before a program's command line.

    Parameters
    ----------
    tmp : str
        In place of ``/tmp`` and ``/var/tmp``.
    passed : iterable of str
        Folders that stay where they are, read-only, where they lie below ``/tmp``.
    writable : iterable of str
        Folders that may be written; one that is not there is left out.
    devices : iterable of Device
        Of the grant: no other GPU has a node in ``/dev``.
    """
    below = sorted(filter(is_temporary, {*passed}))
    binds = [word for path in below for word in ("--ro-bind-try", path, path)]
    binds += [word for path in sorted({*writable} - {"/"}) for word in ("--bind-try", path, path)]
    nodes = [word for path in device_nodes(devices, gpus) for word in ("--dev-bind-try", path, path)]
    return (
        *(shutil.which(PROGRAM) or PROGRAM, "--die-with-parent", "--ro-bind", "/", "/", "--dev-bind", "/proc", "/proc"),
        *("--dev", "/dev", "--bind", "/dev/shm", "/dev/shm", *nodes),  # noqa: S108 - which gangs share
        *("--bind", tmp, "/tmp", "--bind", tmp, "/var/tmp", *binds, "--"),  # noqa: S108 - these are what is replaced
        *RESET,
    )


def device_nodes(devices: Iterable[Device], gpus: Path = _GPUS) -> Iterator[str]:
    """Yield the nodes of GPUs, as the driver numbers them, and what all of these need."""
    wanted = {device.parent or device.uuid for device in devices if device.backend == "cuda"}
    if not wanted:
        return
    for information in sorted(gpus.glob("*/information")):
        fields = dict(line.split(":", 1) for line in information.read_text().splitlines() if ":" in line)
        if fields.get("GPU UUID", "").strip() in wanted:
            yield f"/dev/nvidia{fields.get('Device Minor', '').strip()}"
    yield from _SHARED_GPU_NODES


def problem(user: int | None = None) -> str:
    """Return why jobs cannot be sandboxed here, and what to do; empty where they can. ``user``: as whom to try."""
    if shutil.which(PROGRAM) is None:
        return f'{PROGRAM} was not found; install bubblewrap, or set sandbox = "none"'
    command: Sequence[str] = (*bubblewrap(tmp="/tmp", passed=(), writable=(), devices=()), "true")  # noqa: S108
    groups: tuple[int, ...] | None = None if user is None else ()
    try:
        tried = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRY_S,
            cwd="/",
            user=user,
            group=user,
            extra_groups=groups,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{PROGRAM} does not work here: {error}"
    if tried.returncode == 0:
        return ""
    why = tried.stderr.strip() or f"exit code {tried.returncode}"
    return (
        f"{PROGRAM} does not work here: {why}; users need user namespaces (sysctl user.max_user_namespaces, "
        "kernel.apparmor_restrict_unprivileged_userns), and env of coreutils 8.31 or later"
    )


def own_folder(path: str, uid: int) -> tuple[str, ...]:
    """Return a folder if it is a user's own, and thus his to write; nothing otherwise."""
    try:
        return (path,) if path != "/" and os.stat(path).st_uid == uid else ()
    except OSError:
        return ()
