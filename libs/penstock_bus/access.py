"""
Access to the server: passwords, the logins of people and foreign services, and who may use which subject.

The server's passwords are made up and kept in its data folder. ``penstock up`` writes two files for others there,
``client.json`` for people and ``extension.json`` for services that are not Penstock's. It puts a copy of each into the
configuration folder of the user who started it, where his programs find them by the server's address. Their fields are
those of a context of the ``nats`` command line. :func:`find_logins` looks for them, :func:`first_accepted` connects.

:func:`authorization` has the log's rules of who may use which subject; NATS enforces them. Services and people are in
two accounts (docs/adr/0011). The streams belong to the services' account. People see of them what is exported here:
requests to services, submissions, direct gets of the streams that they may read, and what is published to these while
they listen. People have no JetStream API. There, a server publishes in its own name, to the reply subject of a get or
to the delivery subject of a consumer, and no permission is checked. Over the border between accounts it answers the
asker and nobody else.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock_bus.port import Unauthorized
from penstock_log import subjects
from penstock_log.services import LOGINS, SERVICES

B = TypeVar("B")
Role = str
"""Whose login a file holds: ``client``, ``extension``, or ``extension-NAME`` of one that is configured."""
ROLES: Final[tuple[Role, ...]] = ("client", "extension")
VARIABLE: Final = "PENSTOCK_CREDENTIALS"
DATA: Final = Path("penstock-data")
"""Where `penstock up` keeps its data unless told otherwise; looked for in the working directory."""

_OWNER_ONLY: Final = 0o600
_FOLDER: Final = 0o700
_PORT: Final = 4222
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """
    A server's address and the user to log in as: the content of ``client.json`` and its copies.

    Attributes
    ----------
    description : str
        For people: whose server it is.
    """

    url: str
    user: str
    password: str
    description: str = ""


class LoginSearch(msgspec.Struct, frozen=True, kw_only=True):
    """
    The result of a search for credentials.

    Attributes
    ----------
    logins : tuple of Login
        The logins for the server, the best first.
    looked : tuple of str
        The places searched, with what was found there; empty where the address names its user.
    unreadable : str
        File beside the user that belongs to somebody else; empty where there is none.
    """

    logins: tuple[Login, ...]
    looked: tuple[str, ...]
    unreadable: str = ""


# --- the server's own
def ensure(path: Path, users: Iterable[str]) -> dict[str, str]:
    """Return each user's password, making up and keeping those that are missing."""
    known = read(path)
    passwords = {user: known.get(user) or secrets.token_urlsafe(24) for user in users}
    if passwords != known:
        write_private(path, msgspec.json.format(msgspec.json.encode(passwords)))
    return passwords


def read(path: Path) -> dict[str, str]:
    """
    Return the passwords in a file; none where there is no file.

    Raises
    ------
    PermissionError
        If the file is somebody else's.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}


def write_private(path: Path, body: bytes) -> None:
    """Replace a file with one that only its owner may read; readers see the old or the new one."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


# --- other people's
def file_name(role: Role) -> str:
    """Return the name of a role's file in the data folder."""
    return f"{role}.json"


def write_login(path: Path, login: Login) -> None:
    """Write a login for its owner's eyes only, making the folder."""
    path.parent.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    write_private(path, msgspec.json.format(msgspec.json.encode(login)) + b"\n")


def read_login(path: Path) -> Login:
    """
    Return the login in a file.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it holds none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Login)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} holds no credentials: {error}; expected a copy of client.json") from error


def kept_in(role: Role, environ: Mapping[str, str]) -> Path | None:
    """Return the folder where a user keeps his logins of a role; None for one who has no home."""
    name = f"{role}s" if role in ROLES else role
    if environ.get("XDG_CONFIG_HOME", "").startswith("/"):
        return Path(environ["XDG_CONFIG_HOME"]) / "penstock" / name
    home = environ.get("HOME") or _home()
    return Path(home) / ".config" / "penstock" / name if home.startswith("/") else None


def keep_login(role: Role, login: Login, environ: Mapping[str, str]) -> Path | None:
    """Put a login where its user's programs find it; return None where there is no such place or it is not writable."""
    path = _kept_at(role, login.url, environ)
    if path is None:
        return None
    try:
        write_login(path, login)
    except OSError:
        return None
    return path


def is_kept(role: Role, url: str, environ: Mapping[str, str]) -> bool:
    """Say whether a login for a server lies where its user's programs find it."""
    path = _kept_at(role, url, environ)
    return path is not None and os.access(path, os.R_OK)


def forget_login(role: Role, login: Login, environ: Mapping[str, str]) -> None:
    """Take away what :func:`keep_login` put there, unless another server has taken its place."""
    path = _kept_at(role, login.url, environ)
    with suppress(OSError, ValueError):
        if path is not None and read_login(path) == login:
            path.unlink()


