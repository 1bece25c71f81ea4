"""What a machine knows of its own addresses."""

from __future__ import annotations

from pathlib import Path

from penstock_bus.addresses import interface_addresses

TABLE = """Main:
  +-- 0.0.0.0/0 3 0 4
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.0
           /8 host LOCAL
        |-- 127.0.0.1
           /32 host LOCAL
     +-- 10.77.0.0/24 2 0 2
        |-- 10.77.0.0
           /24 link UNICAST
        |-- 10.77.0.1
           /32 host LOCAL
        |-- 10.77.0.255
           /32 link BROADCAST
     |-- 169.254.1.1
        /32 host LOCAL
Local:
     |-- 10.77.0.1
        /32 host LOCAL
"""
IPV6 = """00000000000000000000000000000001 01 80 10 80       lo
fd000000000000000000000000000007 02 40 00 80     eth0
fe80000000000000f44e5bfffee55b84 02 40 20 80     eth0
"""


def test_the_kernels_tables_tell_the_addresses_that_others_may_reach(tmp_path: Path) -> None:
    ipv4, ipv6 = tmp_path / "fib_trie", tmp_path / "if_inet6"
    ipv4.write_text(TABLE)
    ipv6.write_text(IPV6)
    assert interface_addresses(ipv4, ipv6) == ["10.77.0.1", "fd00::7"]
    assert interface_addresses(tmp_path / "none", tmp_path / "nothing") == []
