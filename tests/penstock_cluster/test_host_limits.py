"""What a host has for jobs, by the files in which its kernel says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock_cluster import host_limits

GIB = 2**30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal:       {64 * GIB // 1024} kB\nMemFree:        1 kB\n")
    return tmp_path


def grouped(root: Path, **files: str) -> None:
    """A process two groups deep in the hierarchy of version 2; the outer one has these files."""
    (root / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    (root / "proc/self/cgroup").write_text("0::/machine/agent\n")
    group = root / "sys/fs/cgroup/machine"
    (group / "agent").mkdir(parents=True)
    for name, text in files.items():
        (group / name.replace("_", ".")).write_text(f"{text}\n")


def test_a_tenth_of_the_memory_two_gibibytes_at_most_is_left_to_the_agent(root: Path) -> None:
    assert host_limits.host_capacity(root=root).memory_bytes == 62 * GIB
    (root / "proc/meminfo").write_text(f"MemTotal: {10 * GIB // 1024} kB\n")
    assert host_limits.host_capacity(root=root).memory_bytes == 9 * GIB


def test_a_container_has_what_its_groups_leave_it(root: Path) -> None:
    grouped(root, memory_max=str(10 * GIB), cpu_max="50000 100000")
    assert host_limits.host_capacity(root=root) == host_limits.HostCapacity(0.5, 9 * GIB)


def test_a_group_without_limits_has_what_the_host_has(root: Path) -> None:
    grouped(root, memory_max="max", cpu_max="max 100000")
    found = host_limits.host_capacity(root=root)
    assert found.memory_bytes == 62 * GIB
    assert found.cpus >= 1


def test_a_group_of_the_old_hierarchy_counts_as_well(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("4:memory:/box\n0::/\n")
    (root / "sys/fs/cgroup/memory/box").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory/box/memory.limit_in_bytes").write_text(f"{20 * GIB}\n")
    assert host_limits.host_capacity(root=root).memory_bytes == 18 * GIB


def test_root_makes_a_group_where_the_top_gives_memory_to_its_children(tmp_path: Path) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"30 23 0:26 / {tmp_path}/top rw - cgroup2 cgroup2 rw")
    (tmp_path / "top").mkdir()
    (tmp_path / "top/cgroup.subtree_control").write_text("cpu io\n")
    assert host_limits.of_root(str(mountinfo)) == []
    (tmp_path / "top/cgroup.subtree_control").write_text("cpu memory\n")
    expected = [tmp_path / "top/penstock"] if os.geteuid() == 0 else []
    assert host_limits.of_root(str(mountinfo)) == expected
    assert [path.is_dir() for path in expected] == [True] * len(expected)


def test_what_the_operator_says_is_taken_at_its_word(root: Path) -> None:
    assert host_limits.host_capacity(cpus=3.0, memory_bytes=7 * GIB, root=root) == host_limits.HostCapacity(
        3.0, 7 * GIB
    )


def test_devices_share_it_evenly() -> None:
    assert host_limits.HostCapacity(6.0, 1000).share(4) == host_limits.HostCapacity(1.5, 250)
