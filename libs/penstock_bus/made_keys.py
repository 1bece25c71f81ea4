"""
Keys and logins of a server that are made before it starts: ``python -m penstock_bus.made_keys``.

In Kubernetes the server, and every service, finds what it needs in a Secret that is mounted into its pod alone. This
program makes what these Secrets hold, once: the keys of the servers (``keys.json``, the secret ``routes.key`` by which
several know each other, and an authority for their certificates), and of each role its login. It fills Secrets that are
there already (``--secrets``), so that it needs the right to read and change these and no others; or it writes folders
(``--out``), for whoever makes Secrets by other means. What is there stays: a second run adds what is missing, and says
where servers are, if that has changed.

The other functions are for :mod:`penstock_bus.standalone`, which takes the keys from a folder that is only read.
"""

from __future__ import annotations

import argparse
import os
import secrets
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import structs

from penstock_bus.identity import access, claims, keyring
from penstock_bus.identity.certificates import AUTHORITY, AUTHORITY_KEY, BadCertificate, ensured_authority
from penstock_bus.identity.keyring import Keyring
from penstock_bus.identity.logins import Login, bracketed, file_name, text_of, user_name, write_private
from penstock_bus.logger import get_logger
from penstock_bus.port import BusError
from penstock_bus.servers.server import ServerError
from penstock_bus.settings import SettingsError, load
from penstock_log.services import LOGINS

ROUTES: Final = "routes.key"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts a pod's token, the authority of the API server, and the name of the pod's namespace."""
_TRIES: Final = 5
_CONFLICT: Final = 409
_ANSWER_S: Final = 20.0
_MERGE: Final = "application/merge-patch+json"
_log = get_logger("penstock.keys")


class SecretsUnavailable(BusError):
    """A Secret cannot be read or changed; the message says which, why, and what to do."""


class SecretChanged(BusError):
    """Somebody else has changed the Secret since it was read."""


class SecretContent(msgspec.Struct, frozen=True):
    """The files of a Secret, and its version as it was read."""

    files: Mapping[str, bytes]
    version: str = ""


class SecretStore(Protocol):
    """Where the files are kept: Secrets of a cluster, or folders."""

    def read(self, name: str) -> SecretContent:
        """Return what a Secret holds; raise SecretsUnavailable where it cannot be read."""

    def add(self, name: str, files: Mapping[str, bytes], version: str) -> None:
        """Add or replace files; raise SecretChanged where the Secret is not as it was at that version any more."""


class _Metadata(msgspec.Struct, rename="camel", frozen=True):
    resource_version: str


class _Secret(msgspec.Struct, frozen=True):
    """What the API server says of a Secret, and is told of it; values are base64 there."""

    metadata: _Metadata
    data: dict[str, bytes] | None = None


class KubernetesSecrets:
    """
    Secrets of the pod's own namespace, by the API server.

    Parameters
    ----------
    server : str
        ``https://HOST:PORT``.
    account : Path
        Folder with ``token``, ``ca.crt`` and ``namespace``.

    References
    ----------
    Kubernetes API reference, Secret v1; RFC 7396 for the patches.
    """

    def __init__(self, server: str, account: Path = ACCOUNT) -> None:
        try:
            namespace = (account / "namespace").read_text(encoding="utf-8").strip()
            self._token = (account / "token").read_text(encoding="utf-8").strip()
            self._context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        except OSError as error:
            raise SecretsUnavailable(
                f"{account} has no token of a service account: {error}; expected a pod whose service account may read "
                "and change the Secrets, with its token mounted"
            ) from error
        self._folder = f"{server}/api/v1/namespaces/{namespace}/secrets"

    @classmethod
    def of_this_pod(cls, environ: Mapping[str, str], account: Path = ACCOUNT) -> KubernetesSecrets:
        """Return those of the cluster in which this process runs; raise SecretsUnavailable where it runs in none."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise SecretsUnavailable("KUBERNETES_SERVICE_HOST is not set: this is no pod; give --out FOLDER instead")
        return cls(f"https://{bracketed(host)}:{port}", account)

    def read(self, name: str) -> SecretContent:
        """Return what a Secret holds."""
        found = self._answer("GET", name)
        return SecretContent(found.data or {}, found.metadata.resource_version)

    def add(self, name: str, files: Mapping[str, bytes], version: str) -> None:
        """Add or replace files of a Secret."""
        self._answer("PATCH", name, msgspec.json.encode(_Secret(_Metadata(version), dict(files))))

    def _answer(self, method: str, name: str, body: bytes | None = None) -> _Secret:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", "Content-Type": _MERGE}
        request = urllib.request.Request(f"{self._folder}/{name}", body, headers, method=method)  # noqa: S310 - https
        what = f"{method} of the Secret {name}"
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S, context=self._context) as answer:  # noqa: S310
                return msgspec.json.decode(answer.read(), type=_Secret)
        except urllib.error.HTTPError as error:
            if error.code == _CONFLICT:
                raise SecretChanged(name) from error
            advice = "it is made by the chart, and this pod's service account may read and change it"
            raise SecretsUnavailable(f"{what} was answered with {error.code} {error.reason}; {advice}") from error
        except (OSError, ValueError) as error:
            raise SecretsUnavailable(
                f"{what} got no answer: {error}; is the API server to be reached from this pod, by its NetworkPolicy?"
            ) from error


