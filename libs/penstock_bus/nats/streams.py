"""
The streams and the bucket that Penstock needs: their configuration, their limits, and their use of the store.

:func:`ensure` makes the streams that are missing and updates those of earlier versions; :class:`StreamLimits` bounds
each. For administrators, :func:`used_bytes` and :func:`streams` say how full the server's store is and of what, and
:func:`purge` makes room.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock_bus.logger import get_logger
from penstock_bus.nats.link import NOT_FOUND, Link, ServerRefusal
from penstock_bus.port import LogFromFuture, StorageFull, Timeout, Unauthorized
from penstock_log import LOG_FORMAT, subjects

_S: Final = 10**9  # the API counts in nanoseconds
_MIB: Final = 1 << 20
_SMALLEST: Final = 64 * 1024
_DAY_S: Final = 24 * 3600
_NAME_IN_USE: Final = 10058

_PARTS: Final = {
    "log_bytes": 5 / 32,
    "series_bytes": 1 / 32,
    "state_bytes": 3 / 32,
    "nodes_bytes": 1 / 32,
    "inbox_bytes": 1 / 16,
    "shadow_bytes": 1 / 16,
    "rejected_bytes": 1 / 32,
    "leases_bytes": 1 / 64,
    "code_bytes": 1 / 8,
}
"""Parts of a store that streams may take, where that is less than they take at most; together less than 5/8."""

_UNLIMITED: Final = (0, -1)
_FORMAT: Final = "penstock-log-format"

BUCKET: Final = f"KV_{subjects.LEASES}"
KEY: Final = f"$KV.{subjects.LEASES}."

_log = get_logger("penstock.bus")


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """
    The limits of the streams, in bytes and messages. The log itself has no limit: it is the truth.

    All other streams together stay below five eighths of a store (:meth:`of_store`), so that the rest is the log's.

    Attributes
    ----------
    replicas : int
        On so many servers each stream is kept: 1 on a single server, 3 on a cluster.
    inbox_count : int
        So many submissions of a kind may wait of one person; what this person sends beyond is refused, and another's
        is not.
    inbox_bytes, leases_bytes, code_bytes
        When one of these streams is full, it refuses messages and the writer gets an error. The others drop the oldest.
    state_bytes, nodes_bytes : int
        The bounds of all snapshots, and of those of services on nodes. If a part of one is dropped, the log is read
        instead.
    log_age_s : float
        So long output is kept, and series of metrics.
    duplicates_s : float
        How long a message id is remembered; longer than any retry, short because each id costs memory.
    """

    replicas: int = 1
    duplicates_s: float = 60.0
    inbox_count: int = 20_000
    inbox_bytes: int = 256 * _MIB
    state_bytes: int = 1024 * _MIB
    leases_bytes: int = 16 * _MIB
    log_bytes: int = 1024 * _MIB
    log_age_s: float = 14 * _DAY_S
    series_bytes: int = 256 * _MIB
    nodes_bytes: int = 256 * _MIB
    rejected_bytes: int = 64 * _MIB
    rejected_count: int = 10_000
    shadow_bytes: int = 256 * _MIB
    shadow_age_s: float = 14 * _DAY_S
    code_bytes: int = 16 * 1024 * _MIB

    @classmethod
    def of_store(cls, store_bytes: int, replicas: int = 1) -> StreamLimits:
        """
        Return the limits for a store of a size, in bytes, on each of the servers.

        Examples
        --------
        >>> small = StreamLimits.of_store(256 << 20)
        >>> small.log_bytes >> 20, small.inbox_bytes >> 20, StreamLimits.of_store(1 << 40) == StreamLimits()
        (40, 16, True)
        """
        default = cls()
        sizes = {name: min(getattr(default, name), int(store_bytes * part)) for name, part in _PARTS.items()}
        return cls(replicas=replicas, **sizes)


def configs(limits: StreamLimits) -> dict[str, dict[str, Any]]:
    """Return each stream's configuration, as the server's API takes it."""
    compression = compression_of(limits.replicas)
    special: dict[str, dict[str, Any]] = {
        subjects.EVT: {
            "compression": compression,
            "deny_delete": True,
            "allow_atomic": True,
            "metadata": {_FORMAT: str(LOG_FORMAT)},
        },
        subjects.LOG: {
            "max_bytes": limits.log_bytes,
            "max_age": int(limits.log_age_s * _S),
            "compression": compression,
            "deny_delete": True,
        },
        subjects.SERIES: {
            "max_bytes": limits.series_bytes,
            "max_age": int(limits.log_age_s * _S),
            "compression": compression,
            "max_msgs_per_subject": 1,  # of the series of a run, the newest is kept
            "allow_rollup_hdrs": True,  # which executors of earlier versions send, and stop where they are refused
        },
        subjects.INBOX: {
            "subjects": list(subjects.SUBMITTED),
            "retention": "workqueue",
            "max_bytes": limits.inbox_bytes,
            "max_msgs_per_subject": limits.inbox_count,
            "discard": "new",
            "discard_new_per_subject": True,
        },
        subjects.REJECTED: {"max_bytes": limits.rejected_bytes, "max_msgs": limits.rejected_count},
        subjects.STATE: {"allow_atomic": True, "allow_rollup_hdrs": True, "max_bytes": limits.state_bytes},
        subjects.NODES: {"allow_atomic": True, "allow_rollup_hdrs": True, "max_bytes": limits.nodes_bytes},
        subjects.SHADOW: {
            "max_bytes": limits.shadow_bytes,
            "max_age": int(limits.shadow_age_s * _S),
            "compression": compression,
        },
        subjects.CODE: {
            "max_bytes": limits.code_bytes,
            "allow_atomic": True,
            "max_msgs_per_subject": 1,
            "discard": "new",
            "compression": compression,
        },
    }
    streams = {name: _stream(name, [subjects.STREAM_SUBJECTS[name]], limits) | more for name, more in special.items()}
    for name in (subjects.EVT, subjects.LOG, subjects.SHADOW):
        source = f"{subjects.ROOT}.{name.lower()}.>"
        streams[name]["republish"] = {"src": source, "dest": subjects.sign(source), "headers_only": True}
    return streams | {BUCKET: _bucket(limits)}


def compression_of(replicas: int) -> str:
    """
    Return how a stream is compressed: not at all where several servers keep it.

    A server that comes back after it was killed cuts off what the others have not acknowledged. Where the stream is
    compressed, nats-server 2.15.1 writes the block then compressed and appends uncompressed messages to it; it cannot
    read them any more a few seconds later. Two servers that were killed one after the other cost the whole log
    (docs/servers.md). A server alone cuts nothing off. What lifts this: a release of the server that does it right.
    """
    return "s2" if replicas == 1 else "none"


def _stream(name: str, patterns: list[str], limits: StreamLimits) -> dict[str, Any]:
    return {
        "name": name,
        "subjects": patterns,
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "num_replicas": limits.replicas,
        "allow_direct": True,
        "duplicate_window": int(limits.duplicates_s * _S),
    }


def _bucket(limits: StreamLimits) -> dict[str, Any]:
    """Return the key-value bucket of the leases; its markers show watchers and the next owner that one expired."""
    return _stream(BUCKET, [f"{KEY}>"], limits) | {
        "discard": "new",
        "max_bytes": limits.leases_bytes,
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,  # which the server wants for its markers
        "deny_delete": True,
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": 3600 * _S,
    }


async def ensure(link: Link, limits: StreamLimits) -> None:
    """
    Make the streams that are missing, and bring those of earlier versions up to date; limits that they have stay.

    A user who may not look or make goes on: an administrator made them, or the first append will say so.
    """
    for name, config in configs(limits).items():
        try:
            await _ensure_one(link, name, config)
        except (Unauthorized, Timeout) as error:
            _log.info("stream_not_checked", stream=name, reason=str(error))


async def _ensure_one(link: Link, name: str, config: dict[str, Any]) -> None:
    try:
        found = (await link.api(f"STREAM.INFO.{name}"))["config"]
    except ServerRefusal as error:
        if error.err_code not in NOT_FOUND:
            raise
        await _create(link, name, config)
    else:
        check_format(found)
        await _update(link, name, found, outdated(found, config))


def check_format(found: dict[str, Any]) -> None:
    """
    Look whether this version can read a stream.

    Raises
    ------
    LogFromFuture
        If a later version has written what this one would only drop.
    """
    number = (found.get("metadata") or {}).get(_FORMAT, "1")
    if not number.isdigit() or int(number) > LOG_FORMAT:
        raise LogFromFuture(number, LOG_FORMAT)


def outdated(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what an earlier version had made otherwise."""
    changed: dict[str, Any] = {
        key: True
        for key in ("deny_delete", "deny_purge", "allow_atomic", "allow_rollup_hdrs")
        if wanted.get(key) and not found.get(key)
    }
    if found.get("allow_rollup_hdrs") and not wanted.get("allow_rollup_hdrs"):
        changed["allow_rollup_hdrs"] = False  # with it, one message of whoever may write to a stream empties it
    if sorted(found["subjects"]) != sorted(wanted["subjects"]):
        changed["subjects"] = wanted["subjects"]
    if found.get("num_replicas", 1) < wanted["num_replicas"]:  # and never less: whoever made more of them wants them
        changed |= {"num_replicas": wanted["num_replicas"], "placement": None}
    if max(found.get("num_replicas", 1), wanted["num_replicas"]) > 1 and found.get("compression", "none") != "none":
        changed["compression"] = "none"
    if found.get("republish") != wanted.get("republish"):
        changed["republish"] = wanted.get("republish")
    marks, wanted_marks = found.get("metadata") or {}, wanted.get("metadata") or {}
    if any(marks.get(key) != value for key, value in wanted_marks.items()):
        changed["metadata"] = marks | wanted_marks
    if found["max_bytes"] in _UNLIMITED and "max_bytes" in wanted:
        changed |= {"max_bytes": wanted["max_bytes"], "discard": wanted["discard"]}
    if found.get("max_msgs_per_subject", -1) in _UNLIMITED and "discard_new_per_subject" in wanted:
        changed |= {key: wanted[key] for key in ("max_msgs_per_subject", "discard", "discard_new_per_subject")}
    return changed


