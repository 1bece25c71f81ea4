"""Logins and contexts, on the command line."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from fake_gateway import FakeGateway
from local_issuer import AUDIENCE, LocalIssuer, serving
from typer.testing import CliRunner

from penstock.client import Client
from penstock_bus import Unauthorized, Unavailable, logins
from penstock_bus.logins import Login, Provider
from penstock_cli.app import app
from penstock_log import request_bodies
from penstock_log.views import ActAnswer, UsersView, UserView


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    return tmp_path


class KnownClient(Client):
    """A client that the gateway takes as jane."""

    def __init__(self) -> None:
        super().__init__("nats://h:1")

    async def whoami(self) -> UserView:
        return UserView(name="jane", role="user", teams=("vision",))


def login(*words: str | Path, is_let_in: bool) -> tuple[int, str]:
    """Run ``penstock login ... --name lab`` with a server that takes the login or not."""

    @asynccontextmanager
    async def client(url: str) -> AsyncIterator[Client]:
        if not is_let_in:
            raise Unauthorized(f"the NATS server at {url} refused user 'jane', whose login expired")
        yield KnownClient()

    result = CliRunner().invoke(app, ["login", *map(str, words), "--name", "lab"], obj={"client": client})
    return result.exit_code, result.output


def test_a_login_that_is_refused_leaves_contexts_as_they_were(home: Path) -> None:
    before, other, refused = (Login(url=f"nats://{host}:4222", user="jane") for host in ("old", "b", "new"))
    logins.keep_context("lab", before, os.environ)
    logins.keep_context("home", other, os.environ)
    logins.write_login(home / "refused.json", refused)
    code, said = login(home / "refused.json", is_let_in=False)
    assert (code, "refused user 'jane', whose login expired" in said) == (3, True)
    assert logins.contexts(os.environ) == {"lab": before, "home": other}
    assert logins.selected_context(os.environ) == "home"


def test_a_login_that_is_taken_is_kept_and_used(home: Path) -> None:
    given = Login(url="nats://new:4222", user="jane")
    logins.write_login(home / "given.json", given)
    code, said = login(home / "given.json", is_let_in=True)
    assert (code, said.startswith("jane at nats://new:4222 is a user in vision; kept as context lab in")) == (0, True)
    assert (logins.contexts(os.environ), logins.selected_context(os.environ)) == ({"lab": given}, "lab")


class AdminClient(KnownClient):
    """A client of an admin who adds the first person."""

    async def users(self) -> UsersView:
        return UsersView(users=(), seq=1)

    async def set_user(self, name: str, **_: object) -> ActAnswer:  # type: ignore[override]
        return ActAnswer(id=name, changed=True, state="", message=f"{name} is a user in no team", seq=2)

    async def login(self, name: str, **_: object) -> Login:  # type: ignore[override]
        return Login(url="nats://h:1", user=name)


def test_a_login_is_printed_where_no_file_can_be_written_as_in_a_container() -> None:
    @asynccontextmanager
    async def client(url: str) -> AsyncIterator[Client]:
        yield AdminClient()

    result = CliRunner().invoke(app, ["user", "add", "jane", "--out", "-"], obj={"client": client})
    assert result.exit_code == 0
    assert msgspec.json.decode(result.stdout, type=Login).user == "jane"
    assert "jane is a user in no team" in result.stderr


class UnissuedClient(AdminClient):
    """A client of an admin whose server makes no logins just now."""

    def __init__(self, *, may_remove: bool) -> None:
        super().__init__()
        self._may_remove = may_remove
        self.removed: list[str] = []

    async def login(self, name: str, **_: object) -> Login:  # type: ignore[override]
        raise Unavailable(f"the issuer did not answer about {name}")

    async def remove_user(self, name: str, reason: str = "") -> ActAnswer:
        if not self._may_remove:
            raise Unavailable("the gateway did not answer")
        self.removed.append(name)
        return ActAnswer(id=name, changed=True, state="", message=f"{name} is removed: {reason}", seq=3)


@pytest.mark.parametrize(
    ("may_remove", "advice"),
    [(True, "they were not added, so add them again"), (False, "`penstock user rotate jane` makes a login")],
)
def test_whoever_gets_no_login_is_no_user_or_is_told_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_remove: bool, advice: str
) -> None:
    made = UnissuedClient(may_remove=may_remove)

    @asynccontextmanager
    async def client(url: str) -> AsyncIterator[Client]:
        yield made

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["user", "add", "jane"], obj={"client": client})
    said = " ".join(result.stderr.split())
    assert (result.exit_code, "no login could be made for jane: the issuer did not answer" in said) == (3, True)
    assert advice in said
    assert made.removed == (["jane"] if may_remove else [])
    assert list(tmp_path.iterdir()) == []


Run = Callable[..., tuple[int, str, str]]


def test_limits_of_a_user_are_numbers_or_go_back_to_the_default(penstock: Run, gateway: FakeGateway) -> None:
    gateway.users = UsersView(users=(UserView(name="jane", role="user", open_jobs=5, commands_per_s=0.5),), seq=1)
    assert penstock("user", "ls")[1] == ("USER  ROLE  TEAMS  OPEN JOBS  RATE\njane  user  -              5  0.5/s\n")
    assert penstock("user", "set", "jane", "--open-jobs", "100", "--rate", "default")[0] == 0
    ask = gateway.asked[-1]
    assert isinstance(ask, request_bodies.UserRequest)
    assert (ask.open_jobs, ask.commands_per_s, ask.unset) == (100, None, ("commands_per_s",))
    for option, text in (
        ("--open-jobs", "-1"),
        ("--open-jobs", "1.5"),
        ("--rate", "0"),
        ("--rate", "nan"),
        ("--rate", "x"),
    ):
        code, _, said = penstock("user", "set", "jane", option, text)
        assert (code, f"{option}: expected a " in said, f"got '{text}'" in said) == (2, True, True)


@pytest.mark.parametrize("name", ["a" * 300, "a" * 64, "a b", "../x", "-x", "jané"])
def test_a_name_that_nobody_can_have_is_refused_by_the_rule_for_names(penstock: Run, name: str) -> None:
    for command in ("add", "rotate"):
        code, _, said = penstock("user", command, "--", name)
        assert (code, "is no user's name; expected up to 63 letters" in " ".join(said.split())) == (2, True)


def test_a_login_that_counts_for_no_time_is_refused_and_not_made_for_ever(penstock: Run, gateway: FakeGateway) -> None:
    for words in (("user", "add"), ("user", "rotate")):
        code, _, said = penstock(*words, "jane", "--out", "-", "--valid", "0s")
        assert (code, "--valid '0s' is no duration; expected a number over 0 with s, m, h or d" in said) == (2, True)
    code, _, said = penstock("node", "token", "--valid", "0.0h")
    assert (code, "expected a number over 0" in said) == (2, True)
    assert gateway.asked == []


def test_somebody_who_logs_in_at_the_identity_provider_gets_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def client(url: str) -> AsyncIterator[Client]:
        yield AdminClient()

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["user", "add", "jane", "--no-login"], obj={"client": client})
    assert (result.exit_code, "they log in by `penstock login oidc.json`" in result.stdout) == (0, True)
    assert list(tmp_path.iterdir()) == []


def test_somebody_logs_in_at_the_identity_provider_and_again(home: Path) -> None:
    with serving(LocalIssuer()) as issuer:
        public = Login(url="tls://new:4222", user="", provider=Provider(issuer=issuer.url, client_id=AUDIENCE))
        logins.write_login(home / "oidc.json", public)
        assert login(home / "oidc.json", is_let_in=False)[0] == 3
        assert logins.contexts(os.environ) == {}
        code, said = login(home / "oidc.json", is_let_in=True)
        assert (code, f"open {issuer.url}/go?c=ABCD in any browser" in said) == (0, True)
        kept = logins.contexts(os.environ)["lab"]
        first = Path(kept.token_file).read_bytes()
        assert (kept.user, kept.provider, kept.token, kept.url) == ("jane", public.provider, "", public.url)
        assert stat.S_IMODE(Path(kept.token_file).stat().st_mode) == 0o600
        code, said = login("", is_let_in=True)
        assert (code, Path(kept.token_file).read_bytes() != first) == (0, True)
        assert login("nats://new:1", "--oidc", issuer.url, is_let_in=True)[0] == 0


def test_a_server_is_no_file_and_takes_an_identity_provider(home: Path) -> None:
    for words in (["nats://new:1"], ["nats://new:1", "--oidc", "http://evil.example"], [""]):
        code, said = login(*words, is_let_in=True)
        assert (code, "--oidc" in said) == (2, True)
