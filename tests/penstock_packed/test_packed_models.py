"""Models in a host: each request gets its answer or is told why not, whatever becomes of model and host."""

from __future__ import annotations

import threading

import pytest
from packed_cases import Count, Echo, Ledger

from penstock_packed import DeviceLost, MemberEnded, MemoryNeed, Overloaded, PackedHost

SMALL = MemoryNeed(10, 0, 10)


def test_requests_are_answered_one_wrong_request_is_one_error_and_batches_are_bounded() -> None:
    host, model = PackedHost(Ledger()), Echo()
    endpoint = host.serve("echo", model, target_s=600.0, batch=3, memory=SMALL)
    answers = [endpoint.ask(n) for n in range(7)]
    wrong = endpoint.ask(ValueError("not a number"))
    endpoint.close()
    outcomes = host.run()
    assert [answer.result(0) for answer in answers] == list(range(7))
    with pytest.raises(ValueError, match="not a number"):
        wrong.result(0)
    assert model.batches == [3, 3, 2]
    assert outcomes["echo"].stage == "finished"
    assert outcomes["echo"].metrics["answers"] == 8
    assert outcomes["echo"].metrics["late"] == 0


def test_a_model_that_raises_has_ended_and_says_so_to_all_who_ask() -> None:
    host, model = PackedHost(Ledger()), Echo(raises=True)
    bad = host.serve("bad", model, target_s=10.0, memory=SMALL)
    good = host.serve("good", Echo(), target_s=10.0, memory=SMALL)
    first, second = bad.ask(RuntimeError("cannot go on")), bad.ask(2)
    other = good.ask("hello")
    good.close()
    outcomes = host.run()
    for answer in (first, second, bad.ask(3)):
        with pytest.raises(MemberEnded, match="bad has failed: RuntimeError: cannot go on"):
            answer.result(0)
    assert other.result(0) == "hello"
    assert [outcomes[name].stage for name in ("bad", "good")] == ["failed", "finished"]


def test_a_model_that_gives_too_few_answers_is_told_so() -> None:
    class Lazy(Echo):
        def step(self, _: object, /) -> list[object]:
            return []

    host = PackedHost(Ledger())
    answer = host.serve("lazy", Lazy(), target_s=1.0, memory=SMALL).ask(1)
    assert "0 answers to 1 requests" in host.run()["lazy"].reason
    assert isinstance(answer.exception(0), MemberEnded)


def test_a_request_that_was_given_up_is_not_answered_and_does_no_harm() -> None:
    host = PackedHost(Ledger())
    endpoint = host.serve("echo", Echo(), target_s=1.0, memory=SMALL)
    given_up, other = endpoint.ask(1), endpoint.ask(2)
    assert given_up.cancel()
    endpoint.close()
    host.run()
    assert other.result(0) == 2


def test_what_was_given_up_before_its_turn_is_not_computed() -> None:
    host, model = PackedHost(Ledger()), Echo()
    endpoint = host.serve("echo", model, target_s=1.0, batch=2, memory=SMALL)
    answers = [endpoint.ask(n) for n in range(6)]
    assert all(answer.cancel() for answer in answers[1:5])
    endpoint.close()
    outcomes = host.run()
    assert model.log == ["0", "5"]
    assert outcomes["echo"].metrics["answers"] == 2


def test_one_request_more_than_may_wait_is_refused_at_once_and_counted() -> None:
    host = PackedHost(Ledger())
    endpoint = host.serve("echo", Echo(), target_s=1.0, most_waiting=3, memory=SMALL)
    answers = [endpoint.ask(n) for n in range(5)]
    assert [answer.done() for answer in answers] == [False, False, False, True, True]
    endpoint.close()
    metrics = host.run()["echo"].metrics
    assert [answer.result(0) for answer in answers[:3]] == [0, 1, 2]
    assert (metrics["answers"], metrics["refused"]) == (3, 2)
    with pytest.raises(Overloaded, match="3 requests to echo wait already"):
        answers[3].result(0)


@pytest.mark.parametrize("lanes", [1, 2])
def test_nobody_waits_for_an_answer_of_a_host_that_has_stopped(lanes: int) -> None:
    class Broken(Ledger):
        def lost(self, error: BaseException) -> bool:
            return isinstance(error, ArithmeticError)

    host = PackedHost(Broken(lanes=lanes))
    echo = host.serve("echo", Echo(), target_s=9.0, memory=SMALL)
    bad = host.serve("bad", Echo(raises=True), target_s=0.1, memory=SMALL)
    asked = [bad.ask(ArithmeticError("illegal address")), bad.ask(2)]
    with pytest.raises(DeviceLost):
        host.run()
    for answer in (*asked, echo.ask(4)):
        with pytest.raises(MemberEnded, match="answers no more: its host has stopped"):
            answer.result(0)


def test_requests_come_in_from_other_threads_while_trials_run() -> None:
    host = PackedHost(Ledger())
    endpoint = host.serve("echo", Echo(), target_s=10.0, memory=SMALL)
    host.train("t", Count(), steps=300, memory=SMALL)
    found: list[object] = []

    def ask() -> None:
        found.extend(endpoint.ask(n).result(30) for n in range(50))
        endpoint.close()

    thread = threading.Thread(target=ask)
    thread.start()
    outcomes = host.run()
    thread.join(30)
    assert found == list(range(50))
    assert outcomes["t"].steps == 300
