"""Memory caps by resource limits, for hosts where the executor may make no control groups."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import Final, Literal

from penstock_devices.accounting import family, host, total
from penstock_devices.port import DeviceError, Usage

_LIMITED: Final = (
    'ulimit -S -d "$1" && ulimit -H -d "$0" && shift && exec "$@"'  # a hard limit may not be below the soft one
)


class Rlimit:
    """
    ``RLIMIT_DATA``: private writable mappings of each process, touched or not (Linux 4.7 and later).

    Weaker than a cgroup. It counts process by process, so children have the same cap each, and it does not see shared
    memory. At the start it also counts what is mapped and never touched, such as 8 MiB for each thread's stack: leave
    room for it, or start with much and :meth:`change` it. ``RLIMIT_AS`` would count libraries and address space too,
    which CUDA reserves by the terabyte.
    """

    name: Literal["rlimit"] = "rlimit"

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def command(self, key: str, argv: Sequence[str], cap_bytes: int, most_bytes: int = 0) -> list[str]:
        """Return ``argv`` behind a shell that limits itself first."""
        del key
        most_kib, cap_kib = _kib(max(cap_bytes, most_bytes)), _kib(cap_bytes)
        return ["/bin/sh", "-c", _LIMITED, str(most_kib), str(cap_kib), *argv]

    def set_cpus(self, key: str, cpus: float) -> None:
        """Nothing: there is no limit of the processors that a process may use at a time."""
        del key, cpus

    def change(self, key: str, leader: int, cap_bytes: int) -> None:
        """
        Let each process of the session grow until so much of it is resident; what it holds beyond that, it keeps.

        The limit is what it has mapped now and so much more; what it has mapped and not touched is not held against it.
        So a cap is right if it is set between two iterations, and too high by what an iteration holds if within one.
        """
        del key
        for pid in family(leader):
            held = host(pid)
            if held is not None and held.data_bytes:  # neither gone nor a zombie
                _set_soft(pid, cap_bytes, held.data_bytes + max(cap_bytes - held.resident_bytes, 0))

    def usage(self, key: str, leader: int) -> Usage:
        """Return the sum over the session."""
        del key
        return Usage(current_bytes=total(family(leader)).data_bytes)

    def end(self, key: str) -> None:
        """Limits know no members."""
        del key

    def forget(self, key: str) -> None:
        """Nothing is left of a limit whose process has ended."""
        del key


def _kib(size_bytes: int) -> int:
    if size_bytes < 1:
        raise DeviceError(f"a cap of {size_bytes} bytes lets nothing run; expected at least 1 byte, better 64 MiB")
    return -(-size_bytes // 1024)


def _set_soft(pid: int, cap_bytes: int, limit_bytes: int) -> None:
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        bounded = hard != resource.RLIM_INFINITY
        if bounded and cap_bytes > hard:
            raise DeviceError(f"process {pid} may get {hard} bytes at most, not {cap_bytes}; it was started with less")
        resource.prlimit(pid, resource.RLIMIT_DATA, (min(limit_bytes, hard) if bounded else limit_bytes, hard))
    except ProcessLookupError:
        return  # it ended meanwhile
    except PermissionError as error:
        raise DeviceError(f"the limit of process {pid} cannot be changed: {error}; it is another user's") from error
