"""`penstock notify`: what is typed of a rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_gateway import FakeGateway

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on", ""), "--on names nothing; expected started, completed, failed, "),
        (("--on", " , "), "--on names nothing; "),
        (("--on", "fialed"), "--on 'fialed' is nothing that is told; expected started"),
        (("--on", "waiting>x"), "--on waiting> 'x' is no duration"),
        (("--on", "failed", "--by-job"), "--by-job leaves that to each job; give one of them"),
    ],
)
def test_what_tells_of_nothing_is_refused(
    penstock: Run, gateway: FakeGateway, words: tuple[str, ...], said: str
) -> None:
    code, out, err = penstock("notify", "add", "json://hooks.example.org", *words)
    assert (code, out, said in err, gateway.asked) == (2, "", True, [])


def test_rules_are_listed_and_removed_by_the_names_that_other_commands_have_too(penstock: Run) -> None:
    for name in ("ls", "rm"):
        assert "Usage: penstock notify" in penstock("notify", name, "--help")[1]
