"""
The keyring: the one secret of a server's owner, and all claims that are signed with it.

Penstock's server runs in NATS' operator mode: it believes whatever the operator has signed. All keys are derived from a
secret in the data folder, so nothing else has to be kept: the operator's, that of the server's system account, that of
the services' account, and one for the account of each person. :meth:`Keyring.config` is what the server is told,
:meth:`Keyring.service_logins` and :meth:`Keyring.person_login` are what others show it.

A person's logins are signed with a key of their own, which is another one after each revocation: the account names the
newest alone, so the server refuses what was signed before, whatever any clock says.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from penstock_bus.identity import access, claims
from penstock_bus.identity.claims import AccountLimits, Permissions, Scope, SigningKey
from penstock_bus.identity.logins import Login, write_private

FILE: Final = "keys.json"
_SECRET_BYTES: Final = 32
_OLDEST_S: Final = 1
"""So old are claims that must not replace any that the server keeps."""
_FROM: Final = "valid-from:"
_LONGEST_CONNECT: Final = 32 << 10
"""Bytes of a client's first line, which holds its token: 4 KiB are too few for one that names many groups."""
_ANSWER_S: Final = 5
"""So long a connection may take to log in: the identity provider may have to be asked for new keys."""
REVOKED: Final = "revoked.json"
NOBODY: Final[Mapping[str, int]] = MappingProxyType({})
_LIMITS: Final = AccountLimits(connections=1000, subscriptions=100_000)


class _Stored(msgspec.Struct, frozen=True):
    """The content of ``keys.json``."""

    secret: bytes


