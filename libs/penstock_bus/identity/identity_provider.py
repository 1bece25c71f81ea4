"""
The identity provider of an organisation, spoken to by OpenID Connect: who people are is said by its tokens.

:func:`discover` finds its addresses. :func:`begin_device_grant` and :func:`device_tokens` log a person in from a shell,
by a browser anywhere (RFC 8628), and :func:`refreshed_tokens` gets new tokens without the person. All of it is done
with the standard library: what checks tokens (:mod:`penstock_bus.identity.token_verifier`) is on the server's side.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Optional, TypeVar

import msgspec

from penstock_bus.identity.logins import Provider, Tokens
from penstock_bus.port import Unauthorized, Unavailable

ANSWER_S: Final = 10.0
"""So long the provider may take to answer a person who logs in."""
_LARGEST_BYTES: Final = 1 << 20
_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_SLOWER_S: Final = 5.0  # RFC 8628, section 3.5
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_OK: Final = 200


class ProviderAddresses(msgspec.Struct, frozen=True):
    """The part of a provider's discovery document that is used."""

    issuer: str
    jwks_uri: str
    token_endpoint: str = ""
    device_authorization_endpoint: str = ""


class DeviceGrant(msgspec.Struct, frozen=True):
    """
    A login that has begun: the person opens the address and types the code.

    Attributes
    ----------
    expires_in, interval : float
        How long the code counts, and how long to wait between two questions, seconds.
    """

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""
    expires_in: float = 600.0
    interval: float = 5.0


class _ProviderRefusal(msgspec.Struct, frozen=True):
    """An error of RFC 6749, section 5.2."""

    error: str = ""
    error_description: str = ""


class ProviderUnavailable(Unavailable):
    """The provider does not answer, or not as one does; nothing was done."""


class LoginEnded(Unauthorized):
    """The provider gives no tokens any more, until the person logs in again."""


T = TypeVar("T")


def is_private_address(url: str) -> bool:
    """
    Say whether what goes to an address can be read by nobody on the way: by TLS, or because it stays on this machine.

    Examples
    --------
    >>> is_private_address("https://idp.example.org"), is_private_address("http://127.0.0.1:80")
    (True, True)
    >>> is_private_address("http://idp.example.org"), is_private_address("file:///etc/passwd")
    (False, False)
    """
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return (parts.scheme == "https" and bool(parts.hostname)) or (parts.scheme == "http" and parts.hostname in _LOCAL)


async def discover(issuer: str, ca: str = "", timeout_s: float = ANSWER_S) -> ProviderAddresses:
    """
    Return a provider's addresses.

    Raises
    ------
    ProviderUnavailable
        If it does not answer, or answers for another issuer, or names addresses without TLS.
    """
    url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    found = _decoded(url, await fetched(url, ca=ca, timeout_s=timeout_s), ProviderAddresses)
    if found.issuer != issuer:
        raise ProviderUnavailable(f"{url} speaks for issuer {found.issuer!r}, expected {issuer!r}; correct `issuer`")
    for address in (found.jwks_uri, found.token_endpoint, found.device_authorization_endpoint):
        if address and not is_private_address(address):
            raise ProviderUnavailable(f"{url} names {address}, expected an address with https")
    return found


async def fetched(
    url: str, form: Optional[Mapping[str, str]] = None, *, ca: str = "", timeout_s: float = ANSWER_S
) -> tuple[int, bytes]:
    """
    Return status and body of an answer; a form is posted. Redirections are not followed.

    Raises
    ------
    ProviderUnavailable
        If nobody answers in time, or with more than 1 MiB.
    """
    return await asyncio.to_thread(_fetched, url, form, ca, timeout_s)


async def begin_device_grant(provider: Provider, addresses: ProviderAddresses) -> DeviceGrant:
    """
    Begin the login of a person.

    Raises
    ------
    ProviderUnavailable
        If the provider has no device grant, or does not answer.
    Unauthorized
        If it refuses the client.
    """
    url = addresses.device_authorization_endpoint
    if not url or not addresses.token_endpoint:
        raise ProviderUnavailable(
            f"{provider.issuer} has no device authorization grant (RFC 8628); have it enabled for client "
            f"{provider.client_id!r}, or set PENSTOCK_TOKEN or PENSTOCK_TOKEN_FILE to an id token"
        )
    form = {"client_id": provider.client_id, "scope": " ".join(provider.scopes)}
    status, body = await fetched(url, form, ca=provider.ca)
    if status != _OK:
        raise Unauthorized(f"{provider.issuer} begins no login: {_reason(url, body)}")
    return _decoded(url, (status, body), DeviceGrant)


