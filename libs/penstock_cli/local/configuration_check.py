"""
The check of the whole configuration before anything of it is used: ``penstock.toml`` and the environment.

:data:`SECTIONS` has each table and the settings that are read from it. Only those are loaded of which something is set,
so that a start without settings takes no longer.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

from penstock_bus.settings import BusAddress, SettingsError, load, mistakes_in, origin, tables_in, written

if TYPE_CHECKING:
    import msgspec

SECTIONS: Final = {
    "extensions": "penstock_bus.identity.access:Extensions",
    "oidc": "penstock_bus.identity.token_verifier:OidcSettings",
    "log": "penstock_bus.logs:Logging",
    "gateway": "penstock_gateway.machine:GatewaySettings",
    "profiler": "penstock_profiler.machine:ProfilerSettings",
    "ranker": "penstock_ranker.machine:RankerSettings",
    "autoscaler": "penstock_scheduler.sizing.problem:SizingSettings",
    "matcher": "penstock_scheduler.pool.pool_settings:MatcherSettings",
    "tuner": "penstock_tuner.machine:TunerSettings",
    "executor": "penstock_executor.settings:ExecutorSettings",
    "memory": "penstock_memory.machine:MemorySettings",
    "assigner": "penstock_scheduler.aggregation.assignment_step:AssignerSettings",
    "aggregator": "penstock_aggregator.machine:AggregatorSettings",
    "allocator": "penstock_allocator.machine:AllocatorSettings",
    "dashboard": "penstock_dashboard.settings:DashboardSettings",
    "shadow": "penstock_simulator.shadow.plan:ShadowSettings",
}
"""Table of the settings file → module and name of its settings."""


def mistakes(environ: Mapping[str, str]) -> list[str]:
    """
    Return everything that is wrong with the configuration: each with its file and line, or its variable.

    Parameters
    ----------
    environ : mapping of str to str
        With ``PENSTOCK_CONFIG``, where the file is another than ``penstock.toml``.
    """
    try:
        return list(_mistakes(environ))
    except SettingsError as error:  # the file cannot be read
        return [str(error)]


def _mistakes(environ: Mapping[str, str]) -> Iterator[str]:
    tables = tables_in(environ=environ)
    yield from mistakes_in(BusAddress, "", environ=environ)
    for section, where in SECTIONS.items():
        if section in tables or _is_set(section, environ):
            found = mistakes_in(_settings(where), section, environ=environ)
            yield from found or (_of_devices(environ) if section == "executor" else ())
    known = {*SECTIONS, *_extensions(environ)}
    for table, place in tables.items():
        if table not in known:
            yield _unknown(table, place)


def _of_devices(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the executor's devices and memory, which its settings have as text."""
    from penstock_cluster.device_backend import DeviceError
    from penstock_cluster.host_backends import parse_bytes
    from penstock_cluster.inventory import backends_of

    for name, parse in (("devices", backends_of), ("host_memory", parse_bytes)):
        text = written("executor", name, environ=environ)
        try:
            if text:
                parse(text)
        except (DeviceError, ValueError) as error:
            yield f"{origin('executor', name, environ=environ)}, key {name!r}: {error}"


def _is_set(section: str, environ: Mapping[str, str]) -> bool:
    prefix = f"PENSTOCK_{section.upper()}_"
    return any(name.startswith(prefix) for name in environ)


def _extensions(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the extensions that have tables of their own; none where the list of them is wrong, which is told."""
    from penstock_bus.identity.access import Extensions

    with suppress(SettingsError):
        return load(Extensions, "extensions", environ=environ).names
    return ()


def _settings(where: str) -> type[msgspec.Struct]:
    module, _, name = where.partition(":")
    found: type[msgspec.Struct] = getattr(import_module(module), name)
    return found


def _unknown(table: str, place: str) -> str:
    near = difflib.get_close_matches(table, SECTIONS, 1)
    meant = f"did you mean [{near[0]}]? " if near else ""
    known = ", ".join(f"[{section}]" for section in SECTIONS)
    return (
        f"{place}: nobody reads the table [{table}]; {meant}expected {known}, or that of an extension in [extensions]"
    )
