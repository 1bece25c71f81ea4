"""
Penstock: what users import and type.

The names are loaded when they are first used, so that a training script pays for the session only, and a shell command
for the client only.

In reading order:

* ``gateway_client``: What is one request to the gateway: submissions, acts, queries.
* ``client``: The asynchronous client: the same on a connection of its own, and following, waiting, output.
* ``sync_client``: The synchronous client: the same, method by method.
* ``sync_connection``: Its connection, on an event loop in a thread of its own.
* ``blocking``: The same without an event loop, for commands that ask one thing after another.
* ``submission``: What a client adds to a specification before it is sent.
* ``code_folder``: Which files of a folder are uploaded, and what they hold.
* ``code_upload``: The upload of what the cluster does not have of a folder.
* ``retries``: When a request is asked again, and when it is given up.
* ``request``: One request on an event loop.
* ``output_reader``: A job's output, read whole and once.
* ``job_session``: A session in a running job: a command beside its program, or connections to its ports.
* ``results``: The results of a sweep's trials, as a stream, a study and pictures.
* ``estimate``: What a torch job needs of a device, estimated before it runs.
* ``estimate_recurrent``: Scratch and workspace of recurrent layers, in numbers.
* ``estimate_torch``: The part of it that loads torch.
* ``leased_connection``: A connection about a lease: its proof, and bytes received and sent whole.
* ``__main__``: Starts ``penstock_cli`` by its name.
* ``sessions/``: What is behind ``penstock.session()``: the loop, its boundaries, checkpoints, and the talk with the
  executor.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; importing it from typing costs ten times as long as all the rest
if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.sessions.session import Session, session
    from penstock.sessions.setup import Resize, SessionError
    from penstock.sync_client import SyncClient
    from penstock_log.request_bodies import JobFilter
    from penstock_log.spec import Batch, JobSpec, SweepSpec

_HOMES = {
    "Batch": "penstock_log.spec",
    "Client": "penstock.client",
    "JobFilter": "penstock_log.request_bodies",
    "JobSpec": "penstock_log.spec",
    "Resize": "penstock.sessions.setup",
    "Session": "penstock.sessions.session",
    "SessionError": "penstock.sessions.setup",
    "SweepSpec": "penstock_log.spec",
    "SyncClient": "penstock.sync_client",
    "session": "penstock.sessions.session",
}

__all__ = [
    "Batch",
    "Client",
    "JobFilter",
    "JobSpec",
    "Resize",
    "Session",
    "SessionError",
    "SweepSpec",
    "SyncClient",
    "session",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
