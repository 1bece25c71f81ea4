"""From a node's ``devices`` setting to its numbered devices."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock_cluster.device_backend import BACKENDS, DeviceBackend, DeviceError
from penstock_log import Device


def backends_of(description: str) -> tuple[DeviceBackend, ...]:
    """
    Return the backends that a description names, in its order.

    ``auto`` is the first backend of which the host has devices: CUDA where there is a driver, and the CPU otherwise.
    ``cuda`` insists on a driver; ``cpu`` or ``cpu:8GiB`` is the host; everything else describes emulated devices.

    Raises
    ------
    DeviceError
        If the description cannot be understood, names devices that the host has not got, or names them twice.
    """
    backends: list[DeviceBackend] = []
    column = 1
    for part in description.split(","):
        start, named = column + len(part) - len(part.lstrip()), part.strip()
        backends.append(_backend(named, start))
        same = [backend for backend in backends if backend.name == backends[-1].name]
        if len(same) > 1 and (problem := type(same[0]).conflict(same)):
            raise DeviceError(f"{named!r} at column {start}{problem}")
        column += len(part) + 1
    return tuple(backends)


def _backend(part: str, column: int) -> DeviceBackend:
    kinds = [entry.load() for entry in BACKENDS.values()]
    tried = (kind.found() if part == "auto" else kind.parse(part, column) for kind in kinds if part)
    backend = next((backend for backend in tried if backend is not None), None)
    if backend is None:
        forms = ", ".join(["auto", *(entry.form for entry in BACKENDS.values())])
        what = repr(part) if part else "nothing"
        raise DeviceError(f"{what} at column {column} names no devices; expected one of {forms}, separated by commas")
    return backend


class DeviceSurvey:
    """
    What a node has: the devices of all backends, numbered through.

    Attributes
    ----------
    devices : tuple of Device
    labels : dict of str to str
        How they are connected, and the modes that they are in: for :attr:`penstock_log.NodeJoined.labels`.
    """

    def __init__(self, backends: Sequence[DeviceBackend]) -> None:
        self.devices: tuple[Device, ...] = ()
        self.labels: dict[str, str] = {}
        for backend in backends:
            first = len(self.devices)
            self.labels |= backend.labels(first)
            moved = (msgspec.structs.replace(device, index=first + device.index) for device in backend.devices())
            self.devices += tuple(moved)


def survey(description: str) -> DeviceSurvey:
    """
    Return what a node's ``devices`` setting stands for on this host.

    Raises
    ------
    DeviceError
        If the description cannot be understood, or names devices that the host has not got.
    """
    return DeviceSurvey(backends_of(description))


def environment(devices: Sequence[Device]) -> dict[str, str]:
    """Return the variables under which a process sees exactly these devices of one backend."""
    return BACKENDS[devices[0].backend if devices else "cpu"].load().environment(devices)
