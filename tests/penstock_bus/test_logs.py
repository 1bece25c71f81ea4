"""Where a library's words go: never among a program's own output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from penstock_bus.logger import get_logger


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def test_what_a_library_says_in_a_program_that_configured_nothing_goes_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = get_logger("penstock.bus")
    log.info("consumer_made_again", stream="LOG")
    log.warning("bus_unavailable", what="append")
    out, err = capsys.readouterr()
    assert out == ""
    assert "bus_unavailable" in err
    assert "consumer_made_again" not in err  # it mends itself: nobody has to hear of it


def test_a_program_that_configured_structlog_gets_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(), cache_logger_on_first_use=False)
    get_logger("penstock.bus").info("consumer_made_again", stream="LOG")
    assert "consumer_made_again" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["decider", "replica", "follower", "memory.bus"])
def test_all_that_clients_use_logs_through_it(name: str) -> None:
    module = __import__(f"penstock_bus.{name}", fromlist=["_log"])
    assert isinstance(module._log, type(get_logger("")))
