"""
Launchers: what starts and ends the processes of a run.

In reading order:

* ``launcher``: Port of launchers; ``LAUNCHERS`` here has them by name.
* ``environment``: Ranks, environment and checks for every launcher.
* ``process_launcher``: The process launcher.
* ``shim``: The program around each process.
"""

from typing import Any, Final, Literal

from penstock_executor.launchers import process_launcher
from penstock_executor.launchers.launcher import Launcher

LauncherName = Literal["process"]

LAUNCHERS: Final[dict[LauncherName, Launcher[Any]]] = {"process": process_launcher}
"""Launchers by the name that ``launcher`` in the executor's settings gives them."""
