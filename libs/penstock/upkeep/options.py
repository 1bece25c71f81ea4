"""What ``penstock up`` can be told, and what the services are told in turn."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

DECIDING: Final = ("gateway", "profiler", "ranker", "autoscaler", "matcher", "tuner")
SERVICES: Final = (*DECIDING, "executor")
FIRST: Final = 1


class UpError(Exception):
    """It cannot be started or stopped; the message says why and what to do."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    How to run everything on one machine.

    Attributes
    ----------
    data_dir : str
        Holds all that must survive; made if it is not there.
    port : int
        Of the NATS server on loopback; -1 takes a free one.
    devices : str
        Of the executor, such as ``fast:2@1.0:16GiB,cpu``; empty leaves it to its settings.
    replicas : dict of str to int
        Processes of each service; one where not named.
    config : str
        Settings file for the services; empty takes ``PENSTOCK_CONFIG`` or ``./penstock.toml``.
    quiet : bool
        The services' logs go to files in the data folder and not to standard error.
    max_payload : int
        Largest message, in bytes.
    max_store_bytes : int
        Most bytes of the log and of all output together; 0 takes three quarters of what the disk has free.
    ready_s : float
        How long to wait for all services to be ready, in seconds.
    drain_s : float
        How long a service may take to stop in good order, in seconds.
    """

    data_dir: str = "penstock-data"
    port: int = 4222
    devices: str = ""
    replicas: dict[str, Annotated[int, Meta(ge=0)]] = {}
    config: str = ""
    quiet: bool = False
    max_payload: int = 1 << 20
    max_store_bytes: Annotated[int, Meta(ge=0)] = 0
    ready_s: float = 60.0
    drain_s: float = 30.0

    @property
    def folder(self) -> Path:
        """The data folder, absolute."""
        return Path(self.data_dir).absolute()

    def processes(self) -> list[tuple[str, int]]:
        """
        Return ``(service, number)`` of each process, numbers from 1.

        Raises
        ------
        UpError
            If ``replicas`` names a service that does not exist.
        """
        for service in self.replicas:
            if service not in SERVICES:
                raise UpError(f"there is no service {service!r}; expected one of {', '.join(SERVICES)}")
        return [(name, number) for name in SERVICES for number in range(FIRST, FIRST + self.replicas.get(name, 1))]


def environment(options: Options, service: str, number: int, *, url: str, password: str) -> dict[str, str]:
    """Return what the environment of one service process has besides the supervisor's."""
    env = {"PENSTOCK_URL": url, "PENSTOCK_USER": service, "PENSTOCK_PASSWORD": password}
    env["PENSTOCK_DRAIN_S"] = str(options.drain_s)
    if options.config:
        env["PENSTOCK_CONFIG"] = str(Path(options.config).absolute())
    if service == "executor":
        env |= _of_executor(options, number)
    return env


def _of_executor(options: Options, number: int) -> dict[str, str]:
    """Give each executor of this machine a folder of its own; all share the checkpoints, to move jobs among them."""
    name = "executor" if number == FIRST else f"executor-{number}"
    env = {
        "PENSTOCK_EXECUTOR_DATA_DIR": str(options.folder / name),
        "PENSTOCK_EXECUTOR_CHECKPOINT_DIR": str(options.folder / "checkpoints"),
    }
    if number != FIRST:
        env["PENSTOCK_EXECUTOR_NODE_ID"] = f"{socket.gethostname().split('.')[0].lower()}-{number}"
    if options.devices:
        env["PENSTOCK_EXECUTOR_DEVICES"] = options.devices
    return env
