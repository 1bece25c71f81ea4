"""How much of the host's memory each process holds, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Final

import msgspec

from penstock_log import Device

PROC: Final = Path("/proc")


class HeldMemory(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one process, or several together, hold of the host's memory.

    Attributes
    ----------
    resident_bytes : int
        In memory or swapped out. Libraries count in each process that has loaded them: an upper bound for several.
    peak_bytes : int
        The most that was resident at once, since the start or since it was reset; for several processes the sum
        of their peaks, an upper bound.
    data_bytes : int
        Mapped privately and writable, touched or not: what ``RLIMIT_DATA`` counts.
    """

    resident_bytes: int = 0
    peak_bytes: int = 0
    data_bytes: int = 0

    def __add__(self, other: HeldMemory) -> HeldMemory:
        """Return the sums."""
        return HeldMemory(
            resident_bytes=self.resident_bytes + other.resident_bytes,
            peak_bytes=self.peak_bytes + other.peak_bytes,
            data_bytes=self.data_bytes + other.data_bytes,
        )


def host(pid: int, proc: Path = PROC) -> HeldMemory | None:
    """Return what a process holds of the host's memory; None if it has ended."""
    try:
        return of_status((proc / str(pid) / "status").read_text())
    except OSError:
        return None


def total(pids: Iterable[int], proc: Path = PROC) -> HeldMemory:
    """Return what those of the processes hold together that are still there."""
    return sum((held for pid in pids if (held := host(pid, proc))), HeldMemory())


def of_status(text: str) -> HeldMemory:
    """
    Return what ``/proc/PID/status`` says; zeros for a zombie, which holds nothing.

    Examples
    --------
    >>> of_status("VmHWM:\\t 12 kB\\nVmRSS:\\t 10 kB\\nVmData:\\t 20 kB\\nVmSwap:\\t 1 kB\\n")
    HeldMemory(resident_bytes=11264, peak_bytes=12288, data_bytes=20480)
    """
    fields = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Vm") and line.endswith(" kB"))
    sizes = {name: int(value.split()[0]) * 1024 for name, value in fields.items()}
    resident_bytes = sizes.get("VmRSS", 0) + sizes.get("VmSwap", 0)
    return HeldMemory(
        resident_bytes=resident_bytes,
        peak_bytes=max(sizes.get("VmHWM", 0), resident_bytes),
        data_bytes=sizes.get("VmData", 0),
    )


def family(leader: int, proc: Path = PROC) -> list[int]:
    """Return the processes of a session, which is what a job's shim leads; zombies are among them."""
    pids = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    return sorted(pid for pid in pids if _session(pid, proc) == leader)


def _session(pid: int, proc: Path) -> int:
    try:
        if proc == PROC:
            return os.getsid(pid)  # 20 times as quick as reading the file
        stat = (proc / str(pid) / "stat").read_text()
    except OSError:
        return -1
    return int(stat[stat.rfind(")") + 2 :].split()[3])


def by_session(leaders: Container[int]) -> dict[int, tuple[int, ...]]:
    """Return the processes of some sessions, by leader, after one look at all there are."""
    found: dict[int, tuple[int, ...]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (session := _session(int(entry.name), PROC)) in leaders:
            found[session] = (*found.get(session, ()), int(entry.name))
    return found


def own_bytes(pids: Iterable[int], proc: Path = PROC) -> int:
    """
    Return what processes hold that only their end gives back: what they share counts once, and files not at all.

    Notes
    -----
    The kernel walks each process's pages, milliseconds for a gigabyte: ask where a cheaper figure gives a reason.
    """
    return sum(_proportional_bytes(pid, proc) for pid in pids)


def _proportional_bytes(pid: int, proc: Path) -> int:
    try:
        text = (proc / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return 0
    sizes = {
        name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in text.splitlines()[1:])
    }
    parts = [sizes[name] for name in ("Pss_Anon", "Pss_Shmem", "SwapPss") if name in sizes]
    return sum(parts) if "Pss_Anon" in sizes else sizes.get("Pss", 0)


class HostAccounting:
    """The host's memory, for devices whose memory is the host's: what is resident."""

    def held(self, device: Device, pids: Iterable[int]) -> dict[int, int]:
        """Return what is resident of each process that is still there."""
        del device
        return {pid: held.resident_bytes for pid in pids if (held := host(pid)) and held.resident_bytes}
