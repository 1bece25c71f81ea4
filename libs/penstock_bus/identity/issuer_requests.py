"""Requests to the issuers: decoded strictly, refused with a code and a sentence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from penstock_bus.port import Reply, Request
from penstock_log.request_bodies import GatewayRequest

R = TypeVar("R", bound=GatewayRequest)
Handler = Callable[[Request], Awaitable[Reply]]

BAD: Final = 400
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409
UNAVAILABLE: Final = 503


class RefusedRequest(Exception):
    """A request that is answered with an error; the message says what to do."""

    def __init__(self, code: int, message: str) -> None:
        """Keep the code and the message of the answer."""
        super().__init__(message)
        self.reply = Reply(code=code, error=message)


def answering(handler: Handler) -> Handler:
    """Return a handler whose :class:`RefusedRequest` becomes the answer."""

    async def answer(request: Request) -> Reply:
        try:
            return await handler(request)
        except RefusedRequest as refused:
            return refused.reply

    return answer


def decoded(request: Request, kind: type[R], what: str) -> R:
    """Return what was asked; refuse a body that is no request for ``what``."""
    try:
        return msgspec.json.decode(request.body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedRequest(BAD, f"not a request for {what}: {error}") from error


async def check_admin(request: Request, is_admin: Callable[[str], Awaitable[bool]], what: str) -> None:
    """Refuse a person who is no admin; what has no person's name comes from the server's own admin."""
    if request.user and not await is_admin(request.user):
        raise RefusedRequest(FORBIDDEN, f"{what} by admins, and {request.user} is none")
