"""Arrays, groups and retries on a real cluster: what a job knows, how many run, and what one request does."""

from __future__ import annotations

import json
from pathlib import Path

from clusters import Cluster

VARIABLES = ("ID", "INDEX", "COUNT", "MIN", "MAX", "STEP")


def states(cluster: Cluster, *filters: str) -> dict[str, str]:
    found = json.loads(cluster.run("ps", "-a", *filters, "-o", "json").stdout)
    return {job["id"]: job["state"] for job in found["jobs"]}


async def ended(cluster: Cluster, *job_ids: str) -> dict[str, str]:
    async with cluster.client() as client:
        return {job_id: (await client.wait(job_id)).state for job_id in job_ids}


async def test_so_many_jobs_of_an_array_run_at_a_time_each_with_its_variables(cluster: Cluster, tmp_path: Path) -> None:
    seen = "; ".join(f"echo {name}=$PENSTOCK_ARRAY_{name}" for name in VARIABLES)
    script = f"""
mkdir {tmp_path}/running-$PENSTOCK_ARRAY_INDEX
ls -d {tmp_path}/running-* | wc -l >> {tmp_path}/counts
{seen} > /dev/null
sleep 0.2
rmdir {tmp_path}/running-$PENSTOCK_ARRAY_INDEX
"""
    script = script.replace("> /dev/null", f"; echo {' '.join(f'$PENSTOCK_ARRAY_{name}' for name in VARIABLES)}")
    done = cluster.run("submit", "--id", "exp", "--array", "0-50:10%2", "--", "sh", "-c", script)
    ids = done.stdout.split()
    assert ids == [f"exp-{index}" for index in range(0, 51, 10)]
    after = cluster.run("submit", "--id", "report", "--after", "exp", "--", "true")
    assert after.stdout.strip() == "report"
    assert set((await ended(cluster, *ids, "report")).values()) == {"CD"}
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert max(counts) <= 2
    assert "exp 20 6 0 50 10" in cluster.run("logs", "exp-20").stdout
    spec = json.loads(cluster.run("show", "report", "-o", "json").stdout)["spec"]
    assert spec["after"] == [f"afterok:{one}" for one in ids]


async def test_a_job_behind_its_array_says_so_and_a_held_one_lets_others_pass(cluster: Cluster) -> None:
    ids = cluster.run("submit", "--id", "line", "--array", "1-4%1", "--hold", "--", "sleep", "60").stdout.split()
    cluster.run("release", "line-2", "line-3")
    why = json.loads(cluster.run("why", "line-3", "-o", "json").stdout)
    assert (why["cause"], why["evidence"]) == (
        "array",
        "1 job of its array line runs at a time, and so many come before it",
    )
    (row,) = [line for line in cluster.run("ps").stdout.splitlines() if line.startswith("line")]
    assert row.split()[0] == "line"
    assert "4" in row
    assert "of 4" in row
    assert len([line for line in cluster.run("ps", "--group", "line").stdout.splitlines() if "line-" in line]) == 4
    said = cluster.run("cancel", "line").stdout
    assert said.strip() == "4 jobs of array line cancelled"
    assert set((await ended(cluster, *ids)).values()) == {"CA"}


async def test_parts_of_an_array_are_cancelled_and_each_waits_for_its_like(cluster: Cluster) -> None:
    first = cluster.run("submit", "--id", "one", "--array", "0-3", "--hold", "--", "true").stdout.split()
    second = cluster.run("submit", "--id", "two", "--array", "0-3", "-d", "aftercorr:one", "--", "true").stdout.split()
    cluster.run("cancel", "one-[1-2]")
    cluster.run("release", "one-0", "one-3")
    found = await ended(cluster, *first, *second)
    assert [found[one] for one in second] == ["CD", "CA", "CA", "CD"]


async def test_what_failed_of_a_group_is_retried_once_by_one_request(cluster: Cluster, tmp_path: Path) -> None:
    script = f"test -e {tmp_path}/fixed || exit 3"
    broken = cluster.run("submit", "--group", "nightly", "--id", "g", "--array", "0-9", "--", "sh", "-c", script)
    cluster.run("submit", "--group", "nightly", "--id", "fine", "--", "true")
    ids = broken.stdout.split()
    assert set((await ended(cluster, *ids, "fine")).values()) == {"F", "CD"}
    (tmp_path / "fixed").touch()
    assert (
        cluster.run("retry", "--group", "nightly", "--failed", "--dry-run")
        .stdout.splitlines()[-1]
        .startswith("10 jobs")
    )
    assert cluster.run("retry", "--group", "nightly", "--failed", "-y").stdout.strip() == "10 jobs retried"
    assert set((await ended(cluster, *(f"{one}-r1" for one in ids))).values()) == {"CD"}
    assert cluster.run("retry", "--group", "nightly", "--failed").stdout.strip() == "no job matches"
    assert "was retried before, as g-0-r1" in cluster.run("retry", "g-0").stdout
    refused = cluster.tried("retry", "fine")
    assert "has completed; those that failed or were cancelled are retried" in refused.stderr
    assert len(states(cluster, "--group", "nightly")) == 21
    assert set(states(cluster, "--group", "g")) == {*ids, *(f"{one}-r1" for one in ids)}


async def test_all_of_a_group_are_held_extended_and_cancelled(cluster: Cluster) -> None:
    ids = [
        cluster.run(
            "submit", "--group", "many", "--time", "1h", "--name", f"n{number}", "--", "sleep", "60"
        ).stdout.strip()
        for number in range(3)
    ]
    assert cluster.run("hold", "--group", "many").stdout.strip() == "3 jobs held"
    assert cluster.run("extend", "--group", "many", "--to", "2h").stdout.strip() == "3 jobs extended"
    assert json.loads(cluster.run("show", ids[0], "-o", "json").stdout)["time_limit_s"] == 7200
    assert cluster.run("cancel", "--group", "many").stdout.strip() == "3 jobs cancelled"
    assert set((await ended(cluster, *ids)).values()) == {"CA"}
