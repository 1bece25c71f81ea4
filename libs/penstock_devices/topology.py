"""How CUDA devices are connected: by NVLink, or how far up the PCIe tree they meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import pynvml

from penstock_devices.nvml_port import Handle, Library, answer, text

LEVELS: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "board",
    pynvml.NVML_TOPOLOGY_SINGLE: "pix",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "pxb",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "phb",
    pynvml.NVML_TOPOLOGY_NODE: "node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "sys",
}
"""Where two devices' roads meet, from near to far, under the names of ``nvidia-smi topo``."""
SWITCH: Final = "switch"


def links(library: Library, handles: Sequence[Handle]) -> list[list[str]]:
    """
    Return how each two of the devices are connected.

    Returns
    -------
    (D, D) strings, symmetric: ``nv12`` for so many NVLinks, a level of the PCIe tree, ``?`` where the driver does not
    know, empty from a device to itself.

    Notes
    -----
    Links into an NVSwitch reach every device that has such links; the fewer of two devices' are counted.
    """
    ends = [_ends(library, handle) for handle in handles]
    buses = [_bus(library, handle) for handle in handles]
    table = [["" for _ in handles] for _ in handles]
    for i, one in enumerate(handles):
        for j in range(i):
            lanes = max(ends[i][buses[j]], ends[j][buses[i]]) + min(ends[i][SWITCH], ends[j][SWITCH])
            table[i][j] = table[j][i] = f"nv{lanes}" if lanes else _level(library, one, handles[j])
    return table


def labels(numbers: Sequence[int], table: Sequence[Sequence[str]]) -> dict[str, str]:
    """
    Return a node's labels of its devices' connections: one for each device that has any.

    Examples
    --------
    >>> labels([0, 1, 2], [["", "nv18", "sys"], ["nv18", "", "sys"], ["sys", "sys", ""]])
    {'links.0': '1:nv18 2:sys', 'links.1': '0:nv18 2:sys', 'links.2': '0:sys 1:sys'}
    """
    rows = {
        f"links.{number}": " ".join(f"{numbers[j]}:{link}" for j, link in enumerate(row) if link)
        for number, row in zip(numbers, table, strict=True)
    }
    return {name: row for name, row in rows.items() if row}


def _ends(library: Library, handle: Handle) -> Counter[str]:
    """Return where a device's active links end: at which bus id, or at a switch."""
    every = range(pynvml.NVML_NVLINK_MAX_LINKS)
    return Counter(_end(library, handle, link) for link in every if _active(library, handle, link))


def _active(library: Library, handle: Handle, link: int) -> bool:
    return bool(answer(lambda: library.nvmlDeviceGetNvLinkState(handle, link), 0))


def _end(library: Library, handle: Handle, link: int) -> str:
    unknown = pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN
    kind = answer(lambda: library.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), unknown)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return SWITCH
    return answer(lambda: text(library.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId), "?")


def _bus(library: Library, handle: Handle) -> str:
    return answer(lambda: text(library.nvmlDeviceGetPciInfo(handle).busId), "")


def _level(library: Library, one: Handle, other: Handle) -> str:
    return LEVELS.get(answer(lambda: library.nvmlDeviceGetTopologyCommonAncestor(one, other), -1), "?")
