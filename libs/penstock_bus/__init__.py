"""
The bus: its port, its adapters, and the shell that runs a service on it.

In reading order:

* ``errors``: What can go wrong on it.
* ``port``: What a bus does, a port for each use: log, work, requests, leases, telemetry.
* ``decider``: A service's pure part, and the fold that it decides on.
* ``follower``: A fold that follows the bus, with its retries: the loop that services of others call.
* ``replica``: One replica of a decider, and whether it leads.
* ``shell``: The process around a service.
* ``service_folder``: The folder of a service of one node: its lock, and sockets for the node's processes.
* ``data_port``: Listening sockets whose connections prove a lease, each served in a thread of its own.
* ``local_clients``: The clients of such a service: JSON lines over a Unix socket.
* ``child_processes``: Child processes that do not outlive their parent, nor import from the current folder.
* ``extension``: The loop of an extension: follow, fold, react, publish, remember.
* ``log_text``: The log as text, one fact a line.
* ``settings``: Settings from a file and the environment, decoded once.
* ``health``: Ready, live, heartbeats, metrics.
* ``clock``: The cluster's time.
* ``logger``: The logger of clients, which loads structlog only where a program does.
* ``logs``: Structured logging.
* ``stored_messages``: What both adapters share: patterns, pieces of snapshots, unreadable messages.
* ``made_keys``: Keys and logins of a server that are made before it starts, for Kubernetes.
* ``standalone``: The server by itself, for containers.
* ``probe``: Whether a service on this host is ready, for containers.
* ``identity/``: Who may connect to the servers, and what each may do there.
* ``servers/``: The NATS servers as child processes: one, or three together.
* ``memory/``: The bus in one process: the same contract without a server, for tests and simulation.
* ``nats/``: The bus over NATS JetStream: the one place that imports ``nats``.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; importing it from typing costs more than all the rest
if TYPE_CHECKING:
    from penstock_bus.decider import UNHURRIED_S, Decider, Decision, Proposal
    from penstock_bus.port import (
        Append,
        BatchRefused,
        BodyLimit,
        Bus,
        BusError,
        Conflict,
        Delivery,
        Endpoint,
        Gathering,
        Handler,
        Lease,
        LeasePort,
        LogFromFuture,
        LogLine,
        LogPort,
        LogReader,
        LogTrimPort,
        LogWentBack,
        NoResponders,
        OutputPort,
        Rejection,
        RejectionPort,
        RelayPort,
        ReplicationPort,
        Reply,
        Request,
        RequestPort,
        SeriesPort,
        ServiceError,
        Shadowed,
        ShadowPort,
        Snapshot,
        SnapshotPort,
        StorageFull,
        TelemetryPort,
        Timeout,
        TooLarge,
        TrimDenied,
        Unanswered,
        Unauthorized,
        Unavailable,
        Work,
        WorkPort,
    )
else:
    _NAMES = {
        "decider": "Decider Decision Proposal UNHURRIED_S",
        "port": (
            "Append BodyLimit Bus Delivery Endpoint Gathering Handler Lease LeasePort LogLine LogPort LogReader "
            "LogTrimPort OutputPort Rejection RejectionPort RelayPort ReplicationPort Reply Request "
            "RequestPort SeriesPort ShadowPort Shadowed Snapshot SnapshotPort TelemetryPort Work WorkPort"
        ),
        "errors": (
            "BatchRefused BusError Conflict LogFromFuture LogWentBack NoResponders ServiceError StorageFull Timeout "
            "TooLarge TrimDenied Unanswered Unauthorized Unavailable"
        ),
    }
    """The names of each module, which is loaded when one of them is used: a client needs the errors alone."""
    _HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found


__all__ = [
    "UNHURRIED_S",
    "Append",
    "BatchRefused",
    "BodyLimit",
    "Bus",
    "BusError",
    "Conflict",
    "Decider",
    "Decision",
    "Delivery",
    "Endpoint",
    "Gathering",
    "Handler",
    "Lease",
    "LeasePort",
    "LogFromFuture",
    "LogLine",
    "LogPort",
    "LogReader",
    "LogTrimPort",
    "LogWentBack",
    "NoResponders",
    "OutputPort",
    "Proposal",
    "Rejection",
    "RejectionPort",
    "RelayPort",
    "ReplicationPort",
    "Reply",
    "Request",
    "RequestPort",
    "SeriesPort",
    "ServiceError",
    "ShadowPort",
    "Shadowed",
    "Snapshot",
    "SnapshotPort",
    "StorageFull",
    "TelemetryPort",
    "Timeout",
    "TooLarge",
    "TrimDenied",
    "Unanswered",
    "Unauthorized",
    "Unavailable",
    "Work",
    "WorkPort",
]
