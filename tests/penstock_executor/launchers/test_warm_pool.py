"""Which servers an executor keeps for warm starts, and with which modules."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from penstock_executor.launchers import fork_client, warm_pool
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.fork_client import ForkError, ServerLimits
from penstock_executor.launchers.server_keeper import IDLE
from penstock_executor.launchers.warm_command import StartsCold, WarmCommand
from penstock_executor.launchers.warm_pool import (
    AGAIN_S,
    MOST_KNOWN,
    MOST_LEARNT,
    MOST_LOSSES,
    OTHERS_NEED_THEM,
    PRICE,
    WarmKey,
    WarmPool,
    WarmRules,
)

ENV = {"PATH": "/bin"}


class FakeServer:
    """A server that is ready when it is told so, or cannot serve."""

    made: list[FakeServer] = []

    def __init__(self, command: WarmCommand, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self.command, self.modules, self.env = command, tuple(modules), dict(env)
        self.ready, self.refusal, self.closed, self.busy = False, "", False, False
        FakeServer.made.append(self)
        self.pid = self.memory_pid = len(FakeServer.made)
        self.why_ended = ""
        self.confined, self.limits = Confinement(), ServerLimits(0.0, 0, 0.0)

    def is_ready(self) -> bool:
        if self.refusal:
            raise ForkError(self.refusal)
        return self.ready

    def ended(self) -> str:
        return self.why_ended

    def close(self) -> None:
        self.closed = True


class Clock:
    """A clock that is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeServer]:
    """The servers that were made."""
    monkeypatch.setattr(fork_client, "warm_server", FakeServer)
    monkeypatch.setattr(FakeServer, "made", [])
    return FakeServer.made


def pool(clock: Clock | None = None, **rules: int) -> WarmPool:
    return WarmPool(WarmRules(**rules), clock or Clock())


def key(name: str = "train.py", *args: str, cwd: str = "/home", preload: tuple[str, ...] = (), **env: str) -> WarmKey:
    command = WarmCommand("/bin/python", ("python",), "file", name, args)
    return WarmKey.of(command, {**ENV, **env}, cwd, preload)


def why(pool: WarmPool, asked: WarmKey) -> str:
    """Return why a run starts cold; empty where it starts warm."""
    try:
        pool.server(asked, ENV)
    except StartsCold as reason:
        return str(reason)
    return ""


def test_the_first_run_of_a_command_has_no_server_made_and_the_second_has(made: list[FakeServer]) -> None:
    warm = pool()
    assert why(warm, key()) == "it is the first run of its command here"
    assert made == []
    assert why(warm, key()) == "its server is still importing"
    assert [server.modules for server in made] == [()]
    made[0].ready = True
    assert why(warm, key()) == ""


def test_a_job_that_names_modules_has_a_server_made_at_once(made: list[FakeServer]) -> None:
    assert why(pool(), key(preload=("torch",))) == "its server is still importing"
    assert made[0].modules == ("torch",)


def test_arguments_and_variables_of_a_run_do_not_make_another_server() -> None:
    assert key("a.py", "1", PENSTOCK_EPOCH="1", RANK="0") == key("a.py", "2", PENSTOCK_EPOCH="2", RANK="1")
    assert key("a.py", LR="1") != key("a.py", LR="2")
    assert key("a.py") != key("b.py")
    assert key("a.py", cwd="/x") != key("a.py", cwd="/y")


def test_what_runs_have_imported_is_imported_by_the_next_server_while_the_first_goes_on(made: list[FakeServer]) -> None:
    warm = pool()
    why(warm, key()), why(warm, key())
    made[0].ready = True
    assert why(warm, key()) == ""
    warm.learn(key(), ["json", "torch"])
    assert made[1].modules == ("json", "torch")
    assert warm.server(key(), ENV) is made[0]
    made[1].ready = True
    assert warm.server(key(), ENV) is made[1]
    assert (made[0].closed, made[1].closed) == (True, False)
    warm.learn(key(), ["json"])
    assert len(made) == 2


