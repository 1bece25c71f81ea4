"""
Samples of a node's devices: how busy they are, and how well.

An executor publishes :class:`DevicesSampled` on ``subjects.devices(NODE)`` every few seconds. It is telemetry: it may
be lost, nothing is stored, and the next one has all of it again. It names jobs, so only those hear it who may read
everything. What a driver does not tell is None.
"""

from __future__ import annotations

from typing import Literal, Optional

import msgspec


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What is known of one device at one moment.

    Attributes
    ----------
    source : {"driver", "processes"}
        Who says so: the device's driver, or the host about the processes that use it, which is an estimate.
    model : str
        The product's name.
    minor : int or None
        The number of its device file, such as 0 of ``/dev/nvidia0``.
    utilisation : float or None
        The part of the time in which it computed: 0 to 1.
    memory_used_bytes, memory_free_bytes, memory_total_bytes : int or None
    temperature_c, power_w, sm_clock_mhz : float or None
    xid : int or None
        The last XID error since the executor began; 0 where there was none.
    ecc_double_bit : int or None
        Memory errors that could not be corrected since the driver was loaded.
    error : str
        Why it cannot be read; empty where it can.
    """

    source: Literal["driver", "processes"] = "processes"
    model: str = ""
    minor: Optional[int] = None
    utilisation: Optional[float] = None
    memory_used_bytes: Optional[int] = None
    memory_free_bytes: Optional[int] = None
    memory_total_bytes: Optional[int] = None
    temperature_c: Optional[float] = None
    power_w: Optional[float] = None
    sm_clock_mhz: Optional[float] = None
    xid: Optional[int] = None
    ecc_double_bit: Optional[int] = None
    error: str = ""


class DeviceUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that has a device, or a part of it."""

    job_id: str
    user: str = ""
    team: str = ""


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One device of a node.

    Attributes
    ----------
    index : int
        Its number on the node, as placements have it.
    backend : str
        ``cuda`` for a GPU; others are none.
    uuid, parent : str
        Of the device, and of the GPU that a MIG instance is a part of.
    users : tuple of DeviceUser
        The jobs whose processes are on it.
    """

    index: int
    kind: str
    backend: str
    uuid: str = ""
    parent: str = ""
    users: tuple[DeviceUser, ...] = ()
    reading: DeviceReading


class DevicesSampled(msgspec.Struct, frozen=True, kw_only=True):
    """
    All devices of a node at one moment.

    Attributes
    ----------
    host : str
        The name of the node's machine.
    """

    node_id: str
    host: str
    at_s: float
    devices: tuple[DeviceSample, ...]
