"""What a node has free, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_memory.pressure import FreeMemory, HostMemory, MemoryUnknown, headroom, host_memory

MIB = 1 << 20
GIB = 1 << 30
MOUNT = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def host(root: Path, files: dict[str, str], available_kib: int = 8 * MIB) -> HostMemory:
    """Return what a host of 16 GiB with these files has."""
    info = f"MemTotal:       {16 * MIB} kB\nMemAvailable:   {available_kib} kB\nHugePages_Total:       0\n"
    for name, text in {"proc/meminfo": info, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return host_memory(root)


def test_without_groups_it_is_what_the_kernel_says_is_available(tmp_path: Path) -> None:
    assert host(tmp_path, {}) == HostMemory(16 * GIB, 8 * GIB)


def test_a_group_of_version_2_leaves_less_and_files_that_can_be_read_again_count_as_free(tmp_path: Path) -> None:
    files = {
        "proc/self/mountinfo": MOUNT,
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/a/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file {GIB}\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
    }
    assert host(tmp_path, files) == HostMemory(4 * GIB, GIB + GIB + GIB // 2)


def test_a_group_of_version_1_leaves_less(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/job"
    files = {
        "proc/self/cgroup": "4:memory:/job\n",
        f"{folder}/memory.limit_in_bytes": f"{2 * GIB}\n",
        f"{folder}/memory.usage_in_bytes": f"{GIB}\n",
        f"{folder}/memory.stat": f"total_inactive_file {MIB}\n",
    }
    assert host(tmp_path, files) == HostMemory(2 * GIB, GIB + MIB)


def test_a_group_that_is_full_leaves_nothing_and_not_less(tmp_path: Path) -> None:
    files = {
        "proc/self/mountinfo": MOUNT,
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/a/memory.max": "1000\n",
        "sys/fs/cgroup/a/memory.current": "5000\n",
    }
    assert host(tmp_path, files).available_bytes == 0


def test_a_kernel_that_does_not_say_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MemoryUnknown, match=r"no line MemAvailable; expected Linux 3\.14"):
        host_memory(tmp_path)


def test_the_headroom_is_a_tenth_and_a_gibibyte_at_least() -> None:
    assert [headroom(0, total * GIB) for total in (2, 64)] == [GIB, int(6.4 * GIB)]


def test_what_is_free_follows_each_second_by_a_fifth() -> None:
    free = FreeMemory()
    for _ in range(3):
        free.note(100 * GIB)
    free.note(95 * GIB)
    assert free.free_bytes(20 * GIB) == 99 * GIB


def test_a_fall_that_is_deeper_than_half_of_the_headroom_counts_at_once() -> None:
    free = FreeMemory()
    free.note(100 * GIB)
    free.note(10 * GIB)
    assert free.free_bytes(20 * GIB) == 20 * GIB
