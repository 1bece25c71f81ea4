"""
Strict decoding of what people write: unknown fields are errors, and every problem is named with its path.

msgspec alone ignores unknown fields and stops at the first problem; a fold wants the former, a user neither.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from penstock_events.problems import problems

T = TypeVar("T")

MOST_PROBLEMS: Final = 5
_POSITION: Final = re.compile(r"(?:JSON is malformed: )?(.*) \(byte (\d+)\)$")
_PLACE_LAST: Final = re.compile(r"^(.*) - at `(\$.*)`$", re.DOTALL)
"""How msgspec says where a value stands that its type's own check refuses."""

_PLAINER: Final = {
    "Input data was truncated": "it ends too early",
    "Number out of range": "a number is too large; numbers are finite",
}


class BadInput(ValueError):
    """What somebody wrote cannot be accepted; ``problems`` has one sentence for each thing to correct."""

    def __init__(self, *problems: str) -> None:
        """Join the problems into one message."""
        super().__init__("; ".join(problems))
        self.problems = problems


def decode(body: bytes, type_: type[T]) -> T:
    """
    Return the value that a JSON body holds.

    Raises
    ------
    BadInput
        If it is not JSON, or not of the type; the message names the place and what was expected.

    Examples
    --------
    >>> from penstock_events.spec import JobSpec
    >>> decode(b'{"name": "a", "command": ["true"], "gpu": 2}', JobSpec)
    Traceback (most recent call last):
    penstock_events.strict.BadInput: $.gpu: unknown field; did you mean `gpus`?
    """
    return convert(parse(body), type_)


def parse(body: bytes) -> Any:
    """Return a JSON body as plain dicts, lists, strings and numbers; raise :class:`BadInput` where it is not JSON."""
    if not body.strip():
        raise BadInput("the body is empty; expected a JSON object")
    try:
        return msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise BadInput(f"the body is not UTF-8 text ({error.reason} in a string)") from error
    except RecursionError as error:
        raise BadInput("the JSON is nested too deeply") from error
    except msgspec.MsgspecError as error:
        raise BadInput(_malformed(body, str(error))) from error


def convert(raw: Any, type_: type[T]) -> T:
    """
    Return plain dicts, lists, strings and numbers (of JSON, TOML or YAML) as a value of ``type_``.

    Raises
    ------
    BadInput
        With all problems, :data:`MOST_PROBLEMS` at most.
    """
    found = list(problems(raw, type_))
    if len(found) > MOST_PROBLEMS:
        found[MOST_PROBLEMS - 1 :] = [f"and {len(found) - MOST_PROBLEMS + 1} more"]
    if found:
        raise BadInput(*found)
    try:
        return msgspec.convert(raw, type_)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadInput(_PLACE_LAST.sub(r"\2: \1", str(error))) from error


def _malformed(body: bytes, message: str) -> str:
    found = _POSITION.match(message)
    if found is None:
        return f"malformed JSON: {_PLAINER.get(message.partition(' - at')[0], message)}"
    before = body[: int(found[2])]
    line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    return f"malformed JSON at line {line}, column {column}: {found[1]}{_not_json_words(body, int(found[2]))}"


def _not_json_words(body: bytes, at: int) -> str:
    word = re.match(rb"-?(nan|inf(inity)?)", body[max(0, at - 2) :].lstrip(b" -:,["), re.IGNORECASE)
    return f" (JSON has no word for {word[0].decode()}; numbers are finite)" if word else ""
