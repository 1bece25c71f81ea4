"""
Commands about people: ``user``, ``login``, ``whoami`` and ``context``.

``user`` is for admins: who may use the cluster, with which role, in which teams. ``login`` keeps what an admin has
given, under a name, and ``context`` chooses among such names, as ``kubectl config`` and ``nats context`` do.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import msgspec
import typer

from penstock_cli import render
from penstock_cli.invocation import AnswerOut, Exit, Failure, Out, bad_input, call, tell
from penstock_cli.value_formats import duration_s, span

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_bus.identity.logins import Login, Provider, Tokens
    from penstock_log import views
    from penstock_log.spec import Role

N = TypeVar("N", int, float)
user_app = typer.Typer(help="Who may use the cluster; for admins.", no_args_is_help=True)
context_app = typer.Typer(help="Clusters by name, and which of them is used.", no_args_is_help=True)
User = Annotated[str, typer.Argument(metavar="NAME", help="As the server is to know the person.")]
RoleOption = Annotated[str | None, typer.Option("--role", help="viewer, user, operator or admin.")]
Teams = Annotated[
    list[str] | None, typer.Option("--team", help="Repeatable; the first is that of jobs that name none.")
]
To = Annotated[
    Path | None, typer.Option("--out", help="File for the login; NAME.json here unless told otherwise, - prints it.")
]
Valid = Annotated[str, typer.Option("--valid", help="How long the login counts: 12h, 90d; for ever unless told.")]
OpenJobsOption = Annotated[
    str | None, typer.Option("--open-jobs", help="Most jobs that they may have open: a number, or default.")
]
RateOption = Annotated[
    str | None, typer.Option("--rate", help="Commands that they may go on sending in a second: a number, or default.")
]
_UNKNOWN: Final = 500
"""From this error code on, a command may have been carried out all the same."""
_LET_IN_TRIES: Final = 50
_LET_IN_S: Final = 0.2
_DEFAULT: Final = "default"
_SHOWN: Final = 20
_PRINTED: Final = Path("-")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    user_app.command()(add)
    user_app.command("set")(set_)
    user_app.command()(ls)
    user_app.command()(rm)
    user_app.command()(rotate)
    app.add_typer(user_app, name="user")
    app.command()(login)
    app.command()(whoami)
    context_app.command("ls")(list_contexts)
    context_app.command()(use)
    context_app.command("rm")(forget)
    app.add_typer(context_app, name="context")


def add(
    ctx: typer.Context,
    name: User,
    *,
    role: RoleOption = None,
    team: Teams = None,
    out: To = None,
    valid: Valid = "",
    no_login: Annotated[
        bool, typer.Option("--no-login", help="They log in at the identity provider, and need no file.")
    ] = False,
) -> None:
    """Let a person use the cluster, and write a login for them: a secret, which they give to `penstock login`."""
    from penstock_bus.port import BusError

    _check_name(name)
    if no_login and (out or valid):
        bad_input("--no-login writes no file, so there is nothing for --out and --valid to say")
    file, valid_s = Path() if no_login else _free(out or Path(f"{name}.json")), _valid_s(valid)

    async def added(client: Client) -> tuple[views.ActAnswer, Login | None]:
        if any(one.name == name for one in (await client.users()).users):
            raise Failure(f"{name} is a user already; `penstock user set` changes them, `rotate` gives a new login")
        answer = await client.set_user(name, role=_role(role), teams=team)
        if no_login:
            return answer, None
        try:
            return answer, await client.login(name, after_seq=answer.seq, valid_s=valid_s)
        except BusError as error:
            raise Failure(await _taken_back(client, name, str(error)), Exit.UNREACHABLE) from error

    answer, made = call(ctx, added)
    if made is None:
        render.say(f"{answer.message}; they log in by `penstock login oidc.json`, or with --oidc")
        return
    kept_as = "FILE" if file == _PRINTED else file.name
    _write(file, made, f"{answer.message}; give them {_called(file)}, for `penstock login {kept_as}`")


def _check_name(name: str) -> None:
    """Refuse a name that nobody can have, before a file is called by it."""
    from penstock_log.request_bodies import PersonName

    try:
        msgspec.convert(name, PersonName)
    except msgspec.ValidationError:
        shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
        bad_input(
            f"{shown!r} is no user's name; expected up to 63 letters, digits and any of _ . @ + -, the first a letter, "
            "a digit or _"
        )


async def _taken_back(client: Client, name: str, why: str) -> str:
    """Remove a person who got no login, so that adding them can be repeated; return what became of it."""
    from penstock_bus.port import BusError

    try:
        await client.remove_user(name, "no login could be made")
    except BusError as error:
        return (
            f"no login could be made for {name}: {why}; they are a user all the same, as they could not be removed "
            f"again ({error}): once the server answers, `penstock user rotate {name}` makes a login"
        )
    return f"no login could be made for {name}: {why}; they were not added, so add them again"


def set_(
    ctx: typer.Context,
    name: User,
    *,
    role: RoleOption = None,
    team: Teams = None,
    open_jobs: OpenJobsOption = None,
    rate: RateOption = None,
    output: AnswerOut = "text",
) -> None:
    """Change a person's role, teams or limits; what is left out stays."""
    if role is None and team is None and open_jobs is None and rate is None:
        bad_input("nothing is to be changed; expected --role, --team once for each team, --open-jobs or --rate")
    most = _number(open_jobs, "--open-jobs", int, 0)
    per_s = _number(rate, "--rate", float, sys.float_info.min)
    given: dict[Literal["open_jobs", "commands_per_s"], str | None] = {"open_jobs": open_jobs, "commands_per_s": rate}
    unset = [one for one, text in given.items() if text == _DEFAULT]

    async def changed(client: Client) -> views.ActAnswer:
        if all(one.name != name for one in (await client.users()).users):
            raise Failure(f"no user {name!r}; add them with `penstock user add {name}`", Exit.NOT_FOUND)
        return await client.set_user(
            name, role=_role(role), teams=team, open_jobs=most, commands_per_s=per_s, unset=unset
        )

    answer = call(ctx, changed)
    render.show_answer(answer, answer.message, output)