def test_a_command_that_imports_something_else_each_time_has_its_server_made_again_a_few_times_only(
    made: list[FakeServer],
) -> None:
    warm = pool()
    for number in range(20):
        why(warm, key())
        made[-1:] and setattr(made[-1], "ready", True)
        if not why(warm, key()):
            warm.learn(key(), [f"module{number}"])
    assert len(made) == 1 + MOST_LEARNT


def test_where_what_was_learnt_cannot_be_imported_the_first_server_goes_on(made: list[FakeServer]) -> None:
    warm = pool()
    why(warm, key()), why(warm, key())
    made[0].ready = True
    why(warm, key())
    warm.learn(key(), ["prints"])
    made[1].refusal = "its imports print"
    assert warm.server(key(), ENV) is made[0]
    warm.learn(key(), ["other"])
    assert len(made) == 2


def test_a_server_that_refuses_is_tried_again_after_some_time(made: list[FakeServer]) -> None:
    clock = Clock()
    warm = pool(clock)
    asked = key(preload=("nothing",))
    why(warm, asked)
    made[0].refusal = "nothing cannot be imported"
    assert [why(warm, asked), why(warm, asked)] == ["nothing cannot be imported"] * 2
    assert len(made) == 1
    clock.now_s = AGAIN_S
    assert why(warm, asked) == "its server is still importing"
    assert len(made) == 2


def served(warm: WarmPool, *names: str) -> None:
    """Have servers made for jobs that name these modules, and ready."""
    for name in names:
        why(warm, key(preload=(name,)))
        FakeServer.made[-1].ready = True
        assert why(warm, key(preload=(name,))) == ""


def test_a_command_takes_the_place_of_the_server_that_was_not_used_while_it_started_often(
    made: list[FakeServer],
) -> None:
    warm = pool(servers=2)
    served(warm, "a", "b")
    for _ in range(PRICE - 1):
        assert why(warm, key(preload=("c",))) == OTHERS_NEED_THEM
    assert why(warm, key(preload=("a",))) == ""
    assert why(warm, key(preload=("c",))) == "its server is still importing"
    assert [(server.modules, server.closed) for server in made] == [(("a",), False), (("b",), True), (("c",), False)]


def test_a_command_gets_no_place_while_all_servers_are_used_between_its_starts(made: list[FakeServer]) -> None:
    warm = pool(servers=2)
    served(warm, "a", "b")
    for _ in range(20):
        assert why(warm, key(preload=("c",))) == OTHERS_NEED_THEM
        served(warm, "a", "b")
    assert [server.closed for server in made] == [False, False]


def test_a_command_whose_server_was_hardly_used_pays_more_for_the_next(made: list[FakeServer]) -> None:
    warm = pool(servers=1)
    served(warm, "a")
    starts = []
    for name in "bababa":
        before = len(made)
        while len(made) == before:
            why(warm, key(preload=(name,)))
            starts.append(name)
    counts = [len([*group]) for _, group in itertools.groupby(starts)]
    assert counts == [PRICE, 2 * PRICE, 2 * PRICE, 4 * PRICE, 4 * PRICE, 8 * PRICE]


