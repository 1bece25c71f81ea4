"""All subjects and streams of Penstock, and who may write which: built here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from penstock_log.services import WRITERS

ROOT: Final = "penstock"

EVT: Final = "EVT"
LOG: Final = "LOG"
INBOX: Final = "INBOX"
REJECTED: Final = "REJECTED"
SERIES: Final = "SERIES"  # the metrics of jobs' runs
STATE: Final = "STATE"  # snapshots, in chunks
NODES: Final = "NODES"  # those of the services on nodes
SHADOW: Final = "SHADOW"  # what shadows would have done
CODE: Final = "CODE"  # the files of folders in which jobs run
LEASES: Final = "penstock-leases"  # a key-value bucket

STREAM_SUBJECTS: Final[dict[str, str]] = {
    EVT: f"{ROOT}.evt.>",
    LOG: f"{ROOT}.log.*.*",
    SERIES: f"{ROOT}.log.*.series.*",
    INBOX: f"{ROOT}.inbox.>",
    REJECTED: f"{ROOT}.rejected.>",
    STATE: f"{ROOT}.state.*",
    NODES: f"{ROOT}.state.*.*",
    SHADOW: f"{ROOT}.shadow.>",
    CODE: f"{ROOT}.code.>",
}

_NO_TOKEN: Final = frozenset(" .*>\t\r\n")


def is_token(text: str) -> bool:
    """Say whether a text can be part of a subject."""
    return bool(text) and _NO_TOKEN.isdisjoint(text)


def _token(text: str) -> str:
    if not is_token(text):
        raise ValueError(f"{text!r} cannot be part of a subject; expected letters, digits, - and _")
    return text


def _named(kind: str) -> Callable[[str], str]:
    """Return the function from a name to its subject ``penstock.KIND.NAME``; ValueError for what is no part of one."""
    begin = f"{ROOT}.{kind}."

    @lru_cache(maxsize=4096)  # asked for each fact about a job
    def subject(name: str) -> str:
        return begin + _token(name)

    return subject


INBOX_JOBS: Final = f"{ROOT}.inbox.jobs"
INBOX_SWEEPS: Final = f"{ROOT}.inbox.sweeps"
SUBMISSIONS: Final = (INBOX_JOBS, INBOX_SWEEPS)
"""All that people submit by publishing it."""

_PEOPLE: Final = f"{ROOT}.p."
ASKED: Final = (f"{ROOT}.cmd.", f"{ROOT}.qry.")
"""What the subjects of commands and queries begin with."""
_SESSION: Final = f"{ROOT}.session."
REACHED: Final = (*ASKED, _SESSION)
"""What the subjects begin with on which people reach a service, each under their own name."""
_ESCAPED: Final = re.compile(r"[^A-Za-z0-9_@+=-]")


def person(name: str) -> str:
    """
    Return a person's name as a part of a subject: other characters than letters, digits and ``_@+=-`` by their codes.

    Examples
    --------
    >>> person("alice"), person("jane.doe@lab"), person_of("jane%2Edoe@lab")
    ('alice', 'jane%2Edoe@lab', 'jane.doe@lab')

    Raises
    ------
    ValueError
        If the name is empty.
    """
    if not name:
        raise ValueError("a person's name cannot be empty")
    return _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def person_of(token: str) -> str:
    """Return the name that :func:`person` has written."""
    return unquote(token)


def by_person(name: str, subject: str) -> str:
    """
    Return a subject as the services' account has it when a person asks.

    Examples
    --------
    >>> by_person("alice", "penstock.cmd.gateway.submit")
    'penstock.p.alice.cmd.gateway.submit'
    """
    return f"{_PEOPLE}{person(name)}.{subject.removeprefix(f'{ROOT}.')}"


def by_anybody(subject: str) -> str:
    """
    Return the pattern of a subject whoever asks.

    Examples
    --------
    >>> by_anybody("penstock.qry.>")
    'penstock.p.*.qry.>'
    """
    return f"{_PEOPLE}*.{subject.removeprefix(f'{ROOT}.')}"


def asked_by(subject: str) -> tuple[str, str]:
    """
    Return ``(name, subject)`` of what was asked: the person's name as the server wrote it, empty where a service asks.

    Examples
    --------
    >>> asked_by("penstock.p.jane%2Edoe.inbox.jobs"), asked_by("penstock.inbox.jobs")
    (('jane.doe', 'penstock.inbox.jobs'), ('', 'penstock.inbox.jobs'))
    """
    if not subject.startswith(_PEOPLE):
        return "", subject
    token, _, rest = subject[len(_PEOPLE) :].partition(".")
    return person_of(token), f"{ROOT}.{rest}"


def get(stream: str) -> str:
    """Return the subject of direct gets of a stream, which the gateway answers to those who may not read all of it."""
    return f"{ROOT}.get.{stream}"


def inbox(user: str) -> str:
    """Return what the reply subjects of a service begin with; no other service may listen there."""
    return f"_INBOX.{user}"


def sign(subject: str) -> str:
    """
    Return where the server says that something was stored on a subject, without what it was.

    Examples
    --------
    >>> sign("penstock.evt.>")
    'penstock.sign.evt.>'
    """
    return f"{ROOT}.sign.{subject.removeprefix(f'{ROOT}.')}"


EXTENSION: Final = "ext"
"""Entity kinds of extensions begin with it: ``ext.billing``, which nobody but the service ``billing`` may write."""
SUBMITTED: Final = (*SUBMISSIONS, *(by_anybody(subject) for subject in SUBMISSIONS))
"""All that the work queue takes, from services and from people: what nobody reads would stay there for ever."""
EXTENSIONS: Final = f"{ROOT}.evt.{EXTENSION}."
"""What the log subjects of all extensions begin with."""

_PREFIXES: Final = {kind: f"{ROOT}.evt.{kind}." for kind in WRITERS}


def prefix(kind: str) -> str:
    """
    Return what the log subjects of a kind of entities begin with.

    Raises
    ------
    ValueError
        If the kind is not known.
    """
    found = _PREFIXES.get(kind)
    if found is None:
        raise ValueError(f"unknown entity kind {kind!r}; expected one of {', '.join(sorted(WRITERS))}")
    return found


def entity(kind: str, entity_id: str) -> str:
    """
    Return the log subject of one entity.

    Raises
    ------
    ValueError
        If the kind is not known or the id is not one subject token.

    Examples
    --------
    >>> entity("job", "j1")
    'penstock.evt.job.j1'
    """
    return prefix(kind) + _token(entity_id)


def every(kind: str) -> str:
    """
    Return the pattern of the log subjects of all entities of a kind; raises as :func:`prefix` does.

    Examples
    --------
    >>> every("job")
    'penstock.evt.job.*'
    """
    return f"{prefix(kind)}*"


def extension(name: str, entity_id: str) -> str:
    """
    Return the log subject of an extension's entity.

    Examples
    --------
    >>> extension("billing", "j1")
    'penstock.evt.ext.billing.j1'
    """
    return f"{EXTENSIONS}{_token(name)}.{_token(entity_id)}"


def extensions(entity_id: str) -> str:
    """Return the pattern of what all extensions say of an entity: those of a job give it the job's id."""
    return f"{EXTENSIONS}*.{_token(entity_id)}"


