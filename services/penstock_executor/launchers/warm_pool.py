"""
The warm servers of an executor: one for each command and environment, with the modules that its runs import.

A server begins when a command has come :data:`OFTEN` times, or at once for a job that names its modules. What more a
run has imported, it reports at its end; then another server with these modules takes the place of the first. So
nothing is imported for a command that its own runs do not import.

Servers are bounded by their number and by their memory. Where all places are taken, a command earns one: it has to
start several times while another's server is not used at all. With five commands in turn and four places, four of them
start warm and the fifth does not; were the server that was used longest ago ended for whoever comes, each start would
end the very one that comes next. A command whose server was ended before it had served as many starts pays twice as
much for the next. So at most one server is made for so many cold starts, and whoever comes in whatever order, starts
cost little more than without any server.

References
----------
Karlin et al., Competitive snoopy caching, Algorithmica 3, 1988: something is bought when as much was spent without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple, Self

import structlog

from penstock_executor.launchers import fork_client, server_keeper
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.fork_client import ForkError, ForkServer, ServerLimits
from penstock_executor.launchers.warm_command import StartsCold, WarmCommand, shared_environment

OFTEN: Final = 2
"""Runs of a command before a server is kept for it that nobody has asked for."""
PRICE: Final = 3
"""Starts of a command, while another's server is not used, for which it has the place of that server."""
MOST_PRICE: Final = 96
AGAIN_S: Final = 300.0
"""After that long it is tried again to have a server where there could be none."""
IMPORT_S: Final = 300.0
"""For so long a server may import; then it is ended: its imports hang."""
MOST_LEARNT: Final = 3
"""So often at most the modules of a server are made more."""
MOST_LOSSES: Final = 3
"""So often a server that was lost is made again at once."""
MOST_NAMES_BYTES: Final = 100_000
"""Of all modules of a server: they are one word of its command line, for which the kernel has a limit."""
MOST_KNOWN: Final = 256
"""Commands that are remembered."""
MEASURED_S: Final = 10.0
"""For so long it is taken what was measured of a server: for that, the kernel walks through all of its memory."""
STILL_IMPORTING: Final = "its server is still importing"
OTHERS_NEED_THEM: Final = "all servers of its node are used by other commands"
MODULES_FILE: Final = "modules"
_MOST_BYTES: Final = 1 << 18
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_log = structlog.get_logger("penstock.executor")


class WarmRules(NamedTuple):
    """
    Which programs start warm.

    Attributes
    ----------
    servers : int
        The most servers; 0: no program starts warm.
    most_bytes : int
        The most memory that they hold together.
    learns : bool
        Whether programs do whose jobs do not ask for it.
    user_servers : int
        The most servers of one user other than the executor's, of which each has one program at a time; 0: programs of
        other users start cold.
    user_import_s : float
        For so long a server of such a user may import, in seconds.
    idle_s : float
        A server of such a user ends when it was not used for so long, in seconds.
    """

    servers: int = 4
    most_bytes: int = 4 << 30
    learns: bool = True
    user_servers: int = 0
    user_import_s: float = 120.0
    idle_s: float = 600.0


class WarmKey(NamedTuple):
    """
    What two runs have in common that can start from one server.

    Attributes
    ----------
    preload : tuple of str
        What their jobs ask for.
    environment : str
        A digest of their environment, and of what they are confined to.
    uid : int
        Their user; -1: the executor's own.
    place : int
        Which of their user's servers of this kind.
    """

    command: WarmCommand
    preload: tuple[str, ...]
    environment: str
    uid: int = -1
    place: int = 0

    @classmethod
    def of(
        cls,
        command: WarmCommand,
        env: Mapping[str, str],
        cwd: str,
        preload: Sequence[str],
        confined: Confinement | None = None,
    ) -> Self:
        """
        Return that of a command in an environment.

        Its arguments do not count. Its limits count where another user's server has them, who cannot raise them.
        """
        confined = confined or Confinement()
        whose = confined._replace(kept=(), tmp="own" if confined.tmp else "", cgroup="", data_bytes=())
        shared = shared_environment(env)
        text = json.dumps(shared if confined.uid < 0 else [shared, whose]).encode()
        where = cwd if command.kind != "command" else ""
        alike = command._replace(args=(where,), data_bytes=() if confined.uid < 0 else command.data_bytes)
        return cls(alike, tuple(preload), hashlib.sha256(text).hexdigest(), confined.uid)