async def device_tokens(provider: Provider, addresses: ProviderAddresses, grant: DeviceGrant) -> Tokens:
    """
    Wait until the person has logged in elsewhere; return their tokens.

    Raises
    ------
    Unauthorized
        If the person refuses, or takes too long.
    """
    form = {"grant_type": _DEVICE_GRANT, "device_code": grant.device_code, "client_id": provider.client_id}
    clock = asyncio.get_running_loop().time
    end_s, pause_s = clock() + grant.expires_in, max(grant.interval, 0.0)
    while clock() < end_s:
        await asyncio.sleep(pause_s)
        status, body = await fetched(addresses.token_endpoint, form, ca=provider.ca)
        if status == _OK:
            return _with_id_token(provider, _decoded(addresses.token_endpoint, (status, body), Tokens))
        error = _refusal(body).error
        if error == "slow_down":
            pause_s += _SLOWER_S
        elif error != "authorization_pending":
            raise Unauthorized(f"{provider.issuer} logs nobody in: {_reason(addresses.token_endpoint, body)}")
    raise Unauthorized(f"nobody logged in at {grant.verification_uri} within {grant.expires_in:.0f} s; begin again")


async def refreshed_tokens(provider: Provider, tokens: Tokens) -> Tokens:
    """
    Return new tokens for old ones.

    Raises
    ------
    LoginEnded
        If the provider gives none: the person has to log in again.
    ProviderUnavailable
        If it does not answer; the old ones may still count.
    """
    addresses = await discover(provider.issuer, provider.ca)
    form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token, "client_id": provider.client_id}
    status, body = await fetched(addresses.token_endpoint, form, ca=provider.ca)
    if status >= 500:
        raise ProviderUnavailable(f"{addresses.token_endpoint} answers {status}; try again")
    if status != _OK:
        raise LoginEnded(
            f"{provider.issuer} renews the login no more: {_reason(addresses.token_endpoint, body)}; "
            "log in again with `penstock login`"
        )
    found = _with_id_token(provider, _decoded(addresses.token_endpoint, (status, body), Tokens))
    return Tokens(found.id_token, found.refresh_token or tokens.refresh_token)


def _with_id_token(provider: Provider, tokens: Tokens) -> Tokens:
    if not tokens.id_token:
        asked = " ".join(provider.scopes)
        raise Unauthorized(f"{provider.issuer} gave no id token for the scopes {asked!r}; expected `openid` among them")
    return tokens


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """A redirection could lead a request with a token in it to somebody else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@lru_cache(maxsize=4)
def _trusting(ca: str) -> ssl.SSLContext:
    """Return what trusts an authority, or the system's; to read those takes tens of milliseconds."""
    return ssl.create_default_context(cadata=ca or None)


def _fetched(url: str, form: Optional[Mapping[str, str]], ca: str, timeout_s: float) -> tuple[int, bytes]:
    if not is_private_address(url):
        raise ProviderUnavailable(f"{url} is no address of an identity provider; expected https://HOST/...")
    by_tls = [urllib.request.HTTPSHandler(context=_trusting(ca))] if url.startswith("https:") else []
    opener = urllib.request.build_opener(_NoRedirection, *by_tls)
    data = urllib.parse.urlencode(form).encode() if form is not None else None
    request = urllib.request.Request(url, data, {"Accept": "application/json"})  # noqa: S310 - looked at above
    try:
        try:
            answer = opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:  # an answer too
            answer = error
        with answer:
            body: bytes = answer.read(_LARGEST_BYTES + 1)
            status = int(answer.status)
    except (OSError, http.client.HTTPException) as error:
        raise ProviderUnavailable(f"{url} does not answer: {getattr(error, 'reason', '') or error}") from error
    if len(body) > _LARGEST_BYTES:
        raise ProviderUnavailable(f"{url} answers with more than {_LARGEST_BYTES} bytes")
    return status, body


def _decoded(url: str, answer: tuple[int, bytes], kind: type[T]) -> T:
    status, body = answer
    if status != _OK:
        raise ProviderUnavailable(f"{url} answers {status}, expected 200")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderUnavailable(f"{url} answers otherwise than an identity provider: {error}") from error


def _refusal(body: bytes) -> _ProviderRefusal:
    try:
        return msgspec.json.decode(body, type=_ProviderRefusal)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _ProviderRefusal(error="an answer that is no JSON")


def _reason(url: str, body: bytes) -> str:
    found = _refusal(body)
    return " ".join(filter(None, [found.error, found.error_description])) or f"no reason given at {url}"