def ls(ctx: typer.Context, output: Out = "table") -> None:
    """List who may use the cluster."""
    found = call(ctx, lambda client: client.users())
    if render.as_json(found, output):
        return
    rows = [
        (
            one.name,
            f"{one.role} (owner)" if one.is_owner else one.role,
            ", ".join(one.teams) or "-",
            "-" if one.open_jobs is None else f"{one.open_jobs:,}",
            "-" if one.commands_per_s is None else f"{one.commands_per_s:g}/s",
        )
        for one in found.users
    ]
    render.show_table(("USER", "ROLE", "TEAMS", "OPEN JOBS", "RATE"), rows, wide=output == "wide")


def rm(
    ctx: typer.Context,
    name: User,
    reason: Annotated[str, typer.Option("--reason", help="Kept in the log.")] = "",
    output: AnswerOut = "text",
) -> None:
    """Let a person not use the cluster any more: their logins end at once, their jobs go on."""
    answer = call(ctx, lambda client: client.remove_user(name, reason))
    render.show_answer(answer, answer.message, output)


def rotate(ctx: typer.Context, name: User, out: To = None, valid: Valid = "") -> None:
    """Have all logins of a person count no more, and write a new one."""
    from penstock_bus.port import ServiceError

    _check_name(name)
    file, valid_s = _free(out or Path(f"{name}.json")), _valid_s(valid)

    async def rotated(client: Client) -> None:
        found = next((one for one in (await client.users()).users if one.name == name), None)
        if found is None:
            raise Failure(f"no user {name!r}; `penstock user ls` lists them", Exit.NOT_FOUND)
        now_s = time.time()  # noqa: TID251 - a name; what counts is that it is another one
        revocation_s = max(now_s, math.nextafter(found.valid_from_s, math.inf))
        made = await client.login(name, valid_s=valid_s, revocation_s=revocation_s)
        _store(file, made)  # before the others are refused: people rotate their own, with which they came
        await _revoked(client, name, revocation_s, made, file)

    try:
        call(ctx, rotated)
    except ServiceError:  # nothing was revoked
        file.unlink(missing_ok=True)
        raise
    told = f"the logins of {name} that were issued until now are refused; the new one is {_called(file)}"
    _announce(file, told)


