"""The dashboard on a bus: a web server beside the answers to who signs in."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import msgspec
import structlog
import uvicorn
from starlette.applications import Starlette

from penstock_bus import Endpoint, Reply, Request
from penstock_bus.follower import background
from penstock_bus.health import VERSION
from penstock_bus.settings import SettingsError
from penstock_bus.shell import Shell
from penstock_dashboard.application import Site, application
from penstock_dashboard.computations import Computations
from penstock_dashboard.device_metrics import HeardNodes
from penstock_dashboard.gateway_port import GatewayPort
from penstock_dashboard.job_output import JobOutputs
from penstock_dashboard.job_story import JobStories
from penstock_dashboard.kept_series import KeptSeries
from penstock_dashboard.metric_series import MetricTable
from penstock_dashboard.metrics_page import MetricsPage
from penstock_dashboard.page import JobSources
from penstock_dashboard.pages.what_if_page import WhatIf, settings_file
from penstock_dashboard.settings import DashboardSettings
from penstock_dashboard.sign_in import KEY_S, EndedSessions, TokenSigner, secret_of
from penstock_dashboard.span_export import export_spans, otlp_exporter
from penstock_log import subjects
from penstock_log.text import escaped
from penstock_log.views import SignInView

_STOP_S: Final = 2
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_MOST_PORT: Final = 65535
_log = structlog.get_logger("penstock.dashboard")


async def run(shell: Shell, settings: DashboardSettings) -> None:
    """Serve until the shell is stopping."""
    listener = bound(settings)
    host, port = listener.getsockname()[:2]
    url = settings.url or f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"  # noqa: S104 - compared
    ended = EndedSessions(settings.secret_file, shell.now_s)
    signer = TokenSigner(secret_of(settings.secret_file), shell.now_s, settings.session_s, ended)
    computations = Computations(shell.now_s, most=settings.replays, most_s=settings.replay_s)
    what_if = WhatIf(computations, shell.bus, shell.monotonic, settings_file())
    gateway, nodes = GatewayPort(shell.bus, shell.monotonic, signer.is_ended), HeardNodes(shell.monotonic)
    series = MetricTable(shell.now_s)
    jobs = JobSources(
        series=series,
        kept=KeptSeries(gateway, shell.monotonic),
        outputs=JobOutputs(shell.bus),
        stories=JobStories(gateway, shell.monotonic),
    )
    site = Site(gateway, signer, settings, shell.now_s, what_if=what_if, nodes=nodes, jobs=jobs)
    metrics = MetricsPage(shell.bus, settings, shell.monotonic, nodes=nodes)
    served = shell.bus.serve("dashboard", VERSION, [_sign_in(signer, url)], {"replica": shell.replica_id, "url": url})
    try:
        pages = application(site, [metrics.route()])
        spans = [export_spans(shell, otlp_exporter(settings.otlp_endpoint))] if settings.otlp_endpoint else []
        listening = [*metrics.listening(), series.listen(shell.bus), *spans]
        async with serving(pages, listener), served, background(*listening):
            shell.vitals.note = f"is at {url}"
            shell.vitals.ready = True
            shell.log.info("listening", url=url)
            await shell.stopping.wait()
            await site.channels.close()
            await computations.close()
    finally:
        listener.close()


def _sign_in(signer: TokenSigner, url: str) -> Endpoint:
    """Return the command with which people get an address that signs their browser in, as whom the server knows."""

    async def handle(request: Request) -> Reply:
        address = f"{url}/sign-in?{urlencode({'key': signer.new_key(request.user)})}"
        return Reply(body=msgspec.json.encode(SignInView(url=address, dashboard=url, valid_s=KEY_S, user=request.user)))

    return Endpoint(name="sign_in", subject=subjects.command("sign_in", "dashboard"), handler=handle)


def bound(settings: DashboardSettings) -> socket.socket:
    """
    Return a socket that listens at the port it had last, else where the settings say, else at a free port of that host.

    Raises
    ------
    SettingsError
        If the host is no address of this machine, or the port is not for this user.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _refused(settings, error) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    last = _last_port(settings.port_file)
    ports = [*([last] if last else []), settings.port, 0]
    try:
        for port in ports:
            try:
                listener.bind((address[0], port, *address[2:]))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or port == 0:
                    raise
        listener.listen()  # who comes before the server is up waits, and is not refused
    except OSError as error:
        listener.close()
        raise _refused(settings, error) from error
    _keep_port(settings.port_file, last, listener.getsockname()[1])
    return listener


def _last_port(file: str) -> int:
    """Return the port of a file; 0 where there is none."""
    try:
        text = Path(file).read_text().strip() if file else ""
    except (OSError, UnicodeDecodeError) as error:
        if not isinstance(error, FileNotFoundError):
            _log.warning("port_file_not_read", file=file, error=str(error))
        return 0
    return int(text) if _PORT.fullmatch(text) and int(text) <= _MOST_PORT else 0


def _keep_port(file: str, last: int, port: int) -> None:
    if not file or port == last:
        return
    new = Path(f"{file}.new")
    try:
        new.write_text(f"{port}\n")
        new.replace(file)
    except OSError as error:  # the dashboard is there all the same; the next one may be elsewhere
        _log.warning("port_file_not_written", file=file, error=str(error))


def _refused(settings: DashboardSettings, error: OSError) -> SettingsError:
    where = f"{escaped(settings.host)}:{settings.port}"
    return SettingsError(
        f"the dashboard cannot listen at {where}: {error.strerror or error}; expected an address of this machine and "
        "a free port, in [dashboard] host and port"
    )


class _Server(uvicorn.Server):
    """A web server in a process whose signals are the service's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the shell."""
        yield


@asynccontextmanager
async def serving(app: Starlette, listener: socket.socket) -> AsyncIterator[None]:
    """Serve an application on a bound socket while the context is open; streams that are open then are cut off."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=_STOP_S, server_header=False
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
