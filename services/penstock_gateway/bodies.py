"""What came in and what goes out: strict decoding of requests, and exceptions as error codes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
import structlog

from penstock_bus import Conflict, Endpoint, Reply, StorageFull, Timeout, TooLarge, Unavailable
from penstock_events import JobSpec, SweepSpec, asks, elastic, strict
from penstock_events.views import View
from penstock_gateway.find import Refused

_NOTHING: Final = b'{"accepted":false}'
"""Beside a 503: it is certain that nothing was accepted. Without it, an append may have been stored all the same."""
A = TypeVar("A", bound=asks.Ask)
Answering = Callable[[bytes], Awaitable[View]]
_LESS: Final = "ask about an earlier moment, or for less, or raise PENSTOCK_GATEWAY_QUERY_TIMEOUT_S"
_log = structlog.get_logger("penstock.gateway")


def ask(body: bytes, type_: type[A]) -> A:
    """Return a query; an empty body is one with all defaults."""
    return strict.decode(body if body.strip() else b"{}", type_)


def job_asked(body: bytes, most_bytes: int) -> asks.SubmitAsk:
    """
    Return the job that a body holds, bare or wrapped.

    Raises
    ------
    Refused
        413 where the body is too large.
    BadInput
    """
    raw = _parsed(body, most_bytes)
    if _wraps(raw):
        return strict.convert({**raw, "spec": elastic.widened(raw["spec"], "$.spec")}, asks.SubmitAsk)
    return asks.SubmitAsk(spec=strict.convert(elastic.widened(raw), JobSpec))


def sweep_asked(body: bytes, most_bytes: int) -> asks.TuneAsk:
    """Return the sweep that a body holds, bare or wrapped; errors as for :func:`job_asked`."""
    raw = _parsed(body, most_bytes)
    if _wraps(raw):
        return strict.convert({**raw, "spec": elastic.written_out(raw["spec"], SweepSpec)}, asks.TuneAsk)
    return asks.TuneAsk(spec=strict.convert(elastic.written_out(raw, SweepSpec), SweepSpec))


def endpoint(name: str, subject: str, answering: Answering, most_bytes: int, most_s: float | None = None) -> Endpoint:
    """
    Return the endpoint that answers with a view, or with an error code and one sentence.

    An endpoint serves one request at a time: ``most_s`` bounds how long one keeps the next waiting, in seconds.
    """

    async def handle(body: bytes) -> Reply:
        try:
            async with asyncio.timeout(most_s):
                return _reply(await answering(body), most_bytes)
        except TimeoutError:
            _log.warning("request_given_up", endpoint=name, after_s=most_s)
            return Reply(code=503, error=f"{name} took longer than {most_s:g} s and was given up; {_LESS}")
        except strict.BadInput as error:
            return Reply(code=400, error=str(error))
        except Refused as error:
            return Reply(code=error.code, error=str(error))
        except TooLarge as error:
            return Reply(code=413, error=str(error))
        except (Unavailable, Conflict) as error:
            _log.warning("request_not_answered", endpoint=name, error=str(error))
            surely_not = isinstance(error, StorageFull | Conflict)
            return Reply(code=503, error=unavailable(error), body=_NOTHING if surely_not else b"")
        except Exception:
            _log.exception("request_failed", endpoint=name)
            raise

    return Endpoint(name=name, subject=subject, handler=handle)


def unavailable(error: Exception) -> str:
    """Return what to tell people when the log could not take or give something."""
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
        raise Refused(413, f"the body has {len(body)} bytes, and {most_bytes} are accepted at most; send less")
    return strict.parse(body)


def _wraps(raw: Any) -> bool:
    return isinstance(raw, dict) and "spec" in raw and "name" not in raw


def _reply(view: View, most_bytes: int) -> Reply:
    body = msgspec.json.encode(view)
    if len(body) > most_bytes:
        raise Refused(413, f"the answer has {len(body)} bytes, over the server's {most_bytes}; ask with a lower limit")
    return Reply(body=body)
