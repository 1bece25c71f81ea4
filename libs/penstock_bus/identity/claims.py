"""
Keys and signed claims as NATS has them: who may log in, and what an account or a user may do.

A :class:`SigningKey` is an Ed25519 key pair with the kind of its owner in its first letter (operator ``O``, account
``A``, user ``U``). :func:`operator`, :func:`account` and :func:`user` return claims as a JSON Web Token, which the
server checks against the operator's key that stands in its configuration. The formats are those of NATS' ``jwt/v2``
and ``nkeys`` libraries.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import nkeys

Kind = Literal["operator", "account", "user"]
_PREFIXES: Final[dict[Kind, int]] = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}
_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_VERSION: Final = 2
_UNLIMITED: Final = -1


class SigningKey:
    """
    An Ed25519 key pair.

    Parameters
    ----------
    seed : str
        As ``nkeys`` writes it: base 32, first letter ``S``, second that of the kind.

    Raises
    ------
    ValueError
        If the text is no seed.
    """

    def __init__(self, seed: str) -> None:
        try:
            self._pair = nkeys.from_seed(bytearray(seed.encode()))
        except (nkeys.NkeysError, ValueError, TypeError) as error:
            raise ValueError("this is no seed of a NATS key") from error
        self.seed = seed
        self.public: str = self._pair.public_key.decode()

    @classmethod
    def derived(cls, kind: Kind, secret: bytes, purpose: str) -> SigningKey:
        """
        Return the key of a purpose: always the same for a secret, and no help for finding that of another purpose.

        Parameters
        ----------
        secret : bytes
            At least 32 random bytes.
        """
        import hashlib  # noqa: PLC0415 - a client that only answers a server needs neither
        import hmac  # noqa: PLC0415

        raw = hmac.new(secret, f"{kind}:{purpose}".encode(), hashlib.sha256).digest()
        return cls(nkeys.encode_seed(raw, _PREFIXES[kind]).decode())

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text, 64 bytes."""
        return bytes(self._pair.sign(text))

    def answer(self, nonce: str) -> bytes:
        """Return the answer to a server's nonce, in base 64."""
        return base64.b64encode(self.sign(nonce.encode()))


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """Subjects that a user may publish to and subscribe to; empty allows all, and a denial wins."""

    publish: tuple[str, ...] = ()
    publish_not: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    subscribe_not: tuple[str, ...] = ()


class Import(msgspec.Struct, frozen=True, kw_only=True):
    """
    A subject of another account under a name of one's own.

    Attributes
    ----------
    account : str
        Public key of the account that exports it.
    subject : str
        Its name there.
    local : str
        Its name here.
    stream : bool
        Messages to listen to; otherwise requests to make.
    """

    account: str
    subject: str
    local: str
    stream: bool = False


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """
    A subject that other accounts may import.

    Attributes
    ----------
    stream : bool
        Messages to listen to; otherwise requests to make.
    answers : str
        ``Singleton`` or ``Stream``: how many messages answer a request.
    """

    subject: str
    stream: bool = False
    answers: str = "Singleton"


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """
    A key of an account that signs users of one kind: what they may do stands in the account's claims, not in theirs.

    Attributes
    ----------
    key : str
        Public key.
    role : str
        Name of the kind, for people.
    """

    key: str
    role: str
    permissions: Permissions


class AccountLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Most connections, subscriptions and bytes of a message of an account; -1 for no limit."""

    connections: int = _UNLIMITED
    subscriptions: int = _UNLIMITED
    payload_bytes: int = _UNLIMITED


def operator(key: SigningKey, system_account: str, now_s: int) -> str:
    """Return the operator's own claims, signed by itself."""
    return _signed(
        key, key.public, "penstock", now_s, {"type": "operator", "version": _VERSION, "system_account": system_account}
    )


def account(
    signer: SigningKey,
    public: str,
    name: str,
    now_s: int,
    *,
    imports: Sequence[Import] = (),
    exports: Sequence[Export] = (),
    limits: AccountLimits = AccountLimits(),  # noqa: B008 - frozen
    scopes: Sequence[Scope] = (),
    stores: bool = False,
    revoked: Mapping[str, int] | None = None,
    tags: Sequence[str] = (),
    callout_users: Sequence[str] = (),
) -> str:
    """
    Return an account's claims.

    Parameters
    ----------
    signer : SigningKey
        The operator's.
    scopes : sequence of Scope
        Its signing keys, each for one kind of users.
    stores : bool
        Whether it has JetStream, as much as the server has.
    revoked : mapping of str to int
        A user's public key, or ``*`` for all → claims issued until then, in seconds since the epoch, count no more.
    tags : sequence of str
        Notes that the server keeps and does not look at.
    callout_users : sequence of str
        Public keys of the users whom the server asks who somebody is that comes with another user of this account
        ("auth callout", NATS' ADR-26): they may let them into any account.
    """
    limited = {
        "subs": limits.subscriptions,
        "data": _UNLIMITED,
        "payload": limits.payload_bytes,
        "imports": _UNLIMITED,
        "exports": _UNLIMITED,
        "wildcards": True,
        "conn": limits.connections,
        "leaf": 0,
    }
    if stores:
        limited |= dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), _UNLIMITED)
    content: dict[str, Any] = {
        "imports": [_import(one) for one in imports],
        "exports": [_export(one) for one in exports],
        "limits": limited,
        "default_permissions": {"pub": {}, "sub": {}},
        "type": "account",
        "version": _VERSION,
    }
    if scopes:
        content["signing_keys"] = [_scope(one) for one in scopes]
    if revoked:
        content["revocations"] = dict(revoked)
    if tags:
        content["tags"] = list(tags)
    if callout_users:
        content["authorization"] = {"auth_users": list(callout_users), "allowed_accounts": ["*"]}
    return _signed(signer, public, name, now_s, content)


