"""
Which of a host's NVIDIA GPUs a process may use: those that it can open, as far as ``CUDA_VISIBLE_DEVICES`` names them.

The driver's management library lists GPUs that a CUDA program would not find: it does not read the variable, and in a
control group that may open some device nodes only, it may list the others. An executor inside another batch system's
job would then give out what belongs to other jobs. :func:`named` reads the variable as CUDA does, with one difference:
CUDA ignores what it cannot find and everything after it, and here that is an error.

References
----------
NVIDIA, *CUDA C++ Programming Guide*, environment variables; *Multi-Instance GPU User Guide*, device names.

Slurm, *slurm.conf* and *cgroup.conf*: ``ConstrainDevices``; where it is set, indices count the GPUs of the job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from penstock_cluster.device_backend import DeviceError

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"
_NODES: Final = Path("/dev")
_NOTHING: Final = ("", "NoDevFiles")
"""Words that stand for no GPU; the second is what versions of Slurm set for a job without one."""


class ListedInstance(NamedTuple):
    """
    A MIG instance.

    Attributes
    ----------
    uuid : str
    ids : str
        Of its GPU instance and its compute instance, as in older names: ``3/0``.
    """

    uuid: str
    ids: str = ""


class ListedGpu(NamedTuple):
    """
    A GPU that this process can open.

    Attributes
    ----------
    uuid, product : str
    mig : bool
        Whether it is in MIG mode: its instances are devices then, and it is none.
    instances : tuple of ListedInstance
    """

    uuid: str
    product: str = ""
    mig: bool = False
    instances: tuple[ListedInstance, ...] = ()


def may_open(minor: int, nodes: Path = _NODES) -> bool:
    """
    Return whether this process may open a GPU's device node, by its minor number.

    It may not where the node's modes or the control group forbid it. Where there is no such node, the driver is reached
    in another way.
    """
    try:
        os.close(os.open(nodes / f"nvidia{minor}", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def named(gpus: Sequence[ListedGpu], environ: Mapping[str, str]) -> frozenset[str] | None:
    """
    Return the UUIDs of the devices that the environment names, GPUs or MIG instances; None where it names none at all.

    Parameters
    ----------
    gpus : sequence of ListedGpu
        In the order of their bus ids, which is the driver's.

    Raises
    ------
    DeviceError
        If a name stands for no GPU, for several, or for one a second time.

    Notes
    -----
    Names are indices, UUIDs (``GPU-…``, ``MIG-…``) or their beginnings, and ``MIG-GPU-…/3/0``. An index or a UUID of a
    GPU in MIG mode stands for its instance, where it has one. A negative index ends the list, as in CUDA.

    Examples
    --------
    >>> gpus = [ListedGpu("GPU-a1"), ListedGpu("GPU-b2")]
    >>> sorted(named(gpus, {"CUDA_VISIBLE_DEVICES": "1"})), sorted(named(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-a"}))
    (['GPU-b2'], ['GPU-a1'])
    >>> named(gpus, {"CUDA_VISIBLE_DEVICES": ""}), named(gpus, {})
    (frozenset(), None)
    """
    value = environ.get(VARIABLE)
    if value is None:
        return None
    found: list[str] = []
    counted = False
    for word in (part.strip() for part in value.split(",")):
        if word in _NOTHING or (word.startswith("-") and word[1:].isdecimal()):
            break
        counted |= word.isdecimal()
        uuid = _by_index(gpus, int(word), value) if word.isdecimal() else _by_name(gpus, word, value)
        if uuid in found:
            raise DeviceError(f"{_what(value)} names {uuid} twice; name it once")
        found.append(uuid)
    if counted and environ.get(ORDER) != "PCI_BUS_ID" and len({gpu.product for gpu in gpus}) > 1:
        _refuse_order(gpus, found, value)
    return frozenset(found)


def _by_index(gpus: Sequence[ListedGpu], index: int, value: str) -> str:
    if index >= len(gpus):
        there = f"there are {len(gpus)}, from 0" if len(gpus) != 1 else "there is one, 0"
        raise DeviceError(f"{_what(value)} has index {index}, and of the GPUs that this process may open {there}{_WAY}")
    return _device(gpus[index], value)


def _by_name(gpus: Sequence[ListedGpu], word: str, value: str) -> str:
    instances = {instance.uuid: instance.uuid for gpu in gpus for instance in gpu.instances}
    older = {f"MIG-{gpu.uuid}/{instance.ids}": instance.uuid for gpu in gpus for instance in gpu.instances}
    names = {gpu.uuid: gpu for gpu in gpus} | instances | older
    same = [word] if word in names else [name for name in names if word[:4] in _KINDS and name.startswith(word)]
    targets = {target if isinstance(target, str) else target.uuid for target in map(names.__getitem__, same)}
    if not targets:
        raise DeviceError(f"{_what(value)} has {word!r}, which names no GPU that this process may open{_WAY}")
    if len(targets) > 1:
        raise DeviceError(f"{_what(value)} has {word!r}, with which {' and '.join(sorted(targets))} begin; name one")
    target = names[same[0]]
    return target if isinstance(target, str) else _device(target, value)


def _device(gpu: ListedGpu, value: str) -> str:
    if not gpu.mig:
        return gpu.uuid
    if len(gpu.instances) == 1:
        return gpu.instances[0].uuid
    has = f"has {len(gpu.instances)} instances" if gpu.instances else "has no instances"
    raise DeviceError(f"{_what(value)} names {gpu.uuid}, which is in MIG mode and {has}; name an instance: MIG-…{_WAY}")


def _refuse_order(gpus: Sequence[ListedGpu], found: Sequence[str], value: str) -> None:
    """Refuse indices by which CUDA might take other GPUs than the driver's list has at that place."""
    if len(found) < sum(len(gpu.instances) if gpu.mig else 1 for gpu in gpus):
        kinds = ", ".join(sorted({gpu.product for gpu in gpus}))
        raise DeviceError(
            f"{_what(value)} counts GPUs from the fastest on, and those of this host differ ({kinds}); "
            f"set {ORDER}=PCI_BUS_ID as well, or name them by UUID"
        )


def _what(value: str) -> str:
    return f"{VARIABLE}={value!r}"


_KINDS: Final = ("GPU-", "MIG-")
_WAY: Final = f"; see nvidia-smi -L, or unset {VARIABLE} to use all"
