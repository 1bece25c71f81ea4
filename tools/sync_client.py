"""
Write ``penstock.SyncClient`` from the methods of ``penstock.Client``: ``python tools/sync_client.py [--check]``.

Each public method of the client is a method here, with its parameters, types and documentation. A coroutine is run to
its end, and an asynchronous iterator becomes an iterator.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LIBS: Final = Path(__file__).parent.parent / "libs" / "penstock"
WRITTEN: Final = LIBS / "sync_client.py"
SOURCES: Final = (("client.py", "Client"), ("gateway_client.py", "GatewayClient"))
"""Where the methods are, the derived class first: its methods take the place of the others'."""
LEFT_OUT: Final = {
    "bus": "is on the event loop",
    "follow_output": "takes a reader on the event loop; `logs` gives the same",
}
SAID: Final = {
    "Awaited, it is the gateway's answer; ``async for`` goes": "It has the gateway's answer; ``for`` goes",
    "async for": "for",
}
"""What the documentation of methods says otherwise here."""
ITERATORS: Final = ("AsyncIterator", "AsyncGenerator")
HEAD: Final = '''"""
The synchronous client: everything that :class:`penstock.Client` does, for scripts and notebooks.

Written by ``tools/sync_client.py`` from the methods of that client; a test compares. What is common to all of them is
in :mod:`penstock.sync_connection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

from penstock.client import Client
from penstock.retries import new_id
from penstock.sync_connection import SyncConnection, SyncSweep, awaited

if TYPE_CHECKING:
    {imports}


class SyncClient(SyncConnection):
    """
    A connection to a running Penstock whose methods return when they are answered.

    It has an event loop in a thread of its own, so it can be used where a loop runs already, as in a notebook, and by
    several threads at a time. Ctrl-C ends whatever it waits for. It is connected when it is first used, or by ``with``,
    and :meth:`close` ends the thread. A process that was forked makes a client of its own.

    Errors are those of :class:`penstock.Client`.

    Parameters
    ----------
    url, login, timeout_s, again_s, nobody_s, new_id
        As for :class:`penstock.Client`.

    Examples
    --------
    ::

        with penstock.SyncClient() as client:
            answer = client.submit(name="mnist", command=("python", "train.py"), gpus=2)
            for line in client.logs(answer.id, follow=True):
                print(line.data.decode(), end="")
            job = client.wait(answer.id)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        login: logins.Login | None = None,
        timeout_s: float = 30.0,
        again_s: float = 1.0,
        nobody_s: float = 5.0,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        super().__init__(
            Client(url, login=login, timeout_s=timeout_s, again_s=again_s, nobody_s=nobody_s, new_id=new_id)
        )
'''


def render() -> str:
    """Return the module's text, not formatted yet."""
    body = "\n".join(_method(found) for found in methods())
    return "\n".join([HEAD.replace("{imports}", "\n    ".join(_imports(body))), body])


def _imports(body: str) -> list[str]:
    """Return the imports of the sources whose names stand in the methods' types, as ruff sorts them."""
    head = HEAD.replace("    {imports}", "    pass")
    own = {alias.name for node in ast.parse(head).body if isinstance(node, ast.ImportFrom) for alias in node.names}
    tree = ast.parse(f"class _:\n{body}")
    given = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    wanted = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - given | {"logins"}
    plain: set[str] = set()
    homes: dict[str, str] = {}
    for file, _ in SOURCES:
        for node in ast.walk(ast.parse((LIBS / file).read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names if alias.name in wanted - own}
                if isinstance(node, ast.Import):
                    plain |= names
                elif node.module:  # the sources may have a name from two modules: a package, and one of its own
                    homes.update({name: max(homes.get(name, ""), node.module) for name in names})
    lines = [f"import {name}" for name in sorted(plain)]
    standard = sorted(module for module in {*homes.values()} if module.partition(".")[0] in sys.stdlib_module_names)
    others = sorted({*homes.values()} - {*standard})
    for module in (*standard, "", *others):
        its_own = sorted((name for name in homes if homes[name] == module), key=_order)
        if module:
            lines.append(f"from {module} import {', '.join(its_own)}")
        elif lines:
            lines.append("")
    return lines


def _order(name: str) -> tuple[bool, bool, str]:
    """Return by what ruff sorts a name: constants, classes, others."""
    return not name.isupper(), not name[0].isupper(), name


def methods() -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the client's public methods that the synchronous client has too."""
    seen: set[str] = set()
    for file, name in SOURCES:
        tree = ast.parse((LIBS / file).read_text())
        [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        for node in found.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                if node.name not in seen and node.name not in LEFT_OUT:
                    yield node
                seen.add(node.name)


def _method(found: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = found.args
    given = [argument.arg for argument in arguments.args[1:]]
    given += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    given += [f"**{arguments.kwarg.arg}"] if arguments.kwarg is not None else []
    call = f"self._client.{found.name}({', '.join(given)})"
    returned = ast.unparse(found.returns) if found.returns is not None else "None"
    if isinstance(found, ast.FunctionDef) and returned == "results.SubmittedSweep":
        returned, body = "SyncSweep", f"return SyncSweep(self._result(lambda: awaited({call})), self.results)"
        body = f"self.connect()  # which tells the client whom the server knows\n        {body}"
    elif returned.startswith(ITERATORS):
        item = returned.partition("[")[2].removesuffix("]").removesuffix(", None")
        returned, body = f"Iterator[{item}]", f"return self._iterate({call})"
    else:
        begin = f"lambda: {call}" if given else call.removesuffix("()")
        body = f"return self._result({begin})"
    text = ast.get_docstring(found) or ""
    for said, here in SAID.items():
        text = text.replace(said, here)
    doc = f'        """{text}"""' if "\n" not in text else _indented(f'"""\n{text}\n"""')
    return f"    def {found.name}({ast.unparse(arguments)}) -> {returned}:\n{doc}\n        {body}\n"


def _indented(text: str) -> str:
    return "\n".join(f"        {line}".rstrip() for line in text.splitlines())


def is_stale() -> bool:
    """Say whether the module differs from what would be written, by more than its format."""
    return not WRITTEN.exists() or ast.dump(ast.parse(WRITTEN.read_text())) != ast.dump(ast.parse(render()))


def main() -> int:
    """Return 1 if the module is stale under ``--check``."""
    if not is_stale():
        return 0
    if "--check" in sys.argv:
        print(f"{WRITTEN.name} is stale; run `python tools/sync_client.py` and commit it", file=sys.stderr)
        return 1
    WRITTEN.write_text(render())
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(WRITTEN)], check=True)
    print(f"wrote {WRITTEN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
