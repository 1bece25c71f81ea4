"""Where the command line looks for the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_gateway import FakeGateway

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
    assert err.startswith("penstock: penstock.toml, key 'url': Expected `str`, got `int`")
    assert err.count("\n") == 1
