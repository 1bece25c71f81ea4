"""Output of tasks: as much as a step can write, all of it, and not what a task has left behind."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock_cli.sbatch.node_programs.local_tasks import LocalTasks, TaskEvents, TaskOrder


def started(code: str, folder: Path) -> TaskEvents:
    """Start a task of some Python code, and return what becomes of it."""
    events = TaskEvents()
    LocalTasks(events, reads_output=True).start(TaskOrder(0, [sys.executable, "-c", code], os.environ, str(folder)))
    return events


def test_all_that_a_task_has_written_comes_before_its_end(tmp_path: Path) -> None:
    events = started("import sys; sys.stdout.buffer.write(bytes(6 << 20))", tmp_path)
    size = 0
    while (event := events.get())[0] == "output":
        size += len(event[3])
    assert (size, event) == (6 << 20, ("exit", 0, 0))


def test_output_waits_where_there_is_no_room_and_a_signal_does_not() -> None:
    events = TaskEvents(room=1)
    events.put_output(0, 1, b"one")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(events.put_output, 0, 1, b"two")
        events.put(("signal", 10))
        assert events.get() == ("output", 0, 1, b"one")
        waiting.result(60)
    assert events.get() == ("signal", 10)
    assert events.get() == ("output", 0, 1, b"two")


def test_the_end_of_a_task_does_not_wait_for_what_holds_its_output_open(tmp_path: Path) -> None:
    code = "import subprocess; print('hi', flush=True); print(subprocess.Popen(['sleep', '100']).pid, flush=True)"
    events = started(code, tmp_path)
    text = b""
    while (event := events.get())[0] == "output":
        text += event[3]
    os.kill(int(text.split()[1]), 9)
    assert event == ("exit", 0, 0)
