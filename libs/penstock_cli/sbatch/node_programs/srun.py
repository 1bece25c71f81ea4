"""
``srun`` within a job that was submitted as a script of sbatch: it runs one process for each task of a step.

Tasks on the script's machine are its children. Those on others are started by the task servers there, and end with it.
Options that place or count tasks are honoured; those of binding and accounting have no effect, which is said; all
others are refused by name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Mapping, NamedTuple, NoReturn, Optional, Sequence, Set

from . import allocation as allocations
from .allocation import BatchError
from .hostlist import compress, expand
from .local_tasks import LocalTasks, TaskEvents, TaskOrder
from .task_link import ERRORS, MESSAGE, OUTPUT, TaskLink, connect

_VALUES = (
    "ntasks:n nodes:N ntasks-per-node cpus-per-task:c nodelist:w exclude:x relative:r gpus:G gpus-per-node "
    "gpus-per-task gres chdir:D export output:o error:e input:i open-mode job-name:J time:t mpi jobid"
)
_FLAGS = "label:l exclusive exact overlap:s quiet:Q verbose:v unbuffered:u overcommit:O multi-prog kill-on-bad-exit:K"
_NO_EFFECT = (
    "account:A acctg-freq bcast comment cpu-bind cpu-freq cpus-per-gpu cores-per-socket delay-boot distribution:m "
    "extra-node-info:B gpu-bind gpu-freq gres-flags hint mem mem-bind mem-per-cpu mem-per-gpu mincpus ntasks-per-core "
    "ntasks-per-socket partition:p profile propagate qos:q sockets-per-node switches thread-spec threads-per-core tmp "
    "wckey accel-bind wait:W no-kill:k"
)
_OPTIONAL = ("propagate", "no-kill")
_SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT")
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals at which a step that waits for room ends: it has no tasks yet that could hear of them."""
_NO_LIMIT = ("", "0", "-1", "UNLIMITED", "INFINITE")
_MPI = ("none", "list")
_LOOK_S = 0.2
_MACHINES_S = 600.0
_END_S = 2.0


class StepOptions(NamedTuple):
    """What was typed of a step: the options that count, and the command."""

    given: Mapping[str, str]
    command: Sequence[str]

    def number(self, name: str) -> int:
        """Return the number of an option; 0 where it was not given."""
        text = self.given.get(name, "")
        if not text:
            return 0
        if not text.isdigit() or not int(text):
            raise BatchError(f"--{name} {text!r} is no number; expected 1 or more")
        return int(text)

    def nodes(self) -> tuple[int, int]:
        """Return the fewest and the most nodes of the step; two zeros where it was not said."""
        least, dash, most = self.given.get("nodes", "").partition("-")
        if not least and not dash:
            return 0, 0
        most = most if dash else least
        if not (least.isdigit() and most.isdigit() and 0 < int(least) <= int(most)):
            raise BatchError(
                f"--nodes {self.given['nodes']!r}: expected a number, or the fewest and the most such as 1-2"
            )
        return int(least), int(most)

    def hosts(self, name: str) -> list[str]:
        """Return the hosts of an option."""
        try:
            return expand(self.given.get(name, ""))
        except ValueError as error:
            raise BatchError(f"--{name}: {error}") from error

    def time_s(self) -> float:
        """Return the step's time limit, in seconds; 0 where it has none."""
        text = self.given.get("time", "")
        if text.upper() in _NO_LIMIT:
            return 0.0
        try:
            return _seconds(text)
        except ValueError as error:
            raise BatchError(f"--time {text!r}: expected such as 90, 30:00, 1:30:00, 1-12 or UNLIMITED") from error


class StepTask(NamedTuple):
    """A task of a step: its number, its node, its number there, and the places of its devices on its machine."""

    number: int
    node: int
    local: int
    devices: Sequence[int]


def main() -> NoReturn:
    """Run a step, and exit with the largest exit code of its tasks."""
    try:
        options = read(sys.argv[1:])
        sys.exit(Step(options, dict(os.environ)).run())
    except BatchError as error:
        sys.stderr.write(f"srun: error: {error}\n")
        sys.exit(1)


