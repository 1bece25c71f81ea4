"""Keys and signed claims: what a server of NATS makes of them is tried in test_access.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock_bus.identity import claims, nonce
from penstock_bus.identity.claims import Permissions, SigningKey
from penstock_bus.identity.keyring import Keyring

SECRET = bytes(range(32))


def test_a_key_is_of_its_purpose_and_tells_nothing_of_others() -> None:
    keys = {
        SigningKey.derived(kind, secret, purpose).public
        for kind in ("account", "user")
        for secret in (SECRET, b"x" * 32)
        for purpose in ("a", "b")
    }
    assert len(keys) == 8
    assert SigningKey.derived("user", SECRET, "a").seed == SigningKey.derived("user", SECRET, "a").seed
    assert SigningKey.derived("operator", SECRET, "").public.startswith("O")


@pytest.mark.parametrize("seed", ["", "SU", "SUAAAA", "S" * 58, "\n", "é" * 58])
def test_what_is_no_seed_is_refused_without_showing_it(seed: str) -> None:
    with pytest.raises(ValueError, match="this is no seed of a NATS key"):
        SigningKey(seed)


@pytest.mark.parametrize("seed", ["", "SU", "S" * 58, "\n", "é" * 58, "SU" + "1" * 56])
def test_what_is_no_seed_answers_no_nonce(seed: str) -> None:
    with pytest.raises(ValueError, match="this is no seed of a NATS key"):
        nonce.answer(seed, "n")


@pytest.mark.parametrize("text", ["", "n", "Xa1" * 40, "é"])
def test_a_nonce_is_answered_as_by_the_whole_key(text: str) -> None:
    for number in range(20):
        key = SigningKey.derived("user", SECRET, str(number))
        assert nonce.answer(key.seed, text) == key.answer(text).decode()


def test_a_nonce_is_answered_where_pynacl_is_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    key = SigningKey.derived("user", SECRET, "u")
    monkeypatch.setitem(sys.modules, "nacl._sodium", None)
    assert nonce.answer(key.seed, "n") == key.answer("n").decode()


def test_claims_come_back_as_they_were_made() -> None:
    signer, key = SigningKey.derived("account", SECRET, "a"), SigningKey.derived("user", SECRET, "u")
    token = claims.user(signer, key.public, "alice", 100, Permissions(publish=("a.>",)), expires_s=200)
    found = claims.decoded(token)
    assert (found["iss"], found["sub"], found["iat"], found["exp"]) == (signer.public, key.public, 100, 200)
    assert found["nats"]["pub"] == {"allow": ["a.>"]}
    for broken in ("", "a.b", "a.b.c", f"{token}.x", token.replace(".", "..")):
        with pytest.raises(ValueError, match="this is no token"):
            claims.decoded(broken)


def test_each_person_has_an_account_and_each_login_a_key() -> None:
    ring = Keyring(SECRET)
    assert len({ring.person("alice"), ring.person("bob"), ring.services}) == 3
    logins = [ring.person_login("nats://h:1", "alice", 1.0) for _ in range(2)]
    assert len({one.user_seed for one in logins}) == 2
    said = [claims.decoded(one.user_jwt) for one in logins]
    assert {one["nats"]["issuer_account"] for one in said} == {ring.person("alice")}
    assert len({one["iss"] for one in said}) == 1
    later = ring.person_login("nats://h:1", "alice", 1.0, valid_from_s=2.0)
    assert claims.decoded(later.user_jwt)["iss"] != said[0]["iss"]


def test_a_configuration_replaces_nothing_that_a_server_was_told_of_its_owner(tmp_path: Path) -> None:
    ring = Keyring(SECRET)
    preloaded = ring.config(tmp_path, "olga", 1_700_000_000.0, owner_from_s=7.0)["resolver_preload"]
    owner = claims.decoded(preloaded[ring.person("olga")])
    assert owner["iat"] < claims.decoded(ring.person_account("olga", 1_600_000_000.0, reads_all=True))["iat"]
    assert owner["nats"]["tags"] == ["valid-from:7.0"]
    assert claims.decoded(preloaded[ring.services])["iat"] == 1_700_000_000
