"""Pilots on a host that a real SSH server is: whatever its login shell prints, and wherever the home is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from other_users import as_root
from ssh_host import SshHost, missing, running_host

from penstock_allocator.pilot_script import PilotFolder
from penstock_allocator.providers import HostProvider, ProviderSilent, SubmissionRefused
from penstock_log import AllocationSpec
from penstock_testing import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"NOT TESTED: pilots over a real SSH; there is no {missing()} here"),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    with running_host(tmp_path_factory.mktemp("ssh")) as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", found.path)
        yield found


def pilot(host: SshHost, name: str, script: str = "echo begun; sleep 600") -> PilotFolder:
    place = PilotFolder(host.home / "data" / name, host.home / "checkpoints")
    place.folder.mkdir(parents=True)
    place.batch.write_text(f"#!/bin/bash\n{script}\n")
    return place


def spec(*hosts: str) -> AllocationSpec:
    return AllocationSpec(provider="ssh", hosts=hosts, walltime_s=60.0, max_pilots=4)


async def test_a_pilot_runs_and_ends_behind_a_login_shell_that_prints_a_welcome(host: SshHost) -> None:
    place, provider = pilot(host, "lab-1"), HostProvider(over_ssh=True)
    number = await provider.submit(spec("desk"), "p", place, ())
    name, _, pid = number.partition(":")
    assert (name, Path(f"/proc/{pid}").exists()) == ("desk", True), number
    assert await provider.submit(spec("desk"), "p", place, ()) == number, "it is not begun twice"
    found = (await provider.list_jobs(spec("desk"), {"p": place}))["p"]
    assert (found.id, found.state) == (number, "running")
    await provider.cancel(found, place)

    async def over() -> bool:
        return (await provider.list_jobs(spec("desk"), {"p": place}))["p"].state == "ended"

    await eventually(over)
    assert "begun" in place.last_words()
    assert "Welcome" not in place.last_words()


async def test_a_dry_run_says_whether_each_host_has_the_folder(host: SshHost, tmp_path: Path) -> None:
    provider = HostProvider(over_ssh=True)
    assert "desk or lathe" in await provider.try_out(spec("desk", "lathe"), pilot(host, "try"))
    expected = r"^desk: it has no folder .*/none that .* may enter; .*same path"
    with pytest.raises(SubmissionRefused, match=expected) as caught:
        await provider.try_out(spec("desk"), PilotFolder(tmp_path / "none", tmp_path))
    assert "Welcome" not in str(caught.value)


@as_root
async def test_a_host_on_which_one_may_not_enter_the_folder_says_as_whom(host: SshHost) -> None:
    place = pilot(host, "foreign-1")
    place.folder.chmod(0o700)
    expected = r"^foreign: it has no folder .*foreign-1 that 54321 may enter; .*same path$"
    with pytest.raises(SubmissionRefused, match=expected):
        await HostProvider(over_ssh=True).submit(spec("foreign"), "p", place, ())
    with pytest.raises(SubmissionRefused, match=expected):
        await HostProvider(over_ssh=True).try_out(spec("foreign"), place)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stranger", r"stranger .*key is not known.*run `ssh stranger` once"),
        ("locked", r"locked .*takes none of your keys.*`ssh locked` has to work without a password"),
    ],
)
async def test_a_host_that_a_person_has_to_see_to_refuses_the_pilot_in_plain_words(
    host: SshHost, name: str, expected: str
) -> None:
    provider = HostProvider(over_ssh=True)
    place = pilot(host, f"{name}-1")
    with pytest.raises(SubmissionRefused, match=expected) as refused:
        await provider.submit(spec(name), "p", place, ())
    with pytest.raises(SubmissionRefused, match=expected) as tried:
        await provider.try_out(spec(name), place)
    assert str(refused.value) == str(tried.value)
    assert not any(word in str(tried.value) for word in ("Welcome", "\n"))
    assert not (place.folder / "host").exists(), "it may begin on another host"


async def test_a_host_that_is_down_is_silent_and_not_refused(host: SshHost) -> None:
    provider = HostProvider(over_ssh=True)
    with pytest.raises(ProviderSilent, match=r"^down is not reached: .*Connection refused"):
        await provider.submit(spec("down"), "p", pilot(host, "down-1"), ())


async def test_another_host_is_tried_after_one_that_refused(host: SshHost) -> None:
    provider, place = HostProvider(over_ssh=True), pilot(host, "next-1")
    with pytest.raises(SubmissionRefused):
        await provider.submit(spec("stranger", "desk"), "p", place, ())
    assert (await provider.submit(spec("stranger", "desk"), "p", place, ())).startswith("desk:")
    await provider.cancel((await provider.list_jobs(spec("desk"), {"p": place}))["p"], place)
