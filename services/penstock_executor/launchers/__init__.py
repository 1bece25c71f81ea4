"""
Launchers: what starts and ends the processes of a run.

In reading order:

* ``launcher``: Port of launchers; ``LAUNCHERS`` here has them by name.
* ``environment``: Ranks and environment of a run's processes.
* ``process_launcher``: The process launcher.
* ``forking_launcher``: The launcher of executors, which forks instead.
* ``fork_client``: The executor's side of a fork server.
* ``fork_server``: The program that forks shims.
* ``shim``: The program around each process.
* ``fence_keeper``: What stops a run in time; loaded by the shim.
* ``session_keeper``: What runs a command beside the program, for somebody who has entered the job.
* ``confinement``: What a process gives up before its program begins.
* ``sandbox``: The command line of bubblewrap around a program.
* ``containers``: Containers of runs: what gives the processes of a job the files of its image.
* ``image_folder``: The command lines of bubblewrap and Apptainer for a job's image.
"""

from collections.abc import Callable
from typing import Any, Final

from penstock_executor.launchers.forking_launcher import ForkingLauncher
from penstock_executor.launchers.launcher import Launcher
from penstock_executor.settings import ExecutorSettings, LauncherName

LAUNCHERS: Final[dict[LauncherName, Callable[[ExecutorSettings], Launcher[Any]]]] = {
    "process": lambda settings: ForkingLauncher(),  # noqa: ARG005 - others have settings
}
"""Makers of launchers, by the name that ``launcher`` in the executor's settings gives them."""
