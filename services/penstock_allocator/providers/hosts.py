"""
Pilots as processes on this machine, or on hosts that are reached by SSH.

A pilot is a process group that outlives the allocator. Its folder holds a file ``process`` with its number and the time
at which it began, which it writes itself and only where there is none: a pilot that is submitted twice runs once. On a
host that is reached by SSH the folder has to be there under the same path. ``timeout`` ends a pilot at its walltime.
What scripts say begins with :data:`_MARK`: the login shells of hosts print whatever they like besides.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from penstock_allocator.pilot_script import PilotFolder
from penstock_allocator.providers.provider import (
    CommandResult,
    ProviderJob,
    ProviderSilent,
    SubmissionRefused,
    run_command,
)
from penstock_log import AllocationSpec

_HERE: Final = ""
"""The host that is this machine."""
_SSH: Final = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR")
_UNREACHED: Final = 255
"""Exit code of ``ssh`` where it could not connect."""
_KILL_AFTER_S: Final = 10
_LOOKED: Final = 3
"""Words of a line of :data:`_LOOK`: a pilot, its state, its process."""
_MARK: Final = "penstock says "
_ADVICE: Final = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": "its key is another one than it had before; if that is right, remove the "
    "old one by `ssh-keygen -R {host}`, and run `ssh {host}` once to accept the new one",
    "Host key verification failed": "its key is not known here; run `ssh {host}` once on the allocator's machine, and "
    "accept it",
    "Permission denied": "it takes none of your keys; `ssh {host}` has to work without a password on the allocator's "
    "machine, as after `ssh-copy-id {host}`",
    "Name or service not known": "no such host is known; is it written as `ssh` takes it?",
}
"""Words of ``ssh`` that say that a person has to see to it → what is wrong, and what to do."""
_NO_FOLDER: Final = "the data folder of `penstock up` has to be there under the same path"

_BEGIN: Final = rf"""
cd -- "$1" 2> /dev/null || {{ echo "{_MARK}it has no folder $1 that $(id -un) may enter; "'{_NO_FOLDER}' >&2; exit 1; }}
setsid bash -c 'set -C; echo "$$ $(cut -d" " -f22 "/proc/$$/stat")" > process || exit 1
  exec timeout --kill-after="$1" "$2" bash ./pilot.sh >| output.txt 2>&1' bash "$2" "$3" > /dev/null 2>&1 < /dev/null &
for _ in $(seq 200); do
  if [ -s process ]; then echo "{_MARK}$(cat process)"; exit 0; fi
  sleep 0.05
