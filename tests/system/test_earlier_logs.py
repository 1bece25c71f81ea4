"""Logs that earlier versions wrote: each is folded to the state to which its own version folded it."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from log_state import differences, read_wire, told

FOLDER = Path(__file__).parents[1] / "data" / "logs"


def counts_steps_of_checkpoints(at: str, old: Any, new: Any) -> bool:
    """35a4014 counted a job's steps when its run had ended; since 0ebd8aa each checkpoint tells of them."""
    return at.endswith("/steps") and new > old


def says_the_order_too(at: str, old: Any, new: Any) -> bool:
    """Since a030f56 the ranker says which order a pool has: where the log does not say it, it is said once more."""
    if not re.fullmatch(r"/decisions/ranker/\d+/proposals", at) or old:
        return False
    ((fact,),) = [one["facts"] for one in new]
    return not fact["ranks"] and fact["order"] == "srtf"


def names_the_gang_first(at: str, old: Any, new: Any) -> bool:
    """Since fdfe7ad fairness is the cause of a wait only where the job would start without it."""
    return at == "/queries/at/386/job/fb7ikueh/why/cause" and (old, new) == ("fairness", "gang")


def learns_thresholds(at: str, old: Any, new: Any) -> bool:
    """Since cb57fd3 thresholds are learnt where none are set."""
    return at.endswith("/policies/defaults/thresholds_gpu_s") and (old, new) == ([3600.0, 36000.0], "learnt")


def leaves_out_nodes_that_left(at: str, old: Any, new: Any) -> bool:
    """Since 89eb810 devices of nodes that left in good order are counted no more: nobody misses them."""
    return "/status/devices/" in at and old == {"busy": 0, "drained": 0, "idle": 0, "lost": 1} and new == "(missing)"


MEANT = (
    counts_steps_of_checkpoints,
    says_the_order_too,
    names_the_gang_first,
    learns_thresholds,
    leaves_out_nodes_that_left,
)
"""What today's code makes otherwise of the logs, and is meant to."""


@cache
def folded(name: str) -> dict[str, Any]:
    return told(read_wire(FOLDER / f"{name}.log.gz"))


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".log.gz") for path in FOLDER.glob("*.log.gz")))
def test_a_log_of_an_earlier_version_is_folded_to_the_same_state(name: str) -> None:
    then = json.loads(gzip.decompress((FOLDER / f"{name}.state.json.gz").read_bytes()))
    found = list(differences(then, folded(name)))
    assert [one for one in found if not any(is_meant(*one) for is_meant in MEANT)] == []


def test_one_log_ends_with_jobs_in_many_states() -> None:
    *_, last = folded("35a4014")["jobs"].values()
    assert {job["state"] for job in last.values()} == {"PD", "R", "CD", "F", "CA"}


def test_the_log_of_the_first_release_is_that_of_a_cluster_that_lost_a_node() -> None:
    log = read_wire(FOLDER / "e7ab80f.log.gz")
    assert len({type(fact) for one in log for fact in one.commit.facts}) == 21
    *_, last = folded("e7ab80f")["jobs"].values()
    assert {job["state"] for job in last.values()} == {"PD", "R", "CD", "F", "CA"}
    assert (last["running"]["state"], last["running"]["epoch"]) == ("R", 2)
    assert last["crash"]["failures"] == 2


def test_the_other_log_has_every_kind_of_fact_that_its_version_knew() -> None:
    facts = [fact for one in read_wire(FOLDER / "35a4014-every-fact.log.gz") for fact in one.commit.facts]
    assert len({type(fact) for fact in facts}) == 30


def test_what_differs_is_found_with_its_place() -> None:
    old = {"jobs": [{"id": "a", "steps": 1, "run_s": 1.0}], "seq": 3}
    assert list(differences(old, {"jobs": [{"id": "a", "steps": 2, "run_s": 1 + 1e-12, "new": 1}]})) == [
        ("/jobs/a/steps", 1, 2),
        ("/seq", 3, "(missing)"),
    ]
    assert list(differences(old, {"jobs": [], "seq": 3})) == [("/jobs", old["jobs"], [])]
