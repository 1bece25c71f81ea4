"""
The check of an identity provider's tokens: whose they are, and until when they count.

:class:`OidcSettings` is the table ``[oidc]`` of penstock.toml. :class:`TokenVerifier` checks a token by the keys that
the provider publishes (:class:`ProviderKeys`) and by its claims (OpenID Connect Core 1.0, section 3.1.3.7), with
joserfc for the signatures: ``pip install penstock[oidc]``.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from penstock_bus.identity.identity_provider import ProviderUnavailable, discover, fetched, is_private_address
from penstock_bus.identity.logins import Provider
from penstock_bus.logger import get_logger

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    PublicKey = RSAKey | ECKey | OKPKey

ALGORITHMS: Final = (
    *(f"{kind}{bits}" for kind in ("RS", "PS") for bits in (256, 384, 512)),
    *("ES256", "ES384", "ES512"),
    *("EdDSA", "Ed25519"),
)
"""Signatures that count: by a key of which only the public half is published. ``none`` does not count, nor do those by
a shared secret, for which a public key can be taken (RFC 8725, section 2.1)."""
LONGEST_TOKEN: Final = 24 << 10
_FRESH_S: Final = 600.0  # a key that the provider takes back counts no longer than this, while it answers
_AGAIN_S: Final = 10.0  # between two questions for keys, whatever tokens name
_WAIT_S: Final = 3.0  # of the 5 s that the server gives a connection to log in
_MOST_KEYS: Final = 100
_KINDS: Final = frozenset({"RSA", "EC", "OKP"})
_LEAST_RSA_BITS: Final = 2048
_PERSON: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,62}")
_TEAM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_log = get_logger("penstock.oidc")


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    The identity provider by whose tokens people may log in: ``[oidc]`` of penstock.toml, or ``PENSTOCK_OIDC_*``.

    Attributes
    ----------
    issuer : str
        Its address; empty: there is none.
    audience : str
        For whom tokens have to be made out: the id of the client as which Penstock is registered there.
    user_claim : str
        The claim that holds a person's name in Penstock.
    teams_claim : str
        The claim that holds the names of a person's teams, which are set at each login; empty leaves them to admins.
    add_users : bool
        Whether somebody whom no admin has added may log in, and becomes a user then.
    scopes : tuple of str
        What `penstock login` asks the provider for.
    leeway_s : float
        By how much the provider's clock may differ from this machine's, seconds.
    ca_file : str
        File with the certificate authority of the provider; empty takes the system's.
    """

    issuer: str = ""
    audience: str = ""
    user_claim: str = "preferred_username"
    teams_claim: str = ""
    add_users: bool = False
    scopes: tuple[str, ...] = ("openid", "profile", "offline_access")
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 30.0
    ca_file: str = ""

    def __post_init__(self) -> None:
        """Refuse an issuer that anybody on the way could speak for, and one without an audience."""
        if not self.issuer:
            if self.audience:
                raise ValueError("audience is set and issuer is not; expected the address of an identity provider")
            return
        if not is_private_address(self.issuer):
            raise ValueError(f"issuer {self.issuer!r} is no address with https; expected https://HOST/...")
        if not self.audience or not self.user_claim:
            raise ValueError("issuer is set, and audience or user_claim is empty; expected the client's id and a claim")

    def authority(self) -> str:
        """
        Return the provider's certificate authority as PEM text; empty where the system's count.

        Raises
        ------
        ValueError
            If its file cannot be read.
        """
        try:
            return Path(self.ca_file).read_text(encoding="ascii") if self.ca_file else ""
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"ca_file names {self.ca_file}, which cannot be read: {error}; make it readable"
            ) from error

    def provider(self) -> Provider:
        """Return what clients need to know."""
        return Provider(issuer=self.issuer, client_id=self.audience, scopes=self.scopes, ca=self.authority())


