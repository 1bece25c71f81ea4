"""The command line as a process: what a shell does to its output and its patience."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_cli import render

pytestmark = pytest.mark.slow

PENSTOCK = [sys.executable, "-c", "from penstock_cli import main; main()"]


def test_a_full_disk_under_the_output_is_told_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PENSTOCK, "schema"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "standard output: No space left on device" in done.stderr


def test_a_reader_who_has_gone_is_no_error() -> None:
    command = [*PENSTOCK, "schema"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert (running.stderr.read(), running.wait()) == ("", 0)


def test_output_that_a_shell_closed_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert (render.terminal_width(), render.colours()) == (None, False)


def test_an_interrupt_while_it_starts_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n")
    done = subprocess.run(
        PENSTOCK,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a shell's background ignores
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


def test_a_command_that_asks_a_cluster_loads_nothing_heavy() -> None:
    heavy = {"matplotlib", "networkx", "numba", "numpy", "rich", "scipy", "structlog", "uvloop"}
    asking = "import penstock_cli.commands.jobs, penstock.client, penstock_bus.nats"
    code = f"import sys; {asking}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
