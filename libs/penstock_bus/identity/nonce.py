"""
The answer to a server's nonce, without what signs claims: a short command spends a tenth of its time less to load it.

:class:`penstock_bus.identity.claims.SigningKey` is the whole; a test holds :func:`answer` to it.

References
----------
NATS nkeys, https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/nkey_auth
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Final

_BASE_32: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUV"
"""As int() has those of base 32."""
_OF_USERS: Final = "SU"
_LETTERS: Final = 58
_BITS_LEFT: Final = 5 * _LETTERS % 8
_BYTES: Final = 36
_RAW: Final = slice(2, 34)
"""Between two bytes that say what it is, and two of a checksum."""
_PUBLIC_BYTES: Final = 32
_SECRET_BYTES: Final = 64
_SIGNATURE_BYTES: Final = 64


def answer(seed: str, nonce: str) -> str:
    """
    Return the signature of a nonce by the key of a user's seed, in base 64.

    Raises
    ------
    ValueError
        If the text is no seed.
    """
    raw = _raw(seed)
    signature = _signed(raw, nonce.encode()) if raw is not None else None
    if signature is not None:
        return b2a_base64(signature, newline=False).decode()
    from penstock_bus.identity.claims import SigningKey  # noqa: PLC0415 - what is no seed of the usual form, it refuses

    return SigningKey(seed).answer(nonce).decode()


def _raw(seed: str) -> bytes | None:
    """Return the 32 bytes of the key in a seed; None for a text of another form."""
    if len(seed) != _LETTERS or not seed.startswith(_OF_USERS) or not set(seed) <= set(_BASE_32):
        return None
    number = int(seed.translate(str.maketrans(_BASE_32, _DIGITS)), 32) >> _BITS_LEFT
    return number.to_bytes(_BYTES, "big")[_RAW]


def _signed(raw: bytes, text: bytes) -> bytes | None:
    """Return the signature of a text; None where PyNaCl is not as it is known to be."""
    try:
        from nacl._sodium import ffi, lib  # type: ignore[import-not-found] # noqa: PLC0415 - nacl.bindings loads all
    except ImportError:
        return None
    if lib.sodium_init() < 0:
        return None
    public, secret = ffi.new("unsigned char[]", _PUBLIC_BYTES), ffi.new("unsigned char[]", _SECRET_BYTES)
    signed, count = ffi.new("unsigned char[]", _SIGNATURE_BYTES + len(text)), ffi.new("unsigned long long *")
    if lib.crypto_sign_seed_keypair(public, secret, raw) != 0:
        return None
    if lib.crypto_sign(signed, count, text, len(text), secret) != 0:
        return None
    return bytes(ffi.buffer(signed, _SIGNATURE_BYTES))  # the text stands behind it