job: Final = _named("evt.job")
request: Final = _named("evt.request")  # what people ask of a sweep or a node
policy: Final = _named("evt.policy")  # what is set live for a pool, and what of it is reserved
profile: Final = _named("evt.profile")
rank: Final = _named("evt.rank")
round_: Final = _named("evt.round")
scale: Final = _named("evt.scale")
sweep: Final = _named("evt.sweep")
run: Final = _named("evt.run")
node: Final = _named("evt.node")
archive: Final = _named("evt.archive")
memory: Final = _named("evt.memory")  # of nodes: who lends to whom
aggregator: Final = _named("evt.aggregator")  # of nodes: what their aggregation agents and aggregators do
aggregation: Final = _named("evt.aggregation")  # of pools: what the assigner decides
allocation: Final = _named("evt.alloc")  # what people ask of an allocation
pilots: Final = _named("evt.pilot")  # of an allocation: what becomes of its pilots
login: Final = _named("evt.login")  # of nodes, by the token with which they came
"""Log subject of one entity, by its id: ``penstock.evt.KIND.ID``."""
ROUNDS: Final = f"{ROOT}.evt.round.*"


def user(name: str) -> str:
    """
    Return the log subject of a person, by their name.

    Examples
    --------
    >>> user("jane.doe")
    'penstock.evt.user.jane%2Edoe'
    """
    return f"{ROOT}.evt.user.{person(name)}"


def notify(name: str) -> str:
    """
    Return the log subject of a person's notifications, by their name.

    Examples
    --------
    >>> notify("jane.doe")
    'penstock.evt.notify.jane%2Edoe'
    """
    return f"{ROOT}.evt.notify.{person(name)}"


USERS: Final = f"{ROOT}.evt.user.*"
NODE_LOGINS: Final = f"{ROOT}.evt.login.*"


def writer_of(subject: str) -> str:
    """
    Return the name of the service that may write a log subject; empty if it is no log subject.

    Examples
    --------
    >>> writer_of("penstock.evt.round.default"), writer_of("penstock.evt.ext.billing.j1")
    ('matcher', 'billing')
    """
    parts = subject.split(".")
    if subject.startswith(EXTENSIONS):
        return parts[3] if len(parts) == 5 else ""
    return WRITERS.get(parts[2], "") if len(parts) == 4 and parts[:2] == [ROOT, "evt"] else ""


