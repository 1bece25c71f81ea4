"""
Most memory for a job's processes, enforced by the kernel or by what allocates: never by asking them nicely.

==========  =======================================================  ==========================================
backend     enforced by                                              a process that wants more
==========  =======================================================  ==========================================
cpu,        a cgroup (v2) of its own, where the executor may make    is killed by the kernel: exit status 137
emulated    one
..          else ``RLIMIT_DATA``, for each process by itself         gets ``MemoryError`` (malloc returns NULL)
cuda        the framework's allocator, told by :func:`environment`   gets ``torch.OutOfMemoryError``
..          under MPS, the driver as well                            ``cudaErrorMemoryAllocation``
==========  =======================================================  ==========================================

The command line itself puts the process under its cap before the program's first instruction, so that no code runs in
the executor between fork and exec.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock_devices.cgroups import Cgroups, Unavailable, of_root
from penstock_devices.port import Caps, Usage
from penstock_devices.rlimits import Rlimit
from penstock_events import Device
from penstock_events.agent import Env

__all__ = ["Caps", "Usage", "environment", "find"]

MPS_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def find(cgroup: Path | None = None) -> Caps:
    """
    Return the strongest way of capping that this process may use.

    Parameters
    ----------
    cgroup : path, optional
        A delegated cgroup directory; without one, this process's own, or for root one below the hierarchy's top.
    """
    reasons = []
    for root in [cgroup] if cgroup else [None, *of_root()]:
        try:
            return Cgroups.open(root)
        except Unavailable as error:
            reasons.append(str(error))
    return Rlimit(reason=reasons[0])


def environment(devices: Sequence[Device], cap_bytes: int, framework_bytes: int = 0) -> dict[str, str]:
    """
    Return the variables that tell a process how much it may hold of each of its devices.

    :func:`penstock.session` passes the fraction on to torch's allocator. Under MPS the driver enforces the cap too, for
    whatever allocates.

    Parameters
    ----------
    devices : sequence of Device
        Of one process, of one backend.
    cap_bytes : int
        Of each device: everything that the process holds there.
    framework_bytes : int
        What of it the allocator does not see (F of a :class:`penstock_events.MemoryNeed`): the fraction is without it.

    Examples
    --------
    >>> gpu = Device(index=0, kind="h100", memory_bytes=80 << 30, backend="cuda", mps=True)
    >>> for name, value in environment([gpu], 20 << 30).items(): print(f"{name}={value}")
    PENSTOCK_MEMORY_BYTES=21474836480
    PENSTOCK_MEMORY_FRACTION=0.25
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M
    """
    least = min((device.memory_bytes for device in devices), default=0)
    env = {Env.MEMORY_BYTES: str(cap_bytes)}
    if least:
        env[Env.MEMORY_FRACTION] = f"{min(max(cap_bytes - framework_bytes, 1) / least, 1.0):.6g}"  # 0 would be no limit
    if devices and all(device.mps for device in devices):
        env[MPS_LIMIT] = ",".join(f"{i}={max(cap_bytes >> 20, 1)}M" for i in range(len(devices)))
    return env
