"""Errors in the log tell where, and never what stood in the variables."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from penstock_bus.logs import Logging, configure


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
    assert "test_logs_tracebacks.py" in shown
    assert password not in shown


@pytest.mark.parametrize("value", ["\x1b]0;mine\x07", "with space \x1b[2J", "\x9b2J"])
def test_a_console_shows_what_others_wrote_as_text(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure(Logging(format="console"))
    logger = structlog.get_logger("penstock.test")
    logger.warning("job_failed", reason=value)
    logging.getLogger("some.library").warning("it says %s", value)
    try:
        raise ValueError(value)
    except ValueError:
        logger.exception("service_failed")
    shown = capsys.readouterr().err
    assert shown.count("job_failed") == shown.count("it says") == 1
    assert "ValueError" in shown
    assert all(c.isprintable() for c in shown.replace("\n", ""))
