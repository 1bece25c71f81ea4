"""
Requests to a Kubernetes API server.

:class:`KubernetesApi` logs in as ``kubectl`` does (``KUBECONFIG``, ``~/.kube/config``), or with the service account of
the Pod in which it runs, whose token is read again when it has been renewed. The library ``kr8s`` does this; it comes
with ``pip install 'penstock[kubernetes]'`` and is loaded with the first request. Answers are of three kinds: an object;
:class:`KubernetesRefused`, which another try would not change; :class:`KubernetesSilent`, of which nothing follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from httpx import Response
    from kr8s.asyncio import Api

LONGEST_S: Final = 30.0
"""A request that takes longer than this has failed."""
_UNKNOWN: Final = 401
_AWAY: Final = frozenset({_UNKNOWN, 408, 429, 500, 502, 503, 504})
"""Codes that say nothing of what was asked. Logins that have ended are renewed by whoever runs the allocator."""
CONFLICT: Final = 409
ALREADY_EXISTS: Final = "AlreadyExists"
NOT_FOUND: Final = 404
_PATCH: Final = "application/merge-patch+json"
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubernetesRefused(Exception):
    """
    An answer of the API server that another try would not change.

    Attributes
    ----------
    code : int
        As HTTP has it.
    reason : str
        Why, in one word of Kubernetes, such as ``AlreadyExists``; empty where the server has not said.
    """

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class KubernetesSilent(Exception):
    """
    The API server does not answer, or answers that it cannot now.

    Attributes
    ----------
    retry_s : float
        After how many seconds it wants to be asked again; 0 where it has not said.
    """

    def __init__(self, message: str, retry_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class KubernetesApi:
    """
    The API server of one cluster.

    Parameters
    ----------
    account : Path
        Folder with the service account of the Pod in which this runs, if it runs in one.
    """

    def __init__(self, account: Path = _ACCOUNT) -> None:
        self._account = account
        self._api: Api | None = None
        self._connecting = asyncio.Lock()

    async def namespace(self) -> str:
        """Return the namespace of the login."""
        with _errors():
            api = await self._connected()
            if api.auth.active_context:
                return str(api.namespace)
            # The library takes "default" for a service account, whatever the account's namespace is.
            return (self._account / "namespace").read_text(encoding="utf-8").strip()

    async def ask(
        self,
        method: str,
        namespace: str,
        path: str,
        *,
        version: str = "v1",
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the answer to a request about objects of a namespace."""
        headers = {"Content-Type": _PATCH} if method == "PATCH" else {}
        more: dict[str, Any] = {"content": msgspec.json.encode(body)} if body is not None else {}
        more |= {"params": params or {}, "headers": headers, "timeout": LONGEST_S, "version": version}
        with _errors():
            async with self._called(method, namespace, path, more) as response:
                return msgspec.json.decode(response.content, type=dict[str, Any])

    async def lines(
        self, namespace: str, path: str, *, params: Mapping[str, str], quiet_s: float
    ) -> AsyncIterator[bytes]:
        """Yield the lines of an answer as they come; ``quiet_s``: the longest time between two."""
        with _errors():
            from httpx import Timeout  # noqa: PLC0415 - it is not there where nobody has Pods

            more = {"params": params, "timeout": Timeout(LONGEST_S, read=quiet_s), "stream": True, "version": "v1"}
            async with self._called("GET", namespace, path, more) as response:
                rest = b""  # the library's own lines end at other characters, too, which may be in a message
                async for part in response.aiter_bytes():
                    *lines, rest = (rest + part).split(b"\n")
                    for line in filter(None, lines):
                        yield line

    @asynccontextmanager
    async def _called(self, method: str, namespace: str, path: str, more: dict[str, Any]) -> AsyncIterator[Response]:
        """
        Send a request, and check its answer.

        The library logs in anew after each 401 and 403, and closes all connections for that, the watch's too. So it
        hears of 401 alone, after which the request is sent again.
        """
        api, is_known = await self._connected(), True
        async with api.call_api(method, namespace=namespace, url=path, raise_for_status=False, **more) as response:
            is_known = response.status_code != _UNKNOWN
            if is_known:
                await _check(response)
                yield response
        if not is_known:
            async with api.call_api(method, namespace=namespace, url=path, **more) as response:
                yield response

    async def _connected(self) -> Api:
        async with self._connecting:
            if self._api is None:
                await asyncio.to_thread(import_module, "kr8s.asyncio")  # where it takes long, the lease would end
                from kr8s.asyncio import api  # noqa: PLC0415 - it is not there where nobody has Pods

                logging.getLogger("httpx").setLevel(logging.WARNING)  # or each request is a line of the log
                self._api = await api(serviceaccount=str(self._account))
            return self._api


@contextmanager
def _errors() -> Iterator[None]:
    """Raise what goes wrong as one of two kinds."""
    try:
        yield
    except ImportError as error:
        raise KubernetesSilent(
            f"{error.name} is not installed where the allocator runs: pip install 'penstock[kubernetes]', and start "
            "the allocator again"
        ) from error
    except msgspec.MsgspecError as error:
        raise KubernetesSilent(f"the answer is no object of Kubernetes: {error}") from error
    except (ValueError, KeyError, IndexError, OSError, RuntimeError) as error:  # RuntimeError: of a login's own program
        raise KubernetesSilent(
            f"there is no login to a cluster: {error}; expected KUBECONFIG, ~/.kube/config, or a Pod's service account"
        ) from error
    except Exception as error:
        found = _told(error)
        if found is None:
            raise
        raise found from error


async def _check(response: Response) -> None:
    if not response.is_error:
        return
    await response.aread()
    try:
        status = msgspec.json.decode(response.content, type=dict[str, Any])
        message, reason = str(status["message"]), str(status.get("reason", ""))
    except (msgspec.MsgspecError, KeyError):
        message, reason = response.text[:300], ""
    code, after = response.status_code, response.headers.get("Retry-After", "")
    if code in _AWAY:
        raise KubernetesSilent(f"it answers {code}: {message}", float(after) if after.isdecimal() else 0.0)
    raise KubernetesRefused(code, message, reason)


def _told(error: Exception) -> KubernetesSilent | None:
    """Return what an error of the library means; None for one that is not its."""
    from httpx import HTTPError, InvalidURL, StreamError  # noqa: PLC0415
    from kr8s import APITimeoutError, ServerError  # noqa: PLC0415

    if isinstance(error, HTTPError | InvalidURL | StreamError | APITimeoutError | ServerError):
        return KubernetesSilent(f"the API server is not reached: {str(error) or type(error).__name__}")
    return None
