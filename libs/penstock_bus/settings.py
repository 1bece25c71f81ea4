"""Settings, decoded once and strictly: a TOML table overlaid with environment variables, into a frozen Struct."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Optional, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from penstock_bus.identity.logins import (
    ROLES,
    VARIABLE,
    Login,
    LoginSearch,
    Role,
    contexts,
    find_logins,
    has_user,
    read_login,
    selected_context,
)

T = TypeVar("T", bound=msgspec.Struct)

CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"
DEFAULT_FILE: Final = "penstock.toml"
LOCAL: Final = "nats://127.0.0.1:4222"
_LONGEST_SHOWN: Final = 100


class SettingsError(ValueError):
    """A setting that cannot be used; the message names the file or variable and what was expected."""


class BusAddress(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where the bus is, and as whom to go there: ``PENSTOCK_URL``, ``PENSTOCK_USER``, ``PENSTOCK_PASSWORD``.

    Attributes
    ----------
    password_file : str
        Holds the password, where it is not to stand in the environment.
    credentials : str
        File with a login: a copy of ``client.json`` in the data folder of ``penstock up``, or what an admin has given.
    token, token_file : str
        A token of the identity provider by which the cluster lets people in, or a file with one, as CI systems give
        them; address and authority still come from ``credentials`` or ``url``. Services do not look at it.
    ready_file : str
        Touched every second while the service is ready and hears itself over the bus, so that a health check need but
        look at its age. Empty: there is none.
    live_file : str
        Touched every second once the service has reached the bus, whether or not the bus is there now: one that grows
        old says that the process hangs, and no more. Empty: there is none.
    connect_s : float
        How long to go on trying to connect at the start, in seconds.
    drain_s : float
        How long a service may take to stop in good order, in seconds.
    """

    url: str = LOCAL
    user: str = ""
    password: str = ""
    password_file: str = ""
    credentials: str = ""
    token: str = ""
    token_file: str = ""
    replica_id: str = ""
    ready_file: str = ""
    live_file: str = ""
    connect_s: float = 60.0
    drain_s: float = 20.0

    def secret(self) -> str:
        """
        Return the password, from its file if one is named.

        Raises
        ------
        SettingsError
            If the file cannot be read.
        """
        if not self.password_file:
            return self.password
        try:
            return Path(self.password_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"PENSTOCK_PASSWORD_FILE names {self.password_file}, which cannot be read: {error}; make it readable"
            ) from error

    def fresh_ready_file(self) -> Path | None:
        """
        Return the file that is to say that the service is ready, which it does not yet.

        Raises
        ------
        SettingsError
            If it cannot be written.
        """
        return _fresh("PENSTOCK_READY_FILE", self.ready_file)

    def fresh_live_file(self) -> Path | None:
        """Return the file that is to say that the process lives; see :meth:`fresh_ready_file`."""
        return _fresh("PENSTOCK_LIVE_FILE", self.live_file)

    def server(self, environ: Optional[Mapping[str, str]] = None) -> str:
        """
        Return the server's address: the one that is set, else that of the credentials.

        Parameters
        ----------
        environ : mapping of str to str, optional
            The environment of a person, whose chosen context says it where nothing else does.

        Raises
        ------
        SettingsError
            If the credentials cannot be read, or the context is not there.
        """
        if self.url != LOCAL or self.user or self.password or self.password_file:
            return self.url
        if self.credentials:
            return self._login().url
        name = selected_context(environ) if environ is not None else ""
        if environ is None or not name:
            return self.url
        known = contexts(environ)
        if name not in known:
            there = ", ".join(known) or "there is none"
            raise SettingsError(f"no context is called {name!r}: {there}; choose one with `penstock context use NAME`")
        return known[name].url

    def logins(self, role: Role, url: str) -> LoginSearch:
        """
        Return as whom to go to a server: as is set, or else as is found on this machine.

        Raises
        ------
        SettingsError
            If a file that is named cannot be read.
        """
        if self.user or self.password or self.password_file:
            set_here = Login(url=url, user=self.user or role, password=self.secret())
            return LoginSearch(logins=(set_here,), looked=())
        if role == ROLES[0] and (self.token or self.token_file):
            base = self._login() if self.credentials else Login(url=url, user="")
            own = Login(url=base.url, user="", ca=base.ca, token=self.token, token_file=self.token_file)
            return LoginSearch(logins=(own,), looked=())
        if self.credentials:
            return LoginSearch(logins=(self._login(),), looked=())
        if has_user(url):
            return LoginSearch(logins=(), looked=())
        return find_logins(role, url, os.environ)

    def _login(self) -> Login:
        try:
            return read_login(Path(self.credentials))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"{VARIABLE} names {self.credentials}: {error}; name a file that can be read"
            ) from error