def test_servers_that_hold_too_much_make_room_for_one_that_has_begun_and_not_again_and_again(
    made: list[FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_pool, "_held_bytes", lambda _: 300)
    warm = pool(servers=100, most_bytes=500)
    served(warm, "a", "b")
    assert [server.closed for server in made] == [True, False]
    assert warm.kept() == (1, 300)
    for _ in range(10):
        assert why(warm, key(preload=("a",))) == OTHERS_NEED_THEM
        assert why(warm, key(preload=("b",))) == ""
    for _ in range(2 * PRICE):  # since its first server had served one start
        why(warm, key(preload=("a",)))
    assert [server.closed for server in made] == [True, True, False]


# --- what servers cost: a cold start costs 1, as a server does that is made; a warm start costs a tenth
COLD, MADE, WARM = 1.0, 1.0, 0.1


def cost(names: Iterable[str], servers: int = 4) -> float:
    """Return what starts of commands in this order cost, beside what they cost without any server."""
    FakeServer.made.clear()
    warm, starts, spent = pool(servers=servers), 0, 0.0
    for name in names:
        for server in FakeServer.made:
            server.ready = True
        spent += COLD if why(warm, key(name)) else WARM
        starts += 1
    return (spent + MADE * len(FakeServer.made)) / (COLD * starts)


def in_turn(commands: int, times: int, each: int = 1) -> Iterator[str]:
    for _, number, _ in itertools.product(range(times), range(commands), range(each)):
        yield f"{number}.py"


@pytest.mark.parametrize("each", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("commands", [5, 6, 9, 40])
def test_commands_in_turn_cost_little_more_with_servers_than_without_however_often_each_comes(
    commands: int, each: int
) -> None:
    once, often = cost(in_turn(commands, 1, each)), cost(in_turn(commands, 400 // commands, each))
    assert once <= 1.0 + 1.0 / PRICE + 4 / (commands * each)
    assert often < 1.05


@pytest.mark.parametrize(("commands", "most"), [(3, 0.2), (5, 0.32), (6, 0.45), (8, 0.6)])
def test_commands_in_turn_have_as_many_warm_starts_as_there_are_servers(commands: int, most: float) -> None:
    assert cost(in_turn(commands, 60)) < most


@pytest.mark.parametrize("seed", range(5))
def test_commands_at_random_cost_less_the_more_often_some_of_them_come(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alike = rng.integers(8, size=2000)
    skewed = rng.zipf(1.5, size=2000).clip(max=100)
    assert cost(map(str, alike)) < 0.85
    assert cost(map(str, skewed)) < 0.5


def test_commands_of_another_day_have_the_places_of_those_of_yesterday() -> None:
    days = (f"{day}-{name}" for day in range(5) for name in in_turn(4, 25))
    assert cost(days) < 0.28


def test_commands_are_remembered_up_to_a_number(made: list[FakeServer]) -> None:
    warm = pool()
    for _ in range(2):
        for number in range(MOST_KNOWN + 1):
            assert why(warm, key(f"{number}.py")) == "it is the first run of its command here"
    assert made == []


def test_a_lost_server_is_made_again_with_its_modules_and_not_for_ever(made: list[FakeServer]) -> None:
    warm = pool()
    asked = key(preload=("torch",))
    why(warm, asked)
    for _ in range(10):
        made[-1].ready = True
        if not why(warm, asked):
            warm.drop(asked, "it has ended")
    assert why(warm, asked) == "it has ended"
    assert len(made) == 1 + warm_pool.MOST_LOSSES
    assert {server.modules for server in made} == {("torch",)}


def test_a_server_whose_files_have_changed_is_made_again(made: list[FakeServer]) -> None:
    warm = pool()
    asked = key(preload=("torch",))
    why(warm, asked)
    made[0].ready = True
    assert why(warm, asked) == ""
    warm.note_answer(asked, f"cold: {fork_client.CHANGED}")
    assert (made[0].closed, made[1].modules) == (True, ("torch",))


def test_what_a_program_says_that_it_has_imported_is_taken_for_names_alone(tmp_path: Path) -> None:
    (tmp_path / "modules").write_text("json\nos; import evil\n../x\nosé.path\n\nnumpy.linalg\n1a\n")
    assert warm_pool.read_modules(tmp_path / "modules") == ["json", "osé.path", "numpy.linalg"]
    (tmp_path / "modules").write_bytes(b"\xff\xfe")
    assert warm_pool.read_modules(tmp_path / "modules") == []
    assert warm_pool.read_modules(tmp_path / "nowhere") == []


def test_only_a_plain_file_is_read_of_what_a_program_has_left(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("password\n")
    (tmp_path / "link").symlink_to("secret")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        assert warm_pool.read_modules(tmp_path / name) == []


def test_no_more_modules_are_learnt_than_a_command_line_has_room_for(made: list[FakeServer]) -> None:
    warm = pool()
    why(warm, key()), why(warm, key())
    made[0].ready = True
    why(warm, key())
    warm.learn(key(), [f"package{number}.module" for number in range(20_000)])
    assert 90_000 < len(",".join(made[1].modules)) < 100_000


def test_all_servers_end_with_the_pool(made: list[FakeServer]) -> None:
    warm = pool()
    for name in "ab":
        why(warm, key(preload=(name,)))
    warm.close()
    assert all(server.closed for server in made)
    assert warm.kept() == (0, 0)


def test_what_a_server_holds_is_measured_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    monkeypatch.setattr(warm_pool, "_held_bytes", lambda pid: measured.append(pid) or 100)
    clock = Clock()
    warm = pool(clock)
    for name in "ab":
        why(warm, key(preload=(name,)))
    measured.clear()
    clock.now_s = warm_pool.MEASURED_S
    assert [warm.kept() for _ in range(2)] == [(2, 200)] * 2
    assert measured == [1, 2]
    clock.now_s += warm_pool.MEASURED_S
    warm.kept()
    assert measured == [1, 2, 1, 2]


def test_a_server_whose_imports_do_not_end_is_ended_whoever_starts_next(made: list[FakeServer]) -> None:
    clock = Clock()
    warm = pool(clock)
    hangs = key(preload=("hangs",))
    why(warm, hangs)
    clock.now_s = warm_pool.IMPORT_S - 1
    why(warm, key("other.py"))
    assert not made[0].closed
    clock.now_s = warm_pool.IMPORT_S
    why(warm, key("other.py"))
    assert (made[0].closed, len(made[1:])) == (True, 1)  # the other's
    assert why(warm, hangs) == "its imports have not ended within 300 s"
    clock.now_s += AGAIN_S
    assert why(warm, hangs) == "its server is still importing"


def test_a_server_whose_imports_do_not_end_is_counted_no_longer(made: list[FakeServer]) -> None:
    clock = Clock()
    warm = pool(clock)
    why(warm, key(preload=("hangs",)))
    clock.now_s = warm_pool.IMPORT_S
    assert (warm.kept(), made[0].closed) == ((0, 0), True)


# --- servers of other users than the executor's
ALICE = Confinement(user="alice", uid=1001, gid=1001, groups=(1001,), tmp="/data/tmp/j1-1", kept=("/home",))


def users_pool(monkeypatch: pytest.MonkeyPatch, **rules: int) -> WarmPool:
    """Return a pool in which such servers are fakes too, and ready."""

    def server(
        command: WarmCommand,
        modules: Sequence[str],
        env: Mapping[str, str],
        confined: Confinement,
        limits: ServerLimits,
    ) -> FakeServer:
        made = FakeServer(command, modules, env)
        made.confined, made.limits, made.ready = confined, limits, True
        return made

    monkeypatch.setattr(fork_client, "user_server", server)
    return pool(**{"user_servers": 2, **rules})


def users_key(name: str = "train.py", confined: Confinement = ALICE) -> WarmKey:
    command = WarmCommand("/bin/python", ("python",), "file", name, ())
    return WarmKey.of(command, ENV, "/home", ("json",), confined)


@pytest.mark.parametrize(
    "other",
    [
        Confinement(),
        ALICE._replace(user="bob", uid=1002),
        ALICE._replace(gid=1002),
        ALICE._replace(groups=(1001, 27)),
        ALICE._replace(new_privileges=True),
        ALICE._replace(most_tasks=10),
        ALICE._replace(tmp=""),
    ],
)
def test_no_server_is_for_another_user_or_for_other_rights(other: Confinement) -> None:
    assert users_key() != users_key(confined=other)


def test_a_server_is_for_all_runs_of_its_user_whatever_folders_and_group_these_have() -> None:
    assert users_key() == users_key(confined=ALICE._replace(tmp="/data/tmp/j2-1", kept=("/x",), cgroup="/sys/j2"))


def test_a_users_server_has_the_limits_of_its_programs_which_he_cannot_raise() -> None:
    command = WarmCommand("/bin/python", ("python",), "file", "s.py", (), (1, 2))
    unlimited = WarmKey.of(command._replace(data_bytes=()), ENV, "/", (), ALICE)
    assert WarmKey.of(command, ENV, "/", (), ALICE) != unlimited
    assert WarmKey.of(command, ENV, "/", ()) == WarmKey.of(command._replace(data_bytes=()), ENV, "/", ())


def test_runs_at_the_same_time_have_servers_of_their_own_up_to_what_a_user_may_have(
    monkeypatch: pytest.MonkeyPatch, made: list[FakeServer]
) -> None:
    warm = users_pool(monkeypatch)
    found: list[WarmKey] = []
    for _ in range(2):
        placed = warm.place(users_key())
        with pytest.raises(StartsCold, match="still importing"):
            warm.server(placed, ENV, ALICE)
        assert warm.server(placed, ENV, ALICE) is made[-1]
        made[-1].busy = True
        found.append(placed)
    assert len({*found}) == len(made) == 2
    with pytest.raises(StartsCold, match="its user's 2 servers for it have other programs, which run"):
        warm.place(users_key())
    made[1].busy = False
    assert warm.place(users_key()) == found[1]


def test_a_user_takes_the_place_of_his_own_servers_before_that_of_others(
    monkeypatch: pytest.MonkeyPatch, made: list[FakeServer]
) -> None:
    warm = users_pool(monkeypatch, servers=8)
    bob = ALICE._replace(user="bob", uid=1002)
    keys = [(users_key("s.py", bob), bob), *((users_key(f"{i}.py"), ALICE) for i in range(3))]
    for asked, confined in (*keys, *[keys[-1]] * (PRICE - 1)):
        with pytest.raises(StartsCold):
            warm.server(asked, ENV, confined)
    assert [server.closed for server in made] == [False, True, False, False]


def test_a_server_that_has_a_program_is_used(monkeypatch: pytest.MonkeyPatch, made: list[FakeServer]) -> None:
    warm = users_pool(monkeypatch, servers=2)
    for name in ("a.py", "b.py"):
        with pytest.raises(StartsCold):
            warm.server(users_key(name), ENV, ALICE)
        warm.server(users_key(name), ENV, ALICE)
    made[0].busy = True
    for _ in range(PRICE):
        with pytest.raises(StartsCold):
            warm.server(users_key("c.py"), ENV, ALICE)
    assert [server.closed for server in made] == [False, True, False]


def test_users_servers_are_held_to_the_bounds_of_the_node(
    monkeypatch: pytest.MonkeyPatch, made: list[FakeServer]
) -> None:
    warm = users_pool(monkeypatch, most_bytes=77)
    with pytest.raises(StartsCold):
        warm.server(users_key(), ENV, ALICE)
    assert made[0].limits == ServerLimits(import_s=120.0, most_bytes=77, idle_s=600.0)
    assert made[0].confined == ALICE


def test_a_server_that_its_user_ends_again_and_again_is_not_made_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch, made: list[FakeServer]
) -> None:
    warm, whys = users_pool(monkeypatch), list[str]()
    for _ in range(20):
        try:
            warm.server(users_key(), ENV, ALICE)
        except StartsCold as reason:
            whys.append(str(reason))
        made[-1].why_ended = "it was killed" * made[-1].ready
    assert len(made) == MOST_LOSSES + 1
    assert whys[-1] == f"its server has ended {MOST_LOSSES + 1} times: it was killed"


def test_a_server_that_nobody_used_is_made_again_when_its_command_comes(
    monkeypatch: pytest.MonkeyPatch, made: list[FakeServer]
) -> None:
    warm = users_pool(monkeypatch)
    for _ in range(20):
        with pytest.raises(StartsCold, match="still importing"):
            warm.server(users_key(), ENV, ALICE)
        assert warm.server(users_key(), ENV, ALICE) is made[-1]
        made[-1].why_ended = IDLE
    assert len(made) == 20
