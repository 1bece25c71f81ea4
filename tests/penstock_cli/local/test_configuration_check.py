"""The check of the whole configuration: everything that is wrong is told, and nothing is started."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_cli.local import configuration_check
from penstock_log.services import LOGINS

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "penstock.toml"


def test_every_service_has_its_table_and_each_names_the_settings_that_it_reads() -> None:
    assert set(LOGINS) <= set(configuration_check.SECTIONS)
    read = re.compile(r"main\(\s*\"(\w+)\", (\w+), ")
    sources = "".join(path.read_text() for path in (ROOT / "services").rglob("__main__.py"))
    found = dict(read.findall(sources)) | {"gateway": "GatewaySettings"}
    assert found == {name: configuration_check.SECTIONS[name].rpartition(":")[2] for name in found}
    assert len(found) == len(LOGINS)


def test_all_tables_are_read_and_all_mistakes_told(config: Path) -> None:
    config.write_text(
        "connect_s = 'soon'\n[gateway]\nkeep_days = -1\n[gatway]\n[log]\nlevel = 'loud'\n"
        "[ranker]\norder = 'lifo'\n[executor]\ndevices = 'fast:'\nhost_memory = '3 cows'\n"
    )
    found = configuration_check.mistakes({})
    assert [re.split(": |;", text)[0] for text in found] == [
        "penstock.toml:1, key 'connect_s'",
        "penstock.toml:6, [log], key 'level'",
        "penstock.toml:3, [gateway], key 'keep_days'",
        "penstock.toml:7, [ranker]",
        "penstock.toml:10, [executor], key 'devices'",
        "penstock.toml:11, [executor], key 'host_memory'",
        "penstock.toml:4",
    ]
    assert "did you mean [gateway]?" in found[-1]


def test_a_table_of_an_extension_is_its_own(config: Path) -> None:
    config.write_text("[extensions]\nnames = ['notifier']\n[notifier]\nurl = 3\n")
    assert configuration_check.mistakes({}) == []


def test_variables_are_read_too_and_those_of_jobs_are_none(config: Path) -> None:
    environ = {"PENSTOCK_MEMORY_SOCKET": "/run/memory", "PENSTOCK_TUNER_X": "1", "PENSTOCK_JOB_ID": "j1"}
    (found,) = configuration_check.mistakes(environ)
    assert found.startswith("unknown variable PENSTOCK_TUNER_X")


@pytest.mark.parametrize("text", ["[a\n", "a = 1\na = 2\n", "\0"])
def test_a_file_that_is_no_toml_is_one_mistake(config: Path, text: str) -> None:
    config.write_text(text)
    (found,) = configuration_check.mistakes({})
    assert "penstock.toml cannot be read as TOML" in found


def test_up_tells_them_all_and_starts_nothing(config: Path, penstock: Run) -> None:
    config.write_text("url = 3\n[matcher]\nwindow = 0\n")
    code, out, err = penstock("up", "--detach", "--port", "-1")
    first, second, last = err.splitlines()
    assert (code, out) == (2, "")
    assert first.startswith("penstock: penstock.toml:1, key 'url': Expected `str`")
    assert second.startswith("penstock: penstock.toml:3, [matcher], key 'window': Expected `int` >= 1")
    assert last == "penstock: 2 settings cannot be used, as said above; nothing was started"
    assert [path.name for path in config.parent.iterdir()] == ["penstock.toml"]


def test_check_starts_nothing_where_all_is_well(config: Path, penstock: Run) -> None:
    config.write_text("[matcher]\nwindow = 10\n")
    assert penstock("up", "--check")[:2] == (0, "penstock.toml: nothing is wrong with it; nothing was started\n")
    assert [path.name for path in config.parent.iterdir()] == ["penstock.toml"]
