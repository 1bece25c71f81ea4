"""Groups that may open some devices alone, on the kernel that the tests run on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_cluster import device_guard
from penstock_cluster.device_backend import DeviceError
from penstock_cluster.host_limits import mount_of

MEMORY = 1
"""Major number of /dev/null (3), /dev/zero (5) and /dev/full (7), which stand for GPUs: every host has them."""


@pytest.fixture
def group() -> Iterator[Path]:
    mount = mount_of(Path("/proc/self/mountinfo").read_text())
    if os.geteuid() != 0 or not mount:
        pytest.skip("NOT TESTED: only root may guard devices, and only with control groups of version 2")
    path = Path(mount, f"penstock-test-{os.getpid()}")
    try:
        path.mkdir()
        device_guard.guard(path, device_guard.program([]))
    except (OSError, DeviceError) as error:
        if path.exists():
            path.rmdir()
        pytest.skip(f"NOT TESTED: devices cannot be guarded here: {error}")
    yield path
    path.rmdir()


def opened(group: Path, *nodes: str) -> list[bool]:
    """Return which nodes a process of a group may open."""
    script = 'echo $$ >"$0/cgroup.procs"; for node; do if (: <"$node") 2>&-; then echo yes; else echo no; fi; done'
    done = subprocess.run(["/bin/sh", "-c", script, str(group), *nodes], capture_output=True, text=True, check=True)
    return [word == "yes" for word in done.stdout.split()]


def test_a_group_opens_the_devices_of_its_grant_and_no_other(group: Path) -> None:
    assert opened(group, "/dev/zero", "/dev/full", "/dev/tty0") == [True, True, os.path.exists("/dev/tty0")]
    device_guard.guard(group, device_guard.program([3, 5], major=MEMORY, shared_from=100))
    assert opened(group, "/dev/zero", "/dev/null", "/dev/full") == [True, True, False]
    assert opened(group, "/etc/passwd") == [True]


def test_what_all_devices_share_is_open_and_a_grant_of_none_opens_no_other(group: Path) -> None:
    device_guard.guard(group, device_guard.program([], major=MEMORY, shared_from=7))
    assert opened(group, "/dev/zero", "/dev/full", "/dev/random") == [False, True, True]


def test_a_program_that_the_kernel_does_not_take_is_an_error_with_its_words(group: Path) -> None:
    with pytest.raises(DeviceError, match=r"cannot load the device program of .*: "):
        device_guard.guard(group, device_guard.program([1])[:-8])


def test_nodes_are_known_by_their_numbers() -> None:
    assert device_guard.minors(["/dev/zero", "/dev/null", "/not/there", "/dev/tty"], MEMORY) == [5, 3]
