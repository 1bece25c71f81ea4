"""
Logins: the files that hold them, where programs find them, and the one that a server accepts.

A login is an address with the proof of who comes there: a signed claim and the seed of its key, as Penstock's own
server wants them (:mod:`penstock_bus.identity.keyring`), or the user and password of another server. ``penstock up``
writes ``client.json`` for its owner and ``extension.json`` for services that are not Penstock's into its data folder,
and a copy of each into the configuration folder of the user who started it, where programs find them by the server's
address. The fields are those of a context of the ``nats`` command line. :func:`find_logins` looks for them,
:func:`first_accepted` connects.
"""

from __future__ import annotations

import base64
import os
import pwd
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, Optional, TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock_bus.errors import Unauthorized
from penstock_log.services import LOGINS

B = TypeVar("B")
Role = str
"""Whose login a file holds: ``client``, ``extension``, or ``extension-NAME`` of one that is configured."""
ROLES: Final[tuple[Role, ...]] = ("client", "extension")
VARIABLE: Final = "PENSTOCK_CREDENTIALS"
CONTEXT_VARIABLE: Final = "PENSTOCK_CONTEXT"
DATA: Final = Path("penstock-data")
"""Where `penstock up` keeps its data unless told otherwise; looked for in the working directory."""
SERVICE_LOGINS: Final = Path("nats", "logins")
"""In the data folder: a file for each service."""

NODE_ROLES: Final = ("executor", "memory", "aggregator")
"""The services of which a machine that joins gets logins of its own."""
_OF_SERVICES: Final = frozenset({"admin", "extension", *LOGINS})
_OWNER_ONLY: Final = 0o600
_FOLDER: Final = 0o700
_PORT: Final = 4222
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


NODE_TOKEN: Final = "penstock-node-"  # noqa: S105 - what each of them begins with
"""What the tokens begin with by which machines join as nodes."""


