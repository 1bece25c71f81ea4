"""`penstock logs`: whole lines of gangs, tails, and following to the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from fake_gateway import FakeGateway, job_view

from penstock.client import Client

Run = Callable[..., tuple[int, str, str]]


class Logged(FakeGateway):
    """A gateway whose bus holds some output before anybody asks."""

    pieces: tuple[tuple[str, int, bytes], ...] = (
        ("g1", 0, b"a0\nb"),
        ("g1", 1, b"a1\n"),
        ("g1", 0, b"0\nend"),
        ("quiet", 0, b"x\n"),
        ("s1", 0, b"one\ntwo\n"),
        ("s1", 0, b"three\n"),
    )

    @asynccontextmanager
    async def client(self, url: str = "") -> AsyncIterator[Client]:
        async with super().client(url) as client:
            for job_id, rank, data in self.pieces:
                await self.bus.write_output(job_id, rank, data)
            yield client


@pytest.fixture
def gateway() -> FakeGateway:
    return Logged(job_view("g1", state="CD", gpus=2), job_view("quiet", state="CD", gpus=2), job_view("s1", state="CD"))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("s1",), "one\ntwo\nthree\n"),
        (("s1", "-f"), "one\ntwo\nthree\n"),
        (("s1", "--tail", "2"), "two\nthree\n"),
        (("s1", "--tail", "0"), ""),
        (("s1", "-f", "--tail", "1"), "three\n"),
        (("g1",), "[0] a0\n[1] a1\n[0] b0\n[0] end\n"),
        (("g1", "--rank", "1"), "a1\n"),
        (("g1", "--rank", "0", "--tail", "1"), "end"),
    ],
)
def test_what_is_shown(penstock: Run, args: tuple[str, ...], expected: str) -> None:
    assert penstock("logs", *args) == (0, expected, "")


@pytest.mark.parametrize("args", [(), ("-f",), ("--tail", "3")])
def test_a_rank_that_there_is_not_is_exit_code_4_and_says_which_there_are(penstock: Run, args: tuple[str, ...]) -> None:
    code, out, err = penstock("logs", "g1", "--rank", "2", *args)
    assert (code, out) == (4, "")
    assert err == "penstock: job g1 has 2 processes at most, ranks 0 to 1; there is no rank 2\n"
    assert penstock("logs", "s1", "--rank", "1", *args)[2].endswith("has one process, rank 0; there is no rank 1\n")


def test_a_rank_that_has_printed_nothing_is_told_beside_those_that_have(penstock: Run) -> None:
    code, out, err = penstock("logs", "quiet", "--rank", "1")
    assert (code, out, err) == (0, "", "penstock: rank 1 of quiet has printed nothing; rank 0 has\n")


def test_the_output_of_an_unknown_job_is_exit_code_4(penstock: Run) -> None:
    code, out, err = penstock("logs", "nope")
    assert (code, out) == (4, "")
    assert err.startswith("penstock: there is no job 'nope'")
