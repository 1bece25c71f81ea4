"""Where the command line looks for the server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_gateway import FakeGateway

from penstock_bus.errors import Unavailable
from penstock_cli.invocation import Exit, explain
from penstock_cli.local import data_folder, supervisor

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_CONFIG", raising=False)
    return tmp_path


def test_the_flag_wins_over_the_variable_the_file_and_the_default(
    penstock: Run, gateway: FakeGateway, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock("ps")
    assert gateway.url == "nats://127.0.0.1:4222"
    (here / "penstock.toml").write_text('url = "nats://file:1"')
    penstock("ps")
    assert gateway.url == "nats://file:1"
    monkeypatch.setenv("PENSTOCK_URL", "nats://variable:1")
    penstock("ps")
    assert gateway.url == "nats://variable:1"
    penstock("ps", "--url", "nats://flag:1")
    assert gateway.url == "nats://flag:1"


def test_a_settings_file_that_cannot_be_used_is_named(penstock: Run, here: Path) -> None:
    (here / "penstock.toml").write_text("url = 1")
    code, _, err = penstock("ps")
    assert code == 2
    assert err.startswith("penstock: penstock.toml:1, key 'url': Expected `str`, got `int`")
    assert err.count("\n") == 1


@pytest.fixture
def cluster_here(here: Path) -> Iterator[str]:
    """Return the address of a cluster that runs, as its data folder says, on ``./penstock-data``."""
    folder, url = here / "penstock-data", "nats://127.0.0.1:4333"
    with data_folder.locked(folder):
        data_folder.SupervisorRecord(url=url, pid=os.getpid(), started_s=0.0, version="1").save(folder)
        yield url


@pytest.mark.parametrize("named", ["nats://other:4222", "nats://127.0.0.1:4222"])
def test_down_refuses_to_choose_between_the_folders_cluster_and_the_one_that_is_named(
    penstock: Run, cluster_here: str, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    ended: list[str] = []

    async def down(data_dir: str) -> bool:
        ended.append(data_dir)
        return True

    monkeypatch.setattr(supervisor, "down", down)
    monkeypatch.setenv("PENSTOCK_URL", named)
    code, out, err = penstock("down")
    assert (code, out, ended) == (2, "", [])
    assert err == (
        f"penstock: the cluster of ./penstock-data is at {cluster_here}, and you named {named}; to stop that of this "
        "folder give --data penstock-data, to stop the other one give --data with its own folder\n"
    )
    assert (penstock("down", "--data", "penstock-data")[0], ended) == (0, ["penstock-data"])
    monkeypatch.setenv("PENSTOCK_URL", "localhost:4333")
    assert penstock("down") == (0, "stopped; `penstock up` goes on where it was\n", "")
    monkeypatch.delenv("PENSTOCK_URL")
    assert (penstock("down")[0], len(ended)) == (0, 3)


def test_who_asks_at_the_default_address_is_told_of_the_cluster_of_this_folder(cluster_here: str) -> None:
    absent = Unavailable("no NATS server at nats://127.0.0.1:4222: refused. Start one, or set PENSTOCK_URL")
    told = explain(absent, "nats://127.0.0.1:4222")
    expected = f"{absent}. The cluster of ./penstock-data runs at another address: set PENSTOCK_URL={cluster_here}"
    assert (str(told), told is not None and told.code) == (expected, Exit.UNREACHABLE)
    assert str(explain(absent, "nats://other:4222")) == str(absent)


def test_a_cluster_of_this_folder_that_has_ended_is_not_named(here: Path) -> None:
    folder = here / "penstock-data"
    folder.mkdir()
    data_folder.SupervisorRecord(url="nats://127.0.0.1:4333", pid=1, started_s=0.0, version="1").save(folder)
    absent = Unavailable("no NATS server at nats://127.0.0.1:4222")
    assert str(explain(absent, "nats://127.0.0.1:4222")) == str(absent)