class Keyring:
    """
    Keys and claims of one server, or of the servers of one cluster.

    Parameters
    ----------
    secret : bytes
        32 random bytes; whoever has them may do everything.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._operator = SigningKey.derived("operator", secret, "operator")
        self._system = SigningKey.derived("account", secret, "system")
        self._services = SigningKey.derived("account", secret, "services")
        self._callout = SigningKey.derived("account", secret, "callout")

    @classmethod
    def kept_in(cls, folder: Path) -> Keyring:
        """
        Return the keyring of a folder, making up the secret of a new one.

        Raises
        ------
        ValueError
            If the file there holds no secret.
        """
        file = folder / FILE
        try:
            stored = msgspec.json.decode(file.read_bytes(), type=_Stored)
        except FileNotFoundError:
            stored = _Stored(secrets.token_bytes(_SECRET_BYTES))
            write_private(file, msgspec.json.format(msgspec.json.encode(stored)))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"{file} holds no secret: {error}; restore it from a backup of this folder") from error
        if len(stored.secret) < _SECRET_BYTES:
            raise ValueError(f"{file} holds a secret of {len(stored.secret)} bytes, expected {_SECRET_BYTES}")
        return cls(stored.secret)

    @property
    def services(self) -> str:
        """Public key of the services' account: the streams lie in a folder of this name."""
        return self._services.public

    def person(self, name: str) -> str:
        """Return the public key of a person's account."""
        return self._account_of(name).public

    def config(
        self,
        folder: Path,
        owner: str,
        now_s: float,
        *,
        owner_from_s: float = 0.0,
        extensions: Sequence[str] = (),
        former: Sequence[str] = (),
        asks_callout: bool = False,
        revoked: Mapping[str, int] = NOBODY,
    ) -> dict[str, Any]:
        """
        Return the part of the server's configuration that says who may log in.

        Parameters
        ----------
        folder : Path
            Where the server keeps the claims of accounts that it is told of later.
        owner : str
            The person who may do everything.
        now_s : float
            Seconds since the epoch.
        owner_from_s : float
            The owner's last revocation, where the server keeps no claims of theirs.
        extensions, former : sequence of str
            Extensions that have a login, and those that had one and have none any more.
        asks_callout : bool
            Whether who comes without a login of this server's may be let in by :meth:`callout_login`.
        revoked : mapping of str to int
            As for :meth:`services_account`.
        """
        of_system = claims.account(self._operator, self._system.public, "SYS", int(now_s))
        return {
            "operator": claims.operator(self._operator, self._system.public, int(now_s)),
            "system_account": self._system.public,
            "resolver": {"type": "full", "dir": str(folder), "allow_delete": True},
            "resolver_preload": {
                self._system.public: of_system,
                self._services.public: self.services_account(now_s, extensions, former, revoked),
                self.person(owner): self.person_account(owner, _OLDEST_S, reads_all=True, valid_from_s=owner_from_s),
                **({self._callout.public: self._callout_account(int(now_s))} if asks_callout else {}),
            },
            **(self._asking(int(now_s)) if asks_callout else {}),
        }

    def person_account(self, name: str, now_s: float, *, reads_all: bool, valid_from_s: float = 0.0) -> str:
        """
        Return the claims of a person's account.

        Parameters
        ----------
        now_s : float
            Seconds since the epoch.
        valid_from_s : float
            The last revocation of their logins, as the log has it; 0 for none. It is a name, and compared with no time.
        """
        signer = self._signer_of(name, valid_from_s)
        return claims.account(
            self._operator,
            self.person(name),
            name,
            int(now_s),
            imports=access.imports(self.services, name, reads_all=reads_all),
            limits=_LIMITS,
            scopes=[Scope(key=signer.public, role="person", permissions=access.of_person())],
            tags=[f"{_FROM}{valid_from_s!r}"],
        )

    def valid_from_s(self, folder: Path, name: str) -> float | None:
        """
        Return the last revocation of a person's logins that a server was told; None where it was told of no account.

        Parameters
        ----------
        folder : Path
            Where the server keeps the claims of accounts.

        Raises
        ------
        ValueError
            If what is kept there is damaged.
        """
        try:
            content = claims.decoded((folder / f"{self.person(name)}.jwt").read_text(encoding="utf-8"))["nats"]
            tags = [tag.removeprefix(_FROM) for tag in content.get("tags", ()) if tag.startswith(_FROM)]
            return float(tags[0]) if tags else 0.0
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the claims of {name}'s account in {folder} are damaged: {error!r}") from error

    def removal(self, names: Sequence[str], now_s: float) -> str:
        """Return the claims that have the server forget people's accounts."""
        return self.removal_of([self.person(name) for name in names], now_s)

    def removal_of(self, accounts: Sequence[str], now_s: float) -> str:
        """Return the claims that have the server forget accounts, by their public keys."""
        return claims.deletion(self._operator, accounts, int(now_s))

    @property
    def own(self) -> set[str]:
        """Public keys of the accounts that are nobody's: the services', the system's and the callout's."""
        return {self._services.public, self._system.public, self._callout.public}

    # --- people with tokens of others
    def callout_login(self, url: str, now_s: float, ca: str = "") -> Login:
        """Return the login of whom the server asks who comes there without a login of its own."""
        key = self._callout_key()
        return _login(url, "callout", key, claims.user(self._callout, key.public, "callout", int(now_s)), ca)

    def admission(
        self, server: str, public: str, name: str, issued_s: float, expires_s: float, *, valid_from_s: float = 0.0
    ) -> str:
        """
        Return the answer that lets a connection into a person's account.

        Parameters
        ----------
        server, public : str
            As the server has asked: its public key, and the one that it has made up for the connection.
        issued_s, expires_s : float
            Seconds since the epoch; the server ends the connection at the second.
        valid_from_s : float
            The last revocation of the person's logins, as for :meth:`person_login`.
        """
        signer, account = self._signer_of(name, valid_from_s), self.person(name)
        token = claims.scoped_user(signer, account, public, name, int(issued_s), expires_s=int(expires_s))
        return claims.callout_answer(self._callout, server, public, int(issued_s), token=token)

    def refusal(self, server: str, public: str, now_s: float, reason: str) -> str:
        """Return the answer that refuses a connection; the reason goes to the server's log."""
        return claims.callout_answer(self._callout, server, public, int(now_s), error=reason)

    def _callout_key(self) -> SigningKey:
        return SigningKey.derived("user", self._secret, "callout")

    def _callout_account(self, now_s: int) -> str:
        return claims.account(
            self._operator, self._callout.public, "callout", now_s, callout_users=[self._callout_key().public]
        )

    def _asking(self, now_s: int) -> dict[str, Any]:
        """Return as whom the server takes those who show no login of its own: as nobody, about whom it asks."""
        nobody = SigningKey.derived("user", self._secret, "nobody")
        nothing = Permissions(publish_not=(">",), subscribe_not=(">",))
        return {
            "default_sentinel": claims.user(self._callout, nobody.public, "nobody", now_s, nothing, bearer=True),
            "max_control_line": _LONGEST_CONNECT,
            "authorization": {"timeout": _ANSWER_S},
        }

    # --- logins
    def system_login(self, url: str, now_s: float, ca: str = "") -> Login:
        """Return the login that tells the server of accounts."""
        key = SigningKey.derived("user", self._secret, "system")
        return _login(url, "system", key, claims.user(self._system, key.public, "system", int(now_s)), ca)

    def service_logins(self, url: str, extensions: Sequence[str], now_s: float, ca: str = "") -> dict[str, Login]:
        """Return the logins of the admin, of all services and of the extensions, by name."""
        found = {}
        for name in (*access.USERS, *extensions):
            key = self._service_key(name)
            token = claims.scoped_user(self._scope_key(name), self.services, key.public, name, int(now_s))
            found[name] = _login(url, name, key, token, ca)
        return found

    def person_login(
        self,
        url: str,
        name: str,
        issued_s: float,
        *,
        valid_from_s: float = 0.0,
        expires_s: float = 0.0,
        ca: str = "",
    ) -> Login:
        """Return a new login of a person, good until the next revocation; those issued since the last stay good."""
        key = SigningKey.derived("user", secrets.token_bytes(_SECRET_BYTES), "person")
        signer, account = self._signer_of(name, valid_from_s), self.person(name)
        token = claims.scoped_user(signer, account, key.public, name, int(issued_s), expires_s=int(expires_s))
        return _login(url, name, key, token, ca)

    def _service_key(self, name: str) -> SigningKey:
        return SigningKey.derived("user", self._secret, f"service {name}")

    def _scope_key(self, name: str) -> SigningKey:
        return SigningKey.derived("account", self._secret, f"scope {name}")

    def node_login(
        self,
        url: str,
        public: str,
        now_s: float,
        ca: str = "",
        *,
        role: str = "executor",
        expires_s: float = 0.0,
    ) -> Login:
        """Return the login of a service on another machine, which has the secret half of this key; 0 s: for ever."""
        signer, until_s = self._scope_key(role), int(expires_s)
        token = claims.scoped_user(signer, self.services, public, role, int(now_s), expires_s=until_s)
        return Login(url=url, user=role, user_jwt=token, ca=ca)

    def join_login(self, url: str, token_id: str, now_s: float, expires_s: float, ca: str = "") -> Login:
        """Return a login that can do nothing but ask the issuer for that of an executor, until it ends."""
        key = SigningKey.derived("user", secrets.token_bytes(_SECRET_BYTES), "join")
        signer = self._scope_key(access.JOIN)
        token = claims.scoped_user(signer, self.services, key.public, token_id, int(now_s), expires_s=int(expires_s))
        return _login(url, access.JOIN, key, token, ca)

    def _account_of(self, name: str) -> SigningKey:
        return SigningKey.derived("account", self._secret, f"person {name}")

    def _signer_of(self, name: str, valid_from_s: float) -> SigningKey:
        """Return the key that signs a person's logins between two revocations."""
        return SigningKey.derived("account", self._secret, f"logins since {valid_from_s!r} of {name}")

    def services_account(
        self, now_s: float, extensions: Sequence[str], former: Sequence[str], revoked: Mapping[str, int]
    ) -> str:
        """
        Return the claims of the services' account.

        Parameters
        ----------
        revoked : mapping of str to int
            Public key of a node's login → claims issued until then, in seconds since the epoch, count no more.
        """
        scopes = [
            Scope(key=self._scope_key(name).public, role=name, permissions=access.of_service(name, extensions))
            for name in (*access.USERS, access.JOIN, *extensions)
        ]
        return claims.account(
            self._operator,
            self.services,
            "services",
            int(now_s),
            exports=access.exports(),
            scopes=scopes,
            stores=True,
            revoked={**{self._service_key(name).public: int(now_s) for name in former}, **revoked},
        )


def read_revoked(file: Path) -> dict[str, int]:
    """
    Return the logins of nodes that count no more, by public key; none where there is no such file.

    The log says who they are; the file is for the server, which refuses them before anybody has read the log.

    Raises
    ------
    ValueError
        If the file cannot be read.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file} lists no revoked logins: {error}; delete it, and it is made from the log") from error


def write_revoked(file: Path, revoked: Mapping[str, int]) -> None:
    """Keep the list that :func:`read_revoked` reads."""
    write_private(file, msgspec.json.format(msgspec.json.encode(dict(revoked))))


def _login(url: str, name: str, key: SigningKey, token: str, ca: str) -> Login:
    return Login(url=url, user=name, user_jwt=token, user_seed=key.seed, ca=ca)
