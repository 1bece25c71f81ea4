"""Errors in the log tell where, and never what stood in the variables."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from penstock_bus.logging import Logging, configure


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize("format_", ["console", "json"])
def test_a_logged_error_shows_no_passwords(
    format_: Literal["console", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    configure(Logging(format=format_))
    password = "".join(["hunt", "er2"])
    try:
        raise ValueError("refused")
    except ValueError:
        structlog.get_logger("penstock.test").exception("service_failed", user="ann")
    shown = capsys.readouterr().err
    assert "refused" in shown
    assert "test_tracebacks.py" in shown
    assert password not in shown
