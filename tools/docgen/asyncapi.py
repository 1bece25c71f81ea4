"""``docs/asyncapi.json``: the log as an AsyncAPI 3 document, schemas generated from the Structs."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from docgen.vocabulary import EVENTS, by_kind, summary, tag
from penstock_log import Commit, JobSpec, SweepSpec, UnknownFact
from penstock_log.services import WRITERS
from penstock_log.subjects import INBOX_JOBS, INBOX_SWEEPS, entity, extension

REF = "#/components/schemas/{name}"
EXTENSION = "extension"
EXTENSION_FACT = {
    "title": "A fact of an extension, or of a later version",
    "description": "Readers keep what they do not know as it is, and ignore it.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "examples": ["ext.billing.job_priced.v1"]},
        "at_s": {"type": "number", "description": "Seconds since the Unix epoch at which it became true."},
    },
    "required": ["type"],
}


def render() -> str:
    """Return the document as JSON."""
    return json.dumps(document(), indent=2) + "\n"


def document() -> dict[str, Any]:
    """Return the document: a channel and an operation for each entity kind, a message for each fact."""
    _, schemas = msgspec.json.schema_components([*EVENTS, Commit, JobSpec, SweepSpec], ref_template=REF)
    schemas[UnknownFact.__name__] = EXTENSION_FACT
    del schemas[Commit.__name__]["properties"]["facts"]["items"]["discriminator"]["mapping"][UnknownFact.__name__]
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
        "channels": {
            **{kind: _channel(kind, events) for kind, events in by_kind().items()},
            **_extensions(),
            **_inbox(),
        },
        "operations": {**{f"follow-{kind}": _follow(kind) for kind in (*WRITERS, EXTENSION)}, **_submissions()},
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
    return {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{kind}"},
        "summary": f"Follow the facts of {_one(kind)}.",
    }


def _one(kind: str) -> str:
    return f"an {kind}" if kind.startswith("e") else f"a {kind}"


def _messages() -> dict[str, Any]:
    extended = _message("ext.NAME.FACT.vN", "A fact of the extension NAME.", UnknownFact)
    return {**{tag(event): _message(tag(event), summary(event), event) for event in EVENTS}, EXTENSION: extended}


def _message(name: str, about: str, event: type) -> dict[str, Any]:
    fact = {"type": "array", "contains": {"$ref": REF.format(name=event.__name__)}}
    payload = {"allOf": [{"$ref": REF.format(name="Commit")}, {"properties": {"facts": fact}}]}
    return {"name": name, "summary": about, "payload": payload}


def _extensions() -> dict[str, Any]:
    channel = {
        "address": extension("NAME", "ID").replace("NAME", "{name}").replace("ID", "{id}"),
        "description": "Facts of an extension; written by the extension of that name only.",
        "parameters": {
            "name": {"description": "The extension, as `[extensions]` of penstock.toml names it."},
            "id": {"description": "Id of the entity that the facts are about, such as a job's."},
        },
        "messages": {EXTENSION: {"$ref": f"#/components/messages/{EXTENSION}"}},
    }
    return {EXTENSION: channel}


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