class VerifiedPerson(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a token says of a person, checked.

    Attributes
    ----------
    teams : tuple of str, optional
        None where the token says nothing of teams.
    issued_s, expires_s : float
        When the token was made, and until when it counts with the leeway, seconds since the epoch.
    """

    name: str
    teams: tuple[str, ...] | None
    issued_s: float
    expires_s: float


class TokenRefused(ValueError):
    """A token that does not count; the message says why."""


def require_joserfc() -> None:
    """
    Check that what verifies tokens is installed.

    Raises
    ------
    ValueError
        If it is not, with what to do.
    """
    try:
        import joserfc  # noqa: F401, PLC0415 - an extra: only where [oidc] is set
    except ModuleNotFoundError as error:
        raise ValueError(
            "[oidc] sets an issuer, and joserfc, which checks its tokens, is not installed; "
            "`pip install penstock[oidc]`, or take [oidc] out"
        ) from error


class TokenVerifier:
    """
    The check of tokens.

    Parameters
    ----------
    now_s : callable
        Seconds since the epoch.
    """

    def __init__(self, settings: OidcSettings, now_s: Callable[[], float]) -> None:
        require_joserfc()
        self.settings, self._now_s = settings, now_s
        self._keys = ProviderKeys(settings.issuer, settings.authority(), now_s)

    async def verify(self, token: str) -> VerifiedPerson:
        """
        Return whose token this is.

        Raises
        ------
        TokenRefused
            If it does not count, or cannot be checked now.
        """
        from joserfc import errors, jwt  # noqa: PLC0415 - as above

        header = _header(token)
        algorithm = header["alg"]
        key = await self._keys.key(header.get("kid"), algorithm)
        try:
            claims = jwt.decode(token, key, algorithms=[algorithm]).claims
        except (errors.JoseError, ValueError, RecursionError) as error:
            raise TokenRefused(f"its signature is not that of {self.settings.issuer}: {error}") from error
        self._check_parties(claims)
        issued_s, expires_s = self._check_times(claims)
        name = self._name(claims)
        return VerifiedPerson(name=name, teams=self._teams(claims, name), issued_s=issued_s, expires_s=expires_s)

    def _check_parties(self, claims: Mapping[str, Any]) -> None:
        wanted = self.settings
        if claims.get("iss") != wanted.issuer:
            raise TokenRefused(f"its issuer is {_shown(claims.get('iss'))}, expected {wanted.issuer}")
        found = claims.get("aud")
        audiences = found if isinstance(found, list) else [found]
        if wanted.audience not in audiences:
            raise TokenRefused(f"it is made out for {_shown(found)}, expected {wanted.audience}")
        authorized = claims.get("azp")
        if (len(audiences) > 1 or authorized is not None) and authorized != wanted.audience:
            raise TokenRefused(f"it was given to {_shown(authorized)} (azp), expected {wanted.audience}")

    def _check_times(self, claims: Mapping[str, Any]) -> tuple[float, float]:
        now_s, leeway_s = self._now_s(), self.settings.leeway_s
        issued_s, expires_s = _time(claims, "iat"), _time(claims, "exp")
        begins_s = _time(claims, "nbf") if "nbf" in claims else issued_s
        if expires_s + leeway_s <= now_s:
            raise TokenRefused(f"it ended {now_s - expires_s:.0f} s ago; get a new one")
        if max(begins_s, issued_s) - leeway_s > now_s:
            ahead_s = max(begins_s, issued_s) - now_s
            raise TokenRefused(f"it counts only in {ahead_s:.0f} s; are the clocks right?")
        return issued_s, expires_s + leeway_s

    def _name(self, claims: Mapping[str, Any]) -> str:
        claim = self.settings.user_claim
        name = claims.get(claim)
        if not isinstance(name, str):
            raise TokenRefused(f"its claim {claim!r} is {_shown(name)}, expected a user's name")
        if not _PERSON.fullmatch(name):
            allowed = "up to 63 letters, digits and any of _ . @ + -, the first a letter, a digit or _"
            raise TokenRefused(f"its {claim} {_shown(name)} is no user's name; expected {allowed}")
        if claim == "email" and claims.get("email_verified") is not True:
            raise TokenRefused(f"the provider has not verified that {name} is this person's address (email_verified)")
        return name

    def _teams(self, claims: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
        claim = self.settings.teams_claim
        if not claim or claim not in claims:
            return None
        found = claims[claim] if isinstance(claims[claim], list) else [claims[claim]]
        teams = [one.lstrip("/") if isinstance(one, str) else one for one in found]  # "/vision" as Keycloak writes it
        valid = [one for one in teams if isinstance(one, str) and _TEAM.fullmatch(one)]
        if len(valid) < len(teams):
            left_out = [_shown(one) for one in teams if one not in valid]
            _log.warning("teams_not_taken", user=name, teams=left_out, advice="a team has letters, digits, - and _")
        return tuple(dict.fromkeys(valid))


class ProviderKeys:
    """
    The public keys of a provider, by their names.

    They are fetched when the first token comes, when one names a key that is not known, and every ten minutes, but not
    more often than every ten seconds. While the provider does not answer, those that are known go on counting.
    """

    def __init__(self, issuer: str, ca: str, now_s: Callable[[], float]) -> None:
        self._issuer, self._ca, self._now_s = issuer, ca, now_s
        self._keys: dict[str | None, PublicKey] = {}
        self._asked_s = self._known_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self.problem = ""
        """Why the provider's keys could not be fetched the last time; empty where they could."""

    async def key(self, name: str | None, algorithm: str) -> PublicKey:
        """
        Return the key that a token names; of one that names none, the only one.

        Raises
        ------
        TokenRefused
            If there is no such key, or it is not for this algorithm.
        """
        if self._now_s() - self._known_s > _FRESH_S:
            asking = self._ask()
            if not self._keys:
                await self._waited(asking)
        found = self._named(name)
        if found is None:
            await self._waited(self._ask())
            found = self._named(name)
        if found is None:
            why = f"and {self.problem}" if self.problem else "and the provider publishes no such key"
            raise TokenRefused(f"it is signed by the key {_shown(name)} of {self._issuer}, {why}")
        if found.alg not in {None, algorithm}:
            raise TokenRefused(f"it is signed by {algorithm}, and the key {_shown(name)} is for {found.alg}")
        return found

    def _named(self, name: str | None) -> PublicKey | None:
        if name is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(name)

    def _ask(self) -> asyncio.Task[None] | None:
        """Begin to fetch the keys, unless that was done a moment ago."""
        if self._asking is not None and not self._asking.done():
            return self._asking
        if self._now_s() - self._asked_s < _AGAIN_S:
            return None
        self._asked_s = self._now_s()
        self._asking = asyncio.create_task(self._fetched())
        return self._asking

    async def _waited(self, asking: asyncio.Task[None] | None) -> None:
        if asking is not None:
            done, _ = await asyncio.wait({asking}, timeout=_WAIT_S)
            if not done:
                self.problem = f"{self._issuer} has not answered within {_WAIT_S:.0f} s; try again"

    async def _fetched(self) -> None:
        try:
            addresses = await discover(self._issuer, self._ca)
            status, body = await fetched(addresses.jwks_uri, ca=self._ca)
            keys = _keys_in(body) if status == 200 else {}
            if not keys:
                raise ProviderUnavailable(f"{addresses.jwks_uri} publishes no key that counts (status {status})")
        except ProviderUnavailable as error:
            self.problem = str(error)
            _log.warning("provider_keys_not_fetched", error=str(error), known=len(self._keys))
            return
        self.problem, self._keys, self._known_s = "", keys, self._now_s()
        _log.info("provider_keys_fetched", issuer=self._issuer, keys=sorted(map(str, keys)))


def _header(token: str) -> dict[str, Any]:
    """Return the header of a token, of which nothing is believed but what the rest is checked by."""
    if not token:
        raise TokenRefused("there is no token, and no login of this server's")
    if len(token) > LONGEST_TOKEN or token.count(".") != 2:
        raise TokenRefused("it is no signed token: expected three parts with dots between them, 24 KiB at most")
    try:
        first = token.partition(".")[0]
        header = msgspec.json.decode(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)), type=dict[str, Any])
    except (ValueError, RecursionError) as error:  # MsgspecError and what base 64 raises are the first
        raise TokenRefused(f"it is no token: {error}") from error
    if header.get("alg") not in ALGORITHMS:
        raise TokenRefused(f"it is signed by {_shown(header.get('alg'))}, expected one of {', '.join(ALGORITHMS)}")
    if not isinstance(header.get("kid", ""), str):
        raise TokenRefused(f"it names the key {_shown(header['kid'])}, expected a text")
    return header


