"""A reservation on a real cluster: others run until it begins, then make way, and it outlives a restart."""

from __future__ import annotations

from pathlib import Path

from clusters import Cluster

from penstock_testing import eventually


async def test_a_team_gets_its_devices_when_its_reservation_begins(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data", "--emulate", "fast:2")
    cluster.up()
    try:
        assert "nothing is reserved" in cluster.run("reservations").stdout
        assert "pool default has 2 devices" in cluster.tried("reserve", "vision", "--gpus", "3", "--until", "1h").stderr
        long = ["--profile", "off", "--", "sleep", "600"]
        first = cluster.run("submit", "--team", "speech", *long).stdout.strip()
        said = cluster.run("reserve", "vision", "--gpus", "2", "--from", "10m", "--until", "1h", "--reason", "course")
        assert said.stdout.startswith("reservation vision-1: 2 devices of pool default for team vision in ")
        cluster.down()  # it is a fact
        cluster.up()
        kept = cluster.run("submit", "--team", "speech", *long).stdout.strip()
        short = cluster.run(
            "submit", "--team", "speech", "--time", "5m", "--profile", "off", "--", "true"
        ).stdout.strip()
        async with cluster.client() as client:
            assert (await client.wait(short)).state == "CD"  # it is over before the reservation begins

            async def waits_for_it() -> bool:
                return (await client.why(kept)).cause == "reservation"

            await eventually(waits_for_it)
        assert cluster.run("unreserve", "vision-1").stdout == "reservation vision-1 of pool default is cancelled\n"
        async with cluster.client() as client:
            for job in (first, kept):
                async for event in client.follow_events(job):
                    if event.type == "run.started.v1":
                        break
        cluster.run("reserve", "vision", "--gpus", "1", "--from", "now+3", "--until", "1h")
        mine = cluster.run("submit", "--team", "vision", "--profile", "off", "--", "true").stdout.strip()
        async with cluster.client() as client:
            assert (await client.wait(mine)).state == "CD"  # a run of others has made way once it had begun
        assert "in force" in cluster.run("reservations").stdout
        assert "1 device of pool default reserved for team vision in" in cluster.run("story", kept).stdout
    finally:
        cluster.down()
