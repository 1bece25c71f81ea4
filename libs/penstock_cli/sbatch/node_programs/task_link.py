"""
The link between the nodes of an allocation, over which ``srun`` starts tasks on those where the script does not run.

On every further machine :class:`TaskServer` waits for steps. It registers with the script's machine
(:class:`Registry`), where ``srun`` finds its address. Both sides prove that they know the secret of the submission,
which only the job's user can read; what goes over a link is not encrypted, as what the tasks of a job send each other.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any, Iterator, Mapping

from .allocation import BatchError, device_variables
from .local_tasks import LocalTasks, TaskOrder

_HEAD = struct.Struct(">cII")
_MOST = 1 << 26
_PATIENCE_S = 30.0
_AGAIN_S = 0.2
_BEGIN_S = 600.0
"""How long a script that has ended waits for machines that have not come."""
_UNANSWERED_S = 3600.0
"""How long a machine looks for the script's before it takes the script for ended; its files may come for long."""
MESSAGE, OUTPUT, ERRORS = b"j", b"o", b"e"


class TaskLink:
    """One connection: frames of a kind, a task's number and a body."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._sending = threading.Lock()

    def send(self, kind: bytes, number: int, body: bytes) -> None:
        """Send a frame."""
        with self._sending:
            self.connection.sendall(_HEAD.pack(kind, number, len(body)) + body)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message."""
        self.send(MESSAGE, 0, json.dumps(message).encode())

    def receive(self) -> tuple[bytes, int, bytes]:
        """
        Return the next frame.

        Raises
        ------
        ConnectionError
            If the other side has gone.
        """
        kind, number, size = _HEAD.unpack(self._exactly(_HEAD.size))
        if size > _MOST:
            raise ConnectionError(f"a frame of {size} bytes")
        return kind, number, self._exactly(size)

    def hear(self) -> dict[str, Any]:
        """Return the next frame, which is a message."""
        kind, _, body = self.receive()
        if kind != MESSAGE:
            raise ConnectionError("expected a message")
        return dict(json.loads(body.decode()))

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            data = self.connection.recv(min(1 << 16, size - len(found)))
            if not data:
                raise ConnectionError("the other side has closed the connection")
            found += data
        return bytes(found)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def accept(connection: socket.socket, secret: bytes) -> TaskLink:
    """Return a link to whoever has connected, if they know the secret; ``OSError`` if not."""
    connection.settimeout(_PATIENCE_S)
    link, nonce = TaskLink(connection), secrets.token_hex(16)
    with _closed_in_failure(link):
        link.tell({"nonce": nonce})
        said = link.hear()
        if not hmac.compare_digest(str(said.get("proof")), _proof(secret, "connects", nonce)):
            raise ConnectionError("somebody has connected who does not know the secret")
        link.tell({"proof": _proof(secret, "accepts", str(said.get("nonce")))})
    connection.settimeout(None)
    return link


def connect(address: tuple[str, int], secret: bytes) -> TaskLink:
    """Return a link to a listener that knows the secret; an ``OSError`` if there is none."""
    connection = socket.create_connection(address, _PATIENCE_S)
    link, nonce = TaskLink(connection), secrets.token_hex(16)
    with _closed_in_failure(link):
        link.tell({"proof": _proof(secret, "connects", str(link.hear().get("nonce"))), "nonce": nonce})
        if not hmac.compare_digest(str(link.hear().get("proof")), _proof(secret, "accepts", nonce)):
            raise ConnectionError("the listener does not know the secret")
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return link


@contextlib.contextmanager
def _closed_in_failure(link: TaskLink) -> Iterator[None]:
    try:
        yield
    except BaseException:
        link.close()
        raise


def _proof(secret: bytes, who: str, nonce: str) -> str:
    return hmac.new(secret, (who + " " + nonce).encode(), "sha256").hexdigest()


class Registry:
    """
    The machines of an allocation, on the script's: where the task server of each is.

    Parameters
    ----------
    path : str
        A file that ``srun`` reads once all have come.
    """

    def __init__(self, port: int, machines: int, secret: bytes, path: str) -> None:
        self._secret, self._path, self._machines = secret, path, machines
        self._links: list[TaskLink] = []
        self._known: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()
        self._news: SimpleQueue[bool] = SimpleQueue()
        self._began_s = _now_s()
        try:
            self._listener = socket.create_server(("", port)) if hasattr(socket, "create_server") else _server(port)
        except OSError as error:
            raise BatchError(
                f"port {port}, where the job's nodes meet, is taken ({error.strerror}); submit the job again"
            ) from error
        threading.Thread(target=self._accept_all, daemon=True).start()

    def _accept_all(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._register, args=(connection, address[0]), daemon=True).start()

    def _register(self, connection: socket.socket, address: str) -> None:
        try:
            link = accept(connection, self._secret)
            said = link.hear()
        except (OSError, ValueError):
            connection.close()
            return
        with self._lock:
            self._links.append(link)
            self._known[str(said["machine"])] = address, int(said["port"])
            if len(self._known) == self._machines - 1:
                with open(self._path + ".new", "w") as file:
                    json.dump(self._known, file)
                os.rename(self._path + ".new", self._path)
                self._news.put(True)

    def stop_waiting(self) -> None:
        """Have :meth:`end` wait for no machine; a handler of signals may call it."""
        self._news.put(False)

    def end(self, *, waits: bool) -> None:
        """
        Tell all machines that the script has ended.

        Parameters
        ----------
        waits : bool
            Tell those too that come later: a machine that finds nobody could not know that the script is over, and one
            that was told nothing would fail the job.
        """
        if waits and self._machines > 1:
            with contextlib.suppress(Empty):
                self._news.get(timeout=max(0.0, self._began_s + _BEGIN_S - _now_s()))
        self._listener.close()
        with self._lock:
            for link in self._links:
                with contextlib.suppress(OSError):
                    link.tell({"end": True})


