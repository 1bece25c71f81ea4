"""Which tokens count, and what is said of those that do not."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from local_issuer import AUDIENCE, LocalIssuer, serving

from penstock_bus.identity.token_verifier import OidcSettings, TokenRefused, TokenVerifier, VerifiedPerson
from penstock_bus.settings import SettingsError, load

NOW = 1_700_000_000


@pytest.fixture(scope="module")
def rsa() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": "r1"})


@pytest.fixture(scope="module")
def steady(rsa: RSAKey) -> Iterator[LocalIssuer]:
    """One that no test changes."""
    with serving(LocalIssuer(lambda: NOW)) as served:
        served.keys["r1"] = rsa
        served.published.append(rsa.as_dict(private=False))
        yield served


@pytest.fixture
def issuer(rsa: RSAKey) -> Iterator[LocalIssuer]:
    with serving(LocalIssuer(lambda: NOW)) as served:
        served.keys["r1"] = rsa
        served.published.append(rsa.as_dict(private=False))
        yield served


def verifier(issuer: LocalIssuer, now_s: Callable[[], float] = lambda: NOW, **more: Any) -> TokenVerifier:
    return TokenVerifier(OidcSettings(issuer=issuer.url, audience=AUDIENCE, **more), now_s)


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def unsigned(issuer: LocalIssuer) -> str:
    return f"{part({'alg': 'none'})}.{part(issuer.claims())}."


def by_public_key(issuer: LocalIssuer) -> str:
    """A token signed with the text of the public key as if it were a shared secret."""
    text = f"{part({'alg': 'HS256', 'kid': 'r1'})}.{part(issuer.claims())}"
    mac = hmac.digest(issuer.keys["r1"].as_pem(private=False), text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def by_own_key(issuer: LocalIssuer, kid: str | None = "k1", **header: Any) -> str:
    """A token under the name of a key of the issuer's, or another, signed by the attacker's."""
    own = ECKey.generate_key("P-256")
    named = {"kid": kid} if kid else {}
    return jwt.encode({"alg": "ES256", **named, **header}, issuer.claims(), own, ["ES256"])


def with_own_key(issuer: LocalIssuer) -> str:
    """A token that brings its key along."""
    own = ECKey.generate_key("P-256")
    return jwt.encode({"alg": "ES256", "kid": "k1", "jwk": own.as_dict(private=False)}, issuer.claims(), own, ["ES256"])


def changed(issuer: LocalIssuer) -> str:
    """A good token whose claims were written anew."""
    first, _, last = issuer.token().split(".")
    return f"{first}.{part(issuer.claims(preferred_username='olga'))}.{last}"


ATTACKS: dict[str, tuple[Callable[[LocalIssuer], str], str]] = {
    "nothing": (lambda _: "", "there is no token"),
    "no token": (lambda _: "hunter2", "three parts with dots"),
    "not base 64": (lambda _: "%.%.%", "no token"),
    "alg none": (unsigned, "signed by 'none', expected one of RS256"),
    "HS256 with the public key": (by_public_key, "signed by 'HS256', expected one of"),
    "another's key": (by_own_key, "its signature is not that of"),
    "its own key": (with_own_key, "its signature is not that of"),
    "a key of another kind": (lambda one: by_own_key(one, "r1"), "its signature is not that of"),
    "an unknown key": (lambda one: by_own_key(one, "k9"), "'k9' .* publishes no such key"),
    "a key by address": (lambda one: by_own_key(one, "k9", jku="http://127.0.0.1:1/keys"), "publishes no such key"),
    "a key without a name": (lambda one: by_own_key(one, None), "is signed by the key None"),
    "a key that is no text": (lambda _: f"{part({'alg': 'ES256', 'kid': 7})}.e30.AA", "names the key 7"),
    "claims changed": (changed, "its signature is not that of"),
    "another issuer": (lambda one: one.token(iss="https://evil.example"), "its issuer is 'https://evil.example'"),
    "another audience": (lambda one: one.token(aud="grafana"), "made out for 'grafana', expected penstock"),
    "no audience": (lambda one: one.token(aud=None), "made out for None"),
    "given to another": (lambda one: one.token(aud=[AUDIENCE, "grafana"], azp="grafana"), "given to 'grafana'"),
    "given to nobody": (lambda one: one.token(aud=[AUDIENCE, "grafana"]), r"given to None \(azp\)"),
    "expired": (lambda one: one.token(iat=NOW - 900, exp=NOW - 600), r"ended 6\d\d s ago"),
    "without an end": (lambda one: one.token(exp=None), "claim 'exp' is None"),
    "an end in words": (lambda one: one.token(exp="never"), "claim 'exp' is 'never'"),
    "not yet valid": (lambda one: one.token(nbf=NOW + 600), r"counts only in \d+ s"),
    "made in the future": (lambda one: one.token(iat=NOW + 600), r"counts only in \d+ s"),
    "without a name": (lambda one: one.token(preferred_username=None), "'preferred_username' is None"),
    "a path": (lambda one: one.token(preferred_username="../olga"), r"'../olga' is no user's name"),
    "a subject": (lambda one: one.token(preferred_username="jane.>"), "no user's name"),
    "a name with a control character": (lambda one: one.token(preferred_username="olga\u202e"), r"'olga\\u202e' is no"),
    "many names": (lambda one: one.token(preferred_username=["jane", "olga"]), "expected a user's name"),
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_token_that_is_not_the_issuers_own_or_not_for_here_is_refused(steady: LocalIssuer, attack: str) -> None:
    make, said = ATTACKS[attack]
    with pytest.raises(TokenRefused, match=said):
        await verifier(steady).verify(make(steady))


@pytest.mark.parametrize("kid", ["k1", "r1"])
async def test_a_good_token_says_who_it_is_and_until_when(steady: LocalIssuer, kid: str) -> None:
    token = steady.token(kid, groups=["/vision", "speech", "a b", 3], iat=NOW, exp=NOW + 300)
    found = await verifier(steady, teams_claim="groups", leeway_s=10.0).verify(token)
    assert found == VerifiedPerson(name="jane", teams=("vision", "speech"), issued_s=NOW, expires_s=NOW + 310)


async def test_several_audiences_need_an_authorized_party_and_no_teams_are_none(issuer: LocalIssuer) -> None:
    found = await verifier(issuer, teams_claim="groups").verify(issuer.token(aud=["x", AUDIENCE], azp=AUDIENCE))
    assert found.teams is None


async def test_an_address_is_a_name_only_where_the_provider_has_verified_it(issuer: LocalIssuer) -> None:
    by_email = verifier(issuer, user_claim="email")
    found = await by_email.verify(issuer.token(email="jane@lab.org", email_verified=True))
    assert found.name == "jane@lab.org"
    for verified in (None, False, "true"):
        with pytest.raises(TokenRefused, match="has not verified"):
            await by_email.verify(issuer.token(email="olga@lab.org", email_verified=verified))


async def test_new_keys_are_fetched_when_they_are_named_and_not_more_often_than_every_ten_seconds(
    issuer: LocalIssuer,
) -> None:
    now = [float(NOW)]
    checked = verifier(issuer, lambda: now[0])
    await checked.verify(issuer.token())
    issuer.keys["k2"] = ECKey.generate_key("P-256", {"kid": "k2"})
    issuer.published = [issuer.keys["k2"].as_dict(private=False)]
    for _ in range(20):
        with pytest.raises(TokenRefused, match="publishes no such key"):
            await checked.verify(by_own_key(issuer, "k9"))
    assert issuer.times("/keys") == 1
    now[0] += 11.0
    assert (await checked.verify(issuer.token("k2"))).name == "jane"
    assert issuer.times("/keys") == 2
    with pytest.raises(TokenRefused, match=r"'k1' .* publishes no such key"):  # which the provider has taken back
        await checked.verify(issuer.token("k1"))


async def test_known_keys_go_on_while_the_provider_is_down_and_unknown_ones_say_so() -> None:
    now = [float(NOW)]
    with serving(LocalIssuer(lambda: NOW)) as issuer:
        checked, fresh = verifier(issuer, lambda: now[0]), verifier(issuer)
        await checked.verify(issuer.token())
    now[0] += 100.0
    assert (await checked.verify(issuer.token(exp=NOW + 9000))).name == "jane"
    with pytest.raises(TokenRefused, match=r"'k9' of http.* and http.* does not answer"):
        await checked.verify(by_own_key(issuer, "k9"))
    with pytest.raises(TokenRefused, match="does not answer"):
        await fresh.verify(issuer.token())


async def test_a_provider_that_is_not_what_it_says_gives_no_keys(issuer: LocalIssuer) -> None:
    for discovery, said in (
        ({"issuer": "https://evil.example"}, "speaks for issuer 'https://evil.example'"),
        ({"jwks_uri": "http://evil.example/keys"}, "expected an address with https"),
        ({"jwks_uri": "file:///etc/passwd"}, "expected an address with https"),
        ({"jwks_uri": 7}, "answers otherwise than an identity provider"),
        ({"jwks_uri": f"{issuer.url}/nothing"}, "publishes no key"),
    ):
        issuer.discovery = discovery
        with pytest.raises(TokenRefused, match=said):
            await verifier(issuer).verify(issuer.token())


async def test_keys_that_cannot_sign_for_the_issuer_alone_are_passed_over(issuer: LocalIssuer) -> None:
    shared = OctKey.generate_key(256, {"kid": "k1"})
    encrypting = ECKey.generate_key("P-256", {"kid": "k1", "use": "enc"})
    issuer.published = [shared.as_dict(), encrypting.as_dict(private=False), {"kty": "EC", "kid": "k1"}, "k1"]
    with pytest.raises(TokenRefused, match="publishes no key that counts"):
        await verifier(issuer).verify(issuer.token())


def test_settings_that_let_somebody_speak_for_the_issuer_are_refused() -> None:
    good = {"PENSTOCK_OIDC_ISSUER": "https://idp.example.org", "PENSTOCK_OIDC_AUDIENCE": "penstock"}
    assert load(OidcSettings, "oidc", environ=good).issuer == "https://idp.example.org"
    for change, said in (
        ({"PENSTOCK_OIDC_ISSUER": "http://idp.example.org"}, "no address with https"),
        ({"PENSTOCK_OIDC_AUDIENCE": ""}, "audience or user_claim is empty"),
        ({"PENSTOCK_OIDC_ISSUER": ""}, "audience is set and issuer is not"),
        ({"PENSTOCK_OIDC_LEEWAY_S": "3600"}, "Expected `float` <= 300"),
        ({"PENSTOCK_OIDC_ALGORITHMS": "none"}, "unknown variable"),
    ):
        with pytest.raises(SettingsError, match=said):
            load(OidcSettings, "oidc", environ=good | change)