async def _revoked(client: Client, name: str, revocation_s: float, made: Login, file: Path) -> None:
    """Have all logins but a new one refused, and return once that one is let in."""
    from penstock.client import Client
    from penstock_bus.port import BusError, ServiceError

    unanswered = ""
    try:
        await client.set_user(name, revoke=True, revocation_s=revocation_s)
    except BusError as error:  # maybe since one's own connection is ended: the new login shows what became of it
        if isinstance(error, ServiceError) and error.code < _UNKNOWN:
            raise
        unanswered = f" ({error})"
    for _ in range(_LET_IN_TRIES):
        try:
            async with Client(client.url, login=made) as newer:
                await newer.whoami()
                return
        except BusError as error:
            last = str(error)
        await asyncio.sleep(_LET_IN_S)
    unknown = f"the new login ({_called(file)}) is not let in yet: {last}{unanswered}"
    raise Failure(
        f"{unknown}; try it later, and if it stays out the logins of {name} were not changed: rotate them again"
    )


def login(
    ctx: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|URL]",
            help="What an admin has given you, or the server's address; none logs in anew at the cluster in use.",
        ),
    ] = "",
    *,
    name: Annotated[str, typer.Option("--name", help="Of the context; the server's host unless told otherwise.")] = "",
    oidc: Annotated[str, typer.Option("--oidc", metavar="ISSUER", help="With URL: the identity provider.")] = "",
    client_id: Annotated[str, typer.Option("--client-id", help="As what Penstock is registered there.")] = "penstock",
    ca: Annotated[Path | None, typer.Option("--ca", help="With URL: the server's certificate authority.")] = None,
) -> None:
    """
    Keep a login, and use its cluster from now on.

    It is kept once the cluster takes it.

    Where the cluster has an identity provider, you log in there, in any browser.
    """
    from penstock.client import Client
    from penstock_bus.identity import login_tokens, logins

    found = _at(what, oidc, client_id, ca) if "://" in what else _reached(_given(Path(what))) if what else _in_use()
    context = name or (_context_of(found) if what else logins.selected_context(os.environ))
    if not _NAME.fullmatch(context):
        bad_input(f"{context!r} cannot be a context's name; give another one with --name")
    tokens, shown = None, found
    if found.provider is not None:
        tokens = asyncio.run(_tokens_of(found.provider))
        found = msgspec.structs.replace(found, user=login_tokens.person_of(tokens.id_token), token_file="")
        shown = msgspec.structs.replace(found, token=tokens.id_token)
    ctx.obj["url"] = found.url
    ctx.obj.setdefault("client", lambda url: Client(url, login=shown))
    seen = call(ctx, lambda client: client.whoami())
    try:
        if tokens is not None:
            found = login_tokens.kept_for(found, context, tokens, os.environ)
        kept = logins.keep_context(context, found, os.environ)
    except OSError as error:
        raise Failure(f"the login is good, and cannot be kept: {error.strerror or error}") from error
    render.say(f"{seen.name} at {found.url} is {_a(seen)}; kept as context {context} in {kept}")


def _reached(found: Login) -> Login:
    """Return the login with that of its server's addresses that is reached from here."""
    from penstock_bus.port import BusError
    from penstock_cli.node_join import reached

    if not found.hosts:
        return found
    try:
        return asyncio.run(reached(found, "login"))
    except BusError as error:
        raise Failure(str(error), Exit.UNREACHABLE) from error


def whoami(ctx: typer.Context, output: Out = "table") -> None:
    """Say as whom the cluster takes you, with which role."""
    seen = call(ctx, lambda client: client.whoami())
    if not render.as_json(seen, output):
        who = seen.name or "no person, but a service, or anybody where the server knows no people"
        render.say(
            f"{who}, at {ctx.obj['url']}: {_a(seen)}" if not seen.name else f"{who} at {ctx.obj['url']}, {_a(seen)}"
        )


def list_contexts() -> None:
    """List the clusters that were logged in to; the one in use has a star."""
    from penstock_bus.identity import logins

    chosen = logins.selected_context(os.environ)
    rows = [
        ("*" if name == chosen else "", name, one.user, one.url) for name, one in logins.contexts(os.environ).items()
    ]
    if rows:
        render.show_table(("", "NAME", "USER", "SERVER"), rows, wide=True)
    else:
        render.say("there is none; `penstock login FILE` makes one of what an admin has given you")


def use(
    name: Annotated[str, typer.Argument(help="Of a context; none given uses the server on this machine.")] = "",
) -> None:
    """Use a cluster from now on."""
    from penstock_bus.identity import logins

    if name and name not in (known := logins.contexts(os.environ)):
        raise Failure(f"no context {name!r}; there are: {', '.join(known) or 'none'}", Exit.NOT_FOUND)
    logins.select_context(name, os.environ)
    render.say(f"context {name} is used" if name else "no context is used: commands go to the server on this machine")


