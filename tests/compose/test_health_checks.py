"""What compose.yaml says, without an engine: health checks, as a shell runs them, logins, and what nobody may do."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock_bus.identity import access, logins
from penstock_log.services import CORE, LOGINS

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DOCKERFILE = re.sub(r"\s*\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
READY_FILE = COMPOSE["x-environment"]["PENSTOCK_READY_FILE"]


def test_each_service_of_the_list_has_its_container_and_its_login() -> None:
    """An executor's has its agents too: all measure what is in it, and have its name as the node's."""
    run = [one for one in SERVICES.values() if one["entrypoint"][:2] == ["penstock", "service"]]
    beside = set(logins.NODE_ROLES)
    assert {one["entrypoint"][2] for one in run} == set(CORE) - beside
    for one in run:
        name = one["entrypoint"][2]
        assert one["environment"]["PENSTOCK_CREDENTIALS"] == f"/auth/{name}/{name}.json"
        assert f"auth-{name}:/auth/{name}:ro" in one["volumes"]
    nodes = [one for one in SERVICES.values() if "penstock_cli.local.node_processes" in one["entrypoint"]]
    assert len(nodes) == 2  # with emulated devices, and with GPUs
    for one in nodes:
        assert one["entrypoint"][4:] == [f"/auth/{name}/{name}.json" for name in logins.NODE_ROLES]
        assert {f"auth-{name}:/auth/{name}:ro" for name in beside} < set(one["volumes"])
        said = one["environment"]
        for agent in ("MEMORY", "AGGREGATOR"):
            assert said[f"PENSTOCK_EXECUTOR_{agent}_DIR"] == said[f"PENSTOCK_{agent}_DATA_DIR"]
            assert said[f"PENSTOCK_{agent}_DATA_DIR"] in one["volumes"]  # a folder of the container's own
    assert {f"auth-{name}:/auth/{name}" for name in LOGINS} < set(SERVICES["nats"]["volumes"])
    assert {f"auth-{name}" for name in LOGINS} < set(COMPOSE["volumes"])


def test_the_image_has_a_folder_of_its_own_for_each_login_that_is_mounted() -> None:
    """A volume that is mounted where the image has no folder belongs to root, and no container is root."""
    found = re.search(r'python -c "(.*?)" \| xargs -n1 \| sed (.*?) \|', DOCKERFILE)
    assert found is not None
    named = subprocess.run([sys.executable, "-c", found[1]], capture_output=True, text=True, check=True).stdout.split()
    folders = {f"/auth/{name}" for name in named} | set(re.findall(r"\$a (/\S+?)'", found[2]))
    mounted = {volume.split(":")[1] for one in SERVICES.values() for volume in one["volumes"] if ":" in volume}
    assert {path for path in mounted if path.startswith("/auth/")} <= folders


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_has_no_rights_and_a_root_that_is_only_read(service: str) -> None:
    said = SERVICES[service]
    assert said["user"] == "10001:10001"
    assert said["read_only"] is True
    assert said["cap_drop"] == ["ALL"]
    assert said["security_opt"] == ["no-new-privileges:true"]
    assert f"USER {said['user']}" in DOCKERFILE
    assert not {"privileged", "cap_add", "pid", "network_mode"} & said.keys()


def check(service: str, **elsewhere: str) -> int:
    """Run a check with other paths; return its exit code."""
    kind, *command = [word.replace("$$", "$") for word in SERVICES[service]["healthcheck"]["test"]]
    for path, other in elsewhere.items():
        command = [word.replace(path, other) for word in command]
    return subprocess.run(["sh", "-c", *command] if kind == "CMD-SHELL" else command, check=False).returncode


def test_an_extensions_login_lies_in_a_volume_whose_folder_belongs_to_the_user_of_the_containers() -> None:
    server = SERVICES["nats"]
    assert "PENSTOCK_EXTENSIONS_NAMES" in server["environment"]
    mounted = dict(reversed(volume.split(":")) for volume in server["volumes"])
    assert mounted["/auth"] in COMPOSE["volumes"]
    folders = re.search(r"mkdir -p (.*?) && chown penstock: (.*)", DOCKERFILE)
    assert folders is not None
    assert "/auth" in folders[1].split()
    assert "/auth" in folders[2].split()


@pytest.mark.parametrize("service", SERVICES)
def test_a_check_starts_no_python(service: str) -> None:
    assert "python" not in " ".join(SERVICES[service]["healthcheck"]["test"])


@pytest.mark.parametrize("service", [name for name in SERVICES if not name.startswith("nats")])
def test_a_service_writes_the_file_that_its_check_looks_at(service: str) -> None:
    assert SERVICES[service]["environment"]["PENSTOCK_READY_FILE"] == READY_FILE
    assert READY_FILE in SERVICES[service]["healthcheck"]["test"][1]


@pytest.mark.parametrize(("age_s", "healthy"), [(0, True), (60, False), (None, False)])
def test_a_service_is_healthy_while_its_file_is_fresh(tmp_path: Path, age_s: float | None, *, healthy: bool) -> None:
    file = tmp_path / "ready"
    if age_s is not None:
        file.touch()
        then_s = file.stat().st_mtime - age_s
        os.utime(file, (then_s, then_s))
    assert (check("matcher", **{READY_FILE: str(file)}) == 0) is healthy


def test_the_credentials_that_a_check_waits_for_are_written_after_all_others() -> None:
    *_, role = access.users_of_roles(["billing"])
    assert f"/auth/{role}/{logins.file_name(role)}" in SERVICES["nats"]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("handed_out", [True, False])
async def test_the_server_is_healthy_once_it_listens_and_credentials_are_there(
    tmp_path: Path, *, handed_out: bool
) -> None:
    if handed_out:
        (tmp_path / "extension").mkdir()
        (tmp_path / "extension" / "extension.json").touch()
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ours = {"/auth": str(tmp_path), "4222": str(port)}
    async with server:
        assert (await asyncio.to_thread(check, "nats", **ours) == 0) is handed_out
    assert await asyncio.to_thread(check, "nats", **ours) != 0
