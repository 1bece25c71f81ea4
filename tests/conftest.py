import gc
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final

# Before anybody imports numpy: its threads spin for a while in each of the many processes that tests start, on the
# cores that the tests themselves are to have. No test multiplies matrices that are large enough to want them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import structlog
from hypothesis import HealthCheck, is_hypothesis_test, settings

from sweeps import examples

pytest_plugins = ["penstock_testing.fixtures", "cli_fixtures"]

# How long an example takes says how busy the machine is. What else differs where CI is set (always the same examples)
# is hypothesis' own profile, which this one goes on from.
settings.register_profile(
    "busy", settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
)
settings.load_profile("busy")

FOLDERS_WITH_PROCESSES: Final = {"bench", "compose", "contract", "examples", "system"}
SERVERS: Final = {"nats", "nats_account", "nats_bus", "nats_server"}
"""Fixtures with a real server, and what tests of both buses are parametrized by."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Mark as slow what `make quick` leaves out, and have modules that wait for processes run beside those that compute.

    Slow are tests of real processes, tests on a real server and properties; others are marked so by hand. Modules say
    by their name that they look at pages in a browser.
    """
    for item in items:
        if item.path.stem.endswith("_in_a_browser"):
            item.add_marker(pytest.mark.browser)
        if needs_processes(item) or is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.slow)
    modules = [list(module) for _, module in groupby(items, lambda item: unit_of(item.nodeid))]
    waiting = [module for module in modules if any(map(needs_processes, module))]
    waiting.sort(key=lambda module: "system" not in folders(module[0]))  # the longest ones must not be the last
    computing = [module for module in modules if not any(map(needs_processes, module))]
    spread = sorted([*places(waiting), *places(computing)], key=lambda placed: placed[0])
    items[:] = [item for _, module in spread for item in module]


def needs_processes(item: pytest.Item) -> bool:
    """Say whether a test starts a server or services, and waits for them."""
    called = getattr(item, "callspec", None)
    words = {word for word in called.params.values() if isinstance(word, str)} if called else set()
    asks_for = words.union(getattr(item, "fixturenames", ()))
    return not (FOLDERS_WITH_PROCESSES.isdisjoint(folders(item)) and SERVERS.isdisjoint(asks_for))


def folders(item: pytest.Item) -> Sequence[str]:
    """Return the folders, below that of all tests, in which a test is."""
    return _folders(item.path)


@cache
def _folders(path: Path) -> Sequence[str]:
    return path.relative_to(Path(__file__).parent).parts[:-1]


ONE_PROCESS: Final = ("tests/system/one_cluster/",)
"""Folders whose modules share what takes long to start, and which one process therefore runs as if they were one."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each test process whole modules, and whole folders of `ONE_PROCESS`."""
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - only where there is xdist

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return Scheduling(config, log)


def unit_of(nodeid: str) -> str:
    """Return the module of a test, or the folder of `ONE_PROCESS` in which it is."""
    return next((folder for folder in ONE_PROCESS if nodeid.startswith(folder)), nodeid.partition("::")[0])


def places(modules: Sequence[list[pytest.Item]]) -> Iterator[tuple[float, list[pytest.Item]]]:
    """Yield each module with its place between 0 and 1, so that they are spread evenly."""
    for number, module in enumerate(modules):
        yield (number + 0.5) / len(modules), module


if threading.current_thread() is threading.main_thread():
    # As in the background of a script, or below nohup: neither tests that signal nor what they start would notice.
    for signum, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, handler)

gc.set_threshold(100_000, 50, 100)
"""Garbage is looked for less often: among all the tests of a session that takes a tenth of the time they run."""


def pytest_collection_finish() -> None:
    """Leave out of each later search what stays for the session: all tests, and what they import."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _configuration_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep credentials that `penstock up` leaves for its user out of the home of who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _loggers_that_can_be_captured() -> Iterator[None]:
    """Let no logger keep the form that some test configured: what it says later would escape whoever captures it."""
    configure = structlog.configure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            structlog, "configure", lambda **chosen: configure(**{**chosen, "cache_logger_on_first_use": False})
        )
        yield
