"""What the generated documents say about: the facts, by entity kind, with their fields."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Union, get_args

import msgspec

from penstock_log import AnyEvent, tag_of
from penstock_log.facts import Event
from penstock_log.services import WRITERS

EVENTS: tuple[type[Event], ...] = get_args(AnyEvent)


def kind_of(event: type[Event]) -> str:
    """Return the entity kind whose subject the fact goes to: its tag begins with it."""
    kind = tag_of(event).partition(".")[0]
    if kind not in WRITERS:
        raise ValueError(f"the tag of {event.__name__} begins with {kind}, an entity kind of no service")
    return kind


def by_kind() -> dict[str, list[type[Event]]]:
    """Return the facts of each entity kind, in the order of :data:`penstock_log.services.WRITERS`."""
    return {kind: [event for event in EVENTS if kind_of(event) == kind] for kind in WRITERS}


def tag(event: type[Event]) -> str:
    """Return the fact's tag."""
    return tag_of(event)


def summary(thing: type) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())


def structs_of(events: tuple[type[Event], ...]) -> list[type[msgspec.Struct]]:
    """Return the Structs that facts hold, each once, outermost first."""
    found: dict[type[msgspec.Struct], None] = {}
    for event in events:
        _collect(event, found)
    return [struct for struct in found if struct not in events]


def fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str, str]]:
    """Yield ``(name, type, default)`` of each field; the default is ``required`` where there is none."""
    for field in msgspec.structs.fields(struct):
        yield field.encode_name, type_name(field.type), _default(field)


def type_name(annotation: Any) -> str:
    """Return a type as people write it."""
    if hasattr(annotation, "__metadata__"):
        return type_name(annotation.__origin__)
    arguments = get_args(annotation)
    if not arguments:
        return "null" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))
    origin = getattr(annotation, "__origin__", None)
    if origin in {None, Union}:
        return " or ".join(type_name(a) for a in arguments)
    if getattr(origin, "_name", None) == "Literal" or str(origin) == "typing.Literal":
        return " or ".join(f'"{a}"' for a in arguments)
    return f"{origin.__name__} of {', '.join(type_name(a) for a in arguments if a is not Ellipsis)}"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return msgspec.json.encode(value).decode()


def _collect(annotation: Any, found: dict[type[msgspec.Struct], None]) -> None:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct) and annotation not in found:
        found[annotation] = None
        for field in msgspec.structs.fields(annotation):
            _collect(field.type, found)
    for argument in get_args(annotation):
        _collect(argument, found)
