"""What the log says of tokens that are refused, and of very many."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from penstock_bus.identity.callout import Callout
from penstock_bus.identity.issuer import Issuer
from penstock_bus.identity.keyring import Keyring
from penstock_bus.identity.token_verifier import OidcSettings, TokenVerifier
from penstock_bus.memory import MemoryBus
from penstock_bus.nats.callout import CalloutQuestion

QUESTION = CalloutQuestion(server="NS", public="UP", token="no token at all", host="10.0.0.9")


class NoAccounts:
    """A server that is told of no account."""

    async def push(self, account: str) -> None:
        raise AssertionError(account)


async def test_of_very_many_refusals_the_log_tells_a_hundred_a_minute_and_how_many_more_there_were() -> None:
    pytest.importorskip("joserfc")
    now_s = 1000.0
    bus, ring = MemoryBus(), Keyring(b"k" * 32)
    issuer = Issuer(bus, NoAccounts(), ring, owner="root", url="nats://h:1", now_s=lambda: now_s)
    verifier = TokenVerifier(OidcSettings(issuer="https://sso.lab", audience="penstock"), lambda: now_s)
    callout = Callout(bus, issuer, ring, verifier, now_s=lambda: now_s)
    with capture_logs() as first:
        for _ in range(250):
            assert await callout.answer(QUESTION)
    assert [(line["event"], line["host"]) for line in first] == [("token_refused", "10.0.0.9")] * 100
    now_s += 61.0
    with capture_logs() as later:
        await callout.answer(QUESTION)
    assert [(line["event"], line.get("count")) for line in later] == [
        ("more_tokens_refused", 150),
        ("token_refused", None),
    ]
