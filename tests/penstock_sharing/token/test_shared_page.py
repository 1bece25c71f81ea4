"""The page of a lane: tokens as words, what is refused, and how a slot without futexes gets on."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sharing.token import shared_page
from penstock_sharing.token.lane_token import LaneToken, open_lane
from penstock_sharing.token.protocol import LaneClientId, TokenPassed, TurnRequested
from penstock_sharing.token.shared_page import (
    MAGIC,
    NOBODY,
    BadSharedPage,
    SharedPage,
    Token,
    following,
    regenerated,
    slot_of,
    turn_of,
)
from penstock_sharing.token.slot_table import NoFreeSlot
from penstock_sharing.token.token_broker import drain
from penstock_sharing.token.token_slot import TokenSlot

tokens = st.builds(Token, st.integers(0, 2**16 - 1), st.integers(0, 2**40 - 2), st.integers(0, NOBODY))


def sit(lane: LaneToken, name: str) -> TokenSlot:
    number = lane.slot_for(LaneClientId(name, 1, 0), os.getpid())
    return TokenSlot(lane.name, SharedPage(os.dup(lane.page.fd)), number, os.dup(lane.call_fd))


def give_turn(lane: LaneToken, slot: TokenSlot, name: str) -> None:
    slot.wait(0.0)
    lane.look(0)
    lane.name_next(LaneClientId(name, 1, 0))
    assert slot.wait(0.0)


def raw(*words: int) -> int:
    fd = os.memfd_create("page")
    os.write(fd, b"".join(word.to_bytes(8, "little") for word in words))
    return fd


@given(tokens, tokens)
def test_words_compare_as_their_tokens_do(one: Token, other: Token) -> None:
    assert (one.word < other.word) == (one < other)
    assert Token.of(one.word) == one


@given(tokens.filter(lambda token: token.generation < 2**16 - 1), st.integers(0, 249), st.integers(0, 249))
def test_what_the_broker_says_revokes_whatever_its_holder_may_still_say(token: Token, slot: int, other: int) -> None:
    revoked = regenerated(token.word, slot)
    assert revoked > following(token.word, other) > token.word
    assert slot_of(revoked) == slot
    assert revoked < 2**64


def test_a_hand_over_that_a_stopped_process_was_about_to_store_is_not_seen() -> None:
    lane = open_lane("0/0", slots=4)
    late, next_one = sit(lane, "late"), sit(lane, "next")
    give_turn(lane, late, "late")
    stale = following(lane.page.token(), next_one.number)
    lane.revoke()
    third = sit(lane, "third")
    give_turn(lane, third, "third")
    lane.page.words[lane.page.row + 1 + late.number] = stale
    assert slot_of(lane.page.token()) == third.number
    assert not late.wait(0.0)
    assert not next_one.wait(0.0)


def test_a_turn_goes_on_at_least_as_long_as_the_broker_says() -> None:
    lane = open_lane("0/0", slots=4)
    one, other = sit(lane, "one"), sit(lane, "other")
    give_turn(lane, one, "one")
    other.wait(0.0)
    lane.name_next(LaneClientId("other", 1, 0), least_ns=3_600_000_000_000)
    assert one.enter()
    assert not one.exit()
    lane.name_next(LaneClientId("other", 1, 0), least_ns=0)
    assert one.enter()
    assert one.exit()


def test_a_lease_ends_by_its_time_too() -> None:
    lane = open_lane("0/0", slots=4)
    lane.page.quantum = 1_000_000, 1
    one, other = sit(lane, "one"), sit(lane, "other")
    give_turn(lane, one, "one")
    other.wait(0.0)
    lane.name_next(LaneClientId("other", 1, 0))
    assert one.exit()


def test_one_that_has_lost_the_token_before_it_woke_up_for_it_asks_still() -> None:
    lane, who = open_lane("0/0", slots=4), LaneClientId("one", 1, 0)
    one = sit(lane, "one")
    one.wait(0.0)
    lane.look(0)
    lane.name_next(who)  # it has the token, and sleeps
    assert lane.recall() == [TokenPassed("0/0", who, None), TurnRequested("0/0", who)]


def test_the_token_does_not_go_to_one_that_asks_no_more() -> None:
    lane = open_lane("0/0", slots=4)
    one, other = sit(lane, "one"), sit(lane, "other")
    give_turn(lane, one, "one")
    other.wait(0.0)
    lane.name_next(LaneClientId("other", 1, 0))
    other.rest()  # an exception took it out of its wait
    assert not one.exit()


def test_a_slot_is_not_given_out_again_while_somebody_may_still_pass_the_token_to_it() -> None:
    lane = open_lane("0/0", slots=4)
    one, leaver = sit(lane, "one"), sit(lane, "leaver")
    give_turn(lane, one, "one")
    leaver.wait(0.0)
    lane.name_next(LaneClientId("leaver", 1, 0))
    lane.leave(LaneClientId("leaver", 1, 0))
    assert sit(lane, "newcomer").number == 2
    lane.recall()
    assert one.exit()
    one.give()
    lane.look(0)
    assert sit(lane, "another").number == 1


def test_a_lane_with_no_slot_left_says_so() -> None:
    lane = open_lane("0/0", slots=1)
    sit(lane, "one")
    with pytest.raises(NoFreeSlot, match="has 1 slots"):
        sit(lane, "two")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([MAGIC], "has 8 bytes"),
        ([0] * 40, "begins with 0x0"),
        ([MAGIC, 2, *[0] * 40], "version 2"),
        ([MAGIC, 1, 200, *[0] * 40], "says it has 200 slots"),
        ([MAGIC, 1, 251, *[0] * 5000], "says it has 251 slots"),
    ],
)
def test_memory_that_is_no_page_is_refused(words: list[int], problem: str) -> None:
    with pytest.raises(BadSharedPage, match=problem):
        SharedPage(raw(*words))


@pytest.mark.parametrize("slots", [0, 251])
def test_a_page_has_a_number_of_slots_that_fits_its_words(slots: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        SharedPage.make(slots)


def test_nobody_can_take_the_page_from_the_others_by_making_it_shorter() -> None:
    page = SharedPage.make(4)
    assert page.is_sealed
    with pytest.raises(PermissionError):
        os.ftruncate(page.fd, 0)


def test_without_futexes_a_slot_looks_at_its_word_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_page, "_FUTEX", None)
    assert not shared_page.available()
    lane = open_lane("0/0", slots=4)
    one, other = sit(lane, "one"), sit(lane, "other")
    give_turn(lane, one, "one")
    came = threading.Event()

    def wait() -> None:
        while not other.wait(1.0):
            pass
        came.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not any(turn_of(lane.page.token()) for _ in lane.look(0)):
        pass
    lane.name_next(LaneClientId("other", 1, 0))
    assert one.exit()
    one.give()
    assert came.wait(30.0)
    waiting.join()


def test_a_recall_stands_until_the_token_has_come_back_whoever_is_named_meanwhile() -> None:
    lane = open_lane("0/0", slots=4)
    one, other = sit(lane, "one"), sit(lane, "other")
    give_turn(lane, one, "one")
    other.wait(0.0)
    lane.recall()
    lane.name_next(LaneClientId("other", 1, 0))
    lane.name_next(None)
    assert one.exit()
    one.give()
    assert not one.enter()
    lane.look(0)
    assert slot_of(lane.page.token()) == NOBODY


def test_call_fds_are_emptied_where_the_kernel_knows_no_read_that_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    call_fd = os.eventfd(3, os.EFD_NONBLOCK)
    monkeypatch.setattr(os, "preadv", refuse)
    for _ in range(2):
        drain(call_fd)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(call_fd)
    os.close(call_fd)