def forget(name: Annotated[str, typer.Argument(help="Of a context.")]) -> None:
    """Forget a cluster and its login."""
    from penstock_bus.identity import logins

    try:
        logins.remove_context(name, os.environ)
    except KeyError as error:
        known = ", ".join(logins.contexts(os.environ)) or "none"
        raise Failure(f"no context {name!r}; there are: {known}", Exit.NOT_FOUND) from error
    render.say(f"context {name} is forgotten")


def _given(file: Path) -> Login:
    from penstock_bus.identity import logins

    try:
        return logins.read_login(file)
    except OSError as error:
        bad_input(f"{file} cannot be read: {error.strerror or error}")
    except ValueError as error:
        bad_input(str(error))


def _at(url: str, issuer: str, client_id: str, ca: Path | None) -> Login:
    from penstock_bus.identity.identity_provider import is_private_address
    from penstock_bus.identity.logins import Login, Provider

    if not is_private_address(issuer):
        bad_input("a URL takes --oidc https://ISSUER, the address of the cluster's identity provider; or give a FILE")
    try:
        authority = ca.read_text(encoding="ascii") if ca else ""
    except (OSError, UnicodeDecodeError) as error:
        bad_input(f"--ca {ca} cannot be read: {error}")
    return Login(url=url, user="", ca=authority, provider=Provider(issuer=issuer, client_id=client_id))


def _in_use() -> Login:
    """Return the login of the context in use, where one can log in anew."""
    from penstock_bus.identity import logins

    found = logins.contexts(os.environ).get(logins.selected_context(os.environ))
    if found is None or found.provider is None:
        bad_input("no cluster with an identity provider is in use; expected `penstock login FILE`, or URL and --oidc")
    return found


def _context_of(found: Login) -> str:
    return re.sub(r"^\w+://|:\d+.*$|,.*$", "", found.url)


async def _tokens_of(provider: Provider) -> Tokens:
    """Have a person log in at the identity provider."""
    from penstock_bus.identity.identity_provider import begin_device_grant, device_tokens, discover

    addresses = await discover(provider.issuer, provider.ca)
    grant = await begin_device_grant(provider, addresses)
    tell(f"open {grant.verification_uri_complete or grant.verification_uri} in any browser, and log in there")
    tell(f"the code is {grant.user_code}; it counts for {span(grant.expires_in)}")
    return await device_tokens(provider, addresses, grant)


def _role(text: str | None) -> Role | None:
    from penstock_log.users import ROLES

    found = next((role for role in ROLES if role == text), None)
    if text is not None and found is None:
        bad_input(f"--role: {text!r} is none; expected one of {', '.join(ROLES)}")
    return found


def _number(text: str | None, option: str, kind: type[N], least: float) -> N | None:
    """Return the number that was written; None for nothing, and for going back to the default."""
    if text is None or text == _DEFAULT:
        return None
    try:
        found = kind(text)
    except ValueError:
        found = None
    if found is None or not least <= found < math.inf:
        what = f"a whole number from {least:g}" if kind is int else "a number over 0"
        bad_input(f"{option}: expected {what}, or `{_DEFAULT}` for what the gateway's settings say, got {text!r}")
    return found


def _a(seen: views.UserView) -> str:
    article = "an" if seen.role[0] in "ao" else "a"
    teams = f" in {', '.join(seen.teams)}" if seen.teams else ""
    return f"{article} {seen.role}{teams}"


def _valid_s(text: str) -> float:
    return duration_s(text, "--valid") if text else 0.0  # for ever


def _free(file: Path) -> Path:
    if file != _PRINTED and file.exists():
        bad_input(f"{file} is there already; name another file with --out")
    return file


def _called(file: Path) -> str:
    return "what is printed here" if file == _PRINTED else str(file)


def _write(file: Path, made: Login, told: str) -> None:
    _store(file, made)
    _announce(file, told)


def _store(file: Path, made: Login) -> None:
    from penstock_bus.identity import logins

    made = msgspec.structs.replace(made, description="penstock")
    if file == _PRINTED:
        typer.echo(logins.text_of(made), nl=False)
        return
    try:
        logins.write_login(file, made)
    except OSError as error:
        remedy = "`penstock user rotate` makes another login"
        raise Failure(f"{file} cannot be written: {error.strerror}; {remedy}") from error


def _announce(file: Path, told: str) -> None:
    (tell if file == _PRINTED else render.say)(told)
