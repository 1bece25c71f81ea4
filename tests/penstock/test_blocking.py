"""The client without an event loop: it answers, refuses and asks again as the other does."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import msgspec
import pytest
from plain_server import NOBODY, plain_server, refusal

from penstock import blocking
from penstock.client import Client
from penstock_bus.errors import NoResponders, ServiceError, TooLarge, Unanswered, Unauthorized, Unavailable
from penstock_bus.identity.logins import Login, LoginSearch
from penstock_bus.servers.server import ServerSettings, running
from penstock_log import views

NO_LOGIN = LoginSearch(logins=(), looked=())
JOBS = msgspec.json.encode(views.JobsView(jobs=(), total=0, seq=7))
ACT = msgspec.json.encode(views.ActAnswer(id="j1", changed=True, state="CA", message="done"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy = msgspec.structs.replace(blocking._POLICY, timeout_s=1.0, again_s=0.1, nobody_s=0.2)
    monkeypatch.setattr(blocking, "_POLICY", policy)
    monkeypatch.setattr(blocking, "CONNECT_S", 0.3)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def jobs(url: str, found: LoginSearch = NO_LOGIN) -> views.JobsView:
    with blocking.connected(url, found) as client:
        return blocking.result(client.jobs())


def test_a_question_is_answered() -> None:
    with plain_server(lambda _subject, _body: JOBS) as server:
        assert jobs(server.url).seq == 7
    assert server.asked == [("penstock.qry.gateway.jobs", b'{"limit":500}')]


def test_what_the_gateway_refuses_has_its_code_and_is_asked_once() -> None:
    with plain_server(lambda _subject, _body: refusal(404, "no job 'x'")) as server:
        with pytest.raises(ServiceError, match="no job 'x'") as refused:
            jobs(server.url)
        assert (refused.value.code, len(server.asked)) == (404, 1)


def test_a_gateway_that_is_not_there_is_looked_for_a_while() -> None:
    with plain_server(lambda _subject, _body: NOBODY) as server:
        with pytest.raises(NoResponders, match=r"nobody serves penstock\.qry\.gateway\.jobs"):
            jobs(server.url)
        assert len(server.asked) > 1


def test_a_gateway_that_starts_meanwhile_answers() -> None:
    answers = itertools.chain([NOBODY], itertools.repeat(JOBS))
    with plain_server(lambda _subject, _body: next(answers)) as server:
        assert jobs(server.url).seq == 7


def test_what_is_not_answered_in_time_is_asked_again_and_the_first_answer_counts() -> None:
    answers = itertools.chain([None], itertools.repeat(JOBS))
    with plain_server(lambda _subject, _body: next(answers)) as server:
        assert jobs(server.url).seq == 7
        assert len(server.asked) == 2


def test_a_connection_that_is_lost_is_made_again() -> None:
    def answer(_subject: str, _body: bytes) -> bytes:
        if len(server.asked) == 1:
            raise ConnectionError
        return JOBS

    with plain_server(answer) as server:
        assert jobs(server.url).seq == 7
        assert len(server.logins) == 2


def test_a_command_without_an_answer_says_how_to_find_out() -> None:
    unknown = r"whether it was carried out is unknown: ask with `penstock show j1`"
    with plain_server(lambda _subject, _body: None) as server, blocking.connected(server.url, NO_LOGIN) as client:
        asking = client.cancel("j1")
        with pytest.raises(Unanswered, match=unknown):
            blocking.result(asking)
        assert len(server.asked) > 1


def test_a_query_without_an_answer_times_out() -> None:
    with plain_server(lambda _subject, _body: None) as server, pytest.raises(Unavailable, match="no answer within"):
        jobs(server.url)


def test_a_server_that_is_not_there_is_told_as_everywhere() -> None:
    with plain_server(lambda _subject, _body: JOBS) as server:
        pass
    with pytest.raises(Unavailable, match=r"no NATS server at nats://127\.0\.0\.1:\d+: tried \d+ times in 1\.0 s"):
        jobs(server.url)


def test_the_next_server_of_a_cluster_is_asked() -> None:
    with plain_server(lambda _subject, _body: JOBS) as gone:
        pass
    with plain_server(lambda _subject, _body: JOBS) as server:
        assert jobs(f"{gone.url},{server.url}").seq == 7


def test_a_login_that_is_refused_is_told_and_the_next_one_tried() -> None:
    with plain_server(lambda _subject, _body: JOBS) as server:
        server.refuses = True
        logins = tuple(Login(url=server.url, user=name, password="secret") for name in ("ann", "ben"))
        with pytest.raises(Unauthorized, match="refused user 'ann'; check PENSTOCK_USER and PENSTOCK_PASSWORD"):
            jobs(server.url, LoginSearch(logins=logins, looked=()))
        assert [(said["user"], said["pass"]) for said in server.logins] == [("ann", "secret"), ("ben", "secret")]
        with pytest.raises(Unauthorized, match="refused user 'ann'; check the password in the address"):
            jobs(server.url.replace("//", "//ann:wrong@"))


def test_a_body_that_the_server_does_not_take_is_not_sent() -> None:
    with plain_server(lambda _subject, _body: ACT, max_payload=2048) as server:
        with blocking.connected(server.url, NO_LOGIN) as client, pytest.raises(TooLarge, match="the server takes 1024"):
            blocking.result(client.cancel("j1", "x" * 2000))
        assert server.asked == []


def test_what_needs_an_event_loop_says_so() -> None:
    with pytest.raises(RuntimeError, match="waits for an event loop"):
        blocking.result(asyncio.sleep(0))


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1", "nats://a:1,wss://b:1"])
def test_a_web_socket_is_left_to_the_other_client(url: str) -> None:
    assert blocking.search(url) is None


@pytest.mark.slow
async def test_it_asks_a_real_server_as_the_other_client_does(tmp_path: Path) -> None:
    async with running(ServerSettings(data_dir=tmp_path), access={}) as server:
        with pytest.raises(NoResponders) as plain:
            await asyncio.to_thread(jobs, server.url)
        async with Client(server.url, nobody_s=0.2) as client:
            with pytest.raises(NoResponders) as other:
                await client.jobs()
        assert str(plain.value) == str(other.value)
