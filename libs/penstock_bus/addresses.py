"""Addresses of this machine: of its network interfaces, and those that others are to be told or to reach it by."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock_bus.settings import SettingsError

_IPV4: Final = Path("/proc/net/fib_trie")
_IPV6: Final = Path("/proc/net/if_inet6")
_LOCALHOST: Final = "localhost"


def is_loopback(host: str) -> bool:
    """
    Say whether an address is this machine's own and nobody else's.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("lab")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == _LOCALHOST


def is_address(text: str) -> bool:
    """Say whether a text is an IP address, and no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def interface_addresses(ipv4: Path = _IPV4, ipv6: Path = _IPV6) -> list[str]:
    """
    Return the addresses of this machine's network interfaces, IPv4 first, without loopback and link-local ones.

    It is what Linux says; elsewhere the list is empty.
    """
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [*_of_ipv4(_text(ipv4)), *_of_ipv6(_text(ipv6))]
    usable = (one for one in found if not (one.is_loopback or one.is_link_local))
    return list(dict.fromkeys(map(str, usable)))


def resolved(name: str) -> list[str]:
    """Return the addresses that a name has here; none where it has none."""
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def for_others(names: Iterable[str], addresses_of: Callable[[str], list[str]] = resolved) -> list[str]:
    """
    Return by which names and addresses others may reach this machine, the likeliest first.

    A name comes first if it leads to an address that others can reach too; then addresses; then names that lead only
    here, or nowhere, since a name service elsewhere may know them.

    Examples
    --------
    >>> known = {"lab": ["10.0.0.7"], "vm": ["127.0.1.1"]}
    >>> for_others(["vm", "lab", "10.0.0.7", "localhost", "127.0.0.1"], lambda name: known.get(name, []))
    ['lab', '10.0.0.7', 'vm']
    """

    def order(name: str) -> int:
        if is_address(name):
            return 1
        return 0 if any(not is_loopback(one) for one in addresses_of(name)) else 2

    return sorted((name for name in dict.fromkeys(names) if not is_loopback(name)), key=order)


def within(network: str, addresses: Iterable[str]) -> str | None:
    """
    Return the first of some addresses that lies in a network; None where none does.

    Examples
    --------
    >>> within("10.1.0.0/16", ["192.168.0.4", "10.1.2.3"]), within("10.1.0.0/16", [])
    ('10.1.2.3', None)

    Raises
    ------
    ValueError
        If the text is no network.
    """
    wanted = ipaddress.ip_network(network, strict=False)
    return next((one for one in addresses if ipaddress.ip_address(one) in wanted), None)


def reachable_address(bus_url: str, wanted: str = "", section: str = "executor") -> str:
    """
    Return the address by which other machines reach this one.

    It is the address of the network interface that leads to the bus, since the other nodes reach the bus as well. If
    the bus is on this very machine, it is the address of the interface that leads elsewhere, or of the first one where
    none does.

    Parameters
    ----------
    bus_url : str
        One server, or several with commas between them; empty if there is none.
    wanted : str
        An address or a name, which it is then, or a network such as ``10.0.0.0/8``, whose interface is to be taken.
    section : str
        Where the settings say what is wanted, for errors.

    Returns
    -------
    str
        An IPv4 address where there is one, else an IPv6 address; ``127.0.0.1`` on a machine without a network.

    Raises
    ------
    SettingsError
        If this machine has no address in the network that is wanted.

    Notes
    -----
    Connecting a datagram socket sends nothing: the kernel only looks up the route. A name is resolved, which may block.
    """
    if "/" in wanted:
        return _in_network(wanted, section)
    if wanted:
        return wanted
    hosts = [urlsplit(url if "//" in url else f"//{url}").hostname for url in bus_url.split(",")]
    for host in (*hosts, *_ELSEWHERE):
        for source in _sources(host) if host else ():
            if source not in {"0.0.0.0", "::", "::1"} and not source.startswith("127."):  # noqa: S104 - not listening
                return source
    return next(iter(interface_addresses()), "127.0.0.1")


def _in_network(network: str, section: str) -> str:
    here = interface_addresses()
    try:
        found = within(network, here)
    except ValueError as error:
        raise SettingsError(f"address under [{section}]: {error}; expected a network such as 10.0.0.0/8") from error
    if found is None:
        raise SettingsError(
            f"address under [{section}]: no network interface of this machine is in {network}; its addresses are "
            f"{', '.join(here) or 'not known'}"
        )
    return found


_ELSEWHERE: Final = ("192.0.2.1", "2001:db8::1")
"""Addresses of documentation (RFC 5737, RFC 3849): nobody has them, so the default route leads there."""


def _sources(host: str) -> Iterator[str]:
    """Yield the addresses of this machine from which a host is reached, IPv4 first."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return
    for family, kind, protocol, _, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        try:
            with socket.socket(family, kind, protocol) as sounding:
                sounding.connect(address)
                yield str(sounding.getsockname()[0])
        except OSError:
            continue  # there is no route, or no such family here


def _of_ipv4(table: str) -> Iterable[ipaddress.IPv4Address]:
    """Yield the host addresses of the kernel's routing table: each stands on the line before ``/32 host LOCAL``."""
    before = ""
    for line in table.splitlines():
        if "/32 host LOCAL" in line:
            yield ipaddress.IPv4Address(before.rpartition("|-- ")[2].strip())
        before = line


def _of_ipv6(table: str) -> Iterable[ipaddress.IPv6Address]:
    for line in table.splitlines():
        yield ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
