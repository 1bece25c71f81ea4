"""Tokens of an identity provider on the client's side: how they are got, kept, shown and renewed."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_issuer import AUDIENCE, LocalIssuer, serving

from penstock_bus import Unauthorized
from penstock_bus.identity.identity_provider import ProviderUnavailable, begin_device_grant, device_tokens, discover
from penstock_bus.identity.login_tokens import LoginToken, keep_tokens, kept_for, read_tokens
from penstock_bus.identity.logins import Login, Provider, Tokens, keep_context, remove_context
from penstock_bus.identity.token_verifier import require_joserfc
from penstock_bus.settings import BusAddress

NOW = 1_700_000_000.0
HERE = "nats://127.0.0.1:4222"


@pytest.fixture
def issuer() -> Iterator[LocalIssuer]:
    with serving(LocalIssuer(lambda: NOW)) as served:
        yield served


def provider(issuer: LocalIssuer) -> Provider:
    return Provider(issuer=issuer.url, client_id=AUDIENCE)


def kept(issuer: LocalIssuer, file: Path, ends_s: float) -> LoginToken:
    """The token of a login that ends then, with a refresh token that the provider takes once."""
    issuer.refresh_tokens.add("r0")
    keep_tokens(file, Tokens(issuer.token(iat=int(NOW) - 600, exp=int(ends_s)), "r0"))
    login = Login(url=HERE, user="jane", token_file=str(file), provider=provider(issuer))
    return LoginToken(login, lambda: NOW)


async def logged_in(issuer: LocalIssuer) -> Tokens:
    addresses = await discover(issuer.url)
    return await device_tokens(provider(issuer), addresses, await begin_device_grant(provider(issuer), addresses))


async def test_somebody_who_logs_in_at_the_provider_gets_tokens_after_a_while(issuer: LocalIssuer) -> None:
    issuer.pending = 2
    found = await logged_in(issuer)
    assert found.refresh_token in issuer.refresh_tokens
    assert found.id_token.count(".") == 2
    assert issuer.times("/token") == 3
    assert ("/device", {"client_id": AUDIENCE, "scope": "openid profile offline_access"}) in issuer.asked


@pytest.mark.parametrize("refusal", ["access_denied", "expired_token"])
async def test_a_login_that_the_person_refuses_or_forgets_says_so(issuer: LocalIssuer, refusal: str) -> None:
    issuer.refusal = refusal
    with pytest.raises(Unauthorized, match=f"logs nobody in: {refusal} as the test wants it"):
        await logged_in(issuer)


async def test_a_provider_without_device_grants_says_what_else_there_is(issuer: LocalIssuer) -> None:
    issuer.discovery = {"device_authorization_endpoint": ""}
    with pytest.raises(ProviderUnavailable, match=r"no device authorization grant .* set PENSTOCK_TOKEN"):
        await logged_in(issuer)


async def test_a_token_is_renewed_before_it_ends_once_for_all_programs(issuer: LocalIssuer, tmp_path: Path) -> None:
    file = tmp_path / "lab.json"
    programs = [kept(issuer, file, NOW + 30) for _ in range(3)]
    assert await asyncio.gather(*(one.renew() for one in programs)) == [True, True, True]
    assert issuer.times("/token") == 1  # a provider may take a refresh token once
    assert {one.current() for one in programs} == {read_tokens(file).id_token}
    assert read_tokens(file).refresh_token in issuer.refresh_tokens
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert await programs[0].renew()
    assert issuer.times("/token") == 1  # it is fresh


async def test_a_login_that_is_over_at_the_provider_counts_until_its_token_ends(
    issuer: LocalIssuer, tmp_path: Path
) -> None:
    going_on, over = kept(issuer, tmp_path / "a", NOW + 30), kept(issuer, tmp_path / "b", NOW - 600)
    issuer.refresh_tokens.clear()
    assert await going_on.renew()
    with pytest.raises(
        Unauthorized, match=r"jane .* ended 600 s ago; .*: invalid_grant; log in again with `penstock lo"
    ):
        await over.renew()


async def test_a_provider_that_is_down_ends_no_login(issuer: LocalIssuer, tmp_path: Path) -> None:
    token = kept(issuer, tmp_path / "a", NOW + 30)
    issuer.discovery = {"token_endpoint": "http://127.0.0.1:1/token"}
    assert await token.renew()
    assert read_tokens(tmp_path / "a").refresh_token == "r0"


async def test_the_token_file_of_others_is_read_anew_and_never_written(issuer: LocalIssuer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    first, second = issuer.token(), issuer.token(sub="2")
    token = LoginToken(Login(url=HERE, user="", token_file=str(file)), lambda: NOW)
    for written in (first, second):
        file.write_text(f"{written}\n")
        assert await token.renew()
        assert token.current() == written
    file.write_text(issuer.token(exp=int(NOW) - 61))
    with pytest.raises(Unauthorized, match=r"ended 61 s ago; get a new one"):
        await token.renew()
    file.unlink()
    with pytest.raises(Unauthorized, match="cannot be read"):
        token.current()


def test_the_environment_names_a_token_for_people_and_for_no_service(tmp_path: Path) -> None:
    public = Login(url="tls://lab:4222", user="", ca="-----BEGIN", provider=Provider(issuer="https://i", client_id="p"))
    file = tmp_path / "oidc.json"
    keep = BusAddress(token="t", credentials=str(file))
    file.write_text(f'{{"url": "{public.url}", "user": "", "ca": "{public.ca}"}}')
    assert keep.server() == public.url
    assert keep.logins("client", keep.server()).logins == (Login(url=public.url, user="", ca=public.ca, token="t"),)
    assert keep.logins("extension", HERE).logins[0].token == ""
    by_file = BusAddress(token_file="/run/token").logins("client", HERE).logins
    assert by_file == (Login(url=HERE, user="", token_file="/run/token"),)


def test_the_tokens_of_a_context_go_with_it(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    login = kept_for(Login(url=HERE, user="jane", token="t"), "lab", Tokens("t", "r"), environ)
    keep_context("lab", login, environ)
    assert (read_tokens(Path(login.token_file)), login.token) == (Tokens("t", "r"), "")
    remove_context("lab", environ)
    assert not os.path.exists(login.token_file)


def test_without_the_extra_the_setting_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_joserfc()
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(ValueError, match=r"`pip install penstock\[oidc\]`"):
        require_joserfc()
