from __future__ import annotations

import pytest

from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.log_reader import LogMoment, parse


@pytest.mark.parametrize("now", [None, ""])
def test_no_moment_is_now(now: str | None) -> None:
    assert parse(now) is None


@pytest.mark.parametrize(
    ("at", "moment"),
    [
        (120, LogMoment(seq=120)),
        ("120", LogMoment(seq=120)),
        (0, LogMoment(seq=0)),
        (1_700_000_000, LogMoment(time_s=1.7e9)),
        ("1700000000.25", LogMoment(time_s=1_700_000_000.25)),
        (120.0, LogMoment(time_s=120.0)),
        ("2023-11-14T22:13:20Z", LogMoment(time_s=1.7e9)),
        ("2023-11-14T23:13:20+01:00", LogMoment(time_s=1.7e9)),
        ("2023-11-14T22:13:20", LogMoment(time_s=1.7e9)),
    ],
)
def test_a_moment_is_a_sequence_or_a_time(at: int | float | str, moment: LogMoment) -> None:
    assert parse(at) == moment


@pytest.mark.parametrize("at", ["yesterday", "12:00", "-5", -5])
def test_anything_else_is_refused(at: int | str) -> None:
    with pytest.raises(RequestRefused, match="at=") as refused:
        parse(at)
    assert refused.value.code == 400