class FolderSecrets:
    """Folders in place of Secrets, each for ``kubectl create secret generic NAME --from-file=FOLDER``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> SecretContent:
        """Return what a folder holds; nothing where it is not there."""
        try:
            found = sorted((self._folder / name).iterdir())
            return SecretContent({path.name: path.read_bytes() for path in found})
        except FileNotFoundError:
            return SecretContent({})
        except OSError as error:
            raise SecretsUnavailable(f"{self._folder / name} cannot be read: {error}; name another folder") from error

    def add(self, name: str, files: Mapping[str, bytes], version: str) -> None:  # noqa: ARG002 - a folder has none
        """Add or replace files of a folder, for its owner's eyes only."""
        try:
            (self._folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            for file, body in files.items():
                write_private(self._folder / name / file, body)
        except OSError as error:
            raise SecretsUnavailable(
                f"{self._folder / name} cannot be written: {error}; name another folder"
            ) from error


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the Secrets are called, and what logins say of the server.

    Attributes
    ----------
    keys : str
        The Secret of the servers' keys.
    logins : str
        What the name of each login's Secret begins with; the role's name follows.
    url : str
        Where the server is.
    hosts : tuple of str
        Other hosts where people may find it.
    authority : str or None
        By which clients check its certificate, as PEM text: empty for the system's, None for one that is made here.
    owner : str
        The person who may do everything.
    extensions : tuple of str
        Those that get a login of their own.
    """

    keys: str
    logins: str
    url: str
    hosts: tuple[str, ...] = ()
    authority: str | None = ""
    owner: str = "owner"
    extensions: tuple[str, ...] = ()


def make_all(store: SecretStore, names: Names, now_s: float) -> list[str]:
    """
    Make what is missing, and return the names of the Secrets that were changed.

    Logins that are there keep their keys, so what was copied from them stays good; those that other keys have signed
    are made anew.

    Parameters
    ----------
    now_s : float
        Seconds since the epoch: when the logins are made.

    Raises
    ------
    SecretsUnavailable
        If a Secret cannot be read or changed, or holds what is none of this.
    """
    changed: list[str] = []
    made = _make_keys(store, names, changed)
    with tempfile.TemporaryDirectory() as folder:
        for file, body in made.items():
            write_private(Path(folder) / file, body)
        keys = _keyring(Path(folder), names.keys)
    authority = made[AUTHORITY].decode() if names.authority is None else names.authority
    logins = keys.service_logins(names.url, names.extensions, now_s, authority)
    owner = keys.person_login(names.url, names.owner, now_s, ca=authority)
    for role in (access.ADMIN, *LOGINS, *access.users_of_roles(names.extensions)):
        user = access.users_of_roles(names.extensions).get(role, role)
        login = owner if role == access.CLIENT else logins[user]
        _make_login(store, f"{names.logins}{role}", role, structs.replace(login, hosts=names.hosts), changed)
    return changed


def _make_keys(store: SecretStore, names: Names, changed: list[str]) -> Mapping[str, bytes]:
    for _ in range(_TRIES):
        found = store.read(names.keys)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file, body in found.files.items():
                write_private(folder / file, body)
            _keyring(folder, names.keys)
            if not (folder / ROUTES).exists():
                write_private(folder / ROUTES, secrets.token_urlsafe(32).encode())
            if names.authority is None:
                ensured_authority(folder)
            all_files = {path.name: path.read_bytes() for path in folder.iterdir()}
        new = {file: body for file, body in all_files.items() if found.files.get(file) != body}
        if not new:
            return all_files
        try:
            store.add(names.keys, new, found.version)
        except SecretChanged:
            continue  # by another run at the same time: what it has made counts
        changed.append(names.keys)
        return all_files
    raise SecretsUnavailable(f"the Secret {names.keys} changes all the time; stop what else writes to it")


def _keyring(folder: Path, name: str) -> Keyring:
    try:
        return Keyring.kept_in(folder)
    except ValueError as error:
        raise SecretsUnavailable(f"the Secret {name} holds no keys: {error}") from error


def _make_login(store: SecretStore, name: str, role: str, new: Login, changed: list[str]) -> None:
    for _ in range(_TRIES):
        found = store.read(name)
        login = new
        if (body := found.files.get(file_name(role))) is not None:
            try:
                kept = msgspec.json.decode(body, type=Login)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise SecretsUnavailable(
                    f"the Secret {name} holds no login: {error}; delete its key {file_name(role)}, and it is made anew"
                ) from error
            if _is_of_same_keys(kept, new):
                login = structs.replace(kept, url=new.url, ca=new.ca, hosts=new.hosts)
            if login == kept:
                return
        try:
            store.add(name, {file_name(role): text_of(login).encode()}, found.version)
        except SecretChanged:
            continue
        changed.append(name)
        return
    raise SecretsUnavailable(f"the Secret {name} changes all the time; stop what else writes to it")


def _is_of_same_keys(one: Login, other: Login) -> bool:
    """Say whether two logins are of one person or service, by keys of the same servers."""
    try:
        accounts = [claims.decoded(login.user_jwt)["nats"].get("issuer_account") for login in (one, other)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return one.user == other.user and accounts[0] == accounts[1]


# --- what the server takes
def take_keys(given: Path, keys: Path) -> None:
    """
    Put the keys that are given into a server's folder.

    Raises
    ------
    ServerError
        If there are none, or the server's log was kept by others.
    """
    body = _read(given / keyring.FILE)
    kept = keys / keyring.FILE
    if kept.exists() and kept.read_bytes() != body:
        raise ServerError(
            f"the log here was kept by other keys ({kept}) than those of {given}; nobody's login would count. Put the "
            f"file {keyring.FILE} of this volume back into the Secret of the keys; or, if logins are to be made anew, "
            "delete it here"
        )
    keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(kept, body)


def take_secret(given: Path) -> str:
    """Return the secret by which several servers know each other."""
    return _read(given / ROUTES).decode()


def take_authority(given: Path, folder: Path) -> None:
    """Put the authority that is given into the folder of a server's certificates."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (AUTHORITY, AUTHORITY_KEY):
        write_private(folder / name, _read(given / name))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ServerError(
            f"{file} cannot be read: {error}; expected a folder that `python -m penstock_bus.made_keys` has filled"
        ) from error


# --- the program
def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m penstock_bus.made_keys", description=__doc__, allow_abbrev=False)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--secrets", action="store_true", help="fill Secrets of the namespace of this pod")
    where.add_argument("--out", type=Path, help="fill folders in this one")
    parser.add_argument("--keys", default="keys", help="name of the Secret of the servers' keys")
    parser.add_argument("--logins", default="login-", help="what the names of the logins' Secrets begin with")
    parser.add_argument("--url", required=True, help="where the server is, such as tls://penstock-nats.lab.svc:4222")
    parser.add_argument("--hosts", default="", help="other hosts where people may find it, with commas")
    parser.add_argument("--own-authority", action="store_true", help="make an authority for the servers' certificates")
    parser.add_argument("--tls-ca", type=Path, help="authorities by which clients check the servers' certificates")
    return parser.parse_args()


def _main() -> int:
    args = _arguments()
    try:
        given = args.tls_ca.read_text(encoding="ascii") if args.tls_ca is not None else ""
        names = Names(
            keys=args.keys,
            logins=args.logins,
            url=args.url,
            hosts=tuple(filter(None, args.hosts.split(","))),
            authority=None if args.own_authority else given,
            owner=os.environ.get("PENSTOCK_OWNER", "") or user_name(),
            extensions=load(access.Extensions, "extensions").names,
        )
        store = FolderSecrets(args.out) if args.out is not None else KubernetesSecrets.of_this_pod(os.environ)
        changed = make_all(store, names, time.time())  # noqa: TID251 - what servers compare with their clocks
    except (SecretsUnavailable, SettingsError, BadCertificate, OSError, ValueError) as error:
        sys.stderr.write(f"penstock keys: {error}\n")
        return 1
    _log.info("keys_and_logins_made", changed=changed)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
