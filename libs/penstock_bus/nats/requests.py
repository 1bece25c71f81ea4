"""Requests, services and telemetry: what is not stored."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.micro import add_service
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER
from nats.micro.request import Request as MicroRequest
from nats.micro.service import Service, ServiceConfig

from penstock_bus.compat import timeout
from penstock_bus.nats.handshake import denied
from penstock_bus.nats.link import NatsClient, unsubscribe
from penstock_bus.port import Endpoint, Reply, Request, RequestPort, ServiceError, TelemetryPort
from penstock_log import subjects as names

_KEPT: Final = 10_000
_STOP_S: Final = 2.0


class NatsRequestClient(NatsClient, RequestPort, TelemetryPort):
    """The ports that store nothing."""

    async def request(self, subject: str, body: bytes, timeout_s: float = 5.0) -> bytes:
        self.link.check_size(subject, body)
        await self.link.online(timeout_s)
        answer = await self.link.ask(subject, body, timeout_s=timeout_s)
        headers = answer.headers or {}
        if ERROR_HEADER in headers or ERROR_CODE_HEADER in headers:
            code = headers.get(ERROR_CODE_HEADER, "500")
            raise ServiceError(
                int(code) if code.isascii() and code.isdigit() else 500, headers.get(ERROR_HEADER, ""), answer.data
            )
        return answer.data

    @asynccontextmanager
    async def serve(
        self, name: str, version: str, endpoints: Sequence[Endpoint], metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[None]:
        """
        Serve requests while the context is open, as a NATS micro service.

        Each endpoint serves one request at a time unless it is concurrent, different endpoints side by side; replicas
        of one name share the requests. At the end, requests that are being served get their answers.

        Raises
        ------
        Unauthorized
            If the user may not hear what is asked on one of the subjects.
        """
        await self.link.online(self.link.timeout_s)
        running: set[asyncio.Task[None]] = set()
        heard = [(subject, endpoint) for endpoint in endpoints for subject in _subjects(endpoint)]
        subjects = [subject for subject, _ in heard]
        self.link.served |= dict.fromkeys(subjects, True)
        config = ServiceConfig(name=name, version=version, metadata=dict(metadata or {}), queue_group=name)
        service = await add_service(self.link.client, config)
        try:
            for subject, endpoint in heard:
                handler = _answering(endpoint, self.link.max_body_bytes, running)
                await service.add_endpoint(name=endpoint.name, subject=subject, handler=handler)
            await asyncio.sleep(0)  # the flush must come behind the subscriptions
            await self.link.flush()
            await self.link.flush()
            if unheard := [subject for subject in subjects if not self.link.served[subject]]:
                raise denied(unheard[0], "serve")
            yield
        finally:
            await self._stop(service, running)

    async def publish(self, subject: str, body: bytes) -> None:
        self.link.check_size(subject, body)
        if self.link.is_online:
            with suppress(nats.errors.Error, OSError):  # it counts as lost
                await self.link.client.publish(subject, body)

    async def subscribe(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        messages: deque[tuple[str, bytes]] = deque(maxlen=_KEPT)
        wake = asyncio.Event()

        async def received(msg: Msg) -> None:
            messages.append((msg.subject, msg.data))
            wake.set()

        await self.link.online(self.link.timeout_s)
        sub = await self.link.client.subscribe(subject, cb=received, pending_msgs_limit=0, pending_bytes_limit=0)
        try:
            while True:
                while messages:
                    yield messages.popleft()
                wake.clear()
                await wake.wait()
        finally:
            await unsubscribe(sub)

    async def _stop(self, service: Service, running: set[asyncio.Task[None]]) -> None:
        with suppress(TimeoutError, nats.errors.Error, OSError):  # the server forgets it with the connection
            async with timeout(_STOP_S):
                if self.link.is_online:
                    await service.stop()
                    await asyncio.gather(*running, return_exceptions=True)
        for task in running:
            task.cancel()


def _subjects(endpoint: Endpoint) -> list[str]:
    """Return where an endpoint is asked: by services, and by people where they reach it."""
    if endpoint.subject.startswith(names.REACHED):
        return [endpoint.subject, names.by_anybody(endpoint.subject)]
    return [endpoint.subject]


def _answering(
    endpoint: Endpoint, max_body_bytes: int, running: set[asyncio.Task[None]]
) -> Callable[[MicroRequest], Awaitable[None]]:
    """Return what the service framework calls: it answers in a task of its own, which outlives the subscription."""

    async def answer(request: MicroRequest) -> None:
        try:
            user, subject = names.asked_by(request.subject)
            reply = await endpoint.handler(Request(body=request.data, user=user, subject=subject))
        except Exception as error:  # whatever the handler raises is the caller's to know
            reply = Reply(code=500, error=repr(error))
        if len(reply.body) > max_body_bytes:
            reply = Reply(
                code=500, error=f"the answer has {len(reply.body)} bytes, too many for the server; ask for less"
            )
        if reply.code:
            await request.respond_error(str(reply.code), reply.error, data=reply.body)
        else:
            await request.respond(reply.body)

    async def take(request: MicroRequest) -> None:
        task = asyncio.create_task(answer(request))
        running.add(task)
        task.add_done_callback(running.discard)
        if not endpoint.concurrent:
            await asyncio.shield(task)

    return take