class Provider(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    An identity provider, as clients need to know it; nothing in it is secret.

    Attributes
    ----------
    issuer : str
        Its address, as it stands in its tokens.
    client_id : str
        As what Penstock is registered there: a public client, without a secret.
    scopes : tuple of str
        What is asked for; ``offline_access`` has most providers give a token for refreshing.
    ca : str
        Certificate authority of the provider as PEM text; empty where the system's are to be trusted.
    """

    issuer: str
    client_id: str
    scopes: tuple[str, ...] = ("openid", "profile", "offline_access")
    ca: str = ""


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the provider gives to somebody who has logged in."""

    id_token: str = ""
    refresh_token: str = ""


class Login(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A server's address and the proof of who comes there: the content of ``client.json`` and its copies.

    Attributes
    ----------
    user : str
        The name; where there is a claim, for people to read, since the server believes the claim alone.
    password : str
        Where the server wants one.
    user_jwt, user_seed : str
        The claim that the server's operator has signed, and the seed of the key that it names.
    ca : str
        Certificate authority of the server as PEM text; empty where the system's are to be trusted, or none is needed.
    token, token_file : str
        A token of an identity provider, or the file that holds one, as it is or as ``penstock login`` has kept it.
    provider : Provider, optional
        Where such tokens come from: they are renewed there.
    description : str
        For people: whose server it is.
    hosts : tuple of str
        Other names and addresses of its machine, for who does not reach it by the one in ``url``.
    """

    url: str
    user: str
    password: str = ""
    user_jwt: str = ""
    user_seed: str = ""
    ca: str = ""
    token: str = ""
    token_file: str = ""
    provider: Optional[Provider] = None
    description: str = ""
    hosts: tuple[str, ...] = ()


class JoinAnswer(Login, frozen=True, kw_only=True, omit_defaults=True):
    """
    The answer to a new node: the login of its executor, and the claims of its agents' logins.

    Attributes
    ----------
    memory_jwt, aggregator_jwt : str
        The claims of its memory agent and its aggregation agent, for the keys that the node named; empty where it asked
        for none, or the issuer gives none.
    """

    memory_jwt: str = ""
    aggregator_jwt: str = ""


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


def file_name(role: Role) -> str:
    """Return the name of a role's file in the data folder."""
    return f"{role}.json"


def write_login(path: Path, login: Login) -> None:
    """Write a login for its owner's eyes only, making the folder."""
    path.parent.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    write_private(path, text_of(login).encode())


def text_of(login: Login) -> str:
    """Return a login as its file holds it."""
    return (msgspec.json.format(msgspec.json.encode(login)) + b"\n").decode()


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


# --- contexts: clusters by name
CONTEXTS: Final = "contexts"
_SELECTED: Final = "context"


def contexts_in(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of a user's contexts: a file for each cluster that was logged in to, by name."""
    folder = kept_in("client", environ)
    return folder.parent / CONTEXTS if folder is not None else None


def tokens_in(folder: Path) -> Path:
    """Return the folder of the tokens that belong to contexts, from that of the contexts."""
    return folder.parent / "tokens"


def contexts(environ: Mapping[str, str]) -> dict[str, Login]:
    """Return a user's contexts by name; files that hold none are passed over."""
    folder = contexts_in(environ)
    found: dict[str, Login] = {}
    for path in sorted(folder.glob("*.json")) if folder is not None else ():
        with suppress(OSError, ValueError):
            found[path.stem] = read_login(path)
    return found


def selected_context(environ: Mapping[str, str]) -> str:
    """Return the name of the context in use: ``PENSTOCK_CONTEXT``, else the one that was chosen; empty for none."""
    if CONTEXT_VARIABLE in environ:
        return environ[CONTEXT_VARIABLE]
    folder = contexts_in(environ)
    try:
        return (folder.parent / _SELECTED).read_text(encoding="utf-8").strip() if folder is not None else ""
    except (OSError, UnicodeDecodeError):
        return ""


def keep_context(name: str, login: Login, environ: Mapping[str, str]) -> Path:
    """
    Keep a login as a context and use it from now on; return its file.

    Raises
    ------
    OSError
        If it cannot be written, or this user has no home.
    """
    folder = contexts_in(environ)
    if folder is None:
        raise OSError("this user has no home folder to keep a login in")
    path = folder / file_name(name)
    write_login(path, login)
    select_context(name, environ)
    return path


def select_context(name: str, environ: Mapping[str, str]) -> None:
    """Use a context from now on; an empty name uses none."""
    folder = contexts_in(environ)
    if folder is not None:
        folder.parent.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
        write_private(folder.parent / _SELECTED, name.encode() + b"\n")


def remove_context(name: str, environ: Mapping[str, str]) -> None:
    """Forget a context; KeyError for one that is not there."""
    folder = contexts_in(environ)
    path = folder / file_name(name) if folder is not None else None
    if folder is None or path is None or not path.exists():
        raise KeyError(name)
    path.unlink()
    (tokens_in(folder) / file_name(name)).unlink(missing_ok=True)
    if selected_context(environ) == name:
        select_context("", environ)


def node_token_text(login: Login) -> str:
    """Return the login by which a machine asks for its own as one word: a node's token."""
    packed = zlib.compress(msgspec.json.encode(login), 9)
    return NODE_TOKEN + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def node_token_login(text: str) -> Login:
    """
    Return the login that :func:`node_token_text` has packed.

    Raises
    ------
    ValueError
        If the text is no node's token.
    """
    packed = text.strip().removeprefix(NODE_TOKEN)
    try:
        body = zlib.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
    except zlib.error as error:
        raise ValueError(f"this is no node's token: {error}") from error
    return msgspec.json.decode(body, type=Login)


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
        if role == ROLES[0]:
            chosen = selected_context(environ)
            named = sorted(contexts(environ).items(), key=lambda one: one[0] != chosen)
            named = [one for one in named if is_same(one[1].url, url)]
            logins += [login for _, login in named]
            looked += [f"context {name}" for name, _ in named]
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


def bracketed(host: str) -> str:
    """
    Return a host as an address has it.

    Examples
    --------
    >>> bracketed("lab"), bracketed("fd00::7")
    ('lab', '[fd00::7]')
    """
    return f"[{host}]" if ":" in host else host


def alternatives(login: Login) -> list[str]:
    """
    Return the addresses at which a login's servers may be: its own, and the same ports at its other hosts.

    Examples
    --------
    >>> alternatives(Login(url="tls://lab:4222,tls://lab:4223", user="jane", hosts=("10.0.0.7",)))
    ['tls://lab:4222,tls://lab:4223', 'tls://10.0.0.7:4222,tls://10.0.0.7:4223']
    """
    return [login.url, *(at_host(login.url, host) for host in login.hosts)]


def at_host(url: str, host: str) -> str:
    """
    Return the address of servers at another host, whose ports are the same unless it names one.

    Examples
    --------
    >>> at_host("tls://lab:4222", "fd00::7"), at_host("tls://lab:4222", "gate.example.org:443")
    ('tls://[fd00::7]:4222', 'tls://gate.example.org:443')
    """
    name, colon, port = host.rpartition(":")
    has_port = bool(colon) and port.isdigit() and (":" not in name or name.endswith("]"))
    parts = [urlsplit(one.strip()) for one in url.split(",")]
    if has_port:
        return f"{parts[0].scheme}://{host}"
    place = host if host.startswith("[") else bracketed(host)
    return ",".join(f"{one.scheme}://{place}:{one.port or _PORT}" for one in parts)


def has_user(url: str) -> bool:
    """Say whether an address names its user itself, as ``nats://client:secret@host`` does."""
    return "@" in url


async def first_accepted(connect: Callable[[Login | None], Awaitable[B]], found: LoginSearch, role: Role) -> B:
    """
    Connect by the first login that the server accepts; without a login, connect without a user.

    Parameters
    ----------
    connect : callable
        Awaited with a login, or None for nobody.

    Raises
    ------
    Unauthorized
        If the server accepts none; the message says what to do.
    """
    refused = by_token = ""
    for login in found.logins or (None,):
        try:
            return await connect(login)
        except Unauthorized as error:
            refused = refused or str(error)  # of the best
            by_token = by_token or (str(error) if login is not None and (login.token or login.token_file) else "")
    if by_token or not found.looked:
        raise Unauthorized(by_token or refused)
    if found.logins and found.logins[0].user_jwt:
        raise Unauthorized(f"{refused} (looked: {'; '.join(found.looked)})")
    raise Unauthorized(f"{refused.partition(';')[0]}; {refusal(role, found, os.environ)}")


def refusal(role: Role, found: LoginSearch, environ: Mapping[str, str]) -> str:
    """Return the message for a user whom a server refused: the places that were searched, and what to do."""
    folder = kept_in(role, environ)
    source = found.unreadable or f"DATA/{file_name(role)}"
    whose = "its owner" if found.unreadable else "who ran `penstock up` on the folder DATA"
    target = f"{folder}/cluster.json" if folder is not None else "FILE"
    what = "those that were found are of an earlier run or of another server" if found.logins else "there are none here"
    searched = f"{what} (PENSTOCK_USER and {VARIABLE} are not set; {'; '.join(found.looked)})"
    if role == "client" and not found.unreadable:
        return (
            f"it wants a login, and {searched}. Have an admin of the cluster run `penstock user add {user_name()}`, "
            "and keep the file that it writes with `penstock login FILE`"
        )
    return (
        f"it wants credentials, and {searched}. Have "
        f"{whose} run `install -D -m 600 -o {user_name()} {source} {target}`, or set {VARIABLE} to a copy of {source}"
    )


def why_refused(login: Login, address: str, now_s: float) -> str:
    """
    Return what is true of a login that a server has refused, and what to do, as the end of a sentence about its user.

    Parameters
    ----------
    now_s : float
        Seconds since the epoch.
    """
    from penstock_bus.identity import claims  # noqa: PLC0415 - needs PyNaCl, which others need not load

    try:
        said = claims.decoded(login.user_jwt)
        made, ends_s = _day(float(said.get("iat", 0))), float(said.get("exp", 0))
        ended = _day(ends_s) if 0 < ends_s <= now_s else ""
    except (ValueError, TypeError, OverflowError, OSError) as error:
        return f", whose login is damaged ({error}); {_get_anew(login)}"
    if ended:
        return f", whose login of {made} expired on {ended}; {_get_anew(login)}"
    if not is_same(login.url, address):
        there = "go there with `penstock context use`, or by PENSTOCK_URL"
        return f", whose login is for {login.url}; {there}. If that is this cluster, it was revoked: {_get_anew(login)}"
    other = "this is another cluster than the one that made it, such as one whose data folder is new"
    return f", whose login of {made} does not count: it was revoked since, or {other}; {_get_anew(login)}"


def _get_anew(login: Login) -> str:
    if login.user in _OF_SERVICES:
        copy = f"take a copy of {SERVICE_LOGINS / file_name(login.user)} in the cluster's data folder"
        node = "; a machine that is a node joins again with what `penstock node token` prints"
        return copy + (node if login.user in NODE_ROLES else "")
    return (
        f"have an admin run `penstock user rotate {login.user}`, and keep the file that it writes with `penstock login "
        "FILE`; on the machine of `penstock up`, its owner finds a new one whenever that starts"
    )


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


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
    parts = urlsplit(url.partition(",")[0])  # of several servers, the first: the login in it is for all
    return folder / f"{parts.hostname}-{parts.port or _PORT}.json" if folder is not None else None


def _in_folder(folder: Path, url: str) -> tuple[list[Login], list[str]]:
    """
    Return the logins for a server, and what is wrong with files that hold none.

    The newest come first: an earlier run that was killed may have left one.
    """
    dated: list[tuple[float, Path]] = []
    with suppress(OSError):
        for path in folder.glob("*.json"):
            with suppress(FileNotFoundError):  # a cluster that ends takes its own away, and not the others
                dated.append((path.stat().st_mtime, path))
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
