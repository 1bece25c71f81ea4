"""
The gateway, asked in a visitor's name.

A :class:`Visitor` is who looks at a page. :class:`GatewayPort` puts each request where the server puts those of people,
so that the gateway answers as it would answer that person (docs/adr/0026).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from penstock_bus import ServiceError, Unavailable
from penstock_bus.port import BusError, NoResponders, RequestPort
from penstock_log import subjects
from penstock_log.request_bodies import GatewayRequest
from penstock_log.services import ANONYMOUS
from penstock_log.views import ActAnswer, UserView, View

V = TypeVar("V", bound=View)
ANSWER_S: Final = 10.0
_NOT_REACHED: Final = 503
_UNKNOWN: Final = 500
_CHECKED_S: Final = 5.0
"""For so long it is believed that a session still counts."""


class Visitor(msgspec.Struct, frozen=True, kw_only=True):
    """
    Who looks at a page.

    Attributes
    ----------
    name : str
        As the server knows the person; :data:`penstock_log.services.ANONYMOUS` for who has not signed in; empty where
        the server knows nobody by name, and who reaches it may do everything.
    session : str
        Id of the browser's session; empty for who has not signed in.
    began_s : float
        When the session began.
    """

    name: str = ANONYMOUS
    session: str = ""
    began_s: float = 0.0

    @property
    def signed_in(self) -> bool:
        """Whether the visitor has signed in."""
        return bool(self.session)

    @property
    def shown(self) -> str:
        """The name for people."""
        return self.name or "owner"

    def subject(self, subject: str) -> str:
        """Return where a request of this visitor goes."""
        return subjects.by_person(self.name, subject) if self.name else subject


class PageRefused(Exception):
    """A page that cannot be shown, or a command that was refused: a status of HTTP, and a sentence for people."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the status."""
        super().__init__(message)
        self.status = status


class GatewayPort:
    """
    The gateway's queries and commands.

    Every method raises :class:`PageRefused` where the gateway refuses, where it does not answer (503), or where the
    visitor's session counts no more (401), also of a page that is open.

    Parameters
    ----------
    bus : RequestPort
    clock : callable
        Seconds that never jump.
    is_ended : callable
        Says of the id of a session whether it was signed out.
    """

    def __init__(
        self, bus: RequestPort, clock: Callable[[], float], is_ended: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._bus, self._clock, self._is_ended = bus, clock, is_ended
        self._checked: dict[str, tuple[float, bool]] = {}

    async def counts(self, visitor: Visitor) -> bool:
        """Say whether a session was not signed out, and the gateway still knows the person and has revoked nothing."""
        if not visitor.signed_in:
            return True
        if self._is_ended(visitor.session):
            return False
        now_s = self._clock()
        until_s, counts = self._checked.get(visitor.session, (0.0, False))
        if until_s > now_s:
            return counts
        self._checked = {session: known for session, known in self._checked.items() if known[0] > now_s}
        subject = visitor.subject(subjects.query("whoami"))
        try:
            person = msgspec.json.decode(await self._bus.request(subject, b"{}", timeout_s=ANSWER_S), type=UserView)
        except ServiceError as error:
            if error.code >= _UNKNOWN:
                return True  # nobody can say; what the page asks is refused all the same
            counts = False
        except BusError:
            return True
        else:
            counts = person.valid_from_s <= visitor.began_s
        self._checked[visitor.session] = (now_s + _CHECKED_S, counts)
        return counts

    async def query(self, visitor: Visitor, name: str, asked: GatewayRequest, answer: type[V]) -> V:
        """Return the answer to a query."""
        return msgspec.json.decode(await self._ask(visitor, subjects.query(name), asked), type=answer)

    async def command(self, visitor: Visitor, name: str, asked: GatewayRequest, answer: type[V]) -> V:
        """Give a command and return what became of it; only for visitors who have signed in."""
        if not visitor.signed_in:
            raise PageRefused(403, "sign in to do that: type `penstock dashboard` in a shell")
        return msgspec.json.decode(await self._ask(visitor, subjects.command(name), asked), type=answer)

    async def act(self, visitor: Visitor, name: str, asked: GatewayRequest) -> ActAnswer:
        """Give a command about one thing."""
        return await self.command(visitor, name, asked, ActAnswer)

    async def _ask(self, visitor: Visitor, subject: str, asked: GatewayRequest) -> bytes:
        if not await self.counts(visitor):
            raise PageRefused(401, "your session has ended; load the page again, and sign in by `penstock dashboard`")
        try:
            return await self._bus.request(visitor.subject(subject), msgspec.json.encode(asked), timeout_s=ANSWER_S)
        except ServiceError as error:
            raise PageRefused(error.code, str(error)) from error
        except NoResponders as error:
            raise PageRefused(_NOT_REACHED, "no gateway runs; see `penstock status` and `penstock doctor`") from error
        except Unavailable as error:
            raise PageRefused(_NOT_REACHED, f"the gateway did not answer ({error}); the page tries again") from error
        except BusError as error:
            raise PageRefused(502, str(error)) from error
