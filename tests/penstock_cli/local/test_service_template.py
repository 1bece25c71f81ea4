"""The process from which `penstock up` forks the services, with services made for the test."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from penstock_cli.local.data_folder import process
from penstock_cli.local.service_template import ServiceProcess, ServiceTemplate
from penstock_testing import eventually

pytestmark = pytest.mark.slow

SLEEPING = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"


class Forge:
    """Makes services and forks them; their template begins with the first fork."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entered = AsyncExitStack()
        self._template: ServiceTemplate | None = None

    def service(self, name: str, code: str, runner: str = "") -> None:
        package = self.folder / f"penstock_{name}"
        package.mkdir()
        body = "\n".join(f"    {line}" for line in code.splitlines()) or "    pass"
        program = f"import penstock_{name}.runner\nif __name__ == '__main__':\n{body}\n"
        for module, text in (("__init__", ""), ("runner", runner), ("__main__", program)):
            (package / f"{module}.py").write_text(text)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    async def fork(self, name: str, **environment: str) -> ServiceProcess:
        if self._template is None:
            self._template = await self._entered.enter_async_context(ServiceTemplate(["one", "other", "one"]))
        with (self.folder / f"{name}.log").open("ab") as log:
            return await self._template.fork(name, environment, log)

    async def sleeping(self, name: str) -> ServiceProcess:
        forked = await self.fork(name)
        await eventually(lambda: "begun" in self.said(name))
        return forked

    async def close(self) -> None:
        await self._entered.aclose()


@pytest_asyncio.fixture
async def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Forge]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    forge = Forge(tmp_path)
    yield forge
    await forge.close()


def template_of(forked: ServiceProcess) -> int:
    return int(Path(f"/proc/{forked.pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_gone(pid: int) -> bool:
    return process(pid).start_ticks == 0


async def test_its_exit_status_is_that_of_python_with_the_package(forge: Forge) -> None:
    forge.service("one", "import os, sys\nprint('out')\nsys.stderr.write('err')\nexec(os.environ['CODE'])\n")
    for code, status in (("", 0), ("exit()", 0), ("exit(7)", 7), ("exit('no')", 1), ("1/0", 1)):
        forked = await forge.fork("one", CODE=code)
        assert await forked.wait() == status
        assert forked.returncode == status
        forked.send_signal(signal.SIGTERM)  # to nobody
    assert (forge.said("one").count("out"), forge.said("one").count("err")) == (5, 5)


async def test_what_services_need_is_imported_once_for_all(forge: Forge) -> None:
    note = f"import os\nopen({str(forge.folder / 'imports')!r}, 'a').write(f'{{os.getpid()}} ')\n"
    forge.service("one", SLEEPING, runner=note)
    forge.service("other", SLEEPING, runner=note)
    processes = [await forge.sleeping("one"), await forge.sleeping("other")]
    (template,) = {template_of(each) for each in processes}
    assert (forge.folder / "imports").read_text() == f"{template} {template} "


async def test_a_process_has_its_own_environment_session_and_command_line(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_REPLICA_ID", "of-another-service")
    monkeypatch.setenv("PENSTOCK_DRAIN_S", "1")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    names = ("PENSTOCK_REPLICA_ID", "PENSTOCK_DRAIN_S", "NEW", "OPENBLAS_NUM_THREADS")
    forge.service("one", f"import os\nprint(*map(os.environ.get, {names}))\n{SLEEPING}")
    forked = await forge.fork("one", PENSTOCK_DRAIN_S="2", NEW="3")
    await eventually(lambda: "begun" in forge.said("one"))
    assert forge.said("one").splitlines()[0] == "None 2 3 None"
    shown = Path(f"/proc/{forked.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert shown == [os.fsencode(sys.executable), b"-m", b"penstock_one"]
    assert os.getsid(forked.pid) == forked.pid
    files = {os.readlink(entry) for entry in Path(f"/proc/{forked.pid}/fd").iterdir()}
    assert files == {os.devnull, str(forge.folder / "one.log")}


async def test_a_service_that_cannot_be_imported_says_so_itself_and_harms_no_other(forge: Forge) -> None:
    forge.service("one", "", runner="1/0")
    forge.service("other", "exit(5)")
    assert [await (await forge.fork(name)).wait() for name in ("one", "other")] == [1, 5]
    assert "ZeroDivisionError" in forge.said("one")


async def test_a_killed_process_is_told_with_its_signal(forge: Forge) -> None:
    forge.service("one", SLEEPING)
    forge.service("other", SLEEPING)
    one, other = await forge.sleeping("one"), await forge.sleeping("other")
    os.kill(one.pid, signal.SIGKILL)
    assert await one.wait() == -signal.SIGKILL
    assert other.returncode is None
    other.send_signal(signal.SIGTERM)
    assert await other.wait() == -signal.SIGTERM


async def test_without_the_template_its_services_end_and_the_next_one_has_another(forge: Forge) -> None:
    forge.service("one", SLEEPING)
    forge.service("other", SLEEPING)
    one = await forge.sleeping("one")
    first = template_of(one)
    os.kill(first, signal.SIGKILL)
    assert await one.wait() == -signal.SIGTERM
    assert is_gone(one.pid)
    assert template_of(await forge.sleeping("other")) != first


async def test_whoever_waits_for_a_fork_when_the_template_dies_is_told(forge: Forge) -> None:
    forge.service("one", SLEEPING, runner="import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(OSError, match="the process that forks the services has ended"):
        await forge.fork("one")


async def test_what_was_forked_for_nobody_ends_with_the_template(forge: Forge) -> None:
    note = f"import os\nwith open({str(forge.folder / 'pid')!r}, 'w') as file: file.write(str(os.getpid()))\n"
    forge.service("one", f"{note}{SLEEPING}")
    asking = asyncio.create_task(forge.fork("one"))
    await eventually((forge.folder / "one.log").exists)
    asking.cancel()
    while "begun" not in forge.said("one"):  # without the loop, which then has not heard of the fork
        time.sleep(0.001)  # noqa: ASYNC251 - the loop is to stand still
    await forge.close()
    assert is_gone(int((forge.folder / "pid").read_text()))


PRELOADED = """
import sys
from runpy import run_module
from penstock_cli.local.service_template import preload
from penstock_log.services import CORE
from penstock_policies import matching
preload(CORE)
before = {*sys.modules}
for service in CORE:
    run_module(f"penstock_{service}")  # without becoming it
print(*sorted({*sys.modules} - before), "numba" in before, matching.KERNELS.are_kept())
"""


def test_nothing_that_a_service_of_penstock_imports_is_left_to_the_fork() -> None:
    done = subprocess.run([sys.executable, "-c", PRELOADED], capture_output=True, text=True, check=True)
    *later, kernels_loaded, kernels_kept = done.stdout.split()
    assert (later, kernels_loaded) == ([], kernels_kept)
