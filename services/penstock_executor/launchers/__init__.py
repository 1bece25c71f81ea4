"""
Launchers: what starts and ends the processes of a run.

In reading order:

* ``launcher``: Port of launchers; ``LAUNCHERS`` here has them by name.
* ``environment``: Ranks and environment of a run's processes.
* ``process_launcher``: The process launcher.
* ``fork_launcher``: The launcher of executors, which forks instead.
* ``warm_pool``: The warm servers of an executor, and the modules that they have.
* ``warm_command``: Whether a command line may start warm.
* ``fork_client``: The executor's side of a fork server.
* ``fork_server``: The program that forks shims.
* ``warm_program``: The part of a fork server that makes a fork a new interpreter.
* ``server_keeper``: The keeper of one warm server of another user than the executor's.
* ``user_server``: The program of that server.
* ``server_groups``: The control groups of such servers.
* ``shim``: The program around each process.
* ``fence_keeper``: What stops a run in time; loaded by the shim.
* ``park_keeper``: What keeps a program parked; loaded by the shim.
* ``session_keeper``: What runs a command beside the program, for somebody who has entered the job.
* ``confinement``: What a process gives up before its program begins.
* ``sandbox``: The command line of bubblewrap around a program.
* ``containers``: Containers of runs: what gives the processes of a job the files of its image.
* ``image_folder``: The command lines of bubblewrap and Apptainer for a job's image.
"""

import os
from collections.abc import Callable
from typing import Any, Final

from penstock_executor.launchers.fork_launcher import ForkLauncher
from penstock_executor.launchers.launcher import Launcher
from penstock_executor.launchers.warm_pool import WarmRules
from penstock_executor.settings import ExecutorSettings, LauncherName

_HOST_PARTS: Final = 8
LAUNCHERS: Final[dict[LauncherName, Callable[[ExecutorSettings], Launcher[Any]]]] = {
    "process": lambda settings: ForkLauncher(_warm_rules(settings)),
}
"""Makers of launchers, by the name that ``launcher`` in the executor's settings gives them."""


def _warm_rules(settings: ExecutorSettings) -> WarmRules:
    servers = 0 if settings.warm_starts == "off" else settings.warm_servers
    most_bytes = min(settings.warm_bytes, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _HOST_PARTS)
    return WarmRules(
        servers,
        most_bytes,
        learns=settings.warm_starts == "learn",
        user_servers=settings.warm_user_servers,
        idle_s=settings.warm_idle_s,
    )
