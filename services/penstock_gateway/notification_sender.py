"""
The program that sends one message, by apprise.

It is a process of its own for each message: apprise and what it loads stay out of the gateway, and a server that does
not answer keeps nobody else waiting. It reads an :class:`Errand` from its standard input, so that the address is in no
command line, and writes an :class:`SendOutcome`. What apprise logs of an address goes into the outcome without it, and
nothing of what a server answers but its status, as people choose the server. The program connects to none of the
networks that an operator refuses, whatever name or redirect leads there.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit
from urllib.request import getproxies

import msgspec

if TYPE_CHECKING:
    import apprise

LOCAL_FILES: Final = frozenset(
    {"template", "pgp", "pgpkey", "pgppub", "pgpprv", "subfile", "keyfile", "certfile", "config", "attach"}
)
"""Parameters by which a plugin of apprise reads files of the machine that it runs on."""
MOST_RECIPIENTS: Final = 20
"""Of one address, such as the people of a mail or the channels of a workspace."""
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
    schemes : tuple of str
        The kinds of addresses that are allowed.
    refused : tuple of str
        Networks to which nothing is sent, such as ``127.0.0.0/8``.
    """

    url: str
    title: str = ""
    body: str = ""
    schemes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


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
    if why := _not_allowed(scheme, schemes):
        return why
    return _reading_files(parse_qs(url.partition("?")[2], keep_blank_values=True))


def _not_allowed(scheme: str, schemes: tuple[str, ...]) -> str:
    if scheme.lower() in schemes:
        return ""
    known, more = ", ".join(schemes), "an operator can allow more: notify_schemes"
    return f"no message goes to {scheme[:32]}:// here; expected one of {known} ({more})"


def _reading_files(names: Iterable[str]) -> str:
    if read := sorted(LOCAL_FILES & {name.lower().lstrip("+-: ") for name in names}):
        return f"the parameter {read[0]!r} reads a file of the gateway's machine, and is not taken; leave it out"
    return ""


def is_refused(host: object, networks: tuple[str, ...]) -> bool:
    """
    Return whether nothing is sent to an IP address; what is no IP address is refused.

    Examples
    --------
    >>> is_refused("127.0.0.1", ("127.0.0.0/8",)), is_refused("::ffff:127.0.0.1", ("127.0.0.0/8",))
    (True, True)
    >>> is_refused("192.0.2.1", ("127.0.0.0/8",)), is_refused("/run/a.sock", ())
    (False, True)
    """
    try:
        address = ip_address(str(host))
    except ValueError:
        return True
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in ip_network(network) for network in networks)


