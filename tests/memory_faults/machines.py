"""
Four machines: network namespaces on a bridge where they can be made, and a memory agent in each.

A machine has a boot id and a ``/proc/meminfo`` of its own, bound over those of the host, so that clients take donors
for other hosts, and a node's memory can run short. A cut is silent, as one of a network is: neighbours are given an
address that nobody has. Without root or ``ip`` all machines are this host, and there are no cuts and no evictions.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from memory_faults.plan import HOMES, LEASE_S, MIB, NODES, SLAB_BYTES, MemoryFault
from penstock_bus.child_processes import dies_with_parent
from penstock_bus.identity.logins import Login
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import ServerSettings, running
from penstock_log import subjects
from penstock_log.memory_messages import SlabOffer
from penstock_testing import eventually

_NOBODY: Final = "02:00:de:ad:00:01"
_TOTAL_KIB: Final = 2 << 20
_PLENTY_MIB: Final = 512
_MEMFD: Final = "/memfd:penstock-slab"
READY_SLABS: Final = 1
START_S: Final = 60.0
END_S: Final = 30.0
_ENTER: Final = (
    'mount --bind "$1" /proc/sys/kernel/random/boot_id && mount --bind "$2" /proc/meminfo && shift 2 && exec "$@"'
)
_TESTS: Final = Path(__file__).parent.parent


class Network:
    """
    A bridge, and a namespace for each machine.

    Attributes
    ----------
    host : str
        The address at which this process is reached by all machines.
    """

    def __init__(self, stack: ExitStack, number: int) -> None:
        tag = f"pm{os.getpid() % 1_000_000}x{number}"
        self.hub, self.device = f"{tag}h", f"{tag}v"
        net = f"10.{214 + os.getpid() % 20}.{(os.getpid() // 20 + number) % 256}"
        self.host = f"{net}.1"
        self.addresses = {node: f"{net}.{place}" for place, node in enumerate(NODES, 11)}
        self.spaces = {node: f"{tag}{node}" for node in NODES}
        _ip("netns", "add", self.hub)  # a bridge of the host would be filtered by the host's rules
        stack.callback(_ip, "netns", "del", self.hub)
        _ip("-n", self.hub, "link", "add", "hub", "type", "bridge")
        _ip("-n", self.hub, "link", "set", "hub", "up")
        _ip("link", "add", self.device, "type", "veth", "peer", "name", "host", "netns", self.hub)
        stack.callback(_ip, "link", "del", self.device)  # with its namespace it would go some time later
        _ip("addr", "add", f"{self.host}/24", "dev", self.device)
        _ip("link", "set", self.device, "up")
        _ip("-n", self.hub, "link", "set", "host", "master", "hub", "up")
        for node, space in self.spaces.items():
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
            _ip("-n", self.hub, "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", self.hub, "link", "set", node, "master", "hub", "up")
            _ip("-n", space, "addr", "add", f"{self.addresses[node]}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def cut(self, fault: MemoryFault, *, healed: bool) -> None:
        """Cut a machine off, or undo it; packets vanish without an answer."""
        node = fault.node
        if fault.kind == "cut_from_all":
            _ip("-n", self.hub, "link", "set", node, "up" if healed else "down")
            return
        peers = [home for home in HOMES if home != node] if fault.kind == "cut_from_clients" else [""]
        for peer in peers:
            if fault.detail & 1:
                self._lose(peer, self.addresses[node], healed=healed)
            if fault.detail & 2:
                self._lose(node, self.addresses[peer] if peer else self.host, healed=healed)

    def _lose(self, sender: str, address: str, *, healed: bool) -> None:
        inside = ["-n", self.spaces[sender]] if sender else []
        device = "eth0" if sender else self.device
        if healed:
            with suppress(RuntimeError):  # two cuts may have been of one pair of machines, and one is healed already
                _ip(*inside, "neigh", "del", address, "dev", device)
        else:
            _ip(*inside, "neigh", "replace", address, "lladdr", _NOBODY, "nud", "permanent", "dev", device)


def why_no_network() -> str:
    """Return why machines cannot have namespaces of their own here; empty where they can."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return "it takes root, `ip` and `unshare`"
    name = f"pmtry{os.getpid() % 100_000}"
    done = subprocess.run(["ip", "link", "add", name, "type", "bridge"], capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()
    _ip("link", "del", name)
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()
    _ip("netns", "del", name)
    return ""


class Machine:
    """
    A machine and its memory agent.

    Attributes
    ----------
    hit : asyncio.Lock
        Held while a fault is on: one machine has one at a time.
    problems : list of str
        What must not be.
    """

    def __init__(self, node: str, folder: Path, bus: dict[str, str], network: Network | None) -> None:
        self.node, self.folder, self.network = node, folder / node, network
        self.folder.mkdir()
        self.data = self.folder / "agent"
        self.boot_id, self._meminfo = self.folder / "boot_id", self.folder / "meminfo"
        self.boot_id.write_text(f"boot-of-{node}-{secrets.token_hex(8)}\n")
        self.has_available(_PLENTY_MIB)
        self._ready, self.log = self.folder / "ready", self.folder / "log"
        address = network.addresses[node] if network else "127.0.0.1"
        settings = {
            "node_id": node,
            "data_dir": self.data,
            "address": address,
            "host": address,
            "slab_bytes": SLAB_BYTES,
            "headroom_bytes": 64 * MIB,
            "most_lent_bytes": 10 * MIB,
            "ready_slabs": READY_SLABS,
        }
        self._environment = {
            **clean_environment(),
            **bus,
            **{f"PENSTOCK_MEMORY_{name.upper()}": str(value) for name, value in settings.items()},
            "PENSTOCK_READY_FILE": str(self._ready),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.hit = asyncio.Lock()
        self.problems: list[str] = []
        self._bus = bus

    @property
    def socket(self) -> Path:
        """Where clients of this machine come."""
        return self.data / "memory.sock"

    def has_available(self, available_mib: int) -> None:
        """Have the machine's kernel say how much memory could be had."""
        lines = {"MemTotal": _TOTAL_KIB, "MemFree": available_mib << 10, "MemAvailable": available_mib << 10}
        text = "".join(f"{name}: {value} kB\n" for name, value in lines.items())
        with self._meminfo.open("r+" if self._meminfo.exists() else "w") as file:  # in place: it is mounted
            file.write(text.ljust(200))

    def begin(self, *argv: str, boot_id: Path | None = None, **more: Any) -> subprocess.Popen[bytes]:
        """Start a program on the machine; it is the process that is returned itself, and dies with this one."""
        inside: tuple[str, ...] = ()
        if self.network is not None:
            enter = ("ip", "netns", "exec", self.network.spaces[self.node], "unshare", "-m", "sh", "-c", _ENTER, "-")
            inside = (*enter, str(boot_id or self.boot_id), str(self._meminfo))
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*inside, *argv],
                stderr=log,
                preexec_fn=dies_with_parent(signal.SIGKILL),  # noqa: PLW1509 - it only calls prctl
                **more,
            )

    async def start(self) -> None:
        """Start the agent; return when it is ready."""
        self._ready.unlink(missing_ok=True)
        self.process = self.begin(
            sys.executable, "-m", "penstock_memory", env=self._environment, stdin=subprocess.DEVNULL
        )
        process = self.process
        await eventually(lambda: self._ready.exists() or process.poll() is not None, within_s=START_S)
        if process.poll() is not None:
            self.problems.append(f"agent {self.node} ended with {process.returncode} as it started: {self.said()}")

    async def end(self, signum: signal.Signals) -> None:
        """Signal the agent, and see it gone."""
        process = self.process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signum)
        try:
            await eventually(lambda: process.poll() is not None, within_s=END_S)
        except AssertionError:
            self.problems.append(f"agent {self.node} has not ended {END_S:g} s after {signum.name}")
            process.kill()
        if signum == signal.SIGTERM and process.wait() != 0:
            self.problems.append(f"agent {self.node} ended with {process.returncode}: {self.said()}")

    def slabs(self) -> int:
        """Return for how many slabs the agent has memory."""
        if self.process is None or self.process.poll() is not None:
            return 0
        found = set()
        with suppress(OSError):  # the agent, or a descriptor of it, has gone meanwhile
            for fd in Path(f"/proc/{self.process.pid}/fd").iterdir():
                if os.readlink(fd).startswith(_MEMFD):
                    found.add(fd.stat().st_ino)
        return len(found)

    def check_running(self) -> None:
        """Note a problem if the agent has ended by itself, or has written of an error of its own."""
        if self.process is not None and (code := self.process.poll()) is not None:
            self.problems.append(f"agent {self.node} has ended by itself with {code}: {self.said()}")

    def failures(self) -> list[str]:
        """Return what the log has of errors that nobody expected."""
        words = ("Traceback", "slab_not_borrowed", "memory_client_failed", "background_task_failed")
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [line[:600] for line in lines if any(word in line for word in words)][:5]

    def said(self) -> str:
        """Return the end of its log."""
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-4:])