def entity_of(subject: str) -> tuple[str, str]:
    """
    Return ``(kind, id)`` of a log subject, as made by :func:`entity` or :func:`extension`.

    Raises
    ------
    ValueError
        If it has too few parts, or too many.

    Examples
    --------
    >>> entity_of("penstock.evt.job.j1"), entity_of("penstock.evt.ext.billing.j1")
    (('job', 'j1'), ('ext.billing', 'j1'))
    """
    if subject.startswith(EXTENSIONS):
        _, _, kind, name, entity_id = subject.split(".")
        return f"{kind}.{name}", entity_id
    _, _, kind, entity_id = subject.split(".")
    return kind, entity_id


def writable(service: str) -> list[str]:
    """Return the subjects of the log that a service may publish to, as patterns for NATS permissions."""
    return [f"{ROOT}.evt.{kind}.*" for kind, writer in WRITERS.items() if writer == service]


def extended(name: str) -> str:
    """
    Return the subjects of the log that the extension of a name may publish to, as a pattern.

    Examples
    --------
    >>> extended("billing")
    'penstock.evt.ext.billing.*'
    """
    return f"{EXTENSIONS}{name}.*"


def command(name: str, service: str = "gateway") -> str:
    """Return the subject of a command, such as ``penstock.cmd.gateway.submit``."""
    return f"{ROOT}.cmd.{service}.{_token(name)}"


def query(name: str, service: str = "gateway") -> str:
    """Return the subject of a query, such as ``penstock.qry.gateway.why``."""
    return f"{ROOT}.qry.{service}.{_token(name)}"


def metrics_of(service: str, replica_id: str) -> str:
    """
    Return the subject on which one replica of a service is asked for its metrics, and no other.

    Examples
    --------
    >>> metrics_of("matcher", "r1")
    'penstock.qry.matcher.metrics.r1'
    """
    return f"{query('metrics', service)}.{_token(replica_id)}"


def log(job_id: str, rank_: int) -> str:
    """Return the subject of one process's output."""
    return f"{ROOT}.log.{_token(job_id)}.{rank_}"


def logs(job_id: str) -> str:
    """Return the pattern for the output of all of a job's processes."""
    return f"{ROOT}.log.{_token(job_id)}.*"


def series(job_id: str, epoch: int) -> str:
    """
    Return the subject of the metrics of one run; it has one part more than those of output, whose readers miss it.

    Examples
    --------
    >>> series("j1", 2), all_series("j1")
    ('penstock.log.j1.series.2', 'penstock.log.j1.series.*')
    """
    return f"{ROOT}.log.{_token(job_id)}.series.{epoch}"


def all_series(job_id: str) -> str:
    """Return the pattern for the metrics of all of a job's runs."""
    return f"{ROOT}.log.{_token(job_id)}.series.*"


def all_output(job_id: str) -> str:
    """
    Return the pattern for all that LOG holds of a job: its output, and series that an earlier version kept there.

    Examples
    --------
    >>> all_output("j1")
    'penstock.log.j1.>'
    """
    return f"{ROOT}.log.{_token(job_id)}.>"


rejected: Final = _named("rejected")
"""Subject of what could not be accepted: ``evt``, ``jobs``, ``sweeps``, …"""


def state(name: str) -> str:
    """
    Return the subject of a service's snapshots; a service that has several names them ``SERVICE.WHOSE``.

    Examples
    --------
    >>> state("matcher"), state("executor.n1")
    ('penstock.state.matcher', 'penstock.state.executor.n1')
    """
    service, dot, whose = name.partition(".")
    return f"{ROOT}.state.{_token(service)}{dot}{_token(whose) if dot else ''}"


def stream_of_state(name: str) -> str:
    """
    Return the stream of a service's snapshots: a node's are apart from those that only services beside the log write.

    Examples
    --------
    >>> stream_of_state("matcher"), stream_of_state("executor.n1")
    ('STATE', 'NODES')
    """
    return NODES if "." in name else STATE


shadow: Final = _named("shadow")
"""Subject on which a shadow says what it follows, and how far it is."""
SHADOWS: Final = f"{ROOT}.shadow.*"


def shadowed(name: str, subject: str) -> str:
    """
    Return where a shadow publishes what it would have written to a subject of the log.

    Examples
    --------
    >>> shadowed("las", "penstock.evt.round.default"), shadowed("las", "penstock.evt.>")
    ('penstock.shadow.las.round.default', 'penstock.shadow.las.>')
    """
    return f"{shadow(name)}.{subject.removeprefix(f'{ROOT}.evt.')}"


