"""Containers on their way, with a program in an engine's place: what is told meanwhile, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock_executor.launchers import containers, image_folder
from penstock_executor.launchers.containers import Container, ContainerRuntimes, ImageRefused, RunContainers, variables

KEY = ("j1", 1)


class Node:
    """The containers of a node whose engine is a shell script."""

    def __init__(self, folder: Path, script: str, **settings: Any) -> None:
        self.folder = folder
        program = folder / "bin/docker"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{script}\n')
        program.chmod(0o755)
        self.warnings: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.here, self.warned = asyncio.Event(), asyncio.Event()
        self.containers = RunContainers(
            ContainerRuntimes(("docker",)),
            folder,
            spawn=self.spawn,
            found=lambda _: self.here.set(),
            warn=self.warn,
            **settings,
        )

    def warn(self, _: tuple[str, int], text: str) -> None:
        self.warnings.append(text)
        self.warned.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(asyncio.get_running_loop().create_task(work))

    async def prepared(self, image: str = "a/b:1") -> Container | ImageRefused | None:
        """Return what a run would start in, once that is known."""
        assert self.containers.prepare(KEY, image, ()) is None
        await self.containers.sweep(())
        async with asyncio.timeout(30):
            await self.here.wait()
        return self.containers.prepare(KEY, image, ())

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path


async def test_how_much_of_an_image_has_come_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "TELL_S", 0.0)
    node = Node(
        folder,
        """case "$1" in
        pull) printf '1: Pulling from a/b\\n0123456789ab: Pulling fs layer\\n0123456789ac: Pulling fs layer\\n'
            printf '0123456789ab: Pull complete\\n'; echo 'no space left on device' >&2; exit 1;;
        *) exit 1;; esac""",
    )
    refused = await node.prepared()
    assert isinstance(refused, ImageRefused)
    assert "no space left on device; check its name" in str(refused)
    assert "got from its registry" in node.warnings[0]
    assert "1 of 2 layers are here" in node.warnings[-1]


async def test_an_image_that_takes_too_long_is_given_up(folder: Path) -> None:
    node = Node(folder, 'case "$1" in pull) exec sleep 600;; *) exit 1;; esac', pull_s=0.2)
    refused = await node.prepared()
    assert isinstance(refused, ImageRefused)
    assert "docker pull has not ended within" in str(refused)


async def test_an_engine_on_another_host_is_refused_and_its_container_removed(folder: Path) -> None:
    node = Node(
        folder,
        """case "$1" in
        image) echo '[{"Config": {"Env": null}}]';;
        inspect) echo 4000000;;
        esac""",
    )
    refused = await node.prepared()
    assert isinstance(refused, ImageRefused)
    assert "is not among this host's processes" in str(refused)
    node.containers.release(KEY)
    await asyncio.gather(*node.tasks)
    assert node.calls()[-1].startswith("rm --force --volumes penstock-")


async def test_an_engine_that_is_gone_is_a_refused_image_and_hinders_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{folder}/bin")  # where a real engine is not found in its place
    node = Node(folder, "true")
    (folder / "bin/docker").unlink()
    (folder / "hold").touch()
    await node.containers.sweep(())
    refused = await node.prepared()
    assert isinstance(refused, ImageRefused)
    assert "docker cannot be started: No such file or directory" in str(refused)
    node.containers.release(KEY)
    await asyncio.gather(*node.tasks)


async def test_what_a_killed_executor_has_left_of_the_same_run_is_removed_before_its_container_is_made(
    folder: Path,
) -> None:
    script = f"""
    case "$1" in
        ps) cat {folder}/there ;;
        image) echo '[{{"Config": {{}}}}]' ;;
        rm) rm -f {folder}/there; touch {folder}/there ;;
        run) [ -s {folder}/there ] && echo "already in use" >&2 && exit 1; echo made > {folder}/there ;;
        inspect) echo 1 ;;
    esac
    """
    node = Node(folder, script)
    (folder / "there").write_text(f"{node.containers._name(KEY)}\n")
    (folder / "hold").touch()
    refused = await node.prepared()
    assert (folder / "there").read_text() == "made\n"
    assert "not among this host's processes" in str(refused)  # no real engine: what runs is not a container
    made = [call.split()[0] for call in node.calls()]
    assert made.index("rm") < made.index("run")
    node.containers.release(KEY)
    await asyncio.gather(*node.tasks)


@pytest.mark.parametrize("said", ["nonsense", "[0]", "[]", '[{"Config": 3}]'])
async def test_what_nobody_expected_of_an_engine_is_a_refused_image(folder: Path, said: str) -> None:
    node = Node(folder, f"echo '{said}'")
    refused = await node.prepared()
    assert isinstance(refused, ImageRefused)
    assert "image 'a/b:1' cannot be had on this node: " in str(refused)
    await asyncio.gather(*node.tasks)


async def test_a_disk_without_room_for_a_container_is_a_refused_image(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(data: Path) -> str:
        raise OSError(28, "No space left on device", str(data))

    monkeypatch.setattr(containers, "_hold_program", full)
    refused = await Node(folder, "echo '[{}]'").prepared()
    assert "No space left on device" in str(refused)


def test_an_image_whose_folders_are_closed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", closed)  # as root may look into all
    assert "usr/bin/env'; let the executor's user read it" in image_folder.problem(str(tmp_path))


async def test_a_run_that_is_no_longer_wanted_ends_what_is_on_its_way(folder: Path) -> None:
    node = Node(folder, 'case "$1" in pull) exec sleep 600;; *) exit 1;; esac')
    assert node.containers.prepare(KEY, "a/b:1", ()) is None
    await node.warned.wait()
    node.containers.tidy(lambda _: False, ())
    await asyncio.gather(*node.tasks, return_exceptions=True)
    assert all(task.done() for task in node.tasks)


async def test_what_nothing_here_runs_is_refused_with_what_would(folder: Path) -> None:
    refused = await Node(folder, "true").prepared("/images/a.sif")
    assert "needs apptainer, and this node has docker" in str(refused)


def test_of_the_host_only_what_is_true_in_an_image_is_passed_on() -> None:
    own = {"PATH": "/host", "LD_LIBRARY_PATH": "/host", "HOME": "/root", "NCCL_DEBUG": "INFO", "MINE": "1", "TZ": "UTC"}
    inside = variables(Container(runtime="docker", environment={"PATH": "/image", "HOME": "/x"}), own, ("MI*",))
    assert inside == {
        "PATH": "/image",
        "HOME": "/tmp",
        "SHELL": "/bin/sh",
        "NCCL_DEBUG": "INFO",
        "MINE": "1",
        "TZ": "UTC",
    }


def test_a_survey_takes_what_the_operator_names_and_says_why_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ContainerRuntimes.survey("none") == ContainerRuntimes()
    monkeypatch.setattr(containers.shutil, "which", lambda *_, **__: None)
    assert ContainerRuntimes.survey("auto") == ContainerRuntimes()
    assert ContainerRuntimes.survey("podman").reasons == {"podman": "it is not installed"}
    monkeypatch.setattr(containers.shutil, "which", lambda name, **_: f"/usr/bin/{name}" if name == "docker" else None)
    monkeypatch.setattr(containers.os, "geteuid", lambda: 0)
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    assert "an engine elsewhere" in ContainerRuntimes.survey("docker").reasons["docker"]
    monkeypatch.setenv("DOCKER_HOST", "unix:///not/there")
    assert "does not answer at unix:///not/there" in ContainerRuntimes.survey("docker").reasons["docker"]