def find_logins(role: Role, url: str, environ: Mapping[str, str], data: Path = DATA) -> LoginSearch:
    """Look for logins for a server: in the user's configuration folder, then in the data folder where he is."""
    logins: list[Login] = []
    looked: list[str] = []
    unreadable = ""
    folder = kept_in(role, environ)
    if folder is None:
        looked.append("this user has no home folder to keep any in")
    else:
        found, spoilt = _in_folder(folder, url)
        logins += found
        looked.append(f"{len(found) or 'none'} for this server in {folder}")
        looked += spoilt
    path = data.absolute() / file_name(role)
    try:
        login = read_login(path)
    except FileNotFoundError:
        looked.append(f"no {path}")
    except PermissionError:
        unreadable = str(path)
        looked.append(f"{path} may not be read by {user_name()}")
    except (OSError, ValueError) as error:
        looked.append(str(error))
    else:
        if is_same(login.url, url):
            logins.append(login)
        looked.append(f"{path}, which is for {login.url}")
    return LoginSearch(logins=tuple(dict.fromkeys(logins)), looked=tuple(looked), unreadable=unreadable)


def is_same(one: str, other: str) -> bool:
    """
    Say whether two addresses, each of one server or several, have one in common.

    Examples
    --------
    >>> is_same("nats://localhost:4222", "127.0.0.1"), is_same("nats://a:1,nats://b:2", "b:2"), is_same("a", "b")
    (True, True, False)
    """
    return not _servers(one).isdisjoint(_servers(other))


def has_user(url: str) -> bool:
    """Say whether an address names its user itself, as ``nats://client:secret@host`` does."""
    return "@" in url


async def first_accepted(connect: Callable[[str, str], Awaitable[B]], found: LoginSearch, role: Role) -> B:
    """
    Connect by the first login that the server accepts; without a login, connect without a user.

    Parameters
    ----------
    connect : callable
        Awaited with user and password.

    Raises
    ------
    Unauthorized
        If the server accepts none; the message says what to do.
    """
    refused = ""
    for user, password in [(login.user, login.password) for login in found.logins] or [("", "")]:
        try:
            return await connect(user, password)
        except Unauthorized as error:
            refused = str(error)
    if not found.looked:
        raise Unauthorized(refused)
    raise Unauthorized(f"{refused.partition(';')[0]}; {refusal(role, found, os.environ)}")


def refusal(role: Role, found: LoginSearch, environ: Mapping[str, str]) -> str:
    """Return the message for a user whom a server refused: the places that were searched, and what to do."""
    folder = kept_in(role, environ)
    source = found.unreadable or f"DATA/{file_name(role)}"
    whose = "its owner" if found.unreadable else "who ran `penstock up` on the folder DATA"
    target = f"{folder}/cluster.json" if folder is not None else "FILE"
    what = "those that were found are of an earlier run or of another server" if found.logins else "there are none here"
    return (
        f"it wants credentials, and {what} (PENSTOCK_USER and {VARIABLE} are not set; {'; '.join(found.looked)}). Have "
        f"{whose} run `install -D -m 600 -o {user_name()} {source} {target}`, or set {VARIABLE} to a copy of {source}"
    )


def user_name() -> str:
    """Return the name of the user whose process this is; its number where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def _kept_at(role: Role, url: str, environ: Mapping[str, str]) -> Path | None:
    folder = kept_in(role, environ)
    parts = urlsplit(url)
    return folder / f"{parts.hostname}-{parts.port or _PORT}.json" if folder is not None else None


def _in_folder(folder: Path, url: str) -> tuple[list[Login], list[str]]:
    """
    Return the logins for a server, and what is wrong with files that hold none.

    The newest come first: an earlier run that was killed may have left one.
    """
    dated: list[tuple[float, Path]] = []
    with suppress(OSError):
        dated = [(path.stat().st_mtime, path) for path in folder.glob("*.json")]
    found: list[Login] = []
    spoilt: list[str] = []
    for _, path in sorted(dated, reverse=True):
        try:
            login = read_login(path)
        except PermissionError:
            spoilt.append(f"{path} may not be read by {user_name()}")
        except (OSError, ValueError) as error:
            spoilt.append(str(error))
        else:
            found += [login] if is_same(login.url, url) else []
    return found, spoilt


def _servers(url: str) -> set[tuple[str, int]]:
    return {server for one in url.split(",") if (server := _server(one.strip())) is not None}


def _server(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = (parts.hostname or "").lower(), parts.port or _PORT
    except ValueError:
        return None
    return "127.0.0.1" if host in _HERE else host, port


ADMIN: Final = "admin"
CLIENT: Final = "client"
SHADOW: Final = "shadow"
"""Shadows read the log and write none of it: what they would have written goes to a stream of their own."""
EXTENSION: Final = "extension"
"""Services that others have written: they read everything, keep a state and a lease, and write no facts.

