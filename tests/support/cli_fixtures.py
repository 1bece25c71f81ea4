"""The command line against a gateway on a bus in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_gateway import FakeGateway
from typer.testing import CliRunner

from penstock_cli import hoisted
from penstock_cli.app import app

Result = tuple[int, str, str]


@pytest.fixture
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("PENSTOCK_URL", raising=False)


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def penstock(gateway: FakeGateway, plain_output: None) -> Callable[..., Result]:
    """Run ``penstock ARGS``; return exit code, standard output and standard error."""

    def run(*args: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(
            app, hoisted(args), input=stdin, prog_name="penstock", obj={"client": gateway.client}
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return run
