"""
The program of a job that was submitted as a script of sbatch: it runs the script as Slurm does.

On the job's first machine it sets Slurm's variables, opens the files of the script's output, runs the script by its
first line, passes signals on, and ends as the script did. On each further machine it serves the steps of ``srun``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any, Mapping, NoReturn, Optional

from . import allocation as allocations
from .allocation import BatchError, Plan, RunAllocation
from .task_link import Registry, TaskServer

_CHUNK = 1 << 16
_OF_GANGS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What Penstock gives the processes of a gang, and Slurm does not."""
_OF_SUBMITTER = ("PATH", "VIRTUAL_ENV", "PYTHONPATH", "LANG")
"""What a job has of its submitter's shell in any case, but not under ``--export=NONE``."""
_SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "URG", "WINCH", "CONT")
_LAST_OUTPUT_S = 2.0
_REQUEUE_S = 5.0
_LOOK_S = 0.1
_LOGIN_S = 60.0
_LONGEST_INTERPRETER = 100
"""Characters of an interpreter's path in a script's first line, which old kernels cut."""
REQUEUED = "requeued"
SCRIPT_PID = "script"


def main() -> NoReturn:
    """Run this machine's part of the job, and exit as it did."""
    try:
        sys.exit(_run(dict(os.environ)))
    except BatchError as error:
        sys.stderr.write(f"penstock: {error}\n")
        sys.exit(1)


def _run(environ: dict[str, str]) -> int:
    folder = environ["PENSTOCK_CODE_DIR"]
    with open(os.path.join(folder, "plan.json")) as file:
        plan = json.load(file)
    with open(os.path.join(folder, "secret"), "rb") as secret_file:
        secret = secret_file.read()
    allocation = allocations.read(environ, plan)
    machines, port = int(environ.get("WORLD_SIZE") or 1), int(environ.get("MASTER_PORT") or 0)
    if int(environ.get("RANK") or 0):
        return _serve(environ, plan, secret, (environ["MASTER_ADDR"], port))
    _refuse_to_begin(environ, plan)
    run_dir = tempfile.mkdtemp(prefix="penstock-batch-")
    registry: Optional[Registry] = None
    script, code = BatchScript(folder, plan, allocation, run_dir), 1
    try:
        os.mkdir(os.path.join(run_dir, "steps"))
        _write_programs(os.path.join(run_dir, "bin"), folder)
        if machines > 1:
            registry = Registry(port, machines, secret, os.path.join(run_dir, "machines"))
        code = script.run(environ)
        return code
    finally:
        if registry is not None:
            signal.signal(signal.SIGTERM, lambda _signum, _frame: registry.stop_waiting())
            registry.end(waits=code == 0 and not script.is_stopped)  # a run that fails or is stopped ends as a whole
        shutil.rmtree(run_dir, ignore_errors=True)


def _write_programs(path: str, folder: str) -> None:
    """
    Write ``srun`` and ``sbatch`` as programs of this interpreter, which hand on the environment as it is.

    Those of the folder are run by a shell, and some shells drop the functions that bash exports, such as ``module``.
    """
    os.mkdir(path)
    if len(sys.executable) > _LONGEST_INTERPRETER or " " in sys.executable:
        return
    for name, module in (("srun", "srun"), ("sbatch", "job_control")):
        words = "" if name == "srun" else f"sys.argv.insert(1, {name!r})\n"
        begin = f"#!{sys.executable} -I\nimport sys\nsys.path.insert(0, {folder!r})\n{words}"
        with open(os.path.join(path, name), "w") as file:
            file.write(f"{begin}from penstock_batch.{module} import main\nmain()\n")
        os.chmod(os.path.join(path, name), 0o700)


def _refuse_to_begin(environ: Mapping[str, str], plan: Plan) -> None:
    """End the job where it says that it may not be begun again, or not so late."""
    if allocations.begun_before(environ) and not plan.get("requeue", True):
        raise BatchError("the job was begun before, and --no-requeue says that it is not begun again")
    deadline_s, left_s = float(plan.get("deadline_s") or 0), allocations.limit_left_s(environ, plan)
    if deadline_s and time.time() + left_s > deadline_s:  # noqa: TID251 - the clock of the node on which it begins
        raise BatchError("its --deadline is over before it could end")


def _serve(environ: Mapping[str, str], plan: Plan, secret: bytes, address: Any) -> int:
    """Serve the steps of ``srun`` on a further machine."""
    machine = int(environ["RANK"])
    server = TaskServer(_environment(environ, plan), secret)

    def end(signum: int, _frame: Any) -> None:
        """Pass the signal on, and serve until the script has ended, as tasks may take their time to save their work."""
        if not server.is_linked:
            os._exit(128 + signum)
        server.signal(signum)

    signal.signal(signal.SIGTERM, end)
    for name in ("USR1", "USR2", "HUP", "ALRM"):
        # srun passes them on; SIG_IGN would be inherited by tasks, and no shell can trap what it was begun to ignore
        signal.signal(getattr(signal, "SIG" + name), lambda _signum, _frame: None)
    return 0 if server.serve(machine, address) else 1


