"""
Access: which subjects of the server each service, each extension and each person may use.

Services share the account that holds the streams. Every person has an account of their own, without JetStream, and sees
of the services' account what is imported there under the names that everybody uses (docs/adr/0018):

* Requests and submissions go to ``penstock.p.USER.…``. The server writes the user into the subject, so whoever answers
  knows who asks.
* Those who may read everything get what the streams hold by direct gets, and hear what is published to them. Others
  send the same gets to the gateway, which answers with what they may see, and hear only that something was stored.

People have no JetStream API. There, a server publishes in its own name, to the reply subject of a get or to the
delivery subject of a consumer, and no permission is checked. Over the border between accounts it answers the asker and
nobody else. :mod:`penstock_bus.identity.keyring` signs what is written here as claims; the server enforces them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock_bus.identity.claims import Export, Import, Permissions
from penstock_bus.identity.logins import Role
from penstock_log import subjects
from penstock_log.services import ISSUER, LOGINS

ADMIN: Final = "admin"
CLIENT: Final = "client"
"""The role of the server's owner, a person who may do everything; the login has the owner's name."""
JOIN: Final = "join"
"""The role of a login that a new node has for a while: with it, it asks for its own."""
_NAME: Final = "{{name()}}"
"""Where the server writes the name of a login into its permissions: a token's own id."""
SHADOW: Final = "shadow"
"""Shadows read the log and write none of it: what they would have written goes to a stream of their own."""
EXTENSION: Final = "extension"
"""Services that others have written: they read everything, keep a state and a lease, and write no facts.

One that is configured (:class:`Extensions`) has a user of its own name, and writes its own facts.
"""
USERS: Final = (ADMIN, EXTENSION, *LOGINS)
"""Users of the services' account."""
_TAKEN: Final = frozenset({*USERS, CLIENT, JOIN, ISSUER})
_EXTENSION_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,40}")


def role_of(name: str) -> Role:
    """Return the role of a configured extension: its login is its own."""
    return f"{EXTENSION}-{name}"


def users_of_roles(extensions: Iterable[str] = ()) -> dict[Role, str]:
    """Return the user of each role that gets a login in a file; the file for which health checks wait comes last."""
    return {CLIENT: CLIENT, **{role_of(name): name for name in extensions}, EXTENSION: EXTENSION}


class Extensions(msgspec.Struct, frozen=True, kw_only=True):
    """
    Extensions that may write facts: ``[extensions]`` of penstock.toml, or ``PENSTOCK_EXTENSIONS_NAMES``.

    Attributes
    ----------
    names : tuple of str
        Each has a user of its own, who alone may write the facts ``ext.NAME.*``.
    """

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a name that is no part of a subject, or that is taken."""
        for name in self.names:
            if not _EXTENSION_NAME.fullmatch(name) or name in _TAKEN:
                taken = ", ".join(sorted(_TAKEN))
                raise ValueError(
                    f"{name!r} names no extension; expected small letters, digits and _, and none of {taken}"
                )


_API: Final = "$JS.API"
_BUCKET: Final = f"KV_{subjects.LEASES}"
_PUBLIC: Final = (subjects.EVT, subjects.LOG, subjects.REJECTED, subjects.SHADOW)
"""Streams that everybody may read."""
_ASKED: Final = (f"{subjects.ROOT}.cmd.>", f"{subjects.ROOT}.qry.>", *subjects.SUBMISSIONS)
"""What people ask and submit; what services say among themselves has subjects of other kinds."""
_STORED: Final = tuple(f"{subjects.ROOT}.{kind}.>" for kind in ("evt", "log", "shadow"))
"""Subjects of streams that people listen to: what they hear is the sign to look again."""
_TELEMETRY: Final = f"{subjects.ROOT}.tel.>"
_SEEN_BY_ALL: Final = tuple(f"{subjects.ROOT}.tel.{kind}.>" for kind in ("replica", "node", "output"))
"""Telemetry that says nothing of what a job computes."""
_SERVICES: Final = "$SRV.>"
_REPLIES: Final = "_R_.>"
"""Where the server takes answers to people, on their way over the border."""

_SESSIONS: Final = (subjects.SESSIONS, subjects.by_anybody(subjects.SESSIONS))
"""What those say who enter jobs: to the executors alone."""
_OF_JOBS: Final = tuple(
    subjects.command(name)
    for name in (
        "submit",
        "submit_all",
        "upload",
        "upload_parts",
        "tune",
        "cancel",
        "hold",
        "release",
        "extend",
        "bulk",
        "cancel_sweep",
    )
)
"""
What extensions may command, in the name of users: nothing about people, nodes and policies.