class _Entry:
    """
    What is known of a key.

    Attributes
    ----------
    uses : int
        Programs that had its server, since it was made in the place of another or in an empty one.
    missed : dict of WarmKey to int
        Starts of others that had no place, since this one's server was last used.
    price : int
        So many starts it has to miss to have the place of another.
    held_bytes : int
        What its last server held, in bytes; 0: nobody knows.
    """

    def __init__(self, env: Mapping[str, str], modules: Sequence[str]) -> None:
        self.confined = Confinement()
        self.env, self.modules, self.runs, self.learnt = dict(env), tuple(modules), 0, 0
        self.server: ForkServer | None = None
        self.next: ForkServer | None = None
        self.next_modules: tuple[str, ...] = ()
        self.next_s = 0.0
        self.refusal, self.refused_s, self.losses = "", 0.0, 0
        self.uses, self.price, self.held_bytes = 0, PRICE, 0
        self.missed: dict[WarmKey, int] = {}

    @property
    def busy(self) -> bool:
        return self.server is not None and self.server.busy

    @property
    def has_place(self) -> bool:
        return self.server is not None or self.next is not None

    def close(self) -> None:
        for server in filter(None, (self.server, self.next)):
            server.close()
        self.server = self.next = None

    def give_place(self) -> None:
        """End its server for that of another."""
        self.close()
        self.price = PRICE if self.uses >= self.price else min(2 * self.price, MOST_PRICE)
        self.uses = 0
        self.missed.clear()


