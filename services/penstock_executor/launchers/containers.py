"""
Containers of runs: what gives the processes of a job the files of its image.

An engine, docker or podman, gets the image and makes one container for each run, in which nothing runs but a program
that waits. The engine does what it alone can do: it unpacks the layers, and attaches the driver and the nodes of the
run's GPUs. The run's processes are started by their shims, as all are, and enter the container's mount namespace
(:mod:`confinement`). So an engine that is stopped, updated or hung changes nothing of a run that is at work, and
output, signals, memory limits, the fence and the adoption by a later executor are those of any other process.

:class:`ContainerRuntimes` says what a node has, :class:`RunContainers` makes containers ahead of runs, and removes them
behind.

References
----------
Open Container Initiative, *Image Format Specification*: ``Env``, ``Entrypoint`` and ``Cmd`` of an image.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
import re
import shutil
import socket
import struct
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from penstock_executor.launchers import image_folder, sandbox
from penstock_executor.launchers.confinement import HOLD
from penstock_executor.run_state import Key
from penstock_executor.settings import ContainersName
from penstock_log import Device
from penstock_log.spec import ContainerRuntime, runtimes_of
from penstock_log.text import duration

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What a process gets where its image does not say."""
LABEL: Final = "org.penstock"
_SOCKETS: Final = {"docker": "/var/run/docker.sock"}
TELL_S: Final = 30.0
"""Between two words on how much of an image has come."""
_READ_BYTES: Final = 64 * 1024
_CALL_S: Final = 120.0
"""The longest time that an engine may take for anything but getting an image."""
_WAITS: Final = {
    "x86_64": (62, "b8220000000f05ebf7"),  # again: pause()
    "aarch64": (183, "000080d2010080d2020080d2030080d2280980d2010000d4faffff17"),  # again: ppoll()
}
_log: Final = structlog.get_logger("penstock.executor")


class ImageRefused(Exception):
    """The image of a job cannot be had on this node; the message says why, and what to do."""


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the processes of a run are started in.

    Attributes
    ----------
    namespace : str
        The mount namespace of an engine's container; empty where a program makes one for each process.
    image : str
        The path of the image, for such a program.
    environment : dict of str to str
        The variables that the image says.
    """

    runtime: ContainerRuntime
    namespace: str = ""
    image: str = ""
    environment: dict[str, str] = {}


class ContainerRuntimes(msgspec.Struct, frozen=True):
    """
    What runs images on this node, and why others do not.

    Attributes
    ----------
    names : tuple of str
    reasons : dict of str to str
        Runtime → why it is not among them, and what to do; of one that is not installed nothing is said.
    """

    names: tuple[ContainerRuntime, ...] = ()
    reasons: dict[str, str] = {}

    @classmethod
    def survey(cls, choice: ContainersName, user: int | None = None) -> ContainerRuntimes:
        """
        Look at what this node has of what its operator lets it use.

        Parameters
        ----------
        user : int, optional
            As whom jobs run, to try programs that need no engine.
        """
        if choice == "none":
            return cls()
        names: list[ContainerRuntime] = []
        reasons: dict[str, str] = {}
        candidates: tuple[ContainerRuntime, ...] = (
            ("docker", "podman", "apptainer", "bubblewrap") if choice == "auto" else (choice,)
        )
        for name in candidates:
            if choice == "auto" and name == "podman" and "docker" in names:
                continue
            why = _problem(name, user)
            if not why:
                names.append(name)
            elif why is not _ABSENT or choice != "auto":
                reasons[name] = why
        return cls(tuple(names), reasons)

    def runtime_for(self, image: str) -> ContainerRuntime | None:
        """Return what runs an image here; None if nothing does."""
        return next((name for name in runtimes_of(image) if name in self.names), None)


_ABSENT: Final = "it is not installed"


def _problem(name: ContainerRuntime, user: int | None) -> str:
    if name == "bubblewrap":
        return sandbox.problem(user) if shutil.which(sandbox.PROGRAM) else _ABSENT
    if shutil.which(name) is None:
        return _ABSENT
    if name == "apptainer":
        return ""
    if os.geteuid() != 0:
        return f"only an executor that runs as root can start processes in containers of {name}; run it as root"
    if platform.machine() not in _WAITS:
        return f"no container is made on {platform.machine()}; expected one of {', '.join(_WAITS)}"
    return _silent_daemon() if name == "docker" else ""


def _silent_daemon() -> str:
    address = os.environ.get("DOCKER_HOST") or f"unix://{_SOCKETS['docker']}"
    if not address.startswith("unix://"):
        return f"DOCKER_HOST is {address}, an engine elsewhere; processes can enter containers of this host alone"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(5.0)
        try:
            client.connect(address.removeprefix("unix://"))
        except OSError as error:
            return f"its daemon does not answer at {address}: {error.strerror or error}; start it"
    return ""


def mark_of(data: Path) -> str:
    """Return by what the containers of an executor's folder are known."""
    return hashlib.sha256(os.fsencode(data.absolute())).hexdigest()[:12]