They enter no job: a session runs what it is told to as the job's user.
"""
_CODE_GETS: Final = [f"{_API}.DIRECT.GET.{subjects.CODE}{more}" for more in ("", ".>")]
"""What jobs' folders hold is for the gateway, which has it from people, and for executors."""
ON_NODES: Final = ("executor", "memory", "aggregator")
"""Services of which each node has one: they take no lease, and have a snapshot for each node."""
_MORE: Final[dict[str, list[str]]] = {
    "gateway": [
        f"$KV.{subjects.LEASES}.gateway.*",  # who sends notifications
        f"{subjects.ROOT}.cmd.gateway.*",  # a command line beside it may use its login
        subjects.OUTPUTS,  # and no other service: an executor's answer is what a job wrote, sent where the asker says
        *(f"{_API}.CONSUMER.{call}.{subjects.INBOX}.*" for call in ("DURABLE.CREATE", "INFO", "MSG.NEXT")),
        f"$JS.ACK.{subjects.INBOX}.>",
        f"{_API}.STREAM.PURGE.{subjects.EVT}",  # what is in the archive
        subjects.STREAM_SUBJECTS[subjects.CODE],
        f"$KV.{subjects.LEASES}.gateway_code",
        f"{_API}.STREAM.PURGE.{subjects.CODE}",
        f"{_API}.STREAM.MSG.GET.{subjects.CODE}",
        *_CODE_GETS,
    ],
    "tuner": [subjects.INBOX_JOBS],
    "allocator": [subjects.command(name, ISSUER) for name in ("token", "revoke")],  # for its pilots
    "matcher": [f"{subjects.ROOT}.tel.matcher.heard.*"],  # no executor may say it of another, or of itself
    SHADOW: [f"{subjects.ROOT}.shadow.>", f"$KV.{subjects.LEASES}.{SHADOW}.*"],
    "executor": [
        f"{subjects.ROOT}.log.>",
        f"{subjects.ROOT}.tel.*.*",
        f"{subjects.state('executor')}.*",  # one for each node
        subjects.CHECKPOINTS,
        *_CODE_GETS,
    ],
    "memory": [
        subjects.SLABS,
        subjects.MEMORY_OFFERS,
        f"{subjects.state('memory')}.*",  # one for each node
    ],
    "aggregator": [
        subjects.AGGREGATORS,
        subjects.AGGREGATOR_LOADS,
        f"{subjects.state('aggregator')}.*",  # one for each node
    ],
    "dashboard": [  # in the name of who looks at it
        *(subjects.by_anybody(f"{subjects.ROOT}.{kind}.gateway.*") for kind in ("cmd", "qry")),
        subjects.by_anybody(subjects.OUTPUTS),
    ],
    EXTENSION: [
        *subjects.SUBMISSIONS,
        *_OF_JOBS,
        f"{subjects.ROOT}.state.*",
        f"{subjects.ROOT}.tel.replica.*.*",
        f"$KV.{subjects.LEASES}.*",
    ],
}


def exports() -> list[Export]:
    """Return what the services' account lets people's accounts ask for and listen to."""
    by_name = (*_ASKED, subjects.SESSIONS, *_relayed())
    asked = [Export(subject=subjects.by_anybody(subject), answers="Stream") for subject in by_name]
    direct = [Export(subject=subject, answers="Stream") for subject in (*_gets(), subjects.OUTPUTS, _SERVICES)]
    signs = [subjects.sign(subject) for subject in _STORED]
    return [*asked, *direct, *(Export(subject=subject, stream=True) for subject in (*_STORED, _TELEMETRY, *signs))]


def imports(services: str, user: str, *, reads_all: bool) -> list[Import]:
    """
    Return what a person's account sees of the services' account.

    Parameters
    ----------
    services : str
        The public key of the services' account.
    user : str
        The person's name.
    reads_all : bool
        Whether the person may read everything; otherwise the gateway answers in the streams' place.
    """

    def request(local: str, subject: str) -> Import:
        return Import(account=services, subject=subject, local=local)

    def listening(local: str, subject: str) -> Import:
        return Import(account=services, subject=subject, local=local, stream=True)

    found = [request(subject, subjects.by_person(user, subject)) for subject in (*_ASKED, subjects.SESSIONS)]
    found.append(request(_SERVICES, _SERVICES))
    if reads_all:
        found += [request(subject, subject) for subject in (*_gets(), subjects.OUTPUTS)]
        return found + [listening(subject, subject) for subject in (*_STORED, _TELEMETRY)]
    of_gets = zip(_gets(), _relayed())
    found += [request(subject, subjects.by_person(user, relayed)) for subject, relayed in of_gets]
    found.append(request(subjects.OUTPUTS, subjects.by_person(user, subjects.OUTPUTS)))
    found += [listening(subject, subjects.sign(subject)) for subject in _STORED]
    return found + [listening(subject, subject) for subject in _SEEN_BY_ALL]


