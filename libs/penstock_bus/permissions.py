"""Who may use which subject of the server: the log's rules, enforced by NATS and not by manners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_events import subjects

SERVICES: Final = tuple(sorted(set(subjects.WRITERS.values())))
ADMIN: Final = "admin"
CLIENT: Final = "client"
SHADOW: Final = "shadow"
"""Shadows read the log and write none of it: what they would have written goes to a stream of their own."""
LOGINS: Final = (*SERVICES, SHADOW)
USERS: Final = (ADMIN, CLIENT, *LOGINS)

_READABLE: Final = (
    subjects.EVT,
    subjects.LOG,
    subjects.REJECTED,
    subjects.STATE,
    subjects.SHADOW,
    f"KV_{subjects.LEASES}",
)
_MORE: Final[dict[str, list[str]]] = {
    "gateway": [f"{subjects.ROOT}.inbox.>"],
    "tuner": [f"{subjects.ROOT}.inbox.>"],
    SHADOW: [f"{subjects.ROOT}.shadow.>", f"$KV.{subjects.LEASES}.{SHADOW}.*"],
    "executor": [
        f"{subjects.ROOT}.log.>",
        f"{subjects.ROOT}.tel.*.*",
        f"{subjects.ROOT}.state.*",
        subjects.CHECKPOINTS,
    ],
}
_WORKERS: Final = ("gateway", "tuner")  # who takes messages out of the work queue


def authorization(passwords: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the part of the server's configuration that names users and what they may do.

    Every service may write its own kinds of entities and nothing else of the log. The ``client`` user needs no
    password (the server listens on loopback): it asks, submits and reads. The ``admin`` may do everything, such as
    making streams and deleting snapshots.

    Known gap: subjects are all that NATS checks. Whoever may create consumers can read every stored fact and snapshot;
    separate accounts with exported streams would lift that.

    Parameters
    ----------
    passwords : mapping of str to str
        Of every user in :data:`USERS`; the client's may be anything.
    """
    users: list[dict[str, Any]] = [{"user": ADMIN, "password": passwords[ADMIN]}]
    users.append({"user": CLIENT, "password": passwords[CLIENT], "permissions": _of_client()})
    users += [
        {"user": name, "password": passwords[name], "permissions": {"publish": {"allow": _of_service(name)}}}
        for name in LOGINS
    ]
    return {"authorization": {"users": users}, "no_auth_user": CLIENT}


def _of_service(service: str) -> list[str]:
    root = subjects.ROOT
    return [
        *subjects.writable(service),
        subjects.state(service),
        f"$KV.{subjects.LEASES}.{service}",
        f"{root}.tel.replica.{service}.*",
        f"{root}.qry.>",
        *_MORE.get(service, []),
        *_reading(work=service in _WORKERS),
    ]


def _of_client() -> dict[str, Any]:
    root = subjects.ROOT
    allowed = [f"{root}.cmd.>", f"{root}.qry.>", f"{root}.inbox.>", "$SRV.>", *_reading(work=False)]
    extensions = [f"{root}.tel.replica.*.*", f"{root}.state.*", f"$KV.{subjects.LEASES}.*"]
    own = [
        pattern
        for service in LOGINS
        for pattern in (
            f"{root}.tel.replica.{service}.*",
            subjects.state(service),
            f"$KV.{subjects.LEASES}.{service}",
        )
    ]
    answers = [f"{root}.{kind}.{service}.>" for service in LOGINS for kind in ("cmd", "qry")]
    return {
        "publish": {"allow": [*allowed, *extensions], "deny": own},
        "subscribe": {"allow": ">", "deny": [*answers, subjects.CHECKPOINTS]},
    }


def _reading(*, work: bool) -> list[str]:
    """Return what it takes to look at streams, follow them and answer requests."""
    api = "$JS.API"
    streams = (*_READABLE, subjects.INBOX) if work else _READABLE
    per_stream = [
        pattern
        for name in streams
        for pattern in (
            f"{api}.CONSUMER.*.{name}",
            f"{api}.CONSUMER.*.{name}.>",
            f"{api}.CONSUMER.MSG.NEXT.{name}.>",
            f"{api}.CONSUMER.DURABLE.CREATE.{name}.>",
            f"{api}.STREAM.MSG.GET.{name}",
            f"{api}.DIRECT.GET.{name}",
            f"{api}.DIRECT.GET.{name}.>",
            f"$JS.ACK.{name}.>",
            f"$JS.FC.{name}.>",
        )
    ]
    rejected = f"{subjects.ROOT}.rejected.>"  # every reader reports what it cannot decode
    return [f"{api}.INFO", f"{api}.STREAM.INFO.*", f"{api}.STREAM.NAMES", *per_stream, rejected, "_INBOX.>"]
