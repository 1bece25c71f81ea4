"""
What a run of a script was given, in Slurm's terms: nodes, tasks, devices, and the variables that say so.

A job that asks for nodes with so many devices each (``--nodes=2 --gres=gpu:4``) sees as many nodes, however few
machines they are on: of a machine with eight of its devices it makes two nodes of four, which have one name.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Any, Mapping, NamedTuple, Sequence

from .hostlist import compress

Plan = Mapping[str, Any]
"""What was said at the submission, as :mod:`penstock_cli.sbatch.spool` writes it."""


class BatchError(Exception):
    """A script cannot be run as it was submitted; the message says why, and what to do."""


class BatchNode(NamedTuple):
    """
    A node of the allocation.

    ``machine`` is the number of the machine that it is on, in the order of the run's processes; ``devices`` are places
    among those that the run has there.
    """

    name: str
    machine: int
    devices: Sequence[int]


class RunAllocation(NamedTuple):
    """
    What a run was given.

    ``tasks`` is how many tasks each node has. ``job_id``, ``array_id`` and ``task_id`` are as in Slurm: numbers, where
    the job was given one; without an array, ``array_id`` and ``task_id`` are empty.
    """

    job_id: str
    array_id: str
    task_id: str
    restarts: int
    nodes: Sequence[BatchNode]
    tasks: Sequence[int]

    @property
    def names(self) -> list[str]:
        """Return the names of its nodes, in their order."""
        return [node.name for node in self.nodes]


def read(environ: Mapping[str, str], plan: Plan) -> RunAllocation:
    """
    Return what the run of this environment was given.

    Raises
    ------
    BatchError
        If the devices do not make nodes with as many devices as the script asks for.
    """
    each = int(plan.get("gpus_per_node") or 0)
    nodes: list[BatchNode] = []
    for machine, word in enumerate(environ["PENSTOCK_NODES"].split()):
        name, _, count = word.rpartition(":")
        devices = list(range(int(count)))
        if not plan.get("nodes"):
            nodes.append(BatchNode(name, machine, devices))
            continue
        if len(devices) % each:
            raise BatchError(f"{name} has {count} of its devices, and the script asks for {each} on each node")
        nodes += [BatchNode(name, machine, devices[at : at + each]) for at in range(0, len(devices), each)]
    job_id, array_id, index = numbers(environ)
    restarts = begun_before(environ) + int(environ.get("SLURM_RESTART_COUNT") or 0)
    return RunAllocation(job_id, array_id, index, restarts, nodes, tasks_of(plan, nodes))


def begun_before(environ: Mapping[str, str]) -> int:
    """
    Return how many runs of the job have begun before this one.

    One that its node refused, or that was lost before its start, has not; executors that do not tell of it count it.
    """
    starts = environ.get("PENSTOCK_STARTS", "")
    return int(starts) if starts else max(0, int(environ.get("PENSTOCK_EPOCH") or 1) - 1)


def limit_left_s(environ: Mapping[str, str], plan: Plan) -> float:
    """Return how much of the job's time limit is left, of which its runs have a part each; 0 without a limit."""
    limit_s = float(plan.get("time_limit_s") or 0)
    return max(0.0, limit_s - float(environ.get("PENSTOCK_EXECUTED_S") or 0)) if limit_s else 0.0


def numbers(environ: Mapping[str, str]) -> Sequence[str]:
    """
    Return the job's number, its array's and its index in it.

    As in Slurm, each job of an array has a number of its own, with which scripts reckon: the array's and the index.

    Examples
    --------
    >>> numbers({"PENSTOCK_JOB_ID": "1000-7", "PENSTOCK_ARRAY_ID": "1000", "PENSTOCK_ARRAY_INDEX": "7"})
    ('1007', '1000', '7')
    """
    job_id = re.sub(r"-r\d+$", "", environ["PENSTOCK_JOB_ID"])  # a job in the place of one that failed
    array_id, index = environ.get("PENSTOCK_ARRAY_ID", ""), environ.get("PENSTOCK_ARRAY_INDEX", "")
    if array_id.isdigit():
        return str(int(array_id) + int(index)), array_id, index
    return job_id, array_id, index