def user(
    signer: SigningKey,
    public: str,
    name: str,
    now_s: int,
    permissions: Permissions = Permissions(),  # noqa: B008 - frozen
    *,
    expires_s: int = 0,
    bearer: bool = False,
) -> str:
    """
    Return a user's claims.

    Parameters
    ----------
    signer : SigningKey
        The account's.
    expires_s : int
        Seconds since the epoch from when the server refuses them; 0 for never.
    bearer : bool
        Whether who has the claims need not have the key: good for nothing but to be asked who comes there.
    """
    content: dict[str, Any] = {
        "pub": _allowed(permissions.publish, permissions.publish_not),
        "sub": _allowed(permissions.subscribe, permissions.subscribe_not),
        "subs": _UNLIMITED,
        "data": _UNLIMITED,
        "payload": _UNLIMITED,
        "type": "user",
        "version": _VERSION,
    }
    if bearer:
        content["bearer_token"] = True
    return _signed(signer, public, name, now_s, content, expires_s=expires_s)


def scoped_user(signer: SigningKey, account: str, public: str, name: str, now_s: int, *, expires_s: int = 0) -> str:
    """
    Return the claims of a user whose permissions are those of the key that signs them.

    Parameters
    ----------
    signer : SigningKey
        The key of a :class:`Scope` of the account.
    account : str
        Public key of the account.
    """
    content = {"issuer_account": account, "type": "user", "version": _VERSION}
    return _signed(signer, public, name, now_s, content, expires_s=expires_s)


def deletion(signer: SigningKey, accounts: Sequence[str], now_s: int) -> str:
    """Return the operator's claims that have the server forget accounts."""
    content = {"accounts": list(accounts), "type": "generic", "version": _VERSION}
    return _signed(signer, signer.public, "removal", now_s, content)


def callout_answer(
    signer: SigningKey, server: str, public: str, now_s: int, *, token: str = "", error: str = ""
) -> str:
    """
    Return the answer to a server that asks who somebody is: their claims, or why they are refused.

    Parameters
    ----------
    signer : SigningKey
        That of the account with ``callout_users``.
    server : str
        Public key of the server that asks.
    public : str
        The user's public key that it has made up for this connection.
    token : str
        Claims of that key in a person's account; empty for a refusal.
    error : str
        The reason of a refusal, for the server's log: the client is not told.
    """
    content: dict[str, Any] = {"type": "authorization_response", "version": _VERSION}
    content |= {"jwt": token} if token else {"error": error}
    return _signed(signer, public, "callout", now_s, content, audience=server)


def decoded(token: str) -> dict[str, Any]:
    """
    Return the claims of a token, unchecked: for people, and to see when it was issued or ends.

    Raises
    ------
    ValueError
        If the text is no token.
    """
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("this is no token: expected three parts with dots between them")
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), type=dict[str, Any])
    except (ValueError, RecursionError) as error:  # MsgspecError and what base 64 raises are the first
        raise ValueError(f"this is no token: {error}") from error


def _scope(one: Scope) -> dict[str, Any]:
    template = {
        "pub": _allowed(one.permissions.publish, one.permissions.publish_not),
        "sub": _allowed(one.permissions.subscribe, one.permissions.subscribe_not),
        "subs": _UNLIMITED,
        "data": _UNLIMITED,
        "payload": _UNLIMITED,
    }
    return {"kind": "user_scope", "key": one.key, "role": one.role, "template": template}


def _allowed(allow: Sequence[str], deny: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if allow:
        found["allow"] = list(allow)
    if deny:
        found["deny"] = list(deny)
    return found


def _import(one: Import) -> dict[str, Any]:
    kind = "stream" if one.stream else "service"
    return {
        "name": one.local,
        "subject": one.subject,
        "account": one.account,
        "local_subject": one.local,
        "type": kind,
    }


def _export(one: Export) -> dict[str, Any]:
    if one.stream:
        return {"name": one.subject, "subject": one.subject, "type": "stream"}
    return {"name": one.subject, "subject": one.subject, "type": "service", "response_type": one.answers}


def _signed(
    signer: SigningKey,
    subject: str,
    name: str,
    now_s: int,
    content: dict[str, Any],
    *,
    expires_s: int = 0,
    audience: str = "",
) -> str:
    claims: dict[str, Any] = {"iat": now_s, "iss": signer.public, "name": name, "sub": subject, "nats": content}
    if audience:
        claims["aud"] = audience
    if expires_s:
        claims["exp"] = expires_s
    import hashlib  # noqa: PLC0415 - a client that only answers a server signs no claims

    digest = hashlib.new("sha512_256", msgspec.json.encode(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_part(_HEADER)}.{_part(claims)}"
    return f"{text}.{_base64(signer.sign(text.encode()))}"


def _part(value: dict[str, Any]) -> str:
    return _base64(msgspec.json.encode(value))


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