def of_today(config: dict[str, Any], state: dict[str, Any], store_bytes: int) -> dict[str, Any]:
    """
    Return what of a stream's configuration has to be otherwise for a server of today's version with a store of a size.

    Parameters
    ----------
    config, state
        As it was, on another server, perhaps one of several.
    """
    wanted = configs(StreamLimits.of_store(store_bytes)).get(config["name"], {})
    changed: dict[str, Any] = {"num_replicas": 1, "placement": None}
    if wanted:
        changed |= {key: wanted.get(key, False) for key in ("deny_delete", "deny_purge")}
    if "max_bytes" in wanted and config["max_bytes"] not in _UNLIMITED:
        changed["max_bytes"] = max(min(config["max_bytes"], wanted["max_bytes"]), state["bytes"])
    return changed


async def _update(link: Link, name: str, found: dict[str, Any], changed: dict[str, Any]) -> None:
    """Change a stream; what is in it stays, but for the oldest where that is what a limit is to do."""
    if not changed:
        return
    try:
        await link.api(f"STREAM.UPDATE.{name}", found | changed)
    except StorageFull:  # what it may grow to cannot be promised; the rest can be changed all the same
        await link.api(f"STREAM.UPDATE.{name}", found | {k: v for k, v in changed.items() if k != "max_bytes"})
        _log.warning("stream_without_limit", stream=name, wanted_bytes=changed["max_bytes"])
    else:
        _log.info("stream_updated", stream=name, changed=sorted(changed))