class _Heard(logging.Handler):
    """Keeps what apprise logs: as a warning or worse in ``lines``, and below that in ``details``."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.details: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        (self.lines if record.levelno >= logging.WARNING else self.details).append(record.getMessage())


class Guard:
    """
    Lets this process connect to no address of some networks.

    It cannot be taken away again: it is for a process that sends one message and ends.
    """

    def __init__(self, networks: tuple[str, ...]) -> None:
        self.networks, self.refused = networks, ""
        sys.addaudithook(self._heard)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "socket.connect":
            return
        host = args[1][0] if isinstance(args[1], tuple) else args[1]
        if is_refused(host, self.networks):
            self.refused = _REFUSED_NETWORK
            raise PermissionError(self.refused)


_REFUSED_NETWORK: Final = "its host is in a network to which no messages go; an operator can allow it: notify_refused"


def _is_never_reached(host: object, networks: tuple[str, ...]) -> bool:
    """
    Return whether no message can reach a host, as the address has it; what a name stands for only sending shows.

    Behind a proxy it is the proxy that connects.
    """
    address = "127.0.0.1" if host == "localhost" else str(host).strip("[]")
    with suppress(ValueError):
        ip_address(address)
        return is_refused(address, networks) and not getproxies()
    return False


def carried_out(errand: Errand) -> SendOutcome:
    """Send a message, or check an address."""
    try:
        import apprise  # noqa: PLC0415 - what it loads is the reason for this program
    except ImportError:
        return SendOutcome(error=MISSING)
    heard = _Heard()
    logger = logging.getLogger("apprise")
    logger.handlers, logger.propagate = [heard], False
    logger.setLevel(logging.DEBUG)
    sender = apprise.Apprise(asset=apprise.AppriseAsset(secure_logging=True, async_mode=False))
    if why := _added(sender, errand):
        said = _said(heard, errand.url) if why is _UNREADABLE else ""
        return SendOutcome(error=f"apprise does not take this address: {said}" if said else why)
    if errand.body and not sender.notify(title=errand.title, body=errand.body, body_format=apprise.NotifyFormat.TEXT):
        return SendOutcome(error=_failure(heard))
    return SendOutcome()


def _added(sender: apprise.Apprise, errand: Errand) -> str:
    """Add the one target of an address to what sends; return what is wrong with what apprise reads in the address."""
    from apprise.plugins import url_to_dict  # noqa: PLC0415 - as above
    from apprise.utils.parse import parse_urls  # noqa: PLC0415

    if len(parse_urls(errand.url)) > 1:  # type: ignore[no-untyped-call]  # `Apprise.add` would take them all
        return "expected one address; make a rule for each"
    if not (parsed := url_to_dict(errand.url, secure_logging=True)):  # type: ignore[no-untyped-call]  # as above
        return _UNREADABLE
    if why := _not_allowed(str(parsed["schema"]), errand.schemes) or _reading_files([*parsed, *parsed.get("qsd", ())]):
        return why
    if (service := sender.instantiate(errand.url, asset=sender.asset)) is None:
        return _UNREADABLE
    if why := _unwanted(service, errand):
        return why
    service.socket_connect_timeout, service.socket_read_timeout = CONNECT_S, READ_S
    sender.add(service)
    return ""


def _unwanted(service: Any, errand: Errand) -> str:
    """Return why nothing is sent to what an address stands for; empty where nothing speaks against it."""
    if not errand.body and _is_never_reached(getattr(service, "host", ""), errand.refused):
        return _REFUSED_NETWORK
    recipients = len(service) + sum(len(getattr(service, copies, ())) for copies in ("cc", "bcc"))
    if recipients > MOST_RECIPIENTS:
        return f"this is {recipients} recipients, and {MOST_RECIPIENTS} are the most of one rule"
    return ""


def _failure(heard: _Heard) -> str:
    """Return why a message could not be sent, with no word of the server's, which people choose."""
    for number in re.findall(r"\berror=(\d{3})\b", " ".join(heard.lines)):
        with suppress(ValueError):
            return f"the server answered {number} {HTTPStatus(int(number)).phrase}"
    said = " ".join([*heard.lines, *heard.details])
    if mail := re.search(r"\(([45]\d\d), b['\"]", said):  # smtplib's, of which only the number is passed on
        return f"the mail server answered {mail[1]}{_OF_MAIL.get(mail[1], '')}"
    for pattern, reason in _UNREACHED:
        if re.search(pattern, said, re.IGNORECASE):
            return f"the server could not be reached: {reason}"
    return "the server could not be reached, or did not take the message"


_OF_MAIL: Final = {
    "530": ": it wants a login",
    "535": ": it does not take this user and password",
    "550": ": it does not take this sender or recipient",
}
_UNREACHED: Final = (
    (r"connection refused", "nothing listens at this address and port (connection refused)"),
    (r"failed to resolve|name or service not known|no address associated|name resolution", "its name is not known"),
    (r"certificate.verify.failed", "its certificate is none that this machine trusts"),
    (r"timed out|timeout", "it did not answer in time"),
    (r"no route to host|network is unreachable", "no route leads there"),
)
"""What libraries say of a connection → what it means: words of ours, as theirs may hold parts of an address."""


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
    guard = Guard(errand.refused)
    outcome = carried_out(errand)
    if outcome.error and guard.refused:
        outcome = SendOutcome(error=guard.refused)
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
