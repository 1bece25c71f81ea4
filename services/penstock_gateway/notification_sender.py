"""
The program that sends one message, by apprise.

It is a process of its own for each message: apprise and what it loads stay out of the gateway, and a server that does
not answer keeps nobody else waiting. It reads an :class:`Errand` from its standard input, so that the address is in no
command line, and writes an :class:`SendOutcome`. What apprise logs goes into the outcome without the address.
"""

from __future__ import annotations

import logging
import sys
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec

LOCAL_FILES: Final = frozenset({"template", "pgp", "pgpkey", "subfile", "keyfile", "certfile", "config", "attach"})
"""Parameters by which a plugin of apprise reads files of the machine that it runs on."""
CONNECT_S: Final = 10.0
READ_S: Final = 60.0
"""A server that takes the message and is slow to say so would get it again: the gateway's own limit ends it first."""
_UNREADABLE: Final = "apprise cannot read the address; its pages say how each kind is written"
MISSING: Final = "apprise is not installed on the gateway's machine; an operator can: pip install 'penstock[notify]'"


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is to be sent where.

    Attributes
    ----------
    url : str
        An address as apprise has it.
    body : str
        Empty: the address is only checked.
    """

    url: str
    title: str = ""
    body: str = ""


class SendOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it; ``error`` is empty where all is well."""

    error: str = ""


def problem(url: str, schemes: tuple[str, ...]) -> str:
    """
    Return what is wrong with an address, without saying it; empty where nothing is.

    Examples
    --------
    >>> problem("json://localhost:8080/hook", ("json", "slack"))
    ''
    >>> problem("syslog://", ("json", "slack"))
    'no message goes to syslog:// here; expected one of json, slack (an operator can allow more: notify_schemes)'
    """
    scheme, colon, _ = url.partition("://")
    if not colon or not scheme or not url.isprintable():
        return "expected an address as apprise has it, such as mailto://user:password@example.org or slack://…"
    if scheme.lower() not in schemes:
        known, more = ", ".join(schemes), "an operator can allow more: notify_schemes"
        return f"no message goes to {scheme[:32]}:// here; expected one of {known} ({more})"
    query = url.partition("?")[2]
    if read := sorted(LOCAL_FILES & {name.lower().lstrip("+-: ") for name in parse_qs(query, keep_blank_values=True)}):
        return f"the parameter {read[0]!r} reads a file of the gateway's machine, and is not taken; leave it out"
    return ""


class _Heard(logging.Handler):
    """Keeps what apprise logs as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def carried_out(errand: Errand) -> SendOutcome:
    """Send a message, or check an address."""
    try:
        import apprise  # noqa: PLC0415 - what it loads is the reason for this program
    except ImportError:
        return SendOutcome(error=MISSING)
    heard = _Heard()
    logger = logging.getLogger("apprise")
    logger.handlers, logger.propagate = [heard], False
    sender = apprise.Apprise(asset=apprise.AppriseAsset(secure_logging=True, async_mode=False))
    if not sender.add(errand.url):
        return SendOutcome(error=_said(heard, errand.url) or _UNREADABLE)
    for service in sender:
        service.socket_connect_timeout, service.socket_read_timeout = CONNECT_S, READ_S
    if errand.body and not sender.notify(title=errand.title, body=errand.body, body_format=apprise.NotifyFormat.TEXT):
        return SendOutcome(error=_said(heard, errand.url) or "the message could not be sent")
    return SendOutcome()


def _said(heard: _Heard, url: str) -> str:
    """Return what apprise said, without any part of an address that may be a token."""
    text = "; ".join(dict.fromkeys(heard.lines))[:300]
    parts = urlsplit(url)
    hidden = {url, parts.netloc, *parts.path.split("/"), *parts.netloc.replace("@", ":").split(":"), parts.query}
    hidden |= {value for values in parse_qs(parts.query).values() for value in values}
    for part in sorted((one for one in hidden if len(one) >= _TELLING), key=len, reverse=True):
        text = text.replace(part, "…")
    return " ".join(text.split())


_TELLING: Final = 4
"""Characters; shorter parts of an address are no tokens."""


def main() -> None:
    """Carry out the errand on standard input."""
    errand = msgspec.json.decode(sys.stdin.buffer.read(), type=Errand)
    sys.stdout.buffer.write(msgspec.json.encode(carried_out(errand)))


if __name__ == "__main__":
    main()