def tasks_of(plan: Plan, nodes: Sequence[BatchNode]) -> list[int]:
    """
    Return how many tasks each node has: so many on each, or all divided as evenly as can be.

    Where each task has devices of its own, and some nodes have too few for an even part, they go where devices are.
    """
    if plan.get("ntasks_per_node"):
        return [int(plan["ntasks_per_node"])] * len(nodes)
    if plan.get("ntasks_per_gpu"):
        return [int(plan["ntasks_per_gpu"]) * len(node.devices) for node in nodes]
    tasks, each = int(plan.get("ntasks") or len(nodes)), int(plan.get("gpus_per_task") or 0)
    even = spread(tasks, len(nodes))
    if not each or all(count * each <= len(node.devices) for count, node in zip(even, nodes)):
        return even
    found: list[int] = []
    for node in nodes:
        found.append(min(len(node.devices) // each, tasks - sum(found)))
    return found if sum(found) == tasks else even


def spread(tasks: int, nodes: int) -> list[int]:
    """
    Return tasks divided among nodes, the first ones having one more where that does not come out even.

    Examples
    --------
    >>> spread(5, 3)
    [2, 2, 1]
    """
    return [tasks // nodes + (at < tasks % nodes) for at in range(nodes)]


def counted(counts: Sequence[int]) -> str:
    """
    Return counts as Slurm writes them, repetitions in brackets.

    Examples
    --------
    >>> counted([2, 2, 1]), counted([4])
    ('2(x2),1', '4')
    """
    words: list[str] = []
    at = 0
    while at < len(counts):
        times = 1
        while at + times < len(counts) and counts[at + times] == counts[at]:
            times += 1
        words.append(f"{counts[at]}(x{times})" if times > 1 else str(counts[at]))
        at += times
    return ",".join(words)


def job_variables(allocation: RunAllocation, plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm sets in every process of a job."""
    names, tasks = compress(allocation.names), allocation.tasks
    cpus = [max(1, count) * int(plan.get("cpus_per_task") or 1) for count in tasks]
    found = {
        "SLURM_JOB_ID": allocation.job_id,
        "SLURM_JOBID": allocation.job_id,
        "SLURM_JOB_NAME": str(plan["name"]),
        "SLURM_JOB_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_JOB_NUM_NODES": str(len(allocation.nodes)),
        "SLURM_NNODES": str(len(allocation.nodes)),
        "SLURM_TASKS_PER_NODE": counted(tasks),
        "SLURM_JOB_CPUS_PER_NODE": counted(cpus),
        "SLURM_JOB_PARTITION": str(plan.get("partition") or "default"),
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_USER": str(plan.get("user") or os.getuid()),
        "SLURM_SUBMIT_DIR": str(plan["submit_dir"]),
        "SLURM_SUBMIT_HOST": str(plan["submit_host"]),
        "SLURM_CLUSTER_NAME": "penstock",
        "SLURM_NODE_ALIASES": "(null)",
        "SLURM_PRIO_PROCESS": "0",
    }
    if plan.get("ntasks") or plan.get("ntasks_per_node") or plan.get("ntasks_per_gpu"):
        found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = str(sum(tasks))
    for name in ("account", "qos"):
        if plan.get(name):
            found["SLURM_JOB_" + name.upper()] = str(plan[name])
    for name in ("cpus_per_task", "cpus_per_gpu", "gpus", "gpus_per_node", "gpus_per_task", "ntasks_per_node"):
        said = plan.get("said", {}).get(name)
        if said:
            found["SLURM_" + name.upper()] = str(said)
    for name in ("node", "cpu", "gpu"):
        if plan.get("mem_per_" + name):
            found["SLURM_MEM_PER_" + name.upper()] = str(plan["mem_per_" + name])
    if allocation.restarts:
        found["SLURM_RESTART_COUNT"] = str(allocation.restarts)
    found.update(_array_variables(allocation, environ))
    return found


def _array_variables(allocation: RunAllocation, environ: Mapping[str, str]) -> dict[str, str]:
    if not allocation.array_id:
        return {}
    found = {"SLURM_ARRAY_JOB_ID": allocation.array_id, "SLURM_ARRAY_TASK_ID": allocation.task_id}
    for name in ("COUNT", "MIN", "MAX", "STEP"):
        found["SLURM_ARRAY_TASK_" + name] = environ["PENSTOCK_ARRAY_" + name]
    return found


def node_variables(allocation: RunAllocation, plan: Plan, number: int, environ: Mapping[str, str]) -> dict[str, str]:
    """
    Return the variables of one node of the allocation: its name, its number, and its devices.

    ``environ`` is that of the run's process on its machine, whose devices it has a part of.
    """
    node = allocation.nodes[number]
    cpus = max(1, allocation.tasks[number]) * int(plan.get("cpus_per_task") or 1)
    found = {
        "SLURMD_NODENAME": node.name,
        "SLURM_NODEID": str(number),
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_TOPOLOGY_ADDR": node.name,
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    }
    if plan.get("has_gpus"):
        found["SLURM_GPUS_ON_NODE"] = str(len(node.devices))
        found["SLURM_JOB_GPUS"] = some_of(environ.get("PENSTOCK_DEVICES", ""), node.devices)
    found.update(device_variables(environ, node.devices))
    return found


def device_variables(environ: Mapping[str, str], places: Sequence[int]) -> dict[str, str]:
    """Return the variables by which a process sees those of the run's devices alone that stand at some places."""
    named = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "PENSTOCK_DEVICES")
    return {name: some_of(environ[name], places) for name in named if environ.get(name)}


def some_of(listed: str, places: Sequence[int]) -> str:
    """Return the words of a list with commas that stand at some places."""
    words = listed.split(",")
    return ",".join(words[at] for at in places if at < len(words))


def file_name(pattern: str, allocation: RunAllocation, plan: Plan, **more: str) -> str:
    """
    Return a file name with Slurm's patterns filled in; ``more`` has those of a step, by letter.

    Examples
    --------
    >>> job = RunAllocation("1007", "1000", "7", 0, [BatchNode("n3", 0, [0])], [1])
    >>> file_name("logs/%x-%A_%3a-%%-%N.out", job, {"name": "fit"})
    'logs/fit-1000_007-%-n3.out'
    """
    letters = {
        "A": allocation.array_id or allocation.job_id,
        "a": allocation.task_id or "4294967294",
        "j": allocation.job_id,
        "J": allocation.job_id,
        "N": allocation.nodes[0].name,
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": str(plan.get("user") or os.getuid()),
        "x": str(plan["name"]),
    }
    letters.update(more)

    def filled(found: Any) -> str:
        width, letter = found.groups()
        if letter == "%":
            return "%"
        value = letters.get(letter)
        if value is None:
            return str(found.group(0))
        return value.zfill(min(10, int(width))) if width and value.isdigit() else value

    if "\\" in pattern:  # as in Slurm, that fills nothing in
        return pattern.replace("\\", "")
    return re.sub(r"%(\d*)([A-Za-z%])", filled, pattern)


def host_name() -> str:
    """Return the name of this machine without its domain."""
    return socket.gethostname().partition(".")[0]
