"""
Parameters of commands, declared without Typer, and plain command lines read without it.

Typer takes 60 ms to load: longer than most commands take. :class:`Option` and :class:`Argument` declare a parameter as
Typer's do, and :mod:`penstock_cli.typer_commands` makes Typer's of them, for help, completion and messages about what
was mistyped. :func:`read_plainly` reads what needs none of these, and leaves everything else to Typer. A test holds it
to Typer's own reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct

COMMAND: Final = "penstock.command"
"""Under which name the meta data of a context has the words behind ``--``."""
_UNDERSTOOD: Final = frozenset({"help", "metavar", "min", "max", "show_default"})
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class Declaration:
    """
    What is declared of a parameter.

    Attributes
    ----------
    names : tuple of str
        As they are typed: ``--state`` and ``-s``, or ``--check/--no-check``; empty for an argument.
    takes_empty : bool
        Whether an empty word is a value, where the command has :class:`~penstock_cli.invocation.CommandOptions`: as a
        rule it is a variable of the shell that is not set.
    more : dict
        What else Typer's declaration takes, such as ``help``, ``metavar``, ``min`` and ``max``.
    """

    def __init__(self, *names: str, takes_empty: bool = False, **more: Any) -> None:
        self.names, self.takes_empty, self.more = names, takes_empty, more


class Option(Declaration):
    """An option, with all of its names."""


class Argument(Declaration):
    """An argument: a word that stands where it stands."""


class Context(Protocol):
    """
    What a command is called with: a context of Typer's, or :class:`PlainContext`.

    Attributes
    ----------
    obj : dict
        ``url``, and what stands in for the client in tests.
    meta : dict
        The words behind ``--``.
    """

    obj: Any

    @property
    def meta(self) -> dict[str, Any]:
        """What commands leave for each other."""


class PlainContext:
    """A context without Typer."""

    def __init__(self, obj: dict[str, Any]) -> None:
        self.obj: Any = obj
        self.meta: dict[str, Any] = {}


class PlainCommand(Struct, frozen=True):
    """
    A command that may be read plainly.

    Attributes
    ----------
    is_dashed : bool
        What stands behind ``--`` is a user's program, and not the command's to read.
    """

    function: Callable[..., None]
    is_dashed: bool = False


class NotPlain(Exception):
    """A command line that is for Typer to read."""


class _Parameter(Struct, frozen=True):
    """A parameter as it is read."""

    name: str
    kind: Any
    declared: Declaration
    is_many: bool
    is_required: bool


def read_plainly(command: PlainCommand, words: Sequence[str], context: Context) -> dict[str, Any]:
    """
    Return what a command is called with besides the context, as Typer reads it.

    Raises
    ------
    NotPlain
        For help, for what is wrong, and for whatever is written in a less usual way.

    Examples
    --------
    >>> def wait(ctx: Context, jobs: Annotated[list[str], Argument()], *,
    ...          most: Annotated[int, Option("--most", "-m", min=1)] = 5,
    ...          check: Annotated[bool, Option("--check/--no-check")] = True) -> None: ...
    >>> read_plainly(PlainCommand(wait), ["a", "-m", "3", "b", "--no-check"], PlainContext({}))
    {'jobs': ['a', 'b'], 'most': 3, 'check': False}
    """
    if command.is_dashed and "--" in words:
        at = words.index("--")
        context.meta[COMMAND], words = tuple(words[at + 1 :]), words[:at]
    parameters = list(_parameters(command.function))
    given: dict[str, list[Any]] = {}
    loose: list[str] = []
    names = {name: (one, value) for one in parameters for name, value in _names(one)}
    rest = iter(words)
    for word in rest:
        name, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in names:
            _take(names[name], text if equals else None, rest, given)
        elif word.startswith("-") and word != "-":
            raise NotPlain(word)
        else:
            loose.append(word)
    _place(loose, [one for one in parameters if isinstance(one.declared, Argument)], given)
    return {
        one.name: given[one.name] if one.is_many else given[one.name][-1] for one in parameters if one.name in given
    }


def _names(one: _Parameter) -> Iterator[tuple[str, bool | None]]:
    """Yield the names of an option, each with the value that it stands for; None where the next word is the value."""
    if one.kind is not bool:
        yield from ((name, None) for name in one.declared.names)
        return
    for name in one.declared.names:
        yes, slash, no = name.partition("/")
        yield yes, True
        if slash:
            yield no, False


def _take(
    named: tuple[_Parameter, bool | None], text: str | None, rest: Iterator[str], given: dict[str, list[Any]]
) -> None:
    one, value = named
    if value is not None:
        if text is not None:
            raise NotPlain(text)
        given[one.name] = [value]
        return
    if text is None and ((text := next(rest, None)) is None or text.startswith("-")):
        raise NotPlain(one.name)
    if not text:
        raise NotPlain(one.name)
    given.setdefault(one.name, []).append(_converted(one, text))


def _place(loose: list[str], arguments: list[_Parameter], given: dict[str, list[Any]]) -> None:
    """Give the words that are no options to the arguments: one to each, and to one of many all that are left."""
    for one in arguments:
        some = loose if one.is_many else loose[:1]
        if (one.is_required and not some) or (one.is_many and one is not arguments[-1]):
            raise NotPlain(*loose)
        if some:
            given[one.name] = [_converted(one, word) for word in some]
        loose = loose[len(some) :]
    if loose:
        raise NotPlain(*loose)


def _converted(one: _Parameter, text: str) -> Any:
    """Return the value of a word, whose form is beyond doubt."""
    if one.kind is str:
        return text
    if one.kind is Path:
        return Path(text)
    if get_origin(one.kind) is Literal and text in get_args(one.kind):
        return text
    if one.kind is int and _INTEGER.fullmatch(text):
        return _within(one, int(text))
    if one.kind is float and _NUMBER.fullmatch(text):
        return _within(one, float(text))
    raise NotPlain(text)


def _within(one: _Parameter, number: float) -> float:
    more = one.declared.more
    least, most = more.get("min"), more.get("max")
    if (least is not None and number < least) or (most is not None and number > most):
        raise NotPlain(one.name)
    return number


def _parameters(function: Callable[..., Any]) -> Iterator[_Parameter]:
    """Yield the parameters of a command but for its context, in their order."""
    for name, annotation, default in declared(function):
        if annotation is Context:
            continue
        kind, *found = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        if len(found) != 1 or not isinstance(found[0], Declaration) or found[0].more.keys() - _UNDERSTOOD:
            raise NotPlain(name)
        kind = _without_none(kind)
        is_many = get_origin(kind) is list
        yield _Parameter(name, get_args(kind)[0] if is_many else kind, found[0], is_many, default is NODEFAULT)


def declared(function: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each parameter of a function with its annotation and its default; ``NODEFAULT`` where it must be given."""
    flat: Mapping[str, tuple[Any, Any]] | None = getattr(function, "flat_parameters", None)
    if flat is not None:
        yield from ((name, *about) for name, about in flat.items())
        return
    code, hints = function.__code__, get_type_hints(function, include_extras=True)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = function.__defaults__ or ()
    defaults = {
        **dict(zip(names[code.co_argcount - len(values) :], values, strict=False)),
        **(function.__kwdefaults__ or {}),
    }
    yield from ((name, hints[name], defaults.get(name, NODEFAULT)) for name in names)


def _without_none(kind: Any) -> Any:
    """Return what an optional type holds."""
    kinds = [one for one in get_args(kind) if one is not type(None)]
    is_optional = len(kinds) == 1 and len(get_args(kind)) == 2 and get_origin(kind) is not list
    return kinds[0] if is_optional and get_origin(kind) in {Union, type(int | None)} else kind
