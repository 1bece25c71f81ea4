"""
Certificates of a server that listens beyond its machine: given ones, or those of an authority of its own.

:func:`ensured` keeps an authority and a server's certificate in a folder, and makes what is missing, runs out or names
other hosts. Clients get the authority's certificate with their login, so nothing has to be installed on their machines.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock_bus.addresses import for_others, interface_addresses, is_loopback, resolved
from penstock_bus.identity.logins import write_private

_AUTHORITY_DAYS: Final = 3650
_SERVER_DAYS: Final = 397
"""The longest that common clients take."""
_RENEW_DAYS: Final = 30
_BACK: Final = timedelta(hours=1)  # another machine's clock may be behind
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
AUTHORITY: Final = "ca.pem"
AUTHORITY_KEY: Final = "ca.key"
"""Files of an authority of one's own, in the folder where its certificates are kept."""
EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - what is looked for


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a server shows, and what clients check it by.

    Attributes
    ----------
    certificate, key : Path
        PEM files; the certificate with its chain.
    authority : str
        Certificates as PEM text by which clients check it; empty where the system's authorities do.
    """

    certificate: Path
    key: Path
    authority: str = ""


class BadCertificate(ValueError):
    """A certificate or key that cannot be used; the message says which and why."""


def address_here(host: str) -> str:
    """Return where programs on this machine find a server that listens on ``host``."""
    return "127.0.0.1" if host in EVERYWHERE else host


def others_reach(host: str) -> list[str]:
    """
    Return by which names and addresses others reach this machine, where a server listens on ``host``; likeliest first.

    Empty where it listens to this machine alone.
    """
    if is_loopback(host):
        return []
    return for_others(names_here(host)) if host in EVERYWHERE else [host]


def names_here(host: str, more: Iterable[str] = ()) -> list[str]:
    """Return the names and addresses by which this machine is reached, where a server listens on ``host``."""
    own, everywhere = socket.gethostname(), host in EVERYWHERE
    listened = interface_addresses() if everywhere else [host]
    found = [*more, *([] if everywhere else listened), own, socket.getfqdn(), *_addresses(own), *listened, *_LOOPBACK]
    return list(dict.fromkeys(name for name in found if name))


def _addresses(name: str) -> list[str]:
    found = resolved(name)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(
                ("192.0.2.1", 9)
            )  # of nobody, and nothing is sent: the kernel says which address it would take
            found.append(str(probe.getsockname()[0]))
        except OSError:
            pass
    return [address for address in found if "%" not in address]


def given(certificate: Path, key: Path, authority: Path | None) -> TlsFiles:
    """
    Return files that somebody has, after a look into them.

    Raises
    ------
    BadCertificate
        If one cannot be read, or key and certificate do not belong together.
    """
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        text = authority.read_text(encoding="ascii") if authority is not None else ""
        if text:
            ssl.create_default_context(cadata=text)
    except FileNotFoundError as error:
        missing = next((file for file in (certificate, key, authority) if file is not None and not file.exists()), key)
        raise BadCertificate(f"there is no {missing}") from error
    except (OSError, ValueError) as error:  # ssl.SSLError is the first
        raise BadCertificate(f"{certificate} and {key} cannot be used: {error}") from error
    return TlsFiles(certificate=certificate.absolute(), key=key.absolute(), authority=text)


def ensured(folder: Path, names: Sequence[str], now: datetime | None = None) -> TlsFiles:
    """
    Return the files of an authority of one's own, made where they are missing.

    The authority stays, so logins that were issued stay good; the server's certificate is made anew when it is about to
    run out, or lacks one of the names.

    Raises
    ------
    BadCertificate
        If a file there cannot be read.
    """
    now = now or datetime.now(UTC)
    ensured_authority(folder, now)
    ca_file, file, key_file = (folder / name for name in (AUTHORITY, "server.pem", "server.key"))
    try:
        authority = x509.load_pem_x509_certificate(ca_file.read_bytes())
        if not (file.exists() and key_file.exists() and _is_good(file, authority, names, now)):
            _make_server(file, key_file, authority, names, now)
    except (OSError, ValueError) as error:
        raise BadCertificate(f"the certificates in {folder} cannot be used: {error}; move them away") from error
    return TlsFiles(certificate=file, key=key_file, authority=ca_file.read_text(encoding="ascii"))


def ensured_authority(folder: Path, now: datetime | None = None) -> str:
    """
    Return the certificate of the authority in a folder as PEM text; it is made where there is none.

    Raises
    ------
    BadCertificate
        If a file cannot be read or written there.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / AUTHORITY
    try:
        if not file.exists():
            _make_authority(file, folder / AUTHORITY_KEY, now or datetime.now(UTC))
        return file.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise BadCertificate(f"the certificates in {folder} cannot be used: {error}; move them away") from error


def _is_good(file: Path, authority: x509.Certificate, names: Sequence[str], now: datetime) -> bool:
    found = x509.load_pem_x509_certificate(file.read_bytes())
    try:
        found.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    there = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    wanted = {_name(name) for name in names}
    return wanted <= set(there) and found.not_valid_after_utc - now > timedelta(days=_RENEW_DAYS)


def _make_authority(file: Path, key_file: Path, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Penstock on {socket.gethostname()}"[:64])])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        _builder(subject, subject, key, now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(key_file, _pem(key))
    write_private(file, made.public_bytes(serialization.Encoding.PEM))


def _make_server(file: Path, key_file: Path, authority: x509.Certificate, names: Sequence[str], now: datetime) -> None:
    ca_key_file = file.with_name(AUTHORITY_KEY)
    signer = serialization.load_pem_private_key(ca_key_file.read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{ca_key_file} is no key of an elliptic curve")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    of_authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = (
        _builder(subject, authority.subject, key, now, _SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(of_authority, critical=False)
        .sign(signer, hashes.SHA256())
    )
    write_private(key_file, _pem(key))
    write_private(file, made.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACK)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
