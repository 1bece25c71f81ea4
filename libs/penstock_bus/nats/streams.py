"""The streams and the bucket that Penstock needs, and making those that are missing."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock_bus.logger import get_logger
from penstock_bus.nats.faults import NOT_FOUND, Refused
from penstock_bus.nats.link import Link
from penstock_bus.port import StorageFull, Timeout, Unauthorized
from penstock_events import subjects

_S: Final = 10**9  # the API counts in nanoseconds
_MIB: Final = 1 << 20
_SMALLEST: Final = 64 * 1024
_DAY_S: Final = 24 * 3600
_NAME_IN_USE: Final = 10058

BUCKET: Final = f"KV_{subjects.LEASES}"
KEY: Final = f"$KV.{subjects.LEASES}."

_log = get_logger("penstock.bus")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """
    How much the streams may keep. The log itself has no limit: it is the truth.

    Attributes
    ----------
    replicas : int
        1 on a single server, 3 on a cluster.
    duplicates_s : float
        How long a message id is remembered; longer than any retry, short because each id costs memory.
    """

    replicas: int = 1
    duplicates_s: float = 60.0
    log_bytes: int = 1024 * _MIB
    log_age_s: float = 14 * _DAY_S
    rejected_bytes: int = 64 * _MIB
    rejected_count: int = 10_000
    shadow_bytes: int = 256 * _MIB
    shadow_age_s: float = 14 * _DAY_S


def configs(limits: Limits) -> dict[str, dict[str, Any]]:
    """Return each stream's configuration, as the server's API takes it."""
    special: dict[str, dict[str, Any]] = {
        subjects.EVT: {"compression": "s2"},
        subjects.LOG: {"max_bytes": limits.log_bytes, "max_age": int(limits.log_age_s * _S), "compression": "s2"},
        subjects.INBOX: {"retention": "workqueue"},
        subjects.REJECTED: {"max_bytes": limits.rejected_bytes, "max_msgs": limits.rejected_count},
        subjects.STATE: {"allow_atomic": True, "allow_rollup_hdrs": True},
        subjects.SHADOW: {
            "max_bytes": limits.shadow_bytes,
            "max_age": int(limits.shadow_age_s * _S),
            "compression": "s2",
        },
    }
    streams = {name: _stream(name, [subjects.STREAM_SUBJECTS[name]], limits) | more for name, more in special.items()}
    return streams | {BUCKET: _bucket(limits)}


def _stream(name: str, patterns: list[str], limits: Limits) -> dict[str, Any]:
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


def _bucket(limits: Limits) -> dict[str, Any]:
    """Return the key-value bucket of the leases; its markers show watchers and the next owner that one expired."""
    return _stream(BUCKET, [f"{KEY}>"], limits) | {
        "discard": "new",
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": 3600 * _S,
    }


async def ensure(link: Link, limits: Limits) -> None:
    """
    Make the streams that are missing; those that are there stay as they are.

    A user who may not look or make goes on: an administrator made them, or the first append will say so.
    """
    for name, config in configs(limits).items():
        try:
            await _ensure_one(link, name, config)
        except (Unauthorized, Timeout) as error:
            _log.info("stream_not_checked", stream=name, reason=str(error))


async def _ensure_one(link: Link, name: str, config: dict[str, Any]) -> None:
    try:
        await link.api(f"STREAM.INFO.{name}")
    except Refused as error:
        if error.err_code not in NOT_FOUND:
            raise
        await _create(link, name, config)


async def _create(link: Link, name: str, config: dict[str, Any]) -> None:
    try:
        await link.api(f"STREAM.CREATE.{name}", config)
        _log.info("stream_made", stream=name)
    except StorageFull:
        if "max_bytes" not in config:
            raise
        await _create_smaller(link, name, config)
    except Refused as error:
        if error.err_code != _NAME_IN_USE:  # somebody else made it just now
            raise


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
