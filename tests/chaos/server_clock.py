"""
The time of day of one running process that reads it past libfaketime, as programs in Go do.

Such a program calls ``clock_gettime`` of the vDSO, the page of code that the kernel maps into each process. Its entry
is overwritten with a jump to a few instructions behind its end that ask the kernel and add some seconds to
CLOCK_REALTIME alone: what ticks is left alone. Chaos Mesh sets clocks in the same way (its TimeChaos).
"""

from __future__ import annotations

import os
import platform
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_ENTRY: Final = b"__vdso_clock_gettime"
_JUMP: Final = 5
_DYNAMIC_SYMBOLS: Final = 11
_STUB: Final = bytes.fromhex(
    "b8e4000000"  # mov eax, 228: clock_gettime, with what the caller has given
    "0f05"  # syscall
    "85c0 7510"  # test eax, eax; jnz to the end: an error
    "85ff 750c"  # test edi, edi; jnz to the end: another clock
    "488b050a000000"  # mov rax, [the seconds, 10 bytes behind this instruction]
    "480106"  # add [rsi], rax
    "31c0"  # xor eax, eax
    "c3 cccccccc"  # ret, and what brings the seconds to a multiple of eight
)
_LOOKS: Final = 1000
_LOOK_S: Final = 0.001


def problem() -> str:
    """Return why no process can have such a clock here; empty where it can."""
    machine = platform.machine()
    return "" if machine == "x86_64" else f"it is written for x86_64, and this is {machine}"


class ProcessClock:
    """The clock of one process: true until :meth:`set`, and as the kernel has it again in the next process."""

    def __init__(self, pid: int) -> None:
        begin, end = _mapped(pid)
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        code = os.pread(self._memory, end - begin, begin)
        entry, stub = begin + _symbol(code, _ENTRY), begin + (len(code.rstrip(b"\0")) + 63) // 64 * 64
        if stub + len(_STUB) + 8 > end:
            raise RuntimeError(f"the vDSO of process {pid} has no room for {len(_STUB)} bytes more")
        self._seconds = stub + len(_STUB)
        with _standing(pid, range(entry + 1, entry + _JUMP)):
            os.pwrite(self._memory, _STUB + bytes(8), stub)
            os.pwrite(self._memory, b"\xe9" + struct.pack("<i", stub - entry - _JUMP), entry)

    def set(self, by_s: float) -> None:
        """Let the process's time of day be ahead of the kernel's by so much."""
        os.pwrite(self._memory, struct.pack("<q", round(by_s)), self._seconds)

    def close(self) -> None:
        """Leave the process with the clock that it has."""
        os.close(self._memory)


def _mapped(pid: int) -> tuple[int, int]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            begin, _, end = line.split()[0].partition("-")
            return int(begin, 16), int(end, 16)
    raise RuntimeError(f"process {pid} has no vDSO")


def _symbol(elf: bytes, name: bytes) -> int:
    """Return the offset of a symbol in a 64-bit ELF image."""
    table, count = struct.unpack_from("<Q", elf, 0x28)[0], struct.unpack_from("<H", elf, 0x3C)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + 64 * number) for number in range(count)]
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind == _DYNAMIC_SYMBOLS:
            names = sections[link][4]
            for at in range(offset, offset + size, 24):
                word, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
                if elf[names + word : elf.index(b"\0", names + word)] == name:
                    return int(value)
    raise RuntimeError(f"the vDSO has no {name.decode()}")


@contextmanager
def _standing(pid: int, off: range) -> Iterator[None]:
    """Stop a process while none of its threads is at these addresses; one that was stopped before stays so."""
    stopped_before = _states(pid) == {"T"}
    for _ in range(_LOOKS):
        os.kill(pid, signal.SIGSTOP)
        for _ in range(_LOOKS):
            if _states(pid) == {"T"}:
                break
            time.sleep(_LOOK_S)
        if not any(at in off for at in _counters(pid)):
            break
        os.kill(pid, signal.SIGCONT)
    else:
        raise RuntimeError(f"process {pid} does nothing but to ask for the time")
    try:
        yield
    finally:
        if not stopped_before:
            os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> set[str]:
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


def _counters(pid: int) -> Iterator[int]:
    """Yield where each thread of a stopped process goes on."""
    for path in Path(f"/proc/{pid}/task").glob("*/syscall"):
        yield int(path.read_text().split()[-1], 16)