class WarmPool:
    """
    The servers of one executor.

    Parameters
    ----------
    clock : callable
        Seconds of a clock that only goes forward.
    """

    def __init__(self, rules: WarmRules, clock: Callable[[], float]) -> None:
        self._rules, self._clock = rules, clock
        self._entries: dict[WarmKey, _Entry] = {}
        self._measured: dict[int, tuple[float, int]] = {}
        """Server, by its pid → when it was measured, and the bytes that it held."""

    @property
    def is_open(self) -> bool:
        """Whether any program starts warm."""
        return self._rules.servers > 0

    @property
    def serves_users(self) -> bool:
        """Whether programs of other users than the executor's start warm."""
        return self._rules.user_servers > 0

    def place(self, key: WarmKey) -> WarmKey:
        """
        Return the key of that server of a user which is to have the next program: each has one at a time.

        Raises
        ------
        StartsCold
            If all that a user may have are at work.
        """
        if key.uid < 0:
            return key
        for number in range(self._rules.user_servers):
            placed = key._replace(place=number)
            if placed not in self._entries or not self._entries[placed].busy:
                return placed
        raise StartsCold(f"its user's {self._rules.user_servers} servers for it have other programs, which run")

    def server(self, key: WarmKey, env: Mapping[str, str], confined: Confinement | None = None) -> ForkServer:
        """
        Return the server for a run that starts now; ``confined`` is to what it is confined if it is another user's.

        Raises
        ------
        StartsCold
            If there is none yet, or never will be.
        """
        entry = self._entries.pop(key, None) or _Entry(env, key.preload)
        entry.confined = confined or entry.confined
        self._entries[key] = entry  # the last is what was used last
        while len(self._entries) > MOST_KNOWN:
            self._entries.pop(next(iter(self._entries))).close()
        entry.runs += 1
        if entry.refusal and self._clock() >= entry.refused_s + AGAIN_S:
            entry.refusal = ""
        self._advance_all()
        if not entry.has_place and not entry.refusal:
            self._consider(key, entry)
        entry.missed.clear()
        if entry.server is None:
            raise StartsCold(entry.refusal or STILL_IMPORTING)
        entry.uses += 1
        return entry.server

    def _consider(self, key: WarmKey, entry: _Entry) -> None:
        """Have a server for a key where its runs are worth one."""
        if not key.preload and not self._rules.learns:
            raise StartsCold("its job names no modules (preload)")
        if entry.runs < OFTEN and not key.preload:
            raise StartsCold("it is the first run of its command here")
        self._take_place(key, entry)
        self._begin(key, entry, entry.modules)

    def _take_place(self, key: WarmKey, entry: _Entry) -> None:
        """Have a place for the server of a key: a free one, or those of others that were not used for long enough."""
        kept = self._others(key)
        taken: list[WarmKey] = []
        for other in kept if self._lacks_place(key, entry, kept) else ():
            rival = self._entries[other]
            if not rival.busy:
                rival.missed[key] = rival.missed.get(key, 0) + 1
        while self._lacks_place(key, entry, kept):
            same = [other for other in kept if other.uid == key.uid]
            among = same if self._has_all_places(key, kept) else kept
            unused = [other for other in among if self._entries[other].missed.get(key, 0) >= entry.price]
            if not unused:
                raise StartsCold(OTHERS_NEED_THEM)
            taken.append(unused[0])  # the one that was used longest ago
            kept.remove(unused[0])
        for other in taken:
            self._entries[other].give_place()

    def _others(self, key: WarmKey) -> list[WarmKey]:
        """Return the keys but one that have a place, in the order of their last uses."""
        self._held()  # what they hold
        return [other for other, entry in self._entries.items() if other != key and entry.has_place]

    def _lacks_place(self, key: WarmKey, entry: _Entry, kept: Sequence[WarmKey]) -> bool:
        """Return whether there is no place for the server of a key beside those of some others."""
        held_bytes = entry.held_bytes + sum(self._entries[other].held_bytes for other in kept)
        is_full = len(kept) >= self._rules.servers or held_bytes > self._rules.most_bytes
        return bool(kept) and (is_full or self._has_all_places(key, kept))

    def _has_all_places(self, key: WarmKey, kept: Sequence[WarmKey]) -> bool:
        """Return whether the user of a key has all the servers that a user may have."""
        return key.uid >= 0 and sum(other.uid == key.uid for other in kept) >= max(self._rules.user_servers, 1)

    def _begin(self, key: WarmKey, entry: _Entry, modules: tuple[str, ...]) -> None:
        entry.refusal = ""
        try:
            if key.uid < 0:
                entry.next = fork_client.warm_server(key.command, modules, entry.env)
            else:
                limits = ServerLimits(self._rules.user_import_s, self._rules.most_bytes, self._rules.idle_s)
                confined = entry.confined._replace(data_bytes=key.command.data_bytes)
                entry.next = fork_client.user_server(key.command, modules, entry.env, confined, limits)
        except OSError as error:
            self._refuse(entry, f"its server could not be started: {error}")
            return
        entry.next_modules, entry.next_s = modules, self._clock()

    def _advance_all(self) -> None:
        """Let servers that are ready now take their places, and end those whose imports hang."""
        for key, entry in self._entries.items():
            self._advance(key, entry)

    def _advance(self, key: WarmKey, entry: _Entry) -> None:
        """Let a server that is ready now take its place."""
        if entry.server is not None and not entry.busy and (why := entry.server.ended()):
            _log.info("warm_server_ended", target=key.command.target, uid=key.uid, reason=why)
            entry.server.close()
            entry.server = None
            entry.losses += why != server_keeper.IDLE
            if (
                entry.losses > MOST_LOSSES
            ):  # whatever ends it again and again costs each time that somebody waits for it
                entry.losses = 0
                self._refuse(entry, f"its server has ended {MOST_LOSSES + 1} times: {why}")
        if entry.next is None:
            return
        try:
            if not entry.next.is_ready():
                if self._clock() < entry.next_s + IMPORT_S:
                    return
                raise ForkError(f"its imports have not ended within {IMPORT_S:.0f} s")
        except ForkError as error:
            entry.next.close()
            entry.next = None
            _log.info("warm_server_refused", target=key.command.target, reason=str(error))
            if entry.next_modules != key.preload:  # what was learnt does not do
                entry.learnt = MOST_LEARNT
                if entry.server is None:
                    self._begin(key, entry, key.preload)
            else:
                self._refuse(entry, str(error))
            return
        if entry.server is not None:
            entry.server.close()
        entry.server, entry.next, entry.modules = entry.next, None, entry.next_modules
        self._measured.pop(entry.server.memory_pid, None)  # of the time when it was importing
        self._keep_to_memory(key, entry)
        _log.info("warm_server_ready", target=key.command.target, modules=len(entry.modules), pid=entry.server.pid)

    def _refuse(self, entry: _Entry, why: str) -> None:
        entry.close()
        entry.refusal, entry.refused_s = why, self._clock()

    def _keep_to_memory(self, key: WarmKey, entry: _Entry) -> None:
        """End those that were used longest ago where one that has just begun holds more than there was room for."""
        kept = sorted(self._others(key), key=lambda other: self._entries[other].busy)  # in their order otherwise
        while kept and entry.held_bytes + sum(self._entries[one].held_bytes for one in kept) > self._rules.most_bytes:
            self._entries[kept.pop(0)].give_place()

    def drop(self, key: WarmKey, why: str) -> None:
        """Note that a key's server has not forked: another one is made, unless that happens again and again."""
        if (entry := self._entries.get(key)) is None:
            return
        _log.info("warm_server_lost", target=key.command.target, reason=why)
        entry.close()
        entry.losses += 1
        if entry.losses > MOST_LOSSES:
            entry.losses = 0
            self._refuse(entry, why)
        else:
            self._begin(key, entry, entry.modules)

    def note_answer(self, key: WarmKey, how: str) -> None:
        """Note how a server has started a program: one whose files have changed is made anew."""
        entry = self._entries.get(key)
        if entry is not None and how.endswith(fork_client.CHANGED) and entry.server is not None:
            entry.server.close()
            entry.server = None
            self._begin(key, entry, entry.modules)

    def learn(self, key: WarmKey, modules: Sequence[str]) -> None:
        """Note what a run has imported beyond its server's modules, and have a server with these."""
        entry = self._entries.get(key)
        if entry is None or not modules or not self._rules.learns or entry.next is not None or entry.server is None:
            return
        room = MOST_NAMES_BYTES - sum(len(name.encode()) + 1 for name in entry.modules)
        sizes = accumulate(len(name.encode()) + 1 for name in modules)
        fitting = [name for name, size in zip(modules, sizes, strict=True) if size <= room]
        more = [name for name in fitting if name not in entry.modules]
        if more and entry.learnt < MOST_LEARNT:
            entry.learnt += 1
            self._begin(key, entry, (*entry.modules, *more))

    def refusal(self, key: WarmKey) -> str:
        """Return why there can be no server for a key now; empty where there can."""
        self._advance_all()
        return entry.refusal if (entry := self._entries.get(key)) else ""

    def has_settled(self) -> bool:
        """Return whether every command that has a server has one with all that its runs have imported so far."""
        self._advance_all()
        return all(entry.server and not entry.next for entry in self._entries.values())

    def kept(self) -> tuple[int, int]:
        """Return how many servers there are, and the bytes that they hold."""
        self._advance_all()
        return self._held()

    def _held(self) -> tuple[int, int]:
        servers = [server for entry in self._entries.values() for server in (entry.server, entry.next) if server]
        now_s, known = self._clock(), self._measured
        self._measured = {}
        for pid in (server.memory_pid for server in servers):
            measured = known.get(pid, (now_s - MEASURED_S, 0))
            self._measured[pid] = measured if now_s < measured[0] + MEASURED_S else (now_s, _held_bytes(pid))
        for entry in self._entries.values():
            if entry.server is not None:
                entry.held_bytes = self._measured[entry.server.memory_pid][1]
        return len(servers), sum(self._measured[server.memory_pid][1] for server in servers)

    def close(self) -> None:
        """End the servers."""
        for entry in self._entries.values():
            entry.close()
        self._entries.clear()


def read_modules(path: Path) -> list[str]:
    """
    Return the names of modules that a program has left in a file; none of what is no module's name.

    The file may be a job's, in a folder that is its user's: only a plain one is read.
    """
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                text = file.read(_MOST_BYTES).decode()
                return [name for name in text.splitlines() if _MODULE.fullmatch(name)]
    return []


def _held_bytes(pid: int) -> int:
    """Return what a process holds of memory, with its part of what it shares; 0 if it is gone."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) << 10
    return 0
