"""``docs/asyncapi.json``: the log as an AsyncAPI 3 document, schemas generated from the Structs."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from docgen.vocabulary import EVENTS, by_kind, summary, tag
from penstock_log import Commit, JobSpec, SweepSpec
from penstock_log.services import WRITERS
from penstock_log.subjects import INBOX_JOBS, INBOX_SWEEPS, entity

REF = "#/components/schemas/{name}"


def render() -> str:
    """Return the document as JSON."""
    return json.dumps(document(), indent=2) + "\n"


def document() -> dict[str, Any]:
    """Return the document: a channel and an operation for each entity kind, a message for each fact."""
    _, schemas = msgspec.json.schema_components([*EVENTS, Commit, JobSpec, SweepSpec], ref_template=REF)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Penstock",
            "version": "1",
            "description": "The facts of a Penstock cluster on NATS JetStream. One message is one commit of facts.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {"nats": {"host": "127.0.0.1:4222", "protocol": "nats"}},
        "channels": {**{kind: _channel(kind, events) for kind, events in by_kind().items()}, **_inbox()},
        "operations": {**{f"follow-{kind}": _follow(kind) for kind in WRITERS}, **_submissions()},
        "components": {"schemas": schemas, "messages": {**_messages(), **_inbox_messages()}},
    }


def _channel(kind: str, events: list[type]) -> dict[str, Any]:
    return {
        "address": entity(kind, "ID").replace("ID", "{id}"),
        "description": f"Facts about one {kind}; written by the {WRITERS[kind]} only.",
        "parameters": {"id": {"description": f"Id of the {kind}."}},
        "messages": {tag(event): {"$ref": f"#/components/messages/{tag(event)}"} for event in events},
    }


def _follow(kind: str) -> dict[str, Any]:
    return {"action": "receive", "channel": {"$ref": f"#/channels/{kind}"}, "summary": f"Follow the facts of a {kind}."}


def _messages() -> dict[str, Any]:
    return {tag(event): _message(event) for event in EVENTS}


def _message(event: type) -> dict[str, Any]:
    fact = {"type": "array", "contains": {"$ref": REF.format(name=event.__name__)}}
    return {
        "name": tag(event),
        "summary": summary(event),
        "payload": {"allOf": [{"$ref": REF.format(name="Commit")}, {"properties": {"facts": fact}}]},
    }


def _inbox() -> dict[str, Any]:
    return {
        "inbox-jobs": _inbox_channel(INBOX_JOBS, "job-spec", "Fire-and-forget submission of a job."),
        "inbox-sweeps": _inbox_channel(INBOX_SWEEPS, "sweep-spec", "Fire-and-forget submission of a sweep."),
    }


def _inbox_channel(address: str, message: str, description: str) -> dict[str, Any]:
    messages = {message: {"$ref": f"#/components/messages/{message}"}}
    return {"address": address, "description": description, "messages": messages}


def _submissions() -> dict[str, Any]:
    return {f"submit-{name}": {"action": "send", "channel": {"$ref": f"#/channels/{name}"}} for name in _inbox()}


def _inbox_messages() -> dict[str, Any]:
    return {
        "job-spec": {"name": "job-spec", "payload": {"$ref": REF.format(name="JobSpec")}},
        "sweep-spec": {"name": "sweep-spec", "payload": {"$ref": REF.format(name="SweepSpec")}},
    }
