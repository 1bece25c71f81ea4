"""
Endpoints: requests decoded, answers encoded, ids found.

:func:`endpoint` turns a function over bytes into an endpoint: its view becomes the reply, and its exception an error
code with one sentence. :func:`ask`, :func:`job_asked` and :func:`sweep_asked` decode requests strictly. :func:`one`
finds what people mean by an id: the whole of it, or a beginning that only one thing has.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypeVar

import msgspec
import structlog

from penstock_bus import Conflict, Endpoint, Reply, Request, StorageFull, Timeout, TooLarge, Unavailable
from penstock_log import JobSpec, SweepSpec, request_bodies, validation
from penstock_log.text import listed
from penstock_log.views import View

_NOTHING: Final = b'{"accepted":false}'
"""Beside a 503: it is certain that nothing was accepted. Without it, an append may have been stored all the same."""
A = TypeVar("A", bound=request_bodies.GatewayRequest)
C = TypeVar("C")
InTurn = Callable[[str, int], AbstractAsyncContextManager[None]]
"""Holds a slot for a request of a user, of so many bytes, while its context is open."""
_LESS: Final = "ask about an earlier moment, or for less, or raise PENSTOCK_GATEWAY_QUERY_TIMEOUT_S"
_log = structlog.get_logger("penstock.gateway")


def ask(body: bytes, type_: type[A]) -> A:
    """Return a query; an empty body is one with all defaults."""
    return validation.decode(body if body.strip() else b"{}", type_)


def job_asked(body: bytes, most_bytes: int) -> request_bodies.SubmitRequest:
    """
    Return the job that a body holds, bare or wrapped.

    Raises
    ------
    RequestRefused
        413 where the body is too large.
    BadInput
    """
    raw = _parsed(body, most_bytes)
    if _wraps(raw):
        return validation.convert(
            {**raw, "spec": validation.widened(raw["spec"], "$.spec")}, request_bodies.SubmitRequest
        )
    return request_bodies.SubmitRequest(spec=job_of(raw))


def jobs_asked(body: bytes, most_bytes: int) -> tuple[list[Any], bool]:
    """
    Return the specifications of many jobs as they came, each to be read by :func:`job_of`, and whether it is strict.

    Raises
    ------
    RequestRefused
        413 where there are too many.
    BadInput
        If the body is no such request; a specification that is wrong is no fault of the others.
    """
    raw = validation.parse(body)
    given = raw.get("specs") if isinstance(raw, dict) else None
    if not isinstance(given, list):
        raise validation.BadInput("$.specs: expected an array of jobs, each as `submit` takes one")
    if not 1 <= len(given) <= request_bodies.MOST_AT_ONCE:
        most = request_bodies.MOST_AT_ONCE
        raise RequestRefused(413, f"$.specs has {len(given)} jobs, and 1 to {most} are accepted; send several requests")
    if len(body) > most_bytes and any(len(msgspec.json.encode(one)) > most_bytes for one in given):
        raise RequestRefused(413, f"$.specs has a job of more than {most_bytes} bytes; send less of it")
    placeholder = [{"name": "job", "command": ["x"]}]
    asked = validation.convert({**raw, "specs": placeholder}, request_bodies.SubmitAllRequest)
    return given, asked.strict


def job_of(raw: Any) -> JobSpec:
    """Return the job of a specification as it came; BadInput where it is none."""
    return validation.convert(validation.widened(raw), JobSpec)


def sweep_asked(body: bytes, most_bytes: int) -> request_bodies.TuneRequest:
    """Return the sweep that a body holds, bare or wrapped; errors as for :func:`job_asked`."""
    raw = _parsed(body, most_bytes)
    if _wraps(raw):
        return validation.convert(
            {**raw, "spec": validation.written_out(raw["spec"], SweepSpec)}, request_bodies.TuneRequest
        )
    return request_bodies.TuneRequest(spec=validation.convert(validation.written_out(raw, SweepSpec), SweepSpec))


def endpoint(
    name: str,
    subject: str,
    admit: Callable[[str, str], Awaitable[C]],
    answering: Callable[[bytes, C], Awaitable[View]],
    most_bytes: int,
    *,
    most_s: float | None = None,
    concurrent: bool = False,
    in_turn: InTurn | None = None,
) -> Endpoint:
    """
    Return the endpoint that answers with a view, or with an error code and one sentence.

    ``admit`` returns who asks, from the endpoint's and the person's name, or refuses them.

    An endpoint that is not concurrent serves one request at a time, or with ``in_turn`` those of all users in turn:
    ``most_s`` bounds how long a request keeps the next one waiting, in seconds.
    """
    queue = in_turn or _no_queue

    async def handle(request: Request) -> Reply:
        try:
            async with queue(request.user, len(request.body)), asyncio.timeout(most_s):
                caller = await admit(name, request.user)
                return _reply(await answering(request.body, caller), most_bytes)
        except TimeoutError:
            _log.warning("request_given_up", endpoint=name, after_s=most_s)
            return Reply(code=503, error=f"{name} took longer than {most_s:g} s and was given up; {_LESS}")
        except validation.BadInput as error:
            return Reply(code=400, error=str(error))
        except RequestRefused as error:
            return Reply(code=error.code, error=str(error), body=_NOTHING if error.code == UNAVAILABLE else b"")
        except TooLarge as error:
            return Reply(code=413, error=str(error))
        except (Unavailable, Conflict) as error:
            _log.warning("request_not_answered", endpoint=name, error=str(error))
            surely_not = isinstance(error, StorageFull | Conflict)
            return Reply(code=503, error=unavailable(error), body=_NOTHING if surely_not else b"")
        except Exception:
            _log.exception("request_failed", endpoint=name)
            raise

    return Endpoint(name=name, subject=subject, handler=handle, concurrent=concurrent or in_turn is not None)


def _no_queue(user: str, size_bytes: int) -> AbstractAsyncContextManager[None]:  # noqa: ARG001 - as queues have it
    return nullcontext()


def unavailable(error: Exception) -> str:
    """Return what to tell people when the log could not be written or read."""
    match error:
        case StorageFull():
            return "the log has no room left, and nothing was accepted; free some disk space and try again"
        case Timeout():
            return f"the log did not answer in time ({error}); try again, with the same id if you gave one"
        case Conflict():
            return "others kept changing the same thing, and nothing was accepted; try again"
        case _:
            unknown = "whether anything was accepted is unknown; try again, with the same id if you gave one"
            return f"the log cannot be reached, and {unknown} ({error})"


def _parsed(body: bytes, most_bytes: int) -> Any:
    if len(body) > most_bytes:
        raise RequestRefused(413, f"the body has {len(body)} bytes, and {most_bytes} are accepted at most; send less")
    return validation.parse(body)


def _wraps(raw: Any) -> bool:
    return isinstance(raw, dict) and "spec" in raw and "name" not in raw


def _reply(view: View, most_bytes: int) -> Reply:
    body = msgspec.json.encode(view)
    if len(body) > most_bytes:
        raise RequestRefused(
            413, f"the answer has {len(body)} bytes, over the server's {most_bytes}; ask with a lower limit"
        )
    return Reply(body=body)


T = TypeVar("T")
BAD: Final = 400
NOT_FOUND: Final = 404
CONFLICT: Final = 409
TOO_MANY: Final = 429
UNAVAILABLE: Final = 503
_SHOWN: Final = 5
_MOST_COMPARED: Final = 2_000
"""Among more ids, none is looked for that is much like a wrong one: with 50,000 it took seconds."""


class RequestRefused(Exception):
    """A request that is refused with an error code, as in HTTP, and a sentence."""

    def __init__(self, code: int, message: str) -> None:
        """Refuse with a code and a sentence that says what was wrong and what to do."""
        super().__init__(message)
        self.code = code


def one(known: Mapping[str, T], wanted: str, what: str, *, names: Iterable[tuple[str, str]] = ()) -> T:
    """
    Return the one thing that an id or its beginning names.

    Parameters
    ----------
    what : str
        ``job``, ``sweep`` or ``node``, for the message.
    names : iterable of (name, id)
        Other words that people may have meant; the message only suggests them.

    Raises
    ------
    RequestRefused
        404 with the nearest ids, or 409 where several begin like that.

    Examples
    --------
    >>> one({"ab1": 1, "cd2": 2}, "ab", "job")
    1
    """
    if wanted in known:
        return known[wanted]
    begin = [key for key in known if wanted and key.startswith(wanted)]
    if len(begin) == 1:
        return known[begin[0]]
    if begin:
        shown = listed(begin[:_SHOWN]) + (", …" if len(begin) > _SHOWN else "")
        raise RequestRefused(CONFLICT, f"{len(begin)} {what}s begin with {wanted!r}: {shown}; write more of the id")
    raise RequestRefused(NOT_FOUND, f"no {what} {wanted!r}{_suggestion(known, wanted, names)}")


def _suggestion(known: Mapping[str, T], wanted: str, names: Iterable[tuple[str, str]]) -> str:
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for name, key in names:
        ids[name].append(key)
    if named := ids.get(wanted):
        return f"; that is a name, its {'id is' if len(named) == 1 else 'ids are'} {listed(named[-_SHOWN:])}"
    if len(known) > _MOST_COMPARED:
        return f"; there are {len(known)}, and none is called like that"
    close = difflib.get_close_matches(wanted, [*known, *(name for name in ids if name not in known)], n=3, cutoff=0.5)
    if close:
        return f"; did you mean {listed(close)}?"
    if len(known) == 1:
        return "; there is one, and it is called otherwise"
    return f"; there are {len(known)}, and none is called like that" if known else "; there is none at all"