One that is configured (:class:`Extensions`) has a user of its own name, and writes its own facts.
"""
USERS: Final = (ADMIN, CLIENT, EXTENSION, *LOGINS)
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
            if not _EXTENSION_NAME.fullmatch(name) or name in USERS:
                taken = ", ".join(sorted(USERS))
                raise ValueError(
                    f"{name!r} names no extension; expected small letters, digits and _, and none of {taken}"
                )


ACCOUNT: Final = "PENSTOCK"
CLIENTS: Final = "CLIENTS"

_API: Final = "$JS.API"
_BUCKET: Final = f"KV_{subjects.LEASES}"
_PUBLIC: Final = (subjects.EVT, subjects.LOG, subjects.REJECTED, subjects.SHADOW)
"""Streams that everybody may read."""
_ANSWERED: Final = (f"{subjects.ROOT}.cmd.>", f"{subjects.ROOT}.qry.>", subjects.OUTPUTS)
"""What services answer to everybody; what they say among themselves has subjects of other kinds."""
_PUBLISHED: Final = tuple(f"{subjects.ROOT}.{kind}.>" for kind in ("evt", "log", "shadow", "tel"))

_FROM_PEOPLE: Final = (*subjects.SUBMISSIONS, _ANSWERED[0])
_ASKING: Final = frozenset(service.name for service in SERVICES if service.asks)
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
        *_FROM_PEOPLE,
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
        Of every user in :data:`USERS`; whoever else is in it is a configured extension.
    """
    extensions = [name for name in passwords if name not in USERS]
    names = (*LOGINS, EXTENSION, *extensions)
    services = [_user(name, passwords, _of_service(name, extensions)) for name in names]
    people = [_user(CLIENT, passwords, _of_client())]
    requests, published = _for_clients(), [{"stream": subject} for subject in _PUBLISHED]
    of_services = {
        "jetstream": "enabled",
        "users": [{"user": ADMIN, "password": passwords[ADMIN]}, *services],
        "exports": [*({"service": subject, "response_type": kind} for subject, kind in requests.items()), *published],
    }
    of_clients = {
        "users": people,
        "imports": [
            *({"service": {"account": ACCOUNT, "subject": subject}} for subject in requests),
            *({"stream": {"account": ACCOUNT, "subject": subject}} for subject in _PUBLISHED),
        ],
    }
    return {"accounts": {ACCOUNT: of_services, CLIENTS: of_clients}}


def _user(name: str, passwords: Mapping[str, str], permissions: dict[str, Any]) -> dict[str, Any]:
    return {"user": name, "password": passwords[name], "permissions": permissions}


def _for_clients() -> dict[str, str]:
    """Return what clients may request, and whether one answer comes or a row of them."""
    gets = {f"{_API}.DIRECT.GET.{name}": "Stream" for name in _PUBLIC}
    newest = {f"{_API}.DIRECT.GET.{name}.>": "Singleton" for name in _PUBLIC}
    return dict.fromkeys((*_ANSWERED, *subjects.SUBMISSIONS), "Singleton") | {"$SRV.>": "Stream"} | gets | newest


def _of_client() -> dict[str, Any]:
    """Return what people may do; they may listen to nothing else, so that nobody answers in a service's place."""
    return {"publish": {"allow": list(_for_clients())}, "subscribe": {"allow": ["_INBOX.>", *_PUBLISHED]}}


def _of_service(service: str, extensions: Sequence[str]) -> dict[str, Any]:
    root = subjects.ROOT
    allowed = [
        *([subjects.extended(service)] if service in extensions else subjects.writable(service)),
        *_own(service),
        f"{root}.rejected.>",  # every reader reports what it cannot decode
        f"{root}.qry.>",
        *_MORE.get(EXTENSION if service in extensions else service, []),
        *(_FROM_PEOPLE if service in _ASKING else ()),
        *_reading(),
        "_INBOX.>",  # answers, also to the other account
        "_R_.>",
    ]
    others = [name for name in (*LOGINS, *extensions) if name != service]
    answers = [f"{root}.{kind}.{name}.>" for name in others for kind in ("cmd", "qry")]
    private = [] if service == "executor" else [subjects.CHECKPOINTS, subjects.OUTPUTS]
    return {
        "publish": {"allow": allowed, "deny": [pattern for name in others for pattern in _own(name)]},
        "subscribe": {"allow": ">", "deny": [*answers, *private]},
    }


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
    looked = [f"{_API}.DIRECT.GET.{name}{more}" for name in (*_PUBLIC, subjects.STATE) for more in ("", ".>")]
    from_leader = [f"{_API}.STREAM.MSG.GET.{name}" for name in (subjects.EVT, subjects.SHADOW, _BUCKET)]
    return [f"{_API}.STREAM.INFO.*", *followed, *looked, *from_leader]
