"""
Processes of a machine that has joined: its executor, and the memory agent beside it.

The executor is the node: when it ends, the node ends, with its exit status. The memory agent is kept running for it,
started again when it dies, and done without where that cannot help. ``penstock node start`` runs them; a container does
by ``python -m penstock_cli.local.node_processes EXECUTOR.json MEMORY.json``, with the rest in its environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from typing import IO, Final

import structlog

from penstock_bus.child_processes import dies_with_parent
from penstock_bus.identity.logins import VARIABLE as CREDENTIALS
from penstock_bus.logs import Logging, configure
from penstock_bus.servers.server import Process, signal_if_there
from penstock_bus.settings import SettingsError, load
from penstock_bus.shell import EX_CONFIG, handle_signals
from penstock_cli.local.child_process import Child
from penstock_cli.local.data_folder import UpError
from penstock_log.text import escaped

AGENT_ENDS_S: Final = 10.0
"""So long the memory agent may take to end in good order."""
_BY_SIGNAL: Final = 128
"""A shell's exit status of a process that a signal ended is this and the signal's number."""
_log = structlog.get_logger("penstock.node")


async def run_node(executor: Mapping[str, str], memory: Mapping[str, str]) -> int:
    """
    Run an executor and its memory agent until SIGTERM or SIGINT, or until the executor ends.

    Both are told to end where this process is gone, even after kill -9.

    Parameters
    ----------
    executor, memory : mapping of str to str
        What the environment of each has besides this process's. A ready file is the executor's alone.

    Returns
    -------
    int
        The executor's exit status; 128 and the signal's number where a signal ended it.

    Raises
    ------
    SettingsError
        If the settings of logs are wrong.
    """
    configure(load(Logging, "log"))
    stopping = asyncio.Event()
    handle_signals(stopping)

    async def start_agent(log: IO[bytes] | None) -> Process:  # noqa: ARG001 - it goes where this process's goes
        return await _begin("memory", {"PENSTOCK_READY_FILE": "", **memory})

    agent = Child("memory-agent", start_agent, None, lambda child: _log.info("memory_agent_started", pid=child.pid))
    keeping = asyncio.ensure_future(_keep(agent))
    try:
        status = await _until_ended(await _begin("executor", executor), stopping)
        await agent.end(AGENT_ENDS_S)  # after it: what a job saves at its end may go to other nodes' memory
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    return status if status >= 0 else _BY_SIGNAL - status


async def _until_ended(process: Process, stopping: asyncio.Event) -> int:
    """Wait for the end of a process, which is told to end at the first signal; return its exit status."""
    ended, told = asyncio.ensure_future(process.wait()), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            signal_if_there(process, signal.SIGTERM)
        return await ended
    finally:
        told.cancel()


async def _keep(agent: Child) -> None:
    try:
        await agent.keep()
    except UpError as error:
        _log.error("node_without_memory_agent", error=str(error))


async def _begin(service: str, environment: Mapping[str, str]) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"penstock_{service}"),
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # an interrupt at the terminal is for this process alone, which tells them in turn
        preexec_fn=dies_with_parent(),
    )


def _main() -> int:
    executor, memory = sys.argv[1:]
    try:
        return asyncio.run(run_node({CREDENTIALS: executor}, {CREDENTIALS: memory}))
    except SettingsError as error:
        sys.stderr.write(f"{escaped(str(error))}\n")
        return EX_CONFIG


if __name__ == "__main__":
    sys.exit(_main())