def _keys_in(body: bytes) -> dict[str | None, PublicKey]:
    """Return the keys of a key set that can sign (RFC 7517); others in it are passed over."""
    from joserfc import errors, jwk  # noqa: PLC0415 - an extra

    try:
        listed = msgspec.json.decode(body, type=dict[str, Any]).get("keys")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderUnavailable(f"the provider's keys cannot be read: {error}") from error
    found: dict[str | None, PublicKey] = {}
    for one in listed[:_MOST_KEYS] if isinstance(listed, list) else ():
        if not isinstance(one, dict) or one.get("kty") not in _KINDS or one.get("use", "sig") != "sig":
            continue
        try:
            key = jwk.import_key(one)
        except (errors.JoseError, ValueError, TypeError, KeyError) as error:
            _log.warning("provider_key_not_read", key=_shown(one.get("kid")), error=str(error))
            continue
        if isinstance(key, jwk.OctKey) or (isinstance(key, jwk.RSAKey) and _bits(key) < _LEAST_RSA_BITS):
            continue
        found[one.get("kid") if isinstance(one.get("kid"), str) else None] = key
    return found


def _bits(key: RSAKey) -> int:
    return key.public_key.key_size


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 40:
        raise TokenRefused(f"its claim {name!r} is {_shown(value)}, expected seconds since the epoch")
    return float(value)


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:99]}…"