class RunContainers:
    """
    The containers of this node's runs: made before their processes start, removed after these have ended.

    Parameters
    ----------
    data : Path
        The executor's own folder: by it its containers are told from those of others.
    spawn : callable
        Runs a coroutine beside the caller.
    found : callable
        ``found(key)``: called when a container is there, or cannot be had.
    warn : callable
        ``warn(key, text)``: tell of something that takes long.
    """

    def __init__(
        self,
        runtimes: ContainerRuntimes,
        data: Path,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        found: Callable[[Key], None],
        warn: Callable[[Key, str], None],
        pull_s: float = 1800.0,
    ) -> None:
        self.runtimes, self._data = runtimes, data
        self._mark = mark_of(data)
        self._spawn, self._found, self._warn, self._pull_s = spawn, found, warn, pull_s
        self._known: dict[Key, Container | ImageRefused | None] = {}
        self._adopted: set[Key] = set()
        self._made: dict[Key, ContainerRuntime] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._swept = asyncio.Event()

    def prepare(self, key: Key, image: str, devices: Sequence[Device]) -> Container | ImageRefused | None:
        """Return what a run's processes start in, once it is known; None while it is on its way."""
        if key not in self._known:
            self._known[key] = None
            self._spawn(self._work(key, image, devices))
        return self._known[key]

    def tidy(self, wanted: Callable[[Key], bool], has_started: Collection[Key]) -> None:
        """Remove what was made for runs that are no longer wanted and have not started."""
        for key in [key for key in self._known if key not in has_started and not wanted(key)]:
            self.release(key)

    def release(self, key: Key) -> None:
        """Remove the container of a run that has ended, if it has one; what is on its way ends."""
        self._known.pop(key, None)
        self._adopted.discard(key)
        task, engine = self._tasks.pop(key, None), self._made.pop(key, None)
        if task is not None:
            task.cancel()
        if engine is not None:
            self._spawn(self._end(task, engine, self._name(key)))

    def close(self, alive: Collection[Key]) -> None:
        """Remove all but the containers of runs that go on, as no other starts any more."""
        for key in {*self._known, *self._made}.difference(alive):
            self.release(key)

    async def _end(self, task: asyncio.Task[None] | None, engine: ContainerRuntime, name: str) -> None:
        if task is not None:
            await asyncio.wait({task})
        await self._remove(engine, name)

    async def sweep(self, alive: Collection[Key]) -> None:
        """
        Remove what earlier executors of this node have left, but for runs that go on.

        No container is made before that.
        """
        self._adopted = {*alive}
        try:
            await self._remove_left()
        finally:
            self._swept.set()

    async def _remove_left(self) -> None:
        used = (self._data / _HOLD_FILE).exists()  # else no container was ever made here
        for engine in self.runtimes.names if used else ():
            if engine not in _ENGINES:
                continue
            command = (engine, "ps", "--all", "--filter", f"label={LABEL}={self._mark}", "--format", "{{.Names}}")
            try:
                names = (await _call(*command)).split()
            except ImageRefused as error:
                _log.warning("containers_not_swept", engine=engine, error=str(error))
                continue
            for name in names:
                kept = {self._name(key): key for key in self._adopted}  # less what has ended meanwhile
                if name in kept:
                    self._made[kept[name]] = engine
                else:
                    await self._remove(engine, name)

    def _name(self, key: Key) -> str:
        return f"penstock-{self._mark}-{key[0]}-{key[1]}"

    async def _work(self, key: Key, image: str, devices: Sequence[Device]) -> None:
        if (task := asyncio.current_task()) is not None:
            self._tasks[key] = task
        found: Container | ImageRefused
        try:
            found = await self._make(key, image, devices)
        except ImageRefused as error:
            found = error
        except Exception as error:  # one user's image must not end the node's executor
            _log.exception("image_failed", job_id=key[0], epoch=key[1], image=image)
            what = f"{type(error).__name__}: {error}"[:500]
            found = ImageRefused(f"image {image!r} cannot be had on this node: {what}; see the executor's log")
        finally:
            self._tasks.pop(key, None)
        if key in self._known:
            self._known[key] = found
            self._found(key)

    async def _make(self, key: Key, image: str, devices: Sequence[Device]) -> Container:
        runtime = self.runtimes.runtime_for(image)
        if runtime is None:
            needs = " or ".join(runtimes_of(image))
            has = ", ".join(self.runtimes.names) or "none"
            raise ImageRefused(
                f"image {image!r} needs {needs}, and this node has {has}; install one of them there ([executor] "
                "containers), or choose another pool"
            )
        if runtime not in _ENGINES:
            return _of_path(runtime, image)
        await self._pull(runtime, key, image)
        about = msgspec.json.decode(await _call(runtime, "image", "inspect", image), type=list[_ImageAbout])[0]
        hold = await asyncio.to_thread(_hold_program, self._data)
        await self._swept.wait()  # an executor that was killed may have left one of this name
        self._made[key] = runtime
        await _call(*_run_command(runtime, image, devices, hold=hold, name=self._name(key), mark=self._mark))
        pid = int((await _call(runtime, "inspect", "--format", "{{.State.Pid}}", self._name(key))).strip() or 0)
        if not pid or not await asyncio.to_thread(os.path.exists, f"/proc/{pid}/root{HOLD}"):
            raise ImageRefused(
                f"the container of image {image!r} is not among this host's processes: {runtime} runs it elsewhere, "
                "such as in a virtual machine; use an engine of this host"
            )
        pairs = (pair.partition("=") for pair in about.config.env or ())
        said = {name: value for name, _, value in pairs if name}
        return Container(runtime=runtime, namespace=f"/proc/{pid}/ns/mnt", environment={"PATH": PATH, **said})

    async def _pull(self, engine: ContainerRuntime, key: Key, image: str) -> None:
        """Get an image from its registry where the node does not have it."""
        with contextlib.suppress(ImageRefused):
            await _call(engine, "image", "inspect", "--format", "{{.Id}}", image)
            return
        self._warn(key, f"its image {image!r} is not on this node, and is got from its registry first")
        _log.info("image_wanted", image=image, engine=engine)
        progress = _PullProgress(lambda text: self._warn(key, f"its image {image!r} comes: {text}"))
        try:
            await _call(engine, "pull", image, within_s=self._pull_s, on_line=progress.note)
        except ImageRefused as error:
            raise ImageRefused(
                f"image {image!r} is not on this node and cannot be had: {error}; check its name, log the node in to "
                f"its registry ({engine} login, as the executor's user), or load it there ({engine} load)"
            ) from None

    async def _remove(self, engine: ContainerRuntime, name: str) -> None:
        try:
            await _call(engine, "rm", "--force", "--volumes", name)
        except ImageRefused as error:
            if "no such container" not in str(error).lower():
                _log.warning("container_not_removed", name=name, error=str(error))


