"""
Health of devices: what a driver measures of one, and whether it is fit for jobs.

A :class:`HealthReader` asks a driver. :func:`diagnose` says of a :class:`HealthReading` why the device is unfit, if it
is. :data:`HARDWARE` names the XIDs, the errors that NVIDIA's driver reports, that speak of the device;
:data:`APPLICATION` names those that a job brings about by itself, by which no device is judged.

References
----------
NVIDIA, XID Errors, https://docs.nvidia.com/deploy/xid-errors: the catalogue, with what to do about each.

NVIDIA, Dynamic Page Retirement, and GPU Memory Error Management: XIDs 48, 63, 64, 94 and 95; what is pending until the
next reset.

NVIDIA, k8s-device-plugin, ``internal/rm/health.go``: the XIDs of applications that it passes over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from penstock_log.text import count

HARDWARE: Final[Mapping[int, str]] = {
    46: "the GPU stopped processing",
    48: "an uncorrectable memory error of two bits",
    61: "the internal micro-controller stopped with a warning",
    62: "the internal micro-controller halted",
    63: "a memory page or row is to be replaced at the next reset",
    64: "a memory page or row could not be replaced",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "a high rate of corrected memory errors",
    94: "an uncorrectable memory error, contained in one program",
    95: "an uncorrectable memory error that could not be contained",
    110: "a security fault",
    119: "the GPU's system processor did not answer",
    120: "the GPU's system processor failed",
    136: "an NVLink could not be trained",
    140: "an unrecovered memory error",
    143: "the GPU could not be initialized",
}
"""XIDs that speak of the device, in words."""

APPLICATION: Final[Mapping[int, str]] = {
    13: "an exception of a program on the GPU",
    31: "a page fault of a program on the GPU",
    43: "a program's work on the GPU was stopped",
    45: "a program's work on the GPU was removed as it ended",
    68: "an exception of the video processor",
    109: "a program's work on the GPU took too long to switch",
}
"""XIDs that a job brings about by itself."""


class HealthReading(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a driver says of one device.

    Attributes
    ----------
    xids : tuple of int
        Those that came since the last reading.
    uncorrected : int
        Uncorrected ECC errors since the driver was loaded or the device was reset.
    pending : bool
        A page or a row is to be replaced at the next reset.
    failure : bool
        A row could not be replaced.
    lost : str
        The driver's words if it cannot reach the device any more; the other fields say nothing then.
    """

    xids: tuple[int, ...] = ()
    uncorrected: int = 0
    pending: bool = False
    failure: bool = False
    lost: str = ""


class Diagnosis(NamedTuple):
    """Why a device is unfit: a code, such as ``xid 79``, and a sentence."""

    code: str
    reason: str


class HealthReader(Protocol):
    """Asks a driver how its devices are."""

    def read(self) -> Mapping[int, HealthReading]:
        """
        Return a reading of each device that could be read, by its number on the node; it may take long.

        Raises
        ------
        DeviceError
            If the driver cannot be asked at all.
        """

    def close(self) -> None:
        """Let go of the driver."""


def diagnose(reading: HealthReading) -> Diagnosis | None:
    """
    Return why a device is unfit for jobs; None for one that is fit.

    Examples
    --------
    >>> diagnose(HealthReading(xids=(13, 79)))
    Diagnosis(code='xid 79', reason='XID 79: the GPU has fallen off the bus')
    >>> diagnose(HealthReading(uncorrected=2)).reason
    '2 uncorrected ECC errors since its last reset'
    >>> diagnose(HealthReading(xids=(31,)))
    """
    if reading.lost:
        return Diagnosis("lost", f"the driver cannot reach it: {reading.lost}")
    severe = [xid for xid in reading.xids if xid in HARDWARE]
    measured = list(_measured(reading))
    if severe:
        told = "; ".join(f"XID {xid}: {HARDWARE[xid]}" for xid in dict.fromkeys(severe))
        return Diagnosis(f"xid {severe[0]}", "; ".join([told, *(one.reason for one in measured)]))
    if measured:
        return Diagnosis(measured[0].code, "; ".join(one.reason for one in measured))
    return None


def is_event(code: str) -> bool:
    """Say whether a code is that of an event, which no later reading takes back."""
    return code.startswith("xid ")


def _measured(reading: HealthReading) -> Iterator[Diagnosis]:
    if reading.failure:
        yield Diagnosis("remap_failure", "a row of its memory could not be replaced")
    if reading.uncorrected:
        errors = count(reading.uncorrected, "uncorrected ECC error")
        yield Diagnosis("ecc_uncorrected", f"{errors} since its last reset")
    if reading.pending:
        yield Diagnosis("remap_pending", "a page or row of its memory is to be replaced: it needs a reset")
