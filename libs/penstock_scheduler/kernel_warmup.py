"""
The matching's kernels in a service: loaded where they are kept; else compiled by another process, and meanwhile
interpreted.

Compiling takes half a minute, once on a machine. Nobody waits for it: rounds are decided by the same source as plain
Python, with the same results, until the kernels are there.
"""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Final, Self

from penstock_bus.child_processes import dies_with_parent, module_command
from penstock_bus.servers.server import end
from penstock_bus.shell import Shell
from penstock_policies.matching import KERNELS, warm

_GRACE_S: Final = 2.0
COMPILING: Final = (
    "compiles its kernels, once on this machine and for about 40 s; jobs start meanwhile, in rounds that take longer"
)
WARMING: Final = "penstock_policies.matching.matching_warmup"
"""The program that compiles the kernels and keeps them."""

_NICE: Final = 5
"""Compiling makes way for the services and jobs of the machine."""


class MatchingKernels:
    """
    The kernels of one service process, as an asynchronous context: outside of it nothing is compiled for it.

    Parameters
    ----------
    shell : Shell
        Its vitals say so while they are compiled.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell, self._log = shell, shell.log
        self._asked = False
        self._loading = asyncio.Lock()
        self._compiling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin; nothing is loaded before :meth:`usable` is asked."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process that compiles, if it still does."""
        if self._compiling is not None:
            self._compiling.cancel()
            await asyncio.gather(self._compiling, return_exceptions=True)
            KERNELS.interpreted = False

    async def usable(self) -> None:
        """Return when rounds can be decided: when the kernels are loaded or, where none are kept, at once."""
        async with self._loading:
            if self._asked:
                return
            if await asyncio.to_thread(KERNELS.are_kept):
                await self._load()
            else:
                KERNELS.interpreted = True
                self._shell.vitals.note = COMPILING
                self._compiling = asyncio.create_task(self._compile())
            self._asked = True

    async def _load(self) -> None:
        before_s = self._shell.now_s()
        await asyncio.to_thread(warm)
        KERNELS.interpreted = False
        self._log.info("matching_warmed", took_s=round(self._shell.now_s() - before_s, 3))

    async def _compile(self) -> None:
        self._log.info("kernels_compiling", meanwhile="rounds are decided in plain Python")
        before_s = self._shell.now_s()
        try:
            if KERNELS.can_be_kept() and (trouble := await self._compiled_by_another()):
                self._log.warning("kernels_not_compiled", trouble=trouble, until="the next start")
            else:
                await self._load()
                self._log.info("kernels_compiled", took_s=round(self._shell.now_s() - before_s, 3))
        except Exception:  # whatever the compiler says, plain Python goes on
            self._log.exception("kernels_not_compiled", until="the next start")
        finally:
            self._shell.vitals.note = ""

    async def _compiled_by_another(self) -> str:
        """Have a process compile and keep them; return what went wrong, empty if nothing did."""
        alone = dies_with_parent()

        def before_exec() -> None:
            alone()
            os.nice(_NICE)

        try:
            process = await asyncio.create_subprocess_exec(
                *module_command(WARMING),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        except OSError as error:
            return str(error)
        try:
            status = await process.wait()
        finally:
            await end(process, _GRACE_S)
        return f"the compiler ended with status {status}" if status else ""