done
echo "{_MARK}the pilot did not begin" >&2
exit 1
"""
_LOOK: Final = rf"""
while [ $# -gt 1 ]; do
  name=$1 folder=$2
  shift 2
  if read -r pid began 2> /dev/null < "$folder/process"; then
    state="" now=""
    read -r state now < <(cut -d" " -f3,22 "/proc/$pid/stat" 2> /dev/null)
    if [ "$now" = "$began" ] && [ "$state" != Z ]; then echo "{_MARK}$name running $pid"
    else echo "{_MARK}$name ended $pid"; fi
  else
    ls "$folder" > /dev/null || exit 1
    echo "{_MARK}$name unknown -"
  fi
done
"""
_TRY: Final = rf"""
cd -- "$1" 2> /dev/null || {{ echo "{_MARK}it has no folder $1 that $(id -un) may enter; "'{_NO_FOLDER}' >&2; exit 1; }}
"""
_END: Final = r"""
read -r pid began < "$1/process" || exit 0
if [ "$(cut -d" " -f22 "/proc/$pid/stat" 2> /dev/null)" = "$began" ]; then kill -TERM "$pid"; fi
"""


class HostRefuses(ProviderSilent):
    """A host that is not reached, and that a person has to see to."""


class HostProvider:
    """
    Pilots as processes.

    Parameters
    ----------
    over_ssh : bool
        Whether they run on the hosts of their allocation, one on each; otherwise all of them run here.
    """

    def __init__(self, *, over_ssh: bool) -> None:
        self._over_ssh = over_ssh
        self._silent: dict[str, int] = {}
        self._tries = itertools.count(1)

    async def submit(self, spec: AllocationSpec, name: str, place: PilotFolder, others: Collection[str]) -> str:  # noqa: ARG002 - the port's
        """Start a pilot; see :meth:`PilotProvider.submit`."""
        host = self._free_host(spec, others)
        (place.folder / "host").write_text(host, encoding="utf-8")
        try:
            done = await _run(host, _BEGIN, str(place.folder), str(_KILL_AFTER_S), f"{spec.walltime_s:g}")
        except ProviderSilent as error:
            self._silent[host] = next(self._tries)
            if not (place.folder / "process").exists():  # it may begin on another, and on this one no more
                (place.folder / "host").unlink(missing_ok=True)
            if isinstance(error, HostRefuses):
                raise SubmissionRefused(str(error)) from error
            raise
        said = _said(done.output)
        if done.code or not said:
            self._silent[host] = next(self._tries)
            raise SubmissionRefused(f"{host or 'this machine'}: {_problem(done) or 'the pilot did not begin'}")
        return f"{host}:{said[-1].split()[0]}"

    async def list_jobs(
        self,
        spec: AllocationSpec,  # noqa: ARG002 - the port's
        pilots: Mapping[str, PilotFolder],
    ) -> Mapping[str, ProviderJob]:
        """Return which pilots run; see :meth:`PilotProvider.list_jobs`."""
        by_host: dict[str, list[str]] = {}
        for name, place in pilots.items():
            host = _host_of(place)
            if host is not None:
                by_host.setdefault(host, []).append(name)
        looks = [self._look_at(host, {name: pilots[name] for name in names}) for host, names in by_host.items()]
        return {name: job for found in await asyncio.gather(*looks) for name, job in found.items()}

    async def _look_at(self, host: str, pilots: Mapping[str, PilotFolder]) -> dict[str, ProviderJob]:
        """Return the pilots of one host; all are silent where it does not say something of each."""
        words = [word for name, place in pilots.items() for word in (name, str(place.folder))]
        try:
            done = await _run(host, _LOOK, *words)
        except ProviderSilent as error:
            return _all_silent(host, pilots, str(error))
        lines = [line.split() for line in _said(done.output)]
        said = {line[0]: (line[1], line[2]) for line in lines if len(line) == _LOOKED}
        if done.code or said.keys() != pilots.keys():
            return _all_silent(
                host, pilots, f"{host or 'this machine'}: {_problem(done) or 'it did not tell of each pilot'}"
            )
        return {
            name: ProviderJob(f"{host}:{pid}", "running" if state == "running" else "ended", (host,))
            for name, (state, pid) in said.items()
            if state != "unknown"
        }

    async def cancel(self, job: ProviderJob, place: PilotFolder, *, only_waiting: bool = False) -> None:
        """End a pilot; see :meth:`PilotProvider.cancel`. None waits: a host starts it at once."""
        if only_waiting:
            return
        await _run(job.id.rpartition(":")[0], _END, str(place.folder))

    async def clear(self, spec: AllocationSpec, name: str, place: PilotFolder) -> None:
        """Do nothing: the folder goes by itself; see :meth:`PilotProvider.clear`."""

    async def try_out(self, spec: AllocationSpec, place: PilotFolder) -> str:
        """Return where pilots would run, if each host can be reached; see :meth:`PilotProvider.try_out`."""
        hosts = spec.hosts if self._over_ssh else (_HERE,)
        for host in hosts:
            try:
                done = await _run(host, _TRY, str(place.folder))
            except HostRefuses as error:
                raise SubmissionRefused(str(error)) from error
            if done.code:
                raise SubmissionRefused(f"{host or 'this machine'}: {_problem(done)}")
        return f"a pilot would run on {' or '.join(hosts) if self._over_ssh else 'this machine'}"

    def _free_host(self, spec: AllocationSpec, others: Collection[str]) -> str:
        if not self._over_ssh:
            return _HERE
        taken = {one.rpartition(":")[0] for one in others}
        free = [host for host in spec.hosts if host not in taken]
        if not free:
            raise ProviderSilent("each of its hosts has a pilot")
        return min(free, key=lambda host: self._silent.get(host, 0))  # of those that are silent, another each time


def _all_silent(host: str, pilots: Iterable[str], reason: str) -> dict[str, ProviderJob]:
    return dict.fromkeys(pilots, ProviderJob(f"{host}:", "silent", (host,), reason))


def _host_of(place: PilotFolder) -> str | None:
    """Return the host of a pilot; None where it was never begun."""
    try:
        return (place.folder / "host").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProviderSilent(f"{place.folder} cannot be read: {error.strerror}") from error


async def _run(host: str, script: str, *words: str) -> CommandResult:
    """Run a script with arguments on a host; its text goes over standard input, where its length does not matter."""
    if host == _HERE:
        return await run_command(["bash", "-s", "--", *words], stdin=script.encode())
    done = await run_command([*_SSH, "--", host, f"bash -s -- {shlex.join(words)}"], stdin=script.encode())
    if done.code == _UNREACHED:
        for words_of_ssh, advice in _ADVICE.items():
            if words_of_ssh in done.error:
                raise HostRefuses(f"{host} is not reached: {advice.format(host=host)}")
        raise ProviderSilent(f"{host} is not reached: {_problem(done)}")
    return done


def _said(output: str) -> list[str]:
    """Return the lines of a script, without those of the login shell."""
    return [line.partition(_MARK)[2] for line in output.splitlines() if _MARK in line]


def _problem(done: CommandResult) -> str:
    """Return in one line what went wrong: as the script says it, or the last lines of whoever else does."""
    return " / ".join(_said(done.error) or [line.strip() for line in done.error.splitlines() if line.strip()][-3:])