def replica(service: str, replica_id: str) -> str:
    """Return the telemetry subject on which one replica of a service says that it is alive."""
    return f"{ROOT}.tel.replica.{_token(service)}.{_token(replica_id)}"


def replicas(service: str) -> str:
    """Return the pattern for all of a service's replicas."""
    return f"{ROOT}.tel.replica.{_token(service)}.*"


REPLICAS: Final = f"{ROOT}.tel.replica.*.*"
heartbeat: Final = _named("tel.node")
lanes: Final = _named("tel.lanes")
devices: Final = _named("tel.device")
"""Telemetry of a node: its heartbeats, the lanes of its shared devices, and how busy its devices are."""
progress: Final = _named("tel.progress")
output_grown: Final = _named("tel.output")
agreement: Final = _named("tel.agreement")
"""Telemetry of a job: steps and metrics, how far output has come that is not streamed, answers to a stop."""
heard: Final = _named("tel.matcher.heard")
"""Telemetry of the matcher that leads: that it has heard a node, and takes nothing from it."""
LANES: Final = f"{ROOT}.tel.lanes.*"
DEVICES: Final = f"{ROOT}.tel.device.*"
HEARTBEATS: Final = f"{ROOT}.tel.node.*"
PROGRESS: Final = f"{ROOT}.tel.progress.*"
AGREEMENTS: Final = f"{ROOT}.tel.agreement.*"

output: Final = _named("output")
checkpoints: Final = _named("checkpoint")
"""What a node's executor answers: what it keeps of output; checkpoints that lie there, to executors only."""
session: Final = _named("session")
"""Where a node's executor is asked by those who enter a job there: :mod:`penstock_log.session_messages`."""
SESSIONS: Final = f"{_SESSION}*"
slab: Final = _named("slab")
"""What a node's memory agent answers, to memory agents only."""
memory_offer: Final = _named("tel.memory")
"""Telemetry of a node: what memory its agent lends."""
aggregators: Final = _named("aggregator")
"""What a node's aggregation agent answers, to aggregation agents only."""
aggregator_load: Final = _named("tel.aggregator")
"""Telemetry of a node: its aggregators and how busy they are."""
SLABS: Final = f"{ROOT}.slab.*"
MEMORY_OFFERS: Final = f"{ROOT}.tel.memory.*"
AGGREGATORS: Final = f"{ROOT}.aggregator.*"
AGGREGATOR_LOADS: Final = f"{ROOT}.tel.aggregator.*"
AGGREGATOR_FACTS: Final = f"{ROOT}.evt.aggregator.*"
NODE_FACTS: Final = f"{ROOT}.evt.node.*"
OUTPUTS: Final = f"{ROOT}.output.*"
CHECKPOINTS: Final = f"{ROOT}.checkpoint.*"


def _code(user: str, *rest: str) -> str:
    """Return a subject of a user's code; where no server knows its users, the user may be nobody."""
    return ".".join((f"{ROOT}.code", person(user) if user else _NOBODY, *map(_token, rest)))


_NOBODY: Final = "%"
"""No name is written so."""
CODE_RECORDS: Final = f"{ROOT}.code.*.tree.*"
"""The records of all trees of all users."""
CODE_PARTS: Final = f"{ROOT}.code.*.part.>"
"""All parts of all users."""
CODE_MARKS: Final = f"{ROOT}.code.*.collecting"
"""The marks of all users of whose code parts are being removed."""


def code_record(user: str, digest: str) -> str:
    """
    Return the subject of the record of a tree that a user has, by the tree's digest.

    Examples
    --------
    >>> code_record("jane.doe", "0f"), code_owner("penstock.code.jane%2Edoe.tree.0f")
    ('penstock.code.jane%2Edoe.tree.0f', 'jane.doe')
    """
    return _code(user, "tree", digest)


def code_ready(user: str, digest: str) -> str:
    """Return the subject of the mark that all parts of a user's tree are there."""
    return _code(user, "ready", digest)


def code_part(user: str, digest: str, size: int) -> str:
    """Return the subject of a part of a user's files, by its digest and its size in bytes."""
    return _code(user, "part", str(size), digest)


def code_mark(user: str) -> str:
    """Return the subject of the mark that parts of a user's code are being removed."""
    return _code(user, "collecting")


def code_pattern(user: str, kind: str) -> str:
    """Return the pattern of a user's records (``tree``), marks (``ready``) or parts (``part``)."""
    return f"{_code(user, kind)}.>"


def code_owner(subject: str) -> str:
    """Return whose code a subject is about."""
    token = subject.split(".")[2]
    return "" if token == _NOBODY else person_of(token)