class _PullProgress:
    """How many layers of an image have come, of what an engine prints; told now and then."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._known: set[str] = set()
        self._here: set[str] = set()
        self._told_s = asyncio.get_running_loop().time()

    def note(self, line: str) -> None:
        """Take in a line."""
        if (found := _LAYER.search(line)) is None:
            return
        layer = found[1] or found[2]
        self._known.add(layer)
        if line.rstrip().endswith(("Pull complete", "Already exists", "done", "already exists")):
            self._here.add(layer)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._told_s + TELL_S:
            self._told_s = now_s
            self._tell(f"{len(self._here)} of {len(self._known)} layers are here")


_LAYER: Final = re.compile(r"^([0-9a-f]{12}): |^Copying blob (?:sha256:)?([0-9a-f]+)")
"""As docker names a layer in a line of its own, and as podman does."""
_ENGINES: Final = ("docker", "podman")
_HOLD_FILE: Final = "hold"


class _ImageConfig(msgspec.Struct, rename="pascal"):
    env: list[str] | None = None


class _ImageAbout(msgspec.Struct, rename="pascal"):
    config: _ImageConfig = msgspec.field(default_factory=_ImageConfig)


def _of_path(runtime: ContainerRuntime, image: str) -> Container:
    """Return the container of an image that needs no engine."""
    if not image.startswith("/"):
        return Container(runtime=runtime, image=f"docker://{image}", environment={"PATH": PATH})
    if runtime == "bubblewrap" and (why := image_folder.problem(image)):
        raise ImageRefused(why)
    if not os.path.exists(image):
        raise ImageRefused(f"image {image} is not on this node; put it there, on a file system that all nodes share")
    return Container(runtime=runtime, image=image, environment={"PATH": PATH})


def _run_command(
    engine: ContainerRuntime, image: str, devices: Iterable[Device], *, hold: str, name: str, mark: str
) -> tuple[str, ...]:
    """Return the command line that makes a container in which nothing runs but the program that waits."""
    limits = (
        ("nofile=1024:1024", "nproc=1024:1024") if engine == "podman" else ()
    )  # its own may be more than it may set
    return (
        *(engine, "run", "--detach", "--pull", "never", "--name", name, "--label", f"{LABEL}={mark}"),
        *("--network", "host", "--pid", "host", "--ipc", "host", "--uts", "host", "--userns", "host"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--security-opt", "label=disable"),
        *("--log-driver", "none", "--restart", "no", "--user", "0:0", "--workdir", "/", "--no-healthcheck"),
        *(word for limit in limits for word in ("--ulimit", limit)),
        *_gpus(engine, devices),
        *("--volume", f"{hold}:{HOLD}:ro", "--entrypoint", HOLD, image),
    )


def _gpus(engine: ContainerRuntime, devices: Iterable[Device]) -> tuple[str, ...]:
    """Return how an engine attaches the GPUs of a run, and no others."""
    uuids = [device.uuid for device in devices if device.backend == "cuda"]
    if not uuids:
        return ("--env", "NVIDIA_VISIBLE_DEVICES=void")  # images of NVIDIA ask for all
    if engine == "docker":
        return ("--gpus", f'"device={",".join(uuids)}"')
    return tuple(word for uuid in uuids for word in ("--device", f"nvidia.com/gpu={uuid}"))


def _hold_program(data: Path) -> str:
    """
    Write the program that keeps a container, and return its path: an image need not have one that waits.

    It is a whole ELF file: a header, the header of one segment, and a loop around a system call that waits for ever.
    """
    number, code = _WAITS[platform.machine()]
    body = bytes.fromhex(code)
    base, start = 0x400000, 64 + 56
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(b"\x7fELF\x02\x01\x01", 2, number, 1, base + start, 64, 0, 0, 64, 56, 1, 0, 0, 0),
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, start + len(body), start + len(body), 0x1000)
    path, program = data / _HOLD_FILE, header + segment + body
    if not path.exists() or path.read_bytes() != program:
        fresh = path.with_suffix(".new")
        fresh.write_bytes(program)
        fresh.chmod(0o555)
        fresh.replace(path)
    return str(path)


async def _call(*command: str, within_s: float = _CALL_S, on_line: Callable[[str], None] | None = None) -> str:
    """
    Return what a program prints; ``on_line`` gets each line meanwhile.

    Raises
    ------
    ImageRefused
        If it cannot be started, fails, or takes too long: then it is killed.
    """
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except OSError as error:
        raise ImageRefused(f"{command[0]} cannot be started: {error.strerror or error}") from error
    try:
        async with asyncio.timeout(within_s):
            out, err = await asyncio.gather(*(_lines(stream, on_line) for stream in (process.stdout, process.stderr)))
            await process.wait()
    except TimeoutError:
        what = " ".join(command[:2])
        raise ImageRefused(f"{what} has not ended within {duration(within_s)}") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        lines = err.decode(errors="replace").strip().splitlines()
        raise ImageRefused(lines[-1][:500] if lines else f"{command[0]} ended with {process.returncode}")
    return out.decode(errors="replace")


async def _lines(stream: asyncio.StreamReader | None, on_line: Callable[[str], None] | None) -> bytes:
    found = bytearray()
    while stream is not None and (some := await stream.read(_READ_BYTES)):
        before = found.rfind(b"\n") + 1
        found += some
        if on_line is not None:
            for line in bytes(found[before : found.rfind(b"\n") + 1]).splitlines():
                on_line(line.decode(errors="replace"))
    return bytes(found)


def variables(container: Container, own: Mapping[str, str], passed: Iterable[str] = ()) -> dict[str, str]:
    """
    Return what a process in a container has before the job's and Penstock's own.

    That is what its image says, and of the host only what is true in an image as well: :data:`SHARED`.

    Parameters
    ----------
    own : mapping of str to str
        What a process of this node has otherwise.
    passed : iterable of str
        Names or patterns of what the operator lets through.
    """
    patterns = (*SHARED, *passed)
    shared = {name: value for name, value in own.items() if any(fnmatchcase(name, each) for each in patterns)}
    return {**shared, **container.environment, "HOME": "/tmp", "SHELL": "/bin/sh"}  # noqa: S108 - the run's own


SHARED: Final = ("TZ", "USER", "LOGNAME", "http_proxy", "https_proxy", "no_proxy", "NCCL_*", "GLOO_*")
"""What is true of a node within an image too: its networks, and who somebody is."""
