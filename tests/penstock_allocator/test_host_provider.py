"""Pilots as processes of this machine: begun once, seen by another allocator, ended with all that they started."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import uvloop

from penstock_allocator.pilot_script import PilotFolder
from penstock_allocator.providers import HostProvider, ProviderSilent, SubmissionRefused
from penstock_log import AllocationSpec
from penstock_testing import eventually

LOCAL = AllocationSpec(provider="local", walltime_s=60.0)


def pilot(tmp_path: Path, script: str) -> PilotFolder:
    place = PilotFolder(tmp_path / "lab-1", tmp_path / "checkpoints")
    place.folder.mkdir()
    place.batch.write_text(f"#!/bin/bash\n{script}\n")
    return place


@pytest.mark.slow
async def test_a_pilot_runs_until_it_is_cancelled_whoever_looks_at_it(tmp_path: Path) -> None:
    place = pilot(tmp_path, "echo begun; sleep 600")
    number = await HostProvider(over_ssh=False).submit(LOCAL, "p", place, ())
    other = HostProvider(over_ssh=False)
    found = (await other.list_jobs(LOCAL, {"p": place}))["p"]
    assert (found.id, found.state) == (number, "running")
    await other.cancel(found, place)

    async def over() -> bool:
        return (await other.list_jobs(LOCAL, {"p": place}))["p"].state == "ended"

    await eventually(over)
    assert "begun" in place.last_words()


@pytest.mark.slow
async def test_a_pilot_that_is_submitted_again_is_not_begun_twice(tmp_path: Path) -> None:
    place = pilot(tmp_path, "echo once >> begun; sleep 600")
    provider = HostProvider(over_ssh=False)
    first = await provider.submit(LOCAL, "p", place, ())
    assert await provider.submit(LOCAL, "p", place, ()) == first
    await provider.cancel((await provider.list_jobs(LOCAL, {"p": place}))["p"], place)


async def test_a_pilot_that_was_never_begun_is_not_listed(tmp_path: Path) -> None:
    place = PilotFolder(tmp_path / "lab-1", tmp_path / "checkpoints")
    assert await HostProvider(over_ssh=False).list_jobs(LOCAL, {"p": place}) == {}


async def test_each_host_has_one_pilot_at_a_time(tmp_path: Path) -> None:
    provider, spec = HostProvider(over_ssh=True), AllocationSpec(provider="ssh", hosts=("a", "b"))
    assert provider._free_host(spec, ["a:17"]) == "b"
    with pytest.raises(ProviderSilent, match="each of its hosts has a pilot"):
        provider._free_host(spec, ["a:17", "b:3"])


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    place = PilotFolder(tmp_path / "none", tmp_path / "checkpoints")
    with pytest.raises(SubmissionRefused, match="has no folder"):
        await HostProvider(over_ssh=False).try_out(LOCAL, place)


async def test_a_pilot_whose_folder_cannot_be_listed_is_silent_and_not_over(tmp_path: Path) -> None:
    places = {name: PilotFolder(tmp_path / name, tmp_path / "checkpoints") for name in ("p", "q")}
    for place in places.values():
        place.folder.mkdir()
        (place.folder / "host").write_text("")
    provider = HostProvider(over_ssh=False)
    assert await provider.list_jobs(LOCAL, places) == {}, "nobody has begun them"
    (places["p"].folder / "process").write_text("1 0\n")
    assert {name: job.state for name, job in (await provider.list_jobs(LOCAL, places)).items()} == {"p": "ended"}
    (places["q"].folder / "host").unlink()
    places["q"].folder.rmdir()
    found = await provider._look_at("", places)
    assert {name: job.state for name, job in found.items()} == {"p": "silent", "q": "silent"}
    assert "No such file" in found["p"].reason


SSH = """#!/bin/bash
host="${@: -2:1}"
echo "$host" >> "$(dirname "$0")/asked"
if [ "$host" = dead ]; then echo "ssh: connect to host dead: No route to host" >&2; exit 255; fi
exec bash -c "${@: -1}"
"""


@pytest.mark.slow
async def test_a_host_that_is_not_reached_keeps_no_pilot_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    spec = AllocationSpec(provider="ssh", hosts=("dead", "live"), walltime_s=60.0, max_pilots=2)
    provider, place = HostProvider(over_ssh=True), pilot(tmp_path, "sleep 600")
    with pytest.raises(ProviderSilent, match="dead is not reached"):
        await provider.submit(spec, "p", place, ())
    assert await provider.list_jobs(LOCAL, {"p": place}) == {}
    assert (await provider.submit(spec, "p", place, ())).startswith("live:")
    other = PilotFolder(tmp_path / "lab-2", tmp_path / "checkpoints")
    other.folder.mkdir()
    (other.folder / "host").write_text("dead")
    found = await provider.list_jobs(LOCAL, {"p": place, "q": other})
    assert (found["p"].state, found["q"].state) == ("running", "silent")
    assert "No route to host" in found["q"].reason
    await provider.cancel(found["p"], place)


@pytest.mark.slow
def test_a_pilot_that_runs_on_keeps_nobody_waiting_under_the_loop_of_the_services(tmp_path: Path) -> None:
    place = pilot(tmp_path, "sleep 600")
    provider = HostProvider(over_ssh=False)

    async def begin() -> None:
        await asyncio.wait_for(provider.submit(LOCAL, "p", place, ()), 30.0)
        await provider.cancel((await provider.list_jobs(LOCAL, {"p": place}))["p"], place)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(begin())
