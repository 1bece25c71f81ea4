"""The walk-through of docs/extend.md, done."""

import asyncio
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Queue

import pytest

from penstock_bus import Append, NoResponders, ServiceError
from penstock_cli.app import write_service
from penstock_log import Commit, JobFinished, subjects, tag_of
from penstock_testing import eventually

GUIDE = Path(__file__).parents[2] / "docs/extend.md"


def write_guide_code(folder: Path) -> None:
    for path, code in re.findall(r"```python\n# (\S+)\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL):
        assert (folder / path).exists(), f"the guide replaces {path}, which the skeleton does not have"
        (folder / path).write_text(code)


@pytest.mark.slow
def test_the_skeleton_passes_its_own_test(tmp_path):
    write_service("notifier", tmp_path)
    own = f"--basetemp={tmp_path / 'pytest'}"  # beside ours, or it would close our folders to other users again
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", own]
    run = subprocess.run(command, cwd=tmp_path / "notifier", capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", ["", "Notifier", "1st", "a/b", "../up"])
def test_a_name_that_cannot_be_a_package_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="cannot name a service"):
        write_service(name, tmp_path)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "notifier").mkdir()
    (tmp_path / "notifier/mine.py").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        write_service("notifier", tmp_path)


class Webhook(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted; refuses the very first post."""

    posts: Queue
    refusals = 1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if Webhook.refusals:
            Webhook.refusals -= 1
            self.send_error(503)
            return
        Webhook.posts.put((self.headers["Idempotency-Key"], json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def webhook():
    Webhook.posts, Webhook.refusals = Queue(), 1
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/done"
    server.shutdown()
    thread.join()
    server.server_close()


async def finish(bus, job_id: str) -> None:
    fact = JobFinished(at_s=2.0, job_id=job_id, name="train", state="completed", submitted_s=1.0)
    commit = Commit(id=job_id, actor="gateway/test", facts=(fact,))
    await bus.append(Append(subject=subjects.job(job_id), commit=commit, expected=0))


async def is_ready(bus) -> bool:
    with suppress(NoResponders, ServiceError):  # the latter: it says that it is not
        return bool(await bus.request(subjects.query("ready", "notifier"), b""))
    return False


async def test_the_notifier_of_the_guide_posts_finished_jobs_and_goes_on_where_it_was(
    tmp_path, webhook, nats_bus, nats_account
):
    write_service("notifier", tmp_path)
    write_guide_code(tmp_path / "notifier")
    environment = {**os.environ, **nats_account.environment, "PENSTOCK_NOTIFIER_URL": webhook}
    environment |= {"PENSTOCK_NOTIFIER_RETRY_S": "0.05", "PENSTOCK_NOTIFIER_PUBLISH": "true"}
    await finish(nats_bus, "of-last-year")
    for job_id in ("j1", "j2"):
        command = [sys.executable, "-m", "penstock_notifier"]
        service = await asyncio.create_subprocess_exec(*command, cwd=tmp_path / "notifier", env=environment)
        try:
            await eventually(lambda: is_ready(nats_bus))
            await finish(nats_bus, job_id)
            key, fact = await asyncio.to_thread(Webhook.posts.get, timeout=60)
            assert (key, fact["job_id"]) == (f"{job_id}/finished", job_id)
            noted = await anext(nats_bus.follow(subjects=[subjects.extension("notifier", job_id)]))
            assert [tag_of(one) for one in noted.commit.facts] == ["ext.notifier.job_noted.v1"]
            service.terminate()
            assert await service.wait() == 0
        finally:
            if service.returncode is None:
                service.kill()
                await service.wait()
    assert Webhook.posts.empty()
