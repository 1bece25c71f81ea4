"""
Processes of a machine that has joined: its executor, and the agents beside it.

The executor is the node: when it ends, the node ends, with its exit status. The memory agent and the aggregation agent
are kept running for it, started again when they die, and done without where that cannot help. ``penstock node start``
runs them; a container does by ``python -m penstock_cli.local.node_processes``, with the files of the three logins as
arguments, in this order, and the rest in its environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from typing import IO, Final

import structlog

from penstock_bus.child_processes import dies_with_parent, module_command
from penstock_bus.identity.logins import VARIABLE as CREDENTIALS
from penstock_bus.logs import Logging, configure
from penstock_bus.servers.server import Process, signal_if_there
from penstock_bus.settings import SettingsError, load
from penstock_bus.shell import EX_CONFIG, handle_signals
from penstock_cli.local.child_process import Child
from penstock_cli.local.data_folder import UpError
from penstock_log.text import escaped

AGENT_ENDS_S: Final = 10.0
"""So long an agent may take to end in good order."""
_BY_SIGNAL: Final = 128
"""A shell's exit status of a process that a signal ended is this and the signal's number."""
_log = structlog.get_logger("penstock.node")


async def run_node(executor: Mapping[str, str], agents: Mapping[str, Mapping[str, str]]) -> int:
    """
    Run an executor and its agents until SIGTERM or SIGINT, or until the executor ends.

    All are told to end where this process is gone, even after kill -9.

    Parameters
    ----------
    executor : mapping of str to str
        What its environment has besides this process's. A ready file is the executor's alone.
    agents : mapping of str to mapping of str to str
        Service → the same of each agent.

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
    children = [_agent(service, environment) for service, environment in agents.items()]
    keeping = [asyncio.ensure_future(_keep(child)) for child in children]
    try:
        status = await _until_ended(await _begin("executor", executor), stopping)
        # after it: what a job saves at its end may go to other nodes' memory
        await asyncio.gather(*(child.end(AGENT_ENDS_S) for child in children))
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
    return status if status >= 0 else _BY_SIGNAL - status


def _agent(service: str, environment: Mapping[str, str]) -> Child:
    async def start_agent(log: IO[bytes] | None) -> Process:  # noqa: ARG001 - it goes where this process's goes
        return await _begin(service, {"PENSTOCK_READY_FILE": "", "PENSTOCK_LIVE_FILE": "", **environment})

    return Child(
        f"{service}-agent", start_agent, None, lambda child: _log.info("agent_started", agent=service, pid=child.pid)
    )


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
        _log.error("node_without_agent", agent=agent.name, error=str(error))


async def _begin(service: str, environment: Mapping[str, str]) -> Process:
    return await asyncio.create_subprocess_exec(
        *module_command(f"penstock_{service}"),
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # an interrupt at the terminal is for this process alone, which tells them in turn
        preexec_fn=dies_with_parent(),
    )


def _main() -> int:
    executor, memory, aggregator = sys.argv[1:]
    agents = {"memory": {CREDENTIALS: memory}, "aggregator": {CREDENTIALS: aggregator}}
    try:
        return asyncio.run(run_node({CREDENTIALS: executor}, agents))
    except SettingsError as error:
        sys.stderr.write(f"{escaped(str(error))}\n")
        return EX_CONFIG


if __name__ == "__main__":
    sys.exit(_main())
