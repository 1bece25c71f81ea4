"""Sizes as jobs come and go."""

from __future__ import annotations

from scaling_facts import autoscaler, decisions, elastic, fixed, job, node, scaled, widths

WORK = elastic()


def test_a_new_job_gets_as_many_devices_as_help_it() -> None:
    it = autoscaler().given(node(fast=4), scaled(WORK)).at(1.0).when(job("a"))
    (decided,) = decisions(it.settle())
    assert widths([decided]) == {"a": 4}
    assert decided.because == "arrival"
    assert it.state.jobs["a"].spec.gpus == 4
    assert it.state.jobs["a"].epoch == 1


def test_a_new_job_is_sized_even_where_it_keeps_what_it_asks_for() -> None:
    it = autoscaler().given(node(fast=1), scaled(WORK)).at(1.0).when(job("a"))
    assert widths(it.settle()) == {"a": 1}
    assert it.state.jobs["a"].epoch == 1


def test_a_new_job_that_finds_no_room_is_told_its_smallest_size_and_waits_with_it() -> None:
    it = autoscaler().given(node(fast=2), scaled(WORK), job("b", fixed(2), 0.9), job("a")).at(1.0)
    assert widths(it.settle()) == {"a": 1}
