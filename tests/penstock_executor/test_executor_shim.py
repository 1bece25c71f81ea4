"""The few lines of shell that every process of a job is started through."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from penstock_executor import processes
from penstock_testing import eventually


def _traps(pid: int, signum: signal.Signals) -> bool:
    found = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (signum - 1) & 1)


async def test_a_program_that_was_to_end_before_it_began_is_not_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")  # which nobody reads: there the shim waits
    process = processes.spawn(tmp_path, ["touch", str(tmp_path / "ran")], {"PATH": os.defpath}, "/")
    await eventually(lambda: _traps(process.pid, signal.SIGTERM))
    processes.signal_group(process, signal.SIGTERM)
    await eventually(lambda: not processes.is_alive(process))
    assert processes.bury(process, tmp_path) == 128 + signal.SIGTERM
    assert not (tmp_path / "ran").exists()


async def test_a_program_is_run_whatever_its_environment_holds(tmp_path: Path) -> None:
    process = processes.spawn(tmp_path, ["sh", "-c", "exit 7"], {"PATH": os.defpath, "ended": "143"}, "/")
    await eventually(lambda: not processes.is_alive(process))
    assert processes.bury(process, tmp_path) == 7