def _fresh(variable: str, named: str) -> Path | None:
    if not named:
        return None
    file = Path(named)
    try:
        file.touch()
        file.unlink()
    except OSError as error:
        raise SettingsError(f"{variable} names {named}, which cannot be written: {error}; name another file") from error
    return file


def origin(section: str, name: str, *, environ: Mapping[str, str] | None = None) -> str:
    """
    Return where a setting comes from: its variable, or the settings file; empty where it has its default.

    Examples
    --------
    >>> origin("", "password", environ={"PENSTOCK_PASSWORD": "x"})
    'PENSTOCK_PASSWORD'
    """
    environ = os.environ if environ is None else environ
    if (variable := _variable(section, name)) in environ:
        return variable
    written = _from_file(section, environ, [])
    return written[name][1] if name in written else ""


def written(section: str, name: str, *, environ: Mapping[str, str] | None = None) -> str:
    """
    Return what a setting says, unchecked: by its variable, or by the settings file; empty where it has its default.

    Examples
    --------
    >>> written("executor", "run_as", environ={"PENSTOCK_EXECUTOR_RUN_AS": "user"})
    'user'
    """
    environ = os.environ if environ is None else environ
    if (variable := _variable(section, name)) in environ:
        return environ[variable]
    return str(_from_file(section, environ, []).get(name, ("",))[0])


def came_as(connection: BusAddress, *, environ: Mapping[str, str] | None = None) -> str:
    """
    Return as whom a process goes to the bus, and where that was set, in words.

    Examples
    --------
    >>> environ = {"PENSTOCK_USER": "executor", "PENSTOCK_PASSWORD_FILE": "/auth/executor"}
    >>> came_as(load(BusAddress, "", environ=environ), environ=environ)
    "user 'executor' (PENSTOCK_USER) with the password in /auth/executor (PENSTOCK_PASSWORD_FILE)"
    >>> came_as(BusAddress(), environ={})
    'no user (PENSTOCK_USER is not set)'
    """
    if not connection.user and connection.credentials:
        return f"the user of {connection.credentials} ({origin('', 'credentials', environ=environ)})"
    if not connection.user:
        return "no user (PENSTOCK_USER is not set)"
    who = f"user {connection.user!r} ({origin('', 'user', environ=environ) or 'by default'})"
    if connection.password_file:
        where = origin("", "password_file", environ=environ)
        return f"{who} with the password in {connection.password_file} ({where})"
    if connection.password:
        return f"{who} with the password of {origin('', 'password', environ=environ)}"
    return f"{who} without a password (PENSTOCK_PASSWORD and PENSTOCK_PASSWORD_FILE are not set)"


def load(cls: type[T], section: str, *, environ: Mapping[str, str] | None = None) -> T:
    """
    Return the settings of a section.

    Parameters
    ----------
    cls : type of Struct
        What is expected; its defaults apply where nothing is set.
    section : str
        The TOML table, and the ``PENSTOCK_<SECTION>_`` prefix of the variables; empty for the file's own top level
        and the bare ``PENSTOCK_`` prefix.

    Raises
    ------
    SettingsError
        If a key is unknown, a value has the wrong type, a required one is missing, or the file cannot be read.

    Examples
    --------
    >>> load(BusAddress, "", environ={"PENSTOCK_URL": "nats://bus:4222"}).url
    'nats://bus:4222'
    """
    mistakes: list[str] = []
    found = _gathered(cls, section, os.environ if environ is None else environ, mistakes)
    if found is None:
        raise SettingsError(mistakes[0])
    return found


def mistakes_in(cls: type[msgspec.Struct], section: str, *, environ: Mapping[str, str] | None = None) -> list[str]:
    """
    Return everything that :func:`load` would refuse in a section, each with its file and line, or its variable.

    What only shows once all values of the section are right, such as two that do not go together, comes alone. What is
    required and not set is no mistake: whoever starts the service may add it.

    Raises
    ------
    SettingsError
        If the file cannot be read at all.
    """
    mistakes: list[str] = []
    _gathered(cls, section, os.environ if environ is None else environ, mistakes, is_whole=False)
    return mistakes


