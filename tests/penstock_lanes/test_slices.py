from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading

import pytest

from penstock_lanes.slices import Slices

GETATTR = {"x86_64": 315, "aarch64": 275}.get(platform.machine())
kernel = tuple(int(part) for part in platform.release().split(".")[:2])


def slice_ns() -> int:
    """Return the slice that this thread has asked for."""
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(GETATTR, 0, attributes, 48, 0) == 0
    return struct.unpack("=IIQiIQQQ", attributes.raw)[5]


@pytest.mark.skipif(GETATTR is None or kernel < (6, 12), reason="slices can be asked for since Linux 6.12")
def test_a_thread_has_short_slices_until_they_are_restored_and_keeps_its_priority() -> None:
    seen: list[object] = []

    def ask() -> None:
        slices, nice = Slices(), os.getpriority(os.PRIO_PROCESS, 0)
        slices.shorten()
        seen.extend([slice_ns() == 100_000, os.getpriority(os.PRIO_PROCESS, 0) == nice])
        slices.restore()
        seen.append(slice_ns() != 100_000)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [True, True, True]


def test_where_slices_cannot_be_asked_for_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_lanes.slices._SETATTR", None)
    slices = Slices()
    slices.shorten()
    slices.restore()