async def _create(link: Link, name: str, config: dict[str, Any]) -> None:
    try:
        await _create_as_there_is_room(link, name, config)
    except ServerRefusal as error:
        if error.err_code != _NAME_IN_USE:  # somebody else made it just now, maybe smaller
            raise


async def _create_as_there_is_room(link: Link, name: str, config: dict[str, Any]) -> None:
    try:
        await link.api(f"STREAM.CREATE.{name}", config)
        _log.info("stream_made", stream=name, replicas=config["num_replicas"])
    except StorageFull:
        if "max_bytes" not in config:
            raise
        await _create_smaller(link, name, config)


async def _create_smaller(link: Link, name: str, config: dict[str, Any]) -> None:
    """Make a stream whose size the server cannot promise: a quarter of what it can, since the log comes first."""
    size = config["max_bytes"] // 4
    while size >= _SMALLEST:
        try:
            await link.api(f"STREAM.CREATE.{name}", config | {"max_bytes": size})
            break
        except StorageFull:
            size //= 4
    else:
        raise StorageFull(f"the server has no room for the stream {name}; give it more (max_file_store)")
    await link.api(f"STREAM.UPDATE.{name}", config | {"max_bytes": size // 4})
    _log.warning("stream_made_smaller", stream=name, wanted_bytes=config["max_bytes"], max_bytes=size // 4)


_ALL: Final = ">"


class StreamUse(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one stream holds.

    Attributes
    ----------
    max_bytes : int
        Its limit; 0 for none.
    subjects : dict of str to int
        Messages of each subject, where they were asked for.
    """

    name: str
    messages: int
    bytes: int
    max_bytes: int
    subjects: dict[str, int] = {}


async def used_bytes(link: Link) -> int:
    """Return how much all streams hold, in bytes as the server counts them against its limit."""
    return int((await link.api("INFO"))["storage"])


async def streams(link: Link) -> list[StreamUse]:
    """Return what each stream holds, the fullest first."""
    names = (await link.api("STREAM.NAMES"))["streams"] or []
    found = [_use(name, await link.api(f"STREAM.INFO.{name}")) for name in names]
    return sorted(found, key=lambda one: one.bytes, reverse=True)


async def stream(link: Link, name: str, pattern: str = _ALL) -> StreamUse:
    """Return what one stream holds, by subject: the first hundred thousand that fit the pattern."""
    return _use(name, await link.api(f"STREAM.INFO.{name}", {"subjects_filter": pattern}))


async def purge(link: Link, name: str, pattern: str = "") -> int:
    """
    Delete what a stream holds, or what of it fits a pattern of subjects; return how many messages that were.

    Raises
    ------
    ValueError
        For the log: it is the truth, and nothing brings it back.
    """
    if name == subjects.EVT:
        raise ValueError(f"{name} is the log itself, which nothing brings back; raise the store's limit instead")
    answer = await link.api(f"STREAM.PURGE.{name}", {"filter": pattern} if pattern else {})
    return int(answer["purged"])


def _use(name: str, info: dict[str, Any]) -> StreamUse:
    state = info["state"]
    return StreamUse(
        name=name,
        messages=state["messages"],
        bytes=state["bytes"],
        max_bytes=max(info["config"]["max_bytes"], 0),
        subjects=state.get("subjects") or {},
    )
