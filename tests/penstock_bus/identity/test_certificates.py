"""Certificates that are made and given, and a server that listens beyond its machine with them."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import nats
import nats.errors
import pytest
from cryptography import x509

from penstock_bus import Unavailable
from penstock_bus.identity.access import ADMIN, CLIENT
from penstock_bus.identity.certificates import BadCertificate, TlsFiles, ensured, given, names_here
from penstock_bus.nats import connect
from penstock_bus.servers.server import Server, ServerError, ServerSettings, running

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what is tried
NAMES = ("lab.example", "192.0.2.7", "localhost", "127.0.0.1")


def test_an_authority_stays_and_a_certificate_is_made_anew_for_other_names_or_when_it_runs_out(tmp_path: Path) -> None:
    first = ensured(tmp_path, NAMES)
    was = first.certificate.read_bytes()
    assert ensured(tmp_path, NAMES[:2]) == first
    assert first.certificate.read_bytes() == was
    more = ensured(tmp_path, (*NAMES, "other"))
    assert (more.authority, more.certificate.read_bytes() == was) == (first.authority, False)
    found = x509.load_pem_x509_certificate(more.certificate.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(one.value) for one in names} == {*NAMES, "other"}
    later = datetime.now(UTC) + timedelta(days=380)
    assert ensured(tmp_path, NAMES, later).authority == first.authority
    assert x509.load_pem_x509_certificate(more.certificate.read_bytes()).not_valid_after_utc > later + timedelta(
        days=300
    )
    assert not [path for path in tmp_path.iterdir() if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.mark.parametrize("name", ["ca.pem", "server.pem", "ca.key"])
def test_a_file_that_is_spoilt_is_named(tmp_path: Path, name: str) -> None:
    ensured(tmp_path, NAMES)
    (tmp_path / name).write_text("spoilt")
    with pytest.raises(BadCertificate, match="cannot be used"):
        ensured(tmp_path, (*NAMES, "other"))


def test_what_is_given_is_looked_into(tmp_path: Path) -> None:
    one, other = ensured(tmp_path / "a", NAMES), ensured(tmp_path / "b", NAMES)
    assert given(one.certificate, one.key, tmp_path / "a" / "ca.pem").authority == one.authority
    with pytest.raises(BadCertificate, match="cannot be used"):
        given(one.certificate, other.key, None)
    with pytest.raises(BadCertificate, match=r"there is no .*missing\.pem"):
        given(tmp_path / "missing.pem", one.key, None)


def test_a_machine_has_names_besides_the_loopbacks() -> None:
    assert names_here("192.0.2.9", ["lab"])[:2] == ["lab", "192.0.2.9"]
    assert {"localhost", "127.0.0.1"} < set(names_here(EVERYWHERE))


async def test_beyond_the_machine_a_server_listens_with_tls_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"listening on 0\.0\.0\.0, beyond this machine, takes TLS"):
        await Server(ServerSettings(data_dir=tmp_path, host=EVERYWHERE)).start()
    assert not (tmp_path / "nats" / "server.conf").exists()


async def test_people_and_services_speak_tls_and_trust_their_own_authority_only(tmp_path: Path) -> None:
    files = ensured(tmp_path / "tls", NAMES)
    async with running(ServerSettings(data_dir=tmp_path / "data", host=EVERYWHERE, tls=files)) as server:
        async with connect(server.url, login=server.logins[ADMIN]) as admin:
            assert await admin.last_seq() == 0
        async with connect(server.url, login=server.logins[CLIENT], as_client=True) as client:
            assert client.link.client._transport.at_eof() is False
            assert client.link.client.connected_url.scheme == "nats"
            assert client.link.client._server_info["tls_required"]
        stranger = ensured(tmp_path / "other", NAMES)
        for ca in ("", stranger.authority):
            forged = msgspec.structs.replace(server.logins[CLIENT], ca=ca)
            with pytest.raises(Unavailable, match=r"(?i)certificate"):
                async with connect(server.url, login=forged, as_client=True, connect_timeout_s=2.0):
                    pass
        with pytest.raises((nats.errors.Error, OSError)):
            await nats.connect(server.url, allow_reconnect=False, connect_timeout=1)


async def test_a_certificate_for_other_hosts_is_refused_by_clients(tmp_path: Path) -> None:
    files = ensured(tmp_path / "tls", ("lab.example",))
    async with running(ServerSettings(data_dir=tmp_path / "data", tls=files)) as server:
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            async with connect(server.url, login=server.logins[CLIENT], as_client=True, connect_timeout_s=2.0):
                pass
    assert isinstance(files, TlsFiles)
