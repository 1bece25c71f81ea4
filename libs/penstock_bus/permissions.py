"""
Who may use which subject of the server: the log's rules, enforced by NATS and not by manners.

Services and people are in two accounts (docs/adr/0011). The streams are the services'; people see of them what is
exported here: requests to services, submissions, direct gets of the streams that they may read, and what is published
to these while they listen. They have no JetStream API, since a server that publishes in its own name (to the reply
subject of a get, to the delivery subject of a consumer) asks nobody for permission: over the border between accounts
it answers the asker and nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_events import subjects

SERVICES: Final = tuple(sorted(set(subjects.WRITERS.values())))
ADMIN: Final = "admin"
CLIENT: Final = "client"
SHADOW: Final = "shadow"
"""Shadows read the log and write none of it: what they would have written goes to a stream of their own."""
EXTENSION: Final = "extension"
"""Services that others have written: they read everything, keep a state and a lease, and write no facts."""
LOGINS: Final = (*SERVICES, SHADOW)
USERS: Final = (ADMIN, CLIENT, EXTENSION, *LOGINS)

ACCOUNT: Final = "PENSTOCK"
CLIENTS: Final = "CLIENTS"

_API: Final = "$JS.API"
_BUCKET: Final = f"KV_{subjects.LEASES}"
_PUBLIC: Final = (subjects.EVT, subjects.LOG, subjects.REJECTED, subjects.SHADOW)
"""Streams that everybody may read."""
_ASKED: Final = (f"{subjects.ROOT}.cmd.>", f"{subjects.ROOT}.qry.>", subjects.OUTPUTS)
"""What services answer to everybody; what they say among themselves has subjects of other kinds."""
_TOLD: Final = tuple(f"{subjects.ROOT}.{kind}.>" for kind in ("evt", "log", "shadow", "tel"))

_MORE: Final[dict[str, list[str]]] = {
    "gateway": [
        f"{subjects.ROOT}.cmd.gateway.*",  # a command line beside it may use its login
        subjects.OUTPUTS,  # and no other service: an executor's answer is what a job wrote, sent where the asker says
        *(f"{_API}.CONSUMER.{call}.{subjects.INBOX}.*" for call in ("DURABLE.CREATE", "INFO", "MSG.NEXT")),
        f"$JS.ACK.{subjects.INBOX}.>",
    ],
    "tuner": [subjects.INBOX_JOBS],
    SHADOW: [f"{subjects.ROOT}.shadow.>", f"$KV.{subjects.LEASES}.{SHADOW}.*"],
    "executor": [
        f"{subjects.ROOT}.log.>",
        f"{subjects.ROOT}.tel.*.*",
        f"{subjects.state('executor')}.*",  # one for each node
        subjects.CHECKPOINTS,
    ],
    EXTENSION: [
        *subjects.SUBMISSIONS,
        _ASKED[0],
        f"{subjects.ROOT}.state.*",
        f"{subjects.ROOT}.tel.replica.*.*",
        f"$KV.{subjects.LEASES}.*",
    ],
}


def authorization(passwords: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the part of the server's configuration that names accounts, users and what they may do.

    Every service may write its own kinds of entities and nothing else of the log. The ``client`` asks, submits and
    reads. The ``admin`` may do everything, such as making streams and deleting snapshots. Nobody may do anything
    without a password.

    Known gaps: services share an account, so one that was taken over may have the server publish for it; that readers
    drop facts out of place limits what comes of it. All people share one user. Accounts and users for each would lift
    both.

    Parameters
    ----------
    passwords : mapping of str to str
        Of every user in :data:`USERS`.
    """
    services = [_user(name, passwords, _of_service(name)) for name in (*LOGINS, EXTENSION)]
    people = [_user(CLIENT, passwords, _of_client())]
    asked, told = _for_clients(), [{"stream": subject} for subject in _TOLD]
    of_services = {
        "jetstream": "enabled",
        "users": [{"user": ADMIN, "password": passwords[ADMIN]}, *services],
        "exports": [*({"service": subject, "response_type": kind} for subject, kind in asked.items()), *told],
    }
    of_clients = {
        "users": people,
        "imports": [
            *({"service": {"account": ACCOUNT, "subject": subject}} for subject in asked),
            *({"stream": {"account": ACCOUNT, "subject": subject}} for subject in _TOLD),
        ],
    }
    return {"accounts": {ACCOUNT: of_services, CLIENTS: of_clients}}


def _user(name: str, passwords: Mapping[str, str], permissions: dict[str, Any]) -> dict[str, Any]:
    return {"user": name, "password": passwords[name], "permissions": permissions}


def _for_clients() -> dict[str, str]:
    """Return what clients may request, and whether one answer comes or a row of them."""
    gets = {f"{_API}.DIRECT.GET.{name}": "Stream" for name in _PUBLIC}
    newest = {f"{_API}.DIRECT.GET.{name}.>": "Singleton" for name in _PUBLIC}
    return dict.fromkeys((*_ASKED, *subjects.SUBMISSIONS), "Singleton") | {"$SRV.>": "Stream"} | gets | newest


def _of_client() -> dict[str, Any]:
    """Return what people may do; to hear nothing but this keeps them from answering each other in a service's place."""
    return {"publish": {"allow": list(_for_clients())}, "subscribe": {"allow": ["_INBOX.>", *_TOLD]}}


def _of_service(service: str) -> dict[str, Any]:
    root = subjects.ROOT
    allowed = [
        *subjects.writable(service),
        *_own(service),
        f"{root}.rejected.>",  # every reader reports what it cannot decode
        f"{root}.qry.>",
        *_MORE.get(service, []),
        *_reading(),
        "_INBOX.>",  # answers, also to the other account
        "_R_.>",
    ]
    others = [name for name in LOGINS if name != service]
    answers = [f"{root}.{kind}.{name}.>" for name in others for kind in ("cmd", "qry")]
    private = [] if service == "executor" else [subjects.CHECKPOINTS, subjects.OUTPUTS]
    return {
        "publish": {"allow": allowed, "deny": [pattern for name in others for pattern in _own(name)]},
        "subscribe": {"allow": ">", "deny": [*answers, *private]},
    }


def _own(service: str) -> list[str]:
    """Return where a service keeps its snapshot and its lease, and says that it is alive: nobody else's business."""
    return [
        subjects.state(service),
        f"$KV.{subjects.LEASES}.{service}",
        f"{subjects.ROOT}.tel.replica.{service}.*",
    ]


def _reading() -> list[str]:
    """Return what it takes to follow the log, and to look at the other streams."""
    followed = [
        f"{_API}.CONSUMER.CREATE.{subjects.EVT}",
        f"{_API}.CONSUMER.INFO.{subjects.EVT}.*",
        f"{_API}.CONSUMER.MSG.NEXT.{subjects.EVT}.*",
    ]
    looked = [f"{_API}.DIRECT.GET.{name}{more}" for name in (*_PUBLIC, subjects.STATE) for more in ("", ".>")]
    from_leader = [f"{_API}.STREAM.MSG.GET.{name}" for name in (subjects.EVT, subjects.SHADOW, _BUCKET)]
    return [f"{_API}.STREAM.INFO.*", *followed, *looked, *from_leader]
