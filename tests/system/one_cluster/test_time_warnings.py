"""Warnings before time limits on a real cluster: to a script with a session, and to a foreign program by a signal."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from clusters import Cluster

SESSION = """
import time
from pathlib import Path
import penstock

session = penstock.session()
told = []
with session:
    session.on_checkpoint(lambda folder: Path(folder, "x").write_text("x"), lambda folder: None)
    session.on_time_warning(lambda left_s: (told.append(left_s), print("warned", 0 < left_s <= 58, flush=True)))
    known = None
    for step in session.iterations(range(100_000)):
        time.sleep(0.01)
        if session.time_left_s is not None and known is None:
            known = session.time_left_s
            print("knows", 0 < known <= 60, "short", session.time_is_short, flush=True)
        if told and session.should_checkpoint is False and session.time_is_short:
            break
"""
FOREIGN = """
trap 'echo got the signal; exit 0' USR1
echo listens
while :; do sleep 0.05; done
"""
"""A shell that is slow to begin would die of a signal that comes before it listens."""


def test_a_session_knows_its_time_and_saves_when_it_is_short(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SESSION)
    limits = ["--time", "60s", "--warn", "58s", "--checkpoint-every", "1h"]
    done = cluster.run("run", "--id", "warned", *limits, "--", sys.executable, str(script))
    assert "knows True short" in done.stdout
    assert done.stdout.count("warned True") == 1
    shown = " ".join(cluster.run("show", "warned").stdout.split())
    assert re.search(r"its time limit of 1 min 0 s ends it in [1-5]\d\.\d s", shown), shown
    assert "penstock extend gives it more" in shown
    story = cluster.run("story", "warned").stdout
    assert "its time limit of 1 min 0 s ends it in" in story
    assert "checkpoint" in story


def test_a_foreign_program_gets_the_signal_that_it_asks_for(cluster: Cluster) -> None:
    done = cluster.run("run", "--id", "foreign", "--time", "60s", "--signal", "USR1@50", "--", "bash", "-c", FOREIGN)
    assert "got the signal" in done.stdout


async def test_a_limit_that_comes_later_is_told_and_nothing_without_one(cluster: Cluster) -> None:
    cluster.run("submit", "--id", "later", "--signal", "USR1@60", "--time", "100h", "--", "bash", "-c", FOREIGN)
    cluster.run("submit", "--id", "without", "--", "true")
    async with cluster.client() as client:
        assert (await anext(client.logs("later", follow=True))).data == b"listens\n"
    cluster.run("extend", "later", "--to", "1m")
    cluster.run("logs", "-f", "later")
    assert "got the signal" in cluster.run("logs", "later").stdout
    assert "time limit of 1 min 0 s" in cluster.run("show", "later").stdout
    cluster.run("logs", "-f", "without")
    assert "time limit" not in cluster.run("show", "without").stdout


@pytest.mark.parametrize(("words", "why"), [(("--signal", "USR1@soon"), "USR1@60"), (("--signal", "KILL"), "USR1")])
def test_a_signal_that_cannot_be_is_refused(cluster: Cluster, words: tuple[str, ...], why: str) -> None:
    done = cluster.tried("submit", "--time", "1h", *words, "--", "true")
    assert done.returncode == 2
    assert why in done.stderr
