"""
A control group that may open some GPUs and no other, by the kernel's own word (version 2 of control groups).

Version 2 has no file for devices: a small program of the kernel's (BPF) decides at each ``open``. The one here looks at
NVIDIA's GPUs alone, character devices of major number 195: those of the grant may be opened, the others not. All other
devices are left to their modes, and so are the nodes that all GPUs share.

References
----------
Linux, Documentation/admin-guide/cgroup-v2.rst: device controller; ``include/uapi/linux/bpf.h``: bpf_cgroup_dev_ctx.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from penstock_cluster.device_backend import DeviceError

NVIDIA: Final = 195
"""Major number of GPUs."""
SHARED_FROM: Final = 254
"""Minor numbers from here on are not of one GPU: ``nvidia-modeset`` and ``nvidiactl``."""
_CALL: Final = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
_LOAD, _ATTACH = 5, 8
_CGROUP_DEVICE: Final = 15
_AT_DEVICES: Final = 6
_BESIDE_OTHERS: Final = 1 << 1
_R0, _R1, _R2, _R3 = range(4)
_LOAD_WORD: Final = 0x61
_SET: Final = 0xB7
_SKIP_UNLESS_EQUAL: Final = 0x55
_SKIP_IF_EQUAL: Final = 0x15
_SKIP_IF_AT_LEAST: Final = 0x35
_EXIT: Final = 0x95
_MAJOR_AT, _MINOR_AT = 4, 8
_libc: Final = ctypes.CDLL(None, use_errno=True)


def program(minors: Collection[int], major: int = NVIDIA, shared_from: int = SHARED_FROM) -> bytes:
    """
    Return the program by which a group may open these of a major number's devices.

    Examples
    --------
    >>> len(program([0])) // 8, len(program([0, 1, 2])) // 8
    (9, 11)
    """
    allowed = sorted(minors)
    checks = [
        _word(_SKIP_IF_EQUAL, _R3, offset=len(allowed) - index + 1, value=each) for index, each in enumerate(allowed)
    ]
    return b"".join(
        [
            _word(_LOAD_WORD, _R2, _R1, offset=_MAJOR_AT),
            _word(_LOAD_WORD, _R3, _R1, offset=_MINOR_AT),
            _word(_SKIP_UNLESS_EQUAL, _R2, offset=len(allowed) + 3, value=major),
            _word(_SKIP_IF_AT_LEAST, _R3, offset=len(allowed) + 2, value=shared_from),
            *checks,
            _word(_SET, _R0, value=0),
            _word(_EXIT),
            _word(_SET, _R0, value=1),
            _word(_EXIT),
        ]
    )


def _word(code: int, to: int = 0, source: int = 0, *, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, source << 4 | to, offset, value)


def guard(group: Path, instructions: bytes) -> None:
    """
    Have a group, and what is below it, ask the program at each ``open`` of a device; it goes with the group.

    Raises
    ------
    DeviceError
        If the kernel refuses: it takes CAP_SYS_ADMIN, or CAP_BPF and CAP_NET_ADMIN.
    """
    text, licence, log = (ctypes.create_string_buffer(body) for body in (instructions, b"Apache-2.0", bytes(4096)))
    load = struct.pack(
        "=IIQQIIQII",
        *(_CGROUP_DEVICE, len(instructions) // 8, ctypes.addressof(text), ctypes.addressof(licence)),
        *(1, len(log), ctypes.addressof(log), 0, 0),
    )
    at = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        made = _bpf(_LOAD, load, f"load the device program of {group}", log)
        try:
            _bpf(_ATTACH, struct.pack("=IIII", at, made, _AT_DEVICES, _BESIDE_OTHERS), f"attach it to {group}")
        finally:
            os.close(made)
    finally:
        os.close(at)


def _bpf(command: int, body: bytes, what: str, log: ctypes.Array[ctypes.c_char] | None = None) -> int:
    if _CALL is None:
        raise DeviceError(f"cannot {what}: not known how on {platform.machine()}")
    attributes = ctypes.create_string_buffer(body, max(len(body), 128))
    done = int(_libc.syscall(_CALL, command, attributes, len(attributes)))
    if done < 0:
        said = log.value.decode(errors="replace").strip() if log is not None else ""
        raise DeviceError(f"cannot {what}: {os.strerror(ctypes.get_errno())}{f'; {said}' if said else ''}")
    return done


def minors(nodes: Sequence[str], major: int = NVIDIA) -> list[int]:
    """Return the minor numbers of those device nodes that are of a major number; one that is not there is left out."""
    found = []
    for node in nodes:
        try:
            number = os.stat(node).st_rdev
        except OSError:
            continue
        if os.major(number) == major:
            found.append(os.minor(number))
    return found