def of_person() -> Permissions:
    """Return what a person may do in an account of their own; nobody else is in it."""
    return Permissions(
        publish=(*_ASKED, *_gets(), subjects.OUTPUTS, subjects.SESSIONS, _SERVICES),
        subscribe=("_INBOX.>", *_STORED, _TELEMETRY),
    )


def _gets() -> list[str]:
    """Return the direct gets of the streams that people read, in the order of :func:`_relayed`."""
    return [f"{_API}.DIRECT.GET.{name}{more}" for name in _PUBLIC for more in ("", ".>")]


def _relayed() -> list[str]:
    """Return where the gateway is asked for what the streams hold, and for what nodes keep of output."""
    return [subjects.get(name) + more for name in _PUBLIC for more in ("", ".>")] + [subjects.OUTPUTS]


def of_service(service: str, extensions: Sequence[str] = ()) -> Permissions:
    """
    Return what a service, or an extension, may do in the services' account.

    Every service may write its own kinds of entities and nothing else of the log, and hears no answers but its own.
    The ``admin`` may do everything, such as making streams and deleting snapshots.

    A known gap: services share an account, so one that was taken over may have the server publish for it; that readers
    drop facts out of place limits what comes of it. Another: who may write to a stream that takes ``Nats-Rollup``
    headers may empty it by one. Of these, services on nodes write to SERIES and NODES, which hold copies of what nodes
    have and of what the log says; extensions and services beside the log to STATE, and those to the leases.

    Parameters
    ----------
    extensions : sequence of str
        The extensions that are configured.
    """
    if service == ADMIN:
        return Permissions()
    if service == JOIN:
        own = f"{subjects.command(JOIN, ISSUER)}.{_NAME}"
        return Permissions(publish=(own,), subscribe=(f"{subjects.inbox(JOIN)}.>",))
    root = subjects.ROOT
    allowed = [
        *([subjects.extended(service)] if service in extensions else subjects.writable(service)),
        *(_own(service) if service not in ON_NODES else [subjects.replicas(service)]),
        f"{root}.rejected.>",  # every reader reports what it cannot decode
        f"{root}.qry.>",
        *_MORE.get(EXTENSION if service in extensions else service, []),
        *_reading(),
        "_INBOX.>",  # answers to services, and over the border to people
        _REPLIES,
    ]
    others = [name for name in (*LOGINS, *extensions) if name != service]
    served = [f"{root}.{kind}.{name}.>" for name in (*others, ISSUER) for kind in ("cmd", "qry")]
    answers = [*served, *(subjects.by_anybody(subject) for subject in served)]
    inboxes = [f"{subjects.inbox(name)}.>" for name in (*USERS, JOIN, *extensions) if name != service]
    inboxes.append(_REPLIES)
    private = [subjects.STREAM_SUBJECTS[subjects.CODE]]  # nobody listens to it: executors read what is stored
    if service != "executor":
        private += [subjects.CHECKPOINTS, subjects.OUTPUTS, *_SESSIONS]
    if service != "memory":
        private.append(subjects.SLABS)
    if service != "aggregator":
        private.append(subjects.AGGREGATORS)
    if service != "gateway":
        private += [subjects.by_anybody(subject) for subject in _relayed()]
    return Permissions(
        publish=tuple(allowed),
        publish_not=(
            *([] if service == "allocator" else [f"{root}.cmd.{ISSUER}.>"]),
            *(pattern for name in others for pattern in _own(name)),
        ),
        subscribe=(">",),
        subscribe_not=(*answers, *private, *inboxes),
    )


def _own(service: str) -> list[str]:
    """Return the subjects of a service's snapshot, lease and heartbeats, which only it may write."""
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
    looked = [
        f"{_API}.DIRECT.GET.{name}{more}"
        for name in (*_PUBLIC, subjects.SERIES, subjects.STATE, subjects.NODES)
        for more in ("", ".>")
    ]
    from_leader = [f"{_API}.STREAM.MSG.GET.{name}" for name in (subjects.EVT, subjects.SHADOW, _BUCKET)]
    return [f"{_API}.STREAM.INFO.*", *followed, *looked, *from_leader]
