"""Is a service ready on this host? ``python -m penstock_bus.probe SERVICE`` exits with 0 if so: for containers."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Final

from penstock_bus import health, nats
from penstock_bus.port import BusError, TelemetryPort
from penstock_bus.settings import BusAddress, SettingsError, load
from penstock_log import subjects

WAIT_S: Final = 3 * health.HEARTBEAT_S


async def ready(bus: TelemetryPort, service: str, host: str, wait_s: float = WAIT_S) -> bool:
    """
    Say whether a replica of the service on this host says that it is ready, within ``wait_s`` seconds.

    Heartbeats tell replicas apart, which requests, answered by any replica, do not.
    """
    try:
        async with asyncio.timeout(wait_s):
            async for _, body in bus.subscribe(subjects.replicas(service)):
                vitals = health.parse_vitals(body)
                if vitals is not None and vitals.host == host and vitals.ready:
                    return True
    except TimeoutError:
        pass
    return False


async def _main(service: str) -> int:
    try:
        connection = load(BusAddress, "")
        url = connection.server()
        login = next(iter(connection.logins(service, url).logins), None)
        async with nats.connect(url, login=login, name=f"probe of {service}") as bus:
            return 0 if await ready(bus, service, socket.gethostname()) else 1
    except (BusError, SettingsError) as error:
        sys.stderr.write(f"{service} cannot be asked: {error}\n")
        return 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m penstock_bus.probe SERVICE")
    sys.exit(asyncio.run(_main(sys.argv[1])))
