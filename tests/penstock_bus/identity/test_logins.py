"""Where people's credentials are kept and found, and what is said where there are none."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock_bus import Unauthorized
from penstock_bus.identity import logins
from penstock_bus.identity.keyring import Keyring
from penstock_bus.identity.logins import Login, LoginSearch
from penstock_bus.settings import BusAddress, SettingsError

HERE = "nats://127.0.0.1:4222"


def login(url: str = HERE, *, password: str = "one") -> Login:  # noqa: S107 - of no server
    return Login(url=url, user="client", password=password)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


def found(url: str, environ: dict[str, str], data: Path) -> tuple[Login, ...]:
    return logins.find_logins("client", url, environ, data).logins


def test_what_is_kept_is_found_by_its_server_alone_and_by_its_owner_alone(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    path = logins.keep_login("client", login(), environ)
    assert path == tmp_path / "home/.config/penstock/clients/127.0.0.1-4222.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for same in ("localhost", "nats://localhost:4222", "nats://a:1,nats://127.0.0.1:4222"):
        assert found(same, environ, tmp_path) == (login(),)
    assert found("nats://127.0.0.1:4223", environ, tmp_path) == ()
    assert logins.find_logins("extension", HERE, environ, tmp_path).logins == ()


def test_servers_on_one_machine_are_told_apart_by_their_ports(tmp_path: Path, environ: dict[str, str]) -> None:
    second = login("nats://127.0.0.1:4223", password="other")
    for one in (login(), second):
        logins.keep_login("client", one, environ)
    assert found(HERE, environ, tmp_path) == (login(),)
    assert found(second.url, environ, tmp_path) == (second,)


def test_a_login_that_is_taken_away_meanwhile_hides_no_other(tmp_path: Path, environ: dict[str, str]) -> None:
    path = logins.keep_login("client", login(), environ)
    assert path is not None
    path.with_name("a.json").symlink_to(tmp_path / "gone")  # as it is between the two looks at the folder
    path.with_name("z.json").symlink_to(tmp_path / "gone")
    assert found(HERE, environ, tmp_path) == (login(),)


def test_the_configuration_folder_may_be_elsewhere(tmp_path: Path, environ: dict[str, str]) -> None:
    elsewhere = environ | {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    path = logins.keep_login("client", login(), elsewhere)
    assert path is not None
    assert path.is_relative_to(tmp_path / "xdg")
    assert found(HERE, environ, tmp_path) == ()


def test_the_data_folder_beside_serves_too_but_after_what_is_kept(tmp_path: Path, environ: dict[str, str]) -> None:
    logins.write_login(tmp_path / "client.json", login(password="beside"))
    assert found(HERE, environ, tmp_path) == (login(password="beside"),)
    logins.keep_login("client", login(), environ)
    assert found(HERE, environ, tmp_path) == (login(), login(password="beside"))


def test_who_has_no_home_or_may_not_write_there_keeps_nothing_and_finds_the_folder_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "_home", lambda: "")
    logins.write_login(tmp_path / "client.json", login())
    (tmp_path / "file").touch()
    for environ in ({}, {"HOME": ""}, {"HOME": str(tmp_path / "file")}):
        assert logins.keep_login("client", login(), environ) is None
        assert not logins.is_kept("client", HERE, environ)
        assert found(HERE, environ, tmp_path) == (login(),)


def test_what_is_forgotten_is_ones_own_and_not_a_later_servers(tmp_path: Path, environ: dict[str, str]) -> None:
    logins.keep_login("client", login(password="later"), environ)
    logins.forget_login("client", login(), environ)
    assert found(HERE, environ, tmp_path) == (login(password="later"),)
    logins.forget_login("client", login(password="later"), environ)
    assert found(HERE, environ, tmp_path) == ()
    logins.forget_login("client", login(), environ)  # which is gone already


def test_a_file_that_is_no_login_is_passed_over(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = tmp_path / "home/.config/penstock/clients"
    folder.mkdir(parents=True)
    for name, body in (("a", b"\xff"), ("b", b"{}"), ("c", b"[" * 10_000), ("d", b'{"url": "x:y"}')):
        (folder / f"{name}.json").write_bytes(body)
    logins.keep_login("client", login(), environ)
    assert found(HERE, environ, tmp_path) == (login(),)
    said = logins.find_logins("client", HERE, environ, tmp_path).looked
    assert [name for name in "abcd" if any(f"{folder}/{name}.json holds no" in one for one in said)] == list("abcd")


async def test_the_first_login_that_the_server_takes_is_used() -> None:
    tried = []

    async def connect(given: Login | None) -> str:
        password = given.password if given is not None else ""
        tried.append(password)
        if password == "old":
            raise Unauthorized("refused")
        return password

    both = LoginSearch(logins=(login(password="old"), login(password="new")), looked=("two files",))
    assert await logins.first_accepted(connect, both, "client") == "new"
    assert tried == ["old", "new"]
    assert await logins.first_accepted(connect, LoginSearch(logins=(), looked=()), "client") == ""


async def test_who_is_refused_is_told_where_it_was_looked_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    async def connect(given: Login | None) -> str:
        raise Unauthorized("the NATS server at nats://h:1 refused a client without a user")

    nothing = logins.find_logins("client", "nats://h:1", os.environ, tmp_path / "data")
    with pytest.raises(Unauthorized) as caught:
        await logins.first_accepted(connect, nothing, "client")
    said = str(caught.value)
    assert said.startswith("the NATS server at nats://h:1 refused a client without a user; it wants a login")
    assert f"none for this server in {tmp_path}/config/penstock/clients; no {tmp_path}/data/client.json" in said
    assert "penstock user add" in said, "and not a copy of the owner's, by which everybody would be an admin"
    assert "penstock login FILE" in said
    assert "client.json` " not in said
    assert "install -D -m 600" in logins.refusal("executor", nothing, os.environ)


def test_what_is_set_wins_over_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    logins.keep_login("client", login(), os.environ)
    logins.write_login(tmp_path / "mine.json", login("nats://far:1", password="mine"))
    assert BusAddress().logins("client", HERE).logins == (login(),)
    named = BusAddress(credentials=str(tmp_path / "mine.json"))
    assert (named.server(), named.logins("client", HERE).logins) == (
        "nats://far:1",
        (login("nats://far:1", password="mine"),),
    )
    assert BusAddress(password="p").logins("client", HERE).logins == (login(password="p"),)
    assert BusAddress().logins("client", "nats://me:secret@h:1").logins == ()
    with pytest.raises(SettingsError, match=r"PENSTOCK_CREDENTIALS names /none: .*; name a file that can be read"):
        BusAddress(credentials="/none").server()


RING = Keyring(b"k" * 32)
NOW_S = 1_700_000_000.0
DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            RING.person_login(HERE, "jane", NOW_S - DAY_S, expires_s=NOW_S - 60),
            ", whose login of 2023-11-13 22:13 UTC expired on 2023-11-14 22:12 UTC; have an admin run `penstock user r",
        ),
        (
            RING.person_login(HERE, "jane", NOW_S - DAY_S, expires_s=NOW_S + 60),
            ", whose login of 2023-11-13 22:13 UTC does not count: it was revoked since, or this is another cluster",
        ),
        (RING.person_login("tls://lab:4222", "jane", NOW_S), ", whose login is for tls://lab:4222; go there with `pen"),
        (RING.service_logins(HERE, (), NOW_S)["matcher"], "; take a copy of nats/logins/matcher.json in the cluster's"),
        (Login(url=HERE, user="jane", user_jwt="a.b.c"), ", whose login is damaged (this is no token"),
        (Login(url=HERE, user="jane", user_jwt="a.eyJpYXQiOjFlMzAwfQ.c"), ", whose login is damaged ("),
    ],
    ids=["expired", "revoked", "another-cluster", "service", "damaged", "impossible-date"],
)
def test_whose_login_is_refused_is_told_what_is_true_of_it_and_what_to_do(given: Login, said: str) -> None:
    assert said in logins.why_refused(given, "nats://127.0.0.1:4222", NOW_S)


async def test_of_several_refused_logins_the_reason_is_that_of_the_best(
    environ: dict[str, str], tmp_path: Path
) -> None:
    best, other = (RING.person_login(HERE, name, NOW_S) for name in ("jane", "joe"))
    logins.keep_login("client", other, environ)
    logins.keep_context("lab", best, environ)

    async def connect(given: Login | None) -> str:
        raise Unauthorized(f"refused {given.user if given else 'nobody'}; ask an admin")

    search = logins.find_logins("client", HERE, environ, tmp_path)
    assert search.logins == (best, other)
    with pytest.raises(Unauthorized, match=r"^refused jane; ask an admin \(looked: context lab; 1 for this server in"):
        await logins.first_accepted(connect, search, "client")
