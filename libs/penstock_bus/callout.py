"""
The admission of people who come with a token of the organisation's identity provider (docs/adr/0022).

The server asks :class:`Callout` about whoever shows no login of its own. It checks the token
(:mod:`penstock_bus.token_verifier`), looks up the person in the log, and lets the connection into the account that the
person has anyway (:mod:`penstock_bus.issuer`), until the token ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog

from penstock_bus.issuer import Issuer
from penstock_bus.keyring import Keyring
from penstock_bus.logins import Login
from penstock_bus.nats import connect
from penstock_bus.nats.callout import CalloutQuestion, answering
from penstock_bus.port import BusError, RequestPort
from penstock_bus.token_verifier import OidcSettings, TokenRefused, TokenVerifier, VerifiedPerson
from penstock_log import subjects, views
from penstock_log.request_bodies import UserRequest
from penstock_log.services import NO_PERSONS

BY: Final = "oidc"
"""Who added a person, in the log, where a first login did."""
_TELL_S: Final = 2.0  # of the 5 s that the server gives a connection to log in
_TELL_EVERY_S: Final = 60.0
_MOST_TOLD: Final = 100
"""Refusals that are logged one by one within :data:`_TELL_EVERY_S`: whoever reaches the port can have many."""
_log = structlog.get_logger("penstock.callout")


class Callout:
    """
    The answer to the server about people with tokens.

    Parameters
    ----------
    bus : RequestPort
        As the admin of the services' account: asks the gateway to add people.
    extensions : iterable of str
        Names that nobody can have, besides those of services.
    now_s : callable
        Seconds since the epoch.
    """

    def __init__(
        self,
        bus: RequestPort,
        issuer: Issuer,
        keyring: Keyring,
        verifier: TokenVerifier,
        *,
        extensions: Iterable[str] = (),
        now_s: Callable[[], float],
    ) -> None:
        self._bus, self._issuer, self._keyring, self._verifier, self._now_s = bus, issuer, keyring, verifier, now_s
        self._told_from_s, self._told, self._untold = 0.0, 0, 0
        """Since when refusals are counted, how many of them were logged, and how many not."""
        self._taken = {*NO_PERSONS, *extensions}

    async def answer(self, question: CalloutQuestion) -> str:
        """Return the signed answer: the claims by which the connection is let in, or the reason why it is not."""
        try:
            person = await self._verifier.verify(question.token)
            valid_from_s = await self._admitted(person)
        except (TokenRefused, BusError) as refused:
            self._note_refusal(question.host, str(refused))
            return self._keyring.refusal(question.server, question.public, self._now_s(), str(refused))
        _log.info("token_accepted", user=person.name, host=question.host, expires_s=person.expires_s)
        return self._keyring.admission(
            question.server, question.public, person.name, self._now_s(), person.expires_s, valid_from_s=valid_from_s
        )

    def _note_refusal(self, host: str, reason: str) -> None:
        """Log a refusal, unless very many come: then only how many, once the next one comes after a while."""
        now_s = self._now_s()
        if not 0 <= now_s - self._told_from_s < _TELL_EVERY_S:
            if self._untold:
                _log.warning("more_tokens_refused", count=self._untold, since_s=self._told_from_s)
            self._told_from_s, self._told, self._untold = now_s, 0, 0
        if self._told >= _MOST_TOLD:
            self._untold += 1
            return
        self._told += 1
        _log.warning("token_refused", host=host, reason=reason)

    async def _admitted(self, person: VerifiedPerson) -> float:
        """
        Return the last revocation of a person's logins, seconds since the epoch, after adding them if that is wanted.

        Raises
        ------
        TokenRefused
            If they may not use the cluster.
        BusError
            If it cannot be found out, or they cannot be added now.
        """
        name = person.name
        if name.casefold() in self._taken or name.casefold() == self._issuer.owner.casefold():
            raise TokenRefused(f"{name} is the name of the owner or of a service, which no token gives to anybody")
        users = await self._issuer.users_knowing(name)
        record = users.by_name.get(name)
        if record is None and (name in users.removed or not self._verifier.settings.add_users):
            was = "was removed" if name in users.removed else "is no user"
            raise TokenRefused(f"{name} {was}; an admin adds people with `penstock user add {name}`")
        if record is not None and person.issued_s <= record.valid_from_s:
            raise TokenRefused(f"the logins of {name} were revoked after this token was made; log in again")
        if record is None or person.teams not in {None, record.teams}:
            ask = UserRequest(user=name, role=None if record else "user", teams=person.teams, by=BY)
            body = await self._bus.request(subjects.command("set_user"), msgspec.json.encode(ask), timeout_s=_TELL_S)
            users = await self._issuer.users_knowing(name, msgspec.json.decode(body, type=views.ActAnswer).seq)
        return users.valid_from_s(name)


@asynccontextmanager
async def admitting(
    url: str,
    keyring: Keyring,
    admin: Login,
    issuer: Issuer,
    settings: OidcSettings,
    *,
    extensions: Iterable[str] = (),
    now_s: Callable[[], float],
) -> AsyncIterator[Callout]:
    """
    Let people with tokens in while the context is open.

    Parameters
    ----------
    url : str
        Where the server is found from here.
    admin : Login
        Of the services' account.
    """
    own = keyring.callout_login(url, now_s(), admin.ca)
    async with (
        connect(url, login=admin, name="callout", as_client=True) as bus,
        connect(url, login=own, name="callout", as_client=True) as asked,
    ):
        verifier = TokenVerifier(settings, now_s)
        callout = Callout(bus, issuer, keyring, verifier, extensions=extensions, now_s=now_s)
        async with answering(asked.link, callout.answer):
            yield callout