def _now_s() -> float:
    return time.monotonic()  # noqa: TID251 - how long other machines may take to come


def _server(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen()
    return listener


class TaskServer:
    """
    What starts the tasks of steps on a machine where the script does not run.

    Parameters
    ----------
    environ : mapping
        The environment of the run's process here: its own variables win over those that a step brings. It has all of
        the run's devices on this machine, of which each task is given some.
    """

    def __init__(self, environ: Mapping[str, str], secret: bytes) -> None:
        self._environ, self._secret = environ, secret
        self._listener = _server(0)
        self._steps: list[LocalTasks] = []
        self.is_linked = False
        """Whether the script's machine has been found."""

    def serve(self, machine: int, address: tuple[str, int]) -> bool:
        """
        Serve steps until the script has ended; return whether it has, or its machine was lost.

        A machine on which nobody answers for an hour has run the script already.
        """
        threading.Thread(target=self._accept_all, daemon=True).start()
        until_s = _now_s() + _UNANSWERED_S
        while True:
            try:
                link = connect(address, self._secret)
                break
            except OSError as error:
                if _now_s() > until_s:
                    where = f"{address[0]} port {address[1]}"
                    sys.stderr.write(f"penstock: no script was at {where} ({error}); this node ends without it\n")
                    return True
                time.sleep(_AGAIN_S)  # the script's machine begins later
        self.is_linked = True
        try:
            link.tell({"machine": machine, "port": self._listener.getsockname()[1]})
            return bool(link.hear().get("end"))
        except OSError:
            return False
        finally:
            for tasks in self._steps:
                tasks.kill()

    def signal(self, signum: int) -> None:
        """Send a signal to all tasks."""
        for tasks in list(self._steps):
            tasks.signal(signum)

    def _accept_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._run_step, args=(connection,), daemon=True).start()

    def _run_step(self, connection: socket.socket) -> None:
        try:
            link = accept(connection, self._secret)
            step = link.hear()
        except (OSError, ValueError):
            connection.close()
            return
        events: SimpleQueue[Any] = SimpleQueue()
        tasks = LocalTasks(events, reads_output=True)
        self._steps.append(tasks)
        for task in step["tasks"]:
            env = self._environment(step["env"], task["env"], task["devices"])
            tasks.start(TaskOrder(task["number"], step["argv"], env, step["cwd"]))
        threading.Thread(target=self._listen, args=(link, tasks, events), daemon=True).start()
        left = len(step["tasks"])
        try:
            while left:
                event = events.get()
                if event[0] == "gone":
                    break
                if event[0] == "output":
                    link.send(OUTPUT if event[2] == 1 else ERRORS, event[1], event[3])
                else:
                    left -= 1
                    link.tell({"task": event[1], "code": event[2]})
        except OSError:
            pass
        tasks.kill()
        self._steps.remove(tasks)
        link.close()

    def _listen(self, link: TaskLink, tasks: LocalTasks, events: SimpleQueue[Any]) -> None:
        """Pass on the signals that ``srun`` sends; when it has gone, its tasks go too."""
        try:
            while True:
                tasks.signal(int(link.hear()["signal"]))
        except (OSError, ValueError, KeyError):
            tasks.signal(signal.SIGTERM)
            events.put(("gone",))

    def _environment(self, base: Mapping[str, str], own: Mapping[str, str], places: list[int]) -> dict[str, str]:
        """Return a task's environment: the step's, with this machine's folders and devices."""
        env, here = dict(base), self._environ
        there = env.get("PENSTOCK_CODE_DIR", "")
        if there:
            env["PATH"] = env.get("PATH", "").replace(there, here["PENSTOCK_CODE_DIR"])
        for name in list(env):
            if name.startswith(("PENSTOCK_", "CUDA_VISIBLE", "NVIDIA_VISIBLE")) and name != "PENSTOCK_BATCH_DIR":
                del env[name]
        env.update({name: value for name, value in here.items() if name.startswith(("PENSTOCK_", "CUDA_", "NVIDIA_"))})
        env.update(device_variables(here, places))
        env.update(own)
        return env