def tables_in(*, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """
    Return the tables of the settings file, each with where it stands there; none where there is no file.

    Raises
    ------
    SettingsError
        If the file cannot be read.
    """
    file = _SettingsFile(os.environ if environ is None else environ)
    return {name: file.place(name) for name, value in file.content.items() if isinstance(value, dict)}


def _gathered(
    cls: type[T], section: str, environ: Mapping[str, str], mistakes: list[str], *, is_whole: bool = True
) -> Optional[T]:
    """
    Return the settings of a section; None, and what is wrong with them in ``mistakes``, where something is.

    Unless it ``is_whole``, what is required and not set is no mistake.
    """
    fields = {field.name: field for field in msgspec.structs.fields(cls)}
    types_ = _types_of(cls)
    values: dict[str, Any] = {}
    for name, (value, source) in _from_file(section, environ, mistakes).items():
        if name not in fields:
            mistakes.append(f"{source}: unknown key {name!r}; {_near(name, fields)}")
            continue
        where = f"{source}, key {name!r}"
        _convert(values, name, value, types_[name], where=where, mistakes=mistakes, strict=True)
    for name, (text, variable) in _from_environment(section, fields, environ, mistakes).items():
        parsed = _parsed(text, types_[name])
        where = f"variable {variable}"
        _convert(values, name, parsed, types_[name], where=where, mistakes=mistakes, strict=False)
    missing = [name for name, field in fields.items() if name not in values and field.required]
    if missing and is_whole and not mistakes:
        either = f"variable {_variable(section, missing[0])} or key {missing[0]!r} of [{section}]"
        wanted = _type_name(types_[missing[0]])
        mistakes.append(f"{either} is missing in {DEFAULT_FILE}; expected {wanted}: set it")
    if mistakes or missing:
        return None
    try:
        return cls(**values)
    except ValueError as error:  # from the Struct's own __post_init__
        mistakes.append(f"{_place_of_table(section, environ)}[{section}]: {error}")
        return None


class _SettingsFile:
    """
    The settings file as it is written, or nothing where there is none.

    Raises
    ------
    SettingsError
        If it cannot be read, or is no TOML.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.path = environ.get(CONFIG_VARIABLE) or DEFAULT_FILE
        self._text, self.content = _read(Path(self.path), wanted=CONFIG_VARIABLE in environ)

    def place(self, section: str, name: str = "") -> str:
        """Return the file, and the line on which a table or its key stands, as far as that can be had."""
        line = _line_of(self._text, section, name) or (_line_of(self._text, section) if name and section else None)
        return f"{self.path}:{line}" if line else self.path


@cache  # Python compiles each annotation anew, each time that it is asked
def _types_of(cls: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _from_file(section: str, environ: Mapping[str, str], mistakes: list[str]) -> dict[str, tuple[Any, str]]:
    file = _SettingsFile(environ)
    if not section:
        own = {name: value for name, value in file.content.items() if not isinstance(value, dict)}
        return {name: (value, file.place("", name)) for name, value in own.items()}
    table = file.content.get(section, {})
    if not isinstance(table, dict):
        mistakes.append(f"{file.place('', section)}: {section!r} is not a table; write it as [{section}]")
        return {}
    return {name: (value, f"{file.place(section, name)}, [{section}]") for name, value in table.items()}


def _place_of_table(section: str, environ: Mapping[str, str]) -> str:
    """Return where a table stands, to be put before its name; empty where there is none in the file."""
    file = _SettingsFile(environ)
    return f"{file.place(section)}, " if isinstance(file.content.get(section), dict) else ""


def _line_of(text: str, section: str, name: str = "") -> Optional[int]:
    """
    Return the line, from 1 on, on which a table of TOML begins, or a key stands in it; None where it is not seen.

    Examples
    --------
    >>> text = "url = 'x'\\n[gateway]\\nport = 1\\n[gateway.limits]\\nport = 2\\n"
    >>> _line_of(text, "gateway"), _line_of(text, "gateway", "port"), _line_of(text, "", "url"), _line_of(text, "a")
    (2, 3, 1, None)
    """
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        key = line.partition("=")[0].strip().strip("\"'")
        if header := _HEADER.fullmatch(line):
            table = re.sub(r"[\s\"']", "", header[1])
            if table == (f"{section}.{name}" if name else section) or (name and table.startswith(f"{section}.{name}.")):
                return number
        elif name and (
            (table == section and key.partition(".")[0] == name) or (not table and key == f"{section}.{name}")
        ):
            return number
    return None


_HEADER: Final = re.compile(r"""\s*\[+\s*([\w\s."'-]+?)\s*\]+\s*(?:#.*)?""")


def _read(path: Path, *, wanted: bool) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        import tomllib  # noqa: PLC0415 - only where there is a file: Python has it from 3.11 on
    except FileNotFoundError as error:
        if not wanted:
            return "", {}
        raise SettingsError(f"{CONFIG_VARIABLE} names {path}, which does not exist; create it or unset it") from error
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{path} cannot be read by a Python before 3.11; set PENSTOCK_URL, and work in another folder"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read as TOML: {error}; correct it") from error
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, a number of too many digits, or nested too deeply
        raise SettingsError(f"{path} cannot be read as TOML: {error}; correct it") from error


def _from_environment(
    section: str, known: Mapping[str, object], environ: Mapping[str, str], mistakes: list[str]
) -> dict[str, tuple[str, str]]:
    if section:
        prefix, inherited = _variable(section, ""), _of_jobs()
        for variable in environ:
            if variable in inherited:
                continue
            if variable.startswith(prefix) and variable[len(prefix) :].lower() not in known:
                wanted = _near(variable[len(prefix) :].lower(), known, lambda name: prefix + name.upper())
                mistakes.append(f"unknown variable {variable}; {wanted}")
    variables = {name: _variable(section, name) for name in known}
    return {name: (environ[variable], variable) for name, variable in variables.items() if variable in environ}


def _of_jobs() -> frozenset[str]:
    """Return variables that a job finds, such as ``PENSTOCK_MEMORY_SOCKET``: what it starts inherits them."""
    from penstock_log.agent_protocol import AgentEnv  # noqa: PLC0415 - a client has no section of its own

    return frozenset(value for name, value in vars(AgentEnv).items() if name.isupper())


def _variable(section: str, name: str) -> str:
    return "_".join(part for part in ("PENSTOCK", section.upper().replace("-", "_")) if part) + f"_{name.upper()}"


def _parsed(text: str, wanted: Any) -> Any:
    """Read lists, tables and Structs as JSON; atoms stay text, to be converted leniently."""
    if not _is_container(wanted) or text in _words(wanted):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return [part.strip() for part in text.split(",") if part.strip()]


def _is_container(wanted: Any) -> bool:
    origin = get_origin(wanted)
    if origin in {Union, getattr(types, "UnionType", Union)}:  # Python has the second from 3.10 on
        return any(_is_container(arg) for arg in get_args(wanted))
    if hasattr(wanted, "__metadata__"):  # Annotated
        return _is_container(get_args(wanted)[0])
    wanted = origin or wanted
    return isinstance(wanted, type) and issubclass(wanted, (list, tuple, dict, set, frozenset, msgspec.Struct))


def _words(wanted: Any) -> tuple[Any, ...]:
    """Return the words that stand for a value beside lists of it."""
    if get_origin(wanted) in {Union, getattr(types, "UnionType", Union)}:
        return tuple(word for arg in get_args(wanted) for word in _words(arg))
    return get_args(wanted) if get_origin(wanted) is Literal else ()


def _convert(
    values: dict[str, Any], name: str, value: Any, wanted: Any, *, where: str, mistakes: list[str], strict: bool
) -> None:
    """Add a value as what is wanted, or a mistake."""
    try:
        values[name] = msgspec.convert(value, wanted, strict=strict)
    except msgspec.ValidationError as error:
        shown = "(hidden)" if any(word in where.lower() for word in ("password", "token")) else _shortened(repr(value))
        mistakes.append(f"{where}: {error}; got {shown}, expected {_type_name(wanted)}")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def _near(name: str, known: Iterable[str], shown: Callable[[str], str] = str) -> str:
    """Return what was expected in place of a name, the nearest first."""
    import difflib  # noqa: PLC0415 - only where something is wrong

    near = difflib.get_close_matches(name, known, 1)
    return f"{f'did you mean {shown(near[0])}? ' if near else ''}expected one of {', '.join(map(shown, sorted(known)))}"


_BOUNDS: Final = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most", "pattern": "in the form"}


def _type_name(wanted: Any) -> str:
    """
    Return a type in words.

    Examples
    --------
    >>> _type_name(int), _type_name(Literal["a", "b"]), _type_name(Optional[float])
    ('int', "one of 'a', 'b'", 'float or None')
    """
    origin, args = get_origin(wanted), get_args(wanted)
    if hasattr(wanted, "__metadata__"):  # Annotated
        bounds = [f"{words} {bound}" for meta in wanted.__metadata__ for words, bound in _bounds(meta)]
        return f"{_type_name(args[0])}{', ' if bounds else ''}{' and '.join(bounds)}"
    if origin is Literal:
        return f"one of {', '.join(map(repr, args))}"
    if origin in {Union, getattr(types, "UnionType", Union)}:
        return " or ".join("None" if arg is type(None) else _type_name(arg) for arg in args)
    return wanted.__name__ if isinstance(wanted, type) and not args else re.sub(r"\b(\w+\.)+", "", str(wanted))


def _bounds(meta: Any) -> Iterator[tuple[str, Any]]:
    for name, words in _BOUNDS.items():
        if (bound := getattr(meta, name, None)) is not None:
            yield words, bound