class World:
    """A bus and four machines with agents, for one history after another."""

    def __init__(self, folder: Path, machines: dict[str, Machine], network: Network | None, bus: NatsBus) -> None:
        self.folder, self.machines, self.network, self.bus = folder, machines, network, bus
        self.offers: dict[str, SlabOffer] = {}
        self.heard_s: dict[str, float] = {}
        self.heard = asyncio.Event()

    async def hear(self) -> None:
        """Take note of what agents offer, for ever."""
        async for subject, body in self.bus.subscribe(subjects.MEMORY_OFFERS):
            node = subject.rpartition(".")[2]
            self.offers[node] = msgspec.json.decode(body, type=SlabOffer)
            self.heard_s[node] = asyncio.get_running_loop().time()
            self.heard.set()

    def lent_to(self, job_id: str) -> int:
        """Return how many slabs a job has, as far as was heard."""
        return sum(offer.lent_to.get(job_id, 0) for offer in self.offers.values())

    async def inflict(self, fault: MemoryFault) -> None:
        """Have a fault begin and end."""
        machine = self.machines[fault.node]
        async with machine.hit:
            match fault.kind:
                case "kill_donor" | "end_donor":
                    await machine.end(signal.SIGKILL if fault.kind == "kill_donor" else signal.SIGTERM)
                    self.offers.pop(fault.node, None)
                    await asyncio.sleep(fault.for_s)
                    await machine.start()
                case "stop_donor":
                    assert machine.process is not None
                    machine.process.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(fault.for_s)
                    machine.process.send_signal(signal.SIGCONT)
                case "evict":
                    machine.has_available(fault.detail)
                    await asyncio.sleep(fault.for_s)
                    machine.has_available(_PLENTY_MIB)
                case _:
                    assert self.network is not None
                    await asyncio.to_thread(self.network.cut, fault, healed=False)
                    try:
                        await asyncio.sleep(fault.for_s)
                    finally:
                        await asyncio.to_thread(self.network.cut, fault, healed=True)

    async def slabs_back_s(self, within_s: float = LEASE_S + 10.0) -> float | None:
        """Wait until no agent has memory but for slabs that are ready; return how long it took, None if too long."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            await eventually(
                lambda: all(machine.slabs() <= READY_SLABS for machine in self.machines.values()), within_s=within_s
            )
        except AssertionError:
            return None
        return loop.time() - begun_s

    async def close(self) -> list[str]:
        """End all agents in good order; return what is wrong with what they leave."""
        await asyncio.gather(*(machine.end(signal.SIGTERM) for machine in self.machines.values()))
        problems = []
        for machine in self.machines.values():
            problems += machine.problems + machine.failures()
            if self.network is not None:
                pids = _ip("netns", "pids", self.network.spaces[machine.node]).split()
                problems += [f"process {pid} is left on {machine.node}: {_command(pid)}" for pid in pids]
        return problems


@asynccontextmanager
async def world(folder: Path, number: int = 0, *, network: bool = True) -> AsyncIterator[World]:
    """Make a world; what is in it ends with it."""
    folder.mkdir(parents=True, exist_ok=True)
    with _network(number) if network else ExitStack() as net:
        made = net if isinstance(net, Network) else None
        login = {"user": "verifier", "password": secrets.token_hex(8)}
        settings = ServerSettings(
            data_dir=folder / "nats", host=made.host if made else "127.0.0.1", plain=True, sync_interval="2m"
        )
        settings.data_dir.mkdir()
        async with running(settings, {"accounts": {"V": {"jetstream": "enabled", "users": [login]}}}) as server:
            bus = {
                "PENSTOCK_URL": server.url,
                "PENSTOCK_USER": login["user"],
                "PENSTOCK_PASSWORD": login["password"],
            }
            machines = {node: Machine(node, folder, bus, made) for node in NODES}
            async with connect(server.url, login=Login(url=server.url, **login), name="verifier") as connection:
                found = World(folder, machines, made, connection)
                hearing = asyncio.create_task(found.hear())
                try:
                    await asyncio.gather(*(machine.start() for machine in machines.values()))
                    yield found
                finally:
                    hearing.cancel()
                    for machine in machines.values():
                        if machine.process is not None and machine.process.poll() is None:
                            machine.process.kill()
                            machine.process.wait()


@contextmanager
def _network(number: int) -> Iterator[Network]:
    with ExitStack() as stack:
        yield Network(stack, number)


def clean_environment() -> dict[str, str]:
    """Return this process's environment with nothing of Penstock in it but where its code is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of the many processes compiles all that it imports
    paths = [str(_TESTS), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PENSTOCK_CONFIG": os.devnull, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _command(pid: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
    return "it has ended meanwhile"
