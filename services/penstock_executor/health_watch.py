"""
Watch over the health of a node's devices: which of them fail, and which are well again.

:class:`HealthWatch` keeps what the drivers said last, and compares it with what the log says of the node: so after a
restart of the executor, or after an operator has resumed a device, it says only what has changed. A driver tells of an
event once: it is kept in a file until the log has it, however long that is away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock_cluster.device_backend import BACKENDS
from penstock_cluster.device_health import Diagnosis, HealthReader, HealthReading, diagnose, is_event
from penstock_cluster.nodes import DeviceOutage, Node
from penstock_log import Device, DeviceFailed, DeviceRecovered

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def readers(devices: tuple[Device, ...]) -> list[HealthReader]:
    """Return who tells how a node's devices are; nobody where no backend can."""
    of_backends = {name: tuple(device for device in devices if device.backend == name) for name in BACKENDS}
    found = (BACKENDS[name].load().health(own) for name, own in of_backends.items() if own)
    return [reader for reader in found if reader is not None]


def boot_id() -> str:
    """Return what names the present boot of this machine; empty where the kernel does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class HealthWatch:
    """
    The health of one node's devices.

    Parameters
    ----------
    node_id : str
    readers : sequence of HealthReader
    boot : str
        The present boot of the machine.
    file : Path, optional
        Keeps the events that the log does not have yet, for this boot.
    """

    def __init__(self, node_id: str, readers: Sequence[HealthReader], boot: str, file: Path | None = None) -> None:
        self._node_id, self._readers, self._boot, self._file = node_id, readers, boot, file
        self._found: dict[int, Diagnosis | None] = {}
        self._events = _kept(file, boot) if file is not None else {}

    @property
    def watches(self) -> bool:
        """Whether any driver tells how its devices are."""
        return bool(self._readers)

    def read(self) -> None:
        """
        Ask the drivers, which may take long.

        Raises
        ------
        DeviceError
            If one of them cannot be asked at all; what was known of its devices stays.
        OSError
            If an event cannot be kept in the file; it is known until this process ends.
        """
        for reader in self._readers:
            self.note(reader.read())

    def note(self, readings: Mapping[int, HealthReading]) -> None:
        """Note readings; of a device without one, what was known stays. Raises OSError as :meth:`read`."""
        before = dict(self._events)
        for index, reading in readings.items():
            found = diagnose(reading)
            if found is not None and is_event(found.code):
                self._events[index] = found  # it is told once, and until then it stays
                found = diagnose(
                    HealthReading(uncorrected=reading.uncorrected, pending=reading.pending, failure=reading.failure)
                )
            self._found[index] = found
        if self._events != before:
            self._keep()

    def note_told(self, fact: DeviceFailed | DeviceRecovered) -> None:
        """Note that the log has a fact. Raises OSError as :meth:`read`."""
        if self._events.pop(fact.index, None) is not None:
            self._keep()

    def facts(self, node: Node, now_s: float) -> Iterator[DeviceFailed | DeviceRecovered]:
        """
        Yield what the log does not say yet of the devices' health; :meth:`note_told` is to follow each.

        An error that only an event told of ends with the next boot; an operator may resume the device before. What is
        measured ends when it is measured no more.
        """
        for device in node.devices:
            index = device.index
            outage = node.outage(index)
            found = self._events.get(index) or self._found.get(index)
            if outage is not None and outage.failed:
                self._events.pop(index, None)  # it has failed already, whatever for
            if outage is None or not outage.failed:
                if found is not None:
                    yield self._failed(index, found, now_s)
            elif found is None and index in self._found and self._is_over(outage):
                yield DeviceRecovered(at_s=now_s, node_id=self._node_id, index=index)

    def unfit(self, index: int) -> str:
        """Return why a device is unfit by the last readings, which the log may not have yet; empty for a fit one."""
        found = self._events.get(index) or self._found.get(index)
        return found.reason if found is not None else ""

    def close(self) -> None:
        """Let go of the drivers."""
        for reader in self._readers:
            reader.close()

    def _keep(self) -> None:
        if self._file is None:
            return
        new = self._file.with_name(f"{self._file.name}.new")
        kept = _KeptEvents(boot=self._boot, events={str(index): found for index, found in self._events.items()})
        new.write_bytes(msgspec.json.encode(kept))
        new.replace(self._file)

    def _failed(self, index: int, found: Diagnosis, now_s: float) -> DeviceFailed:
        return DeviceFailed(
            at_s=now_s, node_id=self._node_id, index=index, code=found.code, reason=found.reason, boot=self._boot
        )

    def _is_over(self, outage: DeviceOutage) -> bool:
        """Say whether a failure ends as nothing is measured: that of an event lasts as long as the boot."""
        rebooted = bool(outage.boot and self._boot) and outage.boot != self._boot
        return rebooted or not is_event(outage.code)


class _KeptEvents(msgspec.Struct):
    """The events of one boot that the log does not have yet, by number of the device."""

    boot: str
    events: dict[str, Diagnosis]


def _kept(file: Path, boot: str) -> dict[int, Diagnosis]:
    """Return the events of this boot that a file keeps; a file that was not written whole keeps none."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_KeptEvents)
    except (OSError, ValueError):
        return {}
    return {int(index): event for index, event in found.events.items()} if boot and found.boot == boot else {}