def _environment(environ: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Return the environment of the script without Slurm's variables: the submitter's, and over it the run's own."""
    folder = environ["PENSTOCK_CODE_DIR"]
    with open(os.path.join(folder, "environment.json")) as file:
        brought: dict[str, str] = json.load(file)
    run = {name: value for name, value in environ.items() if name not in _OF_GANGS}
    if plan.get("export") != "ALL":
        run = {name: value for name, value in run.items() if name not in _OF_SUBMITTER}
        brought = {**_login_environment(run), **brought}
    env = {**brought, **run}
    env["PATH"] = os.path.join(folder, "bin") + ":" + env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    env["PENSTOCK_BATCH_PYTHON"] = sys.executable
    env["ENVIRONMENT"] = "BATCH"
    return env


def _login_environment(run: Mapping[str, str]) -> dict[str, str]:
    """Return what a login shell of the job's user has, as Slurm gives it to jobs that bring no environment."""
    kept = {name: run[name] for name in ("HOME", "USER", "LOGNAME", "SHELL") if name in run}
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"}
    try:
        listed = subprocess.run(
            ["/bin/bash", "-lc", "exec env -0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**path, **kept},
            timeout=_LOGIN_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"penstock: a login shell told no environment ({error}); it is left out\n")
        return path
    pairs = (os.fsdecode(entry).partition("=") for entry in listed.split(b"\0") if entry)
    return {name: value for name, _, value in pairs if name not in ("_", "SHLVL", "PWD", "OLDPWD")}


class BatchScript:
    """The script of a job, while it runs."""

    def __init__(self, folder: str, plan: Plan, allocation: RunAllocation, run_dir: str) -> None:
        self._folder, self._plan, self._allocation, self._run_dir = folder, plan, allocation, run_dir
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._is_termed = False

    @property
    def is_stopped(self) -> bool:
        """Say whether the run was told to end; a script that requeued itself has ended by itself."""
        return self._is_termed and not self._is_requeued()

    def _is_requeued(self) -> bool:
        return os.path.exists(os.path.join(self._run_dir, REQUEUED))

    def run(self, environ: Mapping[str, str]) -> int:
        """Run the script to its end; return its exit code, 128 + n where signal n has ended it."""
        for name in _SIGNALS:
            signal.signal(getattr(signal, "SIG" + name), self._hear)
        files = self._open_output()
        process = subprocess.Popen(
            self._command(),
            stdin=self._open_input(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._variables(environ),
            start_new_session=True,
        )
        with open(os.path.join(self._run_dir, SCRIPT_PID), "w") as file:
            file.write(str(process.pid))
        readers = [
            threading.Thread(target=self._copy, args=(pipe.fileno(), fd, file), daemon=True)
            for pipe, fd, file in ((process.stdout, 1, files[0]), (process.stderr, 2, files[1]))
            if pipe is not None
        ]
        for reader in readers:
            reader.start()
        threading.Thread(target=lambda: self._events.put(("exit", process.wait())), daemon=True).start()
        code = self._follow(process)
        for reader in readers:
            reader.join(_LAST_OUTPUT_S)  # what the script has left behind may hold its output open
        if self._is_requeued():
            return 0
        return 128 - code if code < 0 else code

    def _hear(self, signum: int, _frame: Any) -> None:
        self._is_termed = self._is_termed or signum == signal.SIGTERM
        self._events.put(("signal", signum))

    def _follow(self, process: subprocess.Popen[bytes]) -> int:
        """
        Return the script's code once it has ended; after a TERM, once all that it has started has ended too.

        A shell without a trap dies of the signal, while its programs save their work.
        """
        code: Optional[int] = None
        while code is None or (self._is_termed and self._is_alive(process.pid)):
            try:
                event = self._events.get(timeout=None if code is None else _LOOK_S)
            except Empty:
                continue
            if event[0] == "exit":
                code = int(event[1])
            elif event[0] == "kill":
                self._signal_all(process.pid, signal.SIGKILL)
            else:
                self._pass_on(process.pid, event[1])
        return code

    def _is_alive(self, pid: int) -> bool:
        """Say whether a process of the script's group runs, or a step."""
        return _group_runs(pid) or any(_runs(step) for step in self._steps())

    def _pass_on(self, pid: int, signum: int) -> None:
        """Pass a signal on: the warning before the time limit to those that it is for, all others to everybody."""
        warning = self._plan.get("signal") or {}
        if signum == getattr(signal, "SIG" + str(warning.get("name")), None) and signum != signal.SIGTERM:
            targets = [pid] if warning.get("batch") else self._steps()
            for target in targets:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, signum)
            return
        self._signal_all(pid, signum)
        if signum == signal.SIGTERM and self._is_requeued():
            timer = threading.Timer(_REQUEUE_S, lambda: self._events.put(("kill",)))
            timer.daemon = True
            timer.start()

    def _signal_all(self, pid: int, signum: int) -> None:
        """Send a signal to the script's group, and to steps that have left it: by setsid, or a shell's job control."""
        for step in self._steps():
            if _group(step) != pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(step, signum)
        _signal_group(pid, signum)

    def _steps(self) -> list[int]:
        """Return the processes of ``srun`` that run."""
        return [int(name) for name in os.listdir(os.path.join(self._run_dir, "steps")) if name.isdigit()]

    def _command(self) -> list[str]:
        """Return what runs the script: the words of its first line, as the kernel takes them, and its arguments."""
        path = os.path.join(self._folder, "script", str(self._plan["script"]))
        with open(path, "rb") as file:
            first = os.fsdecode(file.readline()[2:].strip())
        interpreter, _, argument = first.partition(" ")
        if not os.path.exists(interpreter):
            raise BatchError(
                "the script's first line names {}, which this node does not have; expected such as #!/bin/bash".format(
                    interpreter or "nothing"
                )
            )
        return [interpreter, *filter(None, [argument.strip()]), path, *sys.argv[1:]]

    def _variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        plan, allocation = self._plan, self._allocation
        env = _environment(environ, plan)
        env.update(allocations.job_variables(allocation, plan, environ))
        env.update(allocations.node_variables(allocation, plan, 0, environ))
        now_s = int(time.time())  # noqa: TID251 - when it began, as Slurm tells scripts
        env.update(
            {
                "SLURM_PROCID": "0",
                "SLURM_LOCALID": "0",
                "SLURM_GTIDS": "0",
                "PENSTOCK_BATCH_PID": str(os.getpid()),
                "SLURM_JOB_START_TIME": str(now_s),
                "PENSTOCK_BATCH_DIR": self._run_dir,
                "PATH": os.path.join(self._run_dir, "bin") + ":" + env["PATH"],
                "PENSTOCK_BATCH_ADDR": environ.get("MASTER_ADDR", "127.0.0.1"),
                "PENSTOCK_BATCH_CUDA": environ.get("CUDA_VISIBLE_DEVICES", ""),
                "PENSTOCK_BATCH_NVIDIA": environ.get("NVIDIA_VISIBLE_DEVICES", ""),
                "PENSTOCK_BATCH_DEVICES": environ.get("PENSTOCK_DEVICES", ""),
            }
        )
        if plan.get("login"):  # what is submitted from here has the same login
            env["SBATCH_PENSTOCK_LOGIN"] = plan["login"]
        if plan.get("time_limit_s"):
            env["SLURM_JOB_END_TIME"] = str(now_s + int(allocations.limit_left_s(environ, plan)))
        return env

    def _open_input(self) -> int:
        name = self._plan.get("input") or "/dev/null"
        try:
            return os.open(allocations.file_name(name, self._allocation, self._plan), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BatchError(f"the script's --input {name} cannot be read ({error.strerror})") from error

    def _open_output(self) -> list[Optional[_OutputFile]]:
        """Open the files of standard output and standard error, which are one if only one is named."""
        default = "slurm-%A_%a.out" if self._allocation.array_id else "slurm-%j.out"
        output = self._open(self._plan.get("output") or default)
        return [output, self._open(self._plan["error"]) if self._plan.get("error") else output]

    def _open(self, pattern: str) -> Optional[_OutputFile]:
        name = allocations.file_name(pattern, self._allocation, self._plan)
        if name in ("/dev/null", "none"):
            return None
        appends = self._allocation.restarts > 0 or self._plan.get("open_mode") == "append"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if appends else os.O_TRUNC)
        try:
            return _OutputFile(os.open(name, flags, 0o666), name)
        except OSError as error:
            path, folder = os.path.abspath(name), os.path.dirname(os.path.abspath(name))
            why = f"there is no folder {folder}; make it first" if not os.path.isdir(folder) else error.strerror
            raise BatchError(f"the file {path} of the script's output cannot be opened: {why}") from error

    def _copy(self, pipe: int, fd: int, file: Optional[_OutputFile]) -> None:
        """Copy one of the script's streams into its file, and to Penstock's output of the job."""
        while True:
            try:
                data = os.read(pipe, _CHUNK)
            except OSError:
                return
            if not data:
                return
            if file is not None:
                file.write(data)
            _write_all(fd, data)


class _OutputFile:
    """A file of the script's output; where it takes no more, the job goes on without it."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd, self._name, self._is_full = fd, name, False

    def write(self, data: bytes) -> None:
        """Write all of some bytes, as long as the file takes any."""
        if self._is_full:
            return
        try:
            _write_all(self._fd, data)
        except OSError as error:
            self._is_full = True
            why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
            sys.stderr.write(f"penstock: {self._name} takes no more ({why}); `penstock logs` has the rest\n")


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _signal_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def _group(pid: int) -> int:
    """Return a process's group; 0 if there is no such process."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _runs(pid: int) -> bool:
    """Say whether a process runs; one that has ended, and was not waited for, does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return not os.path.isdir("/proc/self") and bool(_group(pid))


def _group_runs(group: int) -> bool:
    """Say whether a process of a group runs."""
    try:
        os.killpg(group, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    if not os.path.isdir("/proc/self"):
        return True
    return any(name.isdigit() and _group(int(name)) == group and _runs(int(name)) for name in os.listdir("/proc"))
