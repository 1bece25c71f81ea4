"""Addresses of this machine: of its network interfaces, and those among them that others are to be told."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

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