def read(words: Sequence[str]) -> StepOptions:
    """
    Return what was typed.

    Raises
    ------
    BatchError
        If an option is unknown or cannot be honoured, or there is no command.

    Examples
    --------
    >>> read(["-n", "4", "--gpus-per-task=1", "python", "-u", "train.py"])
    StepOptions(given={'ntasks': '4', 'gpus-per-task': '1'}, command=['python', '-u', 'train.py'])
    """
    given, rest = _read_options(list(words))
    if not rest:
        raise BatchError("there is no command; expected srun [OPTIONS] PROGRAM [ARGUMENTS]")
    if "multi-prog" in given:
        raise BatchError("--multi-prog is not there; have a shell choose: srun sh -c 'case $SLURM_PROCID in 0) … esac'")
    if given.get("mpi", "none") not in _MPI:
        raise BatchError(
            f"--mpi={given['mpi']}: this srun starts processes and no MPI; have mpirun do it, or leave --mpi out"
        )
    if given.get("jobid", os.environ.get("SLURM_JOB_ID")) != os.environ.get("SLURM_JOB_ID"):
        raise BatchError("--jobid: a step is of the job in which srun runs; `penstock exec` enters another one")
    return StepOptions(given, rest)


def _read_options(rest: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options at the beginning of some words, and the words behind them."""
    values, flags, without = (_names(text) for text in (_VALUES, _FLAGS, _NO_EFFECT))
    given: dict[str, str] = {}
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        typed, equals, value = _parts(word)
        if equals and len(typed) == 1 and typed in flags and not value.isdigit():  # letters without values in one word
            rest.insert(0, "-" + value)
            equals, value = "", ""
        name = values.get(typed) or flags.get(typed) or without.get(typed)
        if name is None:
            raise BatchError(
                f"{word.partition('=')[0]} is not among the options of this srun, which is Penstock's; leave it out, "
                "or start the processes yourself"
            )
        takes = typed not in flags and name not in _OPTIONAL
        if takes and not equals and not rest:
            raise BatchError(f"{word} lacks its value")
        if takes and not equals:
            value = rest.pop(0)
        if typed in without:
            sys.stderr.write(f"srun: --{name} has no effect here\n")
        else:
            given[name] = value if takes or equals else "1"
    return given, rest[1:] if rest[:1] == ["--"] else rest


def _parts(word: str) -> tuple[str, str, str]:
    """Return the name of an option, whether it has its value with it, and the value."""
    if word.startswith("--"):
        return word[2:].partition("=")
    return word[1], "=" if len(word) > 2 else "", word[2:]


def _names(text: str) -> dict[str, str]:
    """Return the name of each option, by what may be typed."""
    found: dict[str, str] = {}
    for word in text.split():
        name, _, letter = word.partition(":")
        found[name] = name
        if letter:
            found[letter] = name
    return found


class Step:
    """
    One step: its tasks, where they run, and what becomes of them.

    Parameters
    ----------
    environ : mapping
        The environment of ``srun``, which is that of the script.
    """

    def __init__(self, options: StepOptions, environ: Mapping[str, str]) -> None:
        self._options, self._environ = options, environ
        folder = environ.get("PENSTOCK_CODE_DIR", "")
        if not environ.get("PENSTOCK_BATCH_DIR") or environ.get("PENSTOCK_RANK", "0") != "0":
            raise BatchError("srun starts steps from the job's script; this is a task of one")
        with open(os.path.join(folder, "plan.json")) as file:
            self._plan: dict[str, Any] = json.load(file)
        with open(os.path.join(folder, "secret"), "rb") as secret:
            self._secret = secret.read()
        self._run_dir = environ["PENSTOCK_BATCH_DIR"]
        self._allocation = allocations.read(environ, self._plan)
        self._events = TaskEvents()
        self._links: list[TaskLink] = []
        self._local: Optional[LocalTasks] = None
        self._files: dict[str, int] = {}
        self._held: list[int] = []
        self._time_s = options.time_s()
        self._has_begun = False

    def run(self) -> int:
        """Run the step to its end; return the largest exit code of its tasks."""
        mark = os.path.join(self._run_dir, "steps", str(os.getpid()))
        for name in _SIGNALS:
            signal.signal(getattr(signal, "SIG" + name), self._take_signal)
        with open(mark, "w"):
            pass
        try:
            return self._follow(self._start())
        finally:
            for link in self._links:
                link.close()
            with contextlib.suppress(OSError):
                os.unlink(mark)

    def _take_signal(self, signum: int, _frame: Any) -> None:
        if not self._has_begun and signum in _ENDING:
            raise SystemExit(128 + signum)
        self._events.put(("signal", signum))

    # --- which tasks
    def layout(self) -> list[StepTask]:
        """Return the tasks of the step in the order of their numbers, once there is room for them."""
        options, job = self._options, self._allocation
        nodes = self._chosen_nodes()
        per_node = options.number("ntasks-per-node")
        total = options.number("ntasks")
        if total and not per_node and total < len(nodes) and not options.nodes()[0]:
            nodes = nodes[:total]
        if per_node:
            counts = [per_node] * len(nodes)
        elif total:
            counts = self._room(nodes, total)
        elif options.nodes()[0] or len(nodes) < len(job.nodes):
            counts = [job.tasks[node] or 1 for node in nodes]
        else:
            counts = list(job.tasks)
        of_task = self._devices_of_tasks(nodes, counts)
        tasks: list[StepTask] = []
        for node, count in zip(nodes, counts):
            tasks += [StepTask(len(tasks) + at, node, at, of_task[node][at]) for at in range(count)]
        return tasks

    def _room(self, nodes: Sequence[int], total: int) -> list[int]:
        """Divide tasks among nodes: as the job's own are, where they are as many; else evenly."""
        own = [self._allocation.tasks[node] for node in nodes]
        return own if sum(own) == total else allocations.spread(total, len(nodes))

    def _chosen_nodes(self) -> list[int]:
        options, names = self._options, self._allocation.names
        nodes = list(range(len(names)))
        wanted, left_out = options.hosts("nodelist"), options.hosts("exclude")
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise BatchError(f"--nodelist: {unknown[0]} is not of this job, which has {compress(names)}")
        if wanted:
            nodes = [node for node in nodes if names[node] in wanted]
        nodes = [node for node in nodes if names[node] not in left_out]
        first = options.given.get("relative", "0")
        if not first.isdigit():
            raise BatchError(f"--relative {first!r} is no number of a node; the first one is 0")
        nodes = nodes[int(first) :]
        least, most = options.nodes()
        if not nodes or least > len(nodes):
            raise BatchError(f"the step asks for {least or 1} nodes, and the job has {len(nodes)} for it")
        return nodes[: most or None]

    # --- which devices
    def _devices_of_tasks(self, nodes: Sequence[int], counts: Sequence[int]) -> dict[int, list[Sequence[int]]]:
        """Return the devices of each task of each node; devices that the step asks for are its own while it runs."""
        given, job = self._options.given, self._allocation
        each = _gpus(given.get("gpus-per-task", "")) or (
            0 if _asks_gpus(given) else int(self._plan.get("gpus_per_task") or 0)
        )
        found: dict[int, list[Sequence[int]]] = {}
        for at, (node, count) in enumerate(zip(nodes, counts)):
            has = list(job.nodes[node].devices)
            wanted = each * count or self._gpus_of_node(given, len(nodes), at)
            if wanted > len(has):
                raise BatchError(
                    f"the step asks for {wanted} devices on {job.nodes[node].name}, where the job has {len(has)}"
                )
            if wanted and _asks_gpus(given) and "overlap" not in given:
                has = self._hold(node, has, wanted)
            elif wanted:
                has = has[:wanted]
            found[node] = [has[i * each : (i + 1) * each] if each else has for i in range(count)]
        if "exclusive" in given and _asks_gpus(given):
            sys.stderr.write(
                "srun: --exclusive has no effect here beside options of devices, which are the step's own\n"
            )
        if ("exact" in given or "exclusive" in given) and not _asks_gpus(given):
            self._hold_rooms(sum(counts))
        return found

    def _gpus_of_node(self, given: Mapping[str, str], nodes: int, at: int) -> int:
        if given.get("gres", "").startswith("gpu"):
            return _gpus(given["gres"][3:].lstrip(":") or "1")
        if given.get("gpus-per-node"):
            return _gpus(given["gpus-per-node"])
        return allocations.spread(_gpus(given["gpus"]), nodes)[at] if given.get("gpus") else 0

    def _hold(self, node: int, places: Sequence[int], count: int) -> list[int]:
        """Take so many devices of a node that no other step has, once there are; they are given back at the end."""
        machine = self._allocation.nodes[node].machine
        while True:
            found: list[tuple[int, int]] = []
            for place in places:
                if len(found) < count:
                    fd = _lock(os.path.join(self._run_dir, f"device-{machine}-{place}"))
                    found += [(place, fd)] if fd is not None else []
            if len(found) == count:
                self._held += [fd for _, fd in found]
                return [place for place, _ in found]
            for _, fd in found:
                os.close(fd)
            time.sleep(_LOOK_S)

    def _hold_rooms(self, count: int) -> None:
        """Wait until so many of the job's tasks are not running in other steps that are to be by themselves."""
        rooms = max(1, sum(self._allocation.tasks))
        while True:
            found: list[int] = []
            for room in range(rooms):
                if len(found) < min(count, rooms):
                    fd = _lock(os.path.join(self._run_dir, f"room-{room}"))
                    found += [fd] if fd is not None else []
            if len(found) == min(count, rooms):
                self._held += found
                return
            for fd in found:
                os.close(fd)
            time.sleep(_LOOK_S)

    # --- starting
    def _start(self) -> Set[int]:
        tasks, given = self.layout(), self._options.given
        source = given.get("input", "none")
        if source.isdigit() or (source == "all" and len(tasks) > 1):
            raise BatchError(f"--input={source}: of what srun reads, only a step of one task has it; say --input=FILE")
        env = self._environment(tasks)
        cwd = os.path.abspath(given.get("chdir") or os.getcwd())
        reads = "label" in given or "output" in given or "error" in given
        self._local = LocalTasks(self._events, reads_output=reads)
        machines = {self._allocation.nodes[task.node].machine for task in tasks}
        where = self._machines() if machines != {0} else {}
        self._has_begun = True
        for machine in sorted(machines - {0}):
            some = [task for task in tasks if self._allocation.nodes[task.node].machine == machine]
            self._start_there(where[str(machine)], some, env, cwd, tasks)
        for task in tasks:
            if not self._allocation.nodes[task.node].machine:
                stdin = 0 if len(tasks) == 1 and given.get("input") != "none" else _nothing()
                own = {**env, **self._devices_here(task), **self._own(task, tasks)}
                order = TaskOrder(task.number, self._options.command, own, cwd, self._input_of(task))
                self._local.start(order, stdin)
        return {task.number for task in tasks}

    def _input_of(self, task: StepTask) -> str:
        """Return the path of the file that a task reads; empty where ``--input`` names none."""
        pattern = self._options.given.get("input", "none")
        if pattern in ("none", "all"):
            return ""
        name = allocations.file_name(pattern, self._allocation, self._plan, **self._letters(task.number))
        return os.path.abspath(name)

    def _letters(self, number: int) -> dict[str, str]:
        """Return what a step's patterns of file names stand for, by their letters."""
        step = self._environ.get("SLURM_STEP_ID", "0")
        return {"t": str(number), "n": "0", "s": step, "N": self._allocation.names[0]}

    def _start_there(
        self,
        address: Sequence[Any],
        some: Sequence[StepTask],
        env: Mapping[str, str],
        cwd: str,
        tasks: Sequence[StepTask],
    ) -> None:
        name = self._allocation.nodes[some[0].node].name
        try:
            link = connect((address[0], address[1]), self._secret)
        except OSError as error:
            raise BatchError(f"node {name} cannot be reached at {address[0]} port {address[1]} ({error})") from error
        self._links.append(link)
        link.tell(
            {
                "argv": list(self._options.command),
                "cwd": cwd,
                "env": dict(env),
                "tasks": [
                    {
                        "number": task.number,
                        "devices": list(task.devices),
                        "env": self._own(task, tasks),
                        "stdin": self._input_of(task),
                    }
                    for task in some
                ],
            }
        )
        threading.Thread(target=self._hear, args=(link, name, {task.number for task in some}), daemon=True).start()

    def _machines(self) -> Mapping[str, Any]:
        """Return where the task servers are, once all machines have come."""
        path, until_s = os.path.join(self._run_dir, "machines"), _now_s() + _MACHINES_S
        while not os.path.exists(path):
            if _now_s() > until_s:
                raise BatchError(f"not all nodes of the job have come within {_MACHINES_S:g} s")
            time.sleep(_LOOK_S / 4)
        with open(path) as file:
            return dict(json.load(file))

    def _hear(self, link: TaskLink, name: str, left: Set[int]) -> None:
        """Report what becomes of the tasks of another machine."""
        try:
            while left:
                kind, number, body = link.receive()
                if kind == MESSAGE:
                    said = json.loads(body.decode())
                    left.discard(said["task"])
                    self._events.put(("exit", said["task"], said["code"]))
                else:
                    self._events.put_output(number, {OUTPUT: 1, ERRORS: 2}[kind], body)
        except (OSError, ValueError, KeyError):
            self._events.put(("lost", name, sorted(left)))

    def _environment(self, tasks: Sequence[StepTask]) -> dict[str, str]:
        """Return what all tasks of the step have."""
        job, given = self._allocation, self._options.given
        nodes = sorted({task.node for task in tasks})
        counts = [sum(task.node == node for task in tasks) for node in nodes]
        names = compress([job.nodes[node].name for node in nodes])
        env = dict(self._environ) if given.get("export", "ALL").startswith("ALL") else _few(self._environ)
        for word in given.get("export", "ALL").split(","):
            name, equals, value = word.partition("=")
            if equals or (name in self._environ and name not in ("ALL", "NONE")):
                env[name] = value if equals else self._environ[name]
        number = self._number()
        env.update(
            {
                "SLURM_STEP_ID": number,
                "SLURM_STEPID": number,
                "SLURM_STEP_NUM_TASKS": str(len(tasks)),
                "SLURM_STEP_NUM_NODES": str(len(nodes)),
                "SLURM_STEP_NODELIST": names,
                "SLURM_STEP_TASKS_PER_NODE": allocations.counted(counts),
                "SLURM_NTASKS": str(len(tasks)),
                "SLURM_NPROCS": str(len(tasks)),
                "SLURM_NNODES": str(len(nodes)),
                "SLURM_JOB_NUM_NODES": str(len(job.nodes)),
                "SLURM_TASKS_PER_NODE": allocations.counted(counts),
                "SLURM_SRUN_COMM_HOST": "127.0.0.1",
                "SLURM_LAUNCH_NODE_IPADDR": self._environ.get("PENSTOCK_BATCH_ADDR", "127.0.0.1"),
            }
        )
        if given.get("job-name"):
            env["SLURM_JOB_NAME"] = given["job-name"]
        if given.get("cpus-per-task"):
            env["SLURM_CPUS_PER_TASK"] = given["cpus-per-task"]
        return env

    def _number(self) -> str:
        """Return the next number of a step."""
        with open(os.path.join(self._run_dir, "step"), "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            number = int(file.read() or 0)
            file.seek(0)
            file.truncate()
            file.write(str(number + 1))
        return str(number)

    def _own(self, task: StepTask, tasks: Sequence[StepTask]) -> dict[str, str]:
        """Return what one task has for itself, but for its devices."""
        nodes = sorted({one.node for one in tasks})
        beside = [str(one.number) for one in tasks if one.node == task.node]
        node = self._allocation.nodes[task.node]
        return {
            "SLURM_PROCID": str(task.number),
            "SLURM_LOCALID": str(task.local),
            "SLURM_NODEID": str(nodes.index(task.node)),
            "SLURM_GTIDS": ",".join(beside),
            "SLURMD_NODENAME": node.name,
            "SLURM_TOPOLOGY_ADDR": node.name,
            "SLURM_CPUS_ON_NODE": str(
                max(1, self._allocation.tasks[task.node]) * int(self._plan.get("cpus_per_task") or 1)
            ),
            **({"SLURM_GPUS_ON_NODE": str(len(node.devices))} if self._plan.get("has_gpus") else {}),
        }

    def _devices_here(self, task: StepTask) -> dict[str, str]:
        """Return how a task on this machine sees its devices, of which the script has a part alone."""
        whole = {
            "CUDA_VISIBLE_DEVICES": self._environ.get("PENSTOCK_BATCH_CUDA", ""),
            "NVIDIA_VISIBLE_DEVICES": self._environ.get("PENSTOCK_BATCH_NVIDIA", ""),
            "PENSTOCK_DEVICES": self._environ.get("PENSTOCK_BATCH_DEVICES", ""),
        }
        return allocations.device_variables(whole, task.devices)

    # --- what becomes of it
    def _follow(self, left: Set[int]) -> int:
        worst, given = 0, self._options.given
        kills = given.get("kill-on-bad-exit", "0") != "0"
        if self._time_s:
            self._after(self._time_s, ("timeout",))
        while left:
            event = self._events.get()
            if event[0] == "output":
                self._write(event[1], event[2], event[3])
            elif event[0] == "exit":
                left.discard(event[1])
                worst = max(worst, event[2])
                if event[2]:
                    sys.stderr.write(f"srun: error: task {event[1]}: {_end_text(event[2])}\n")
                    if kills:
                        self._end()
            elif event[0] == "lost":
                sys.stderr.write(f"srun: error: node {event[1]} was lost\n")
                left.difference_update(event[2])
                worst = max(worst, 1)
                self._end()
            elif event[0] == "signal":
                self._signal(event[1])
            elif event[0] == "timeout":
                sys.stderr.write("srun: error: the step's --time is over\n")
                worst = max(worst, 1)
                self._end()
            else:
                self._signal(signal.SIGKILL)
        sys.stderr.flush()
        return worst

    def _end(self) -> None:
        self._signal(signal.SIGTERM)
        self._after(_END_S, ("kill",))

    def _after(self, wait_s: float, event: tuple[str, ...]) -> None:
        timer = threading.Timer(wait_s, lambda: self._events.put(event))
        timer.daemon = True
        timer.start()

    def _signal(self, signum: int) -> None:
        if self._local is not None:
            self._local.signal(signum)
        for link in self._links:
            with contextlib.suppress(OSError):
                link.tell({"signal": int(signum)})

    def _write(self, number: int, stream: int, data: bytes) -> None:
        """Write a task's output where it belongs, with its number before each line if that is asked for."""
        given = self._options.given
        pattern = given.get("error") if stream == 2 and "error" in given else given.get("output", "")
        if "label" in given:
            data = b"".join(b"%d: %s" % (number, line) for line in data.splitlines(True))
        if not pattern or pattern == "none":
            _write_all(stream, data)
            return
        name = allocations.file_name(pattern, self._allocation, self._plan, **self._letters(number))
        if name not in self._files:
            appends = os.O_APPEND if given.get("open-mode") == "append" else os.O_TRUNC
            self._files[name] = os.open(name, os.O_WRONLY | os.O_CREAT | appends, 0o666)
        _write_all(self._files[name], data)


def _now_s() -> float:
    return time.monotonic()  # noqa: TID251 - how long other machines may take to come


def _few(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a step has that takes nothing of the environment: what Slurm and Penstock say."""
    kept = ("SLURM_", "PENSTOCK_", "CUDA_VISIBLE", "NVIDIA_VISIBLE")
    return {name: value for name, value in environ.items() if name.startswith(kept) or name in ("HOME", "USER", "PATH")}


def _gpus(text: str) -> int:
    """Return how many devices ``[TYPE:]N`` names; 0 for an empty text."""
    count = text.rpartition(":")[2]
    if text and not count.isdigit():
        count = "1"
    return int(count or 0)


def _asks_gpus(given: Mapping[str, str]) -> bool:
    return any(name in given for name in ("gpus", "gpus-per-node", "gpus-per-task", "gres"))


def _lock(path: str) -> Optional[int]:
    """Return a lock on a file, which ends with this process; None if another step has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _nothing() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _seconds(text: str) -> float:
    """Return Slurm's forms of a time in seconds: ``minutes[:seconds]``, ``[days-]hours[:minutes[:seconds]]``."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        parts = [*parts, 0, 0][:3]
    elif len(parts) < 3:
        parts = [0, *parts, 0][:3]
    return float(int(days or 0) * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2])


def _end_text(code: int) -> str:
    return f"ended by signal {code - 128}" if code > 128 else f"exited with exit code {code}"


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
