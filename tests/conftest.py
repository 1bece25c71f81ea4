import gc
import os
from collections.abc import Iterator

# Before anybody imports numpy: its threads spin for a while in each of the many processes that tests start, on the
# cores that the tests themselves are to have. No test multiplies matrices that are large enough to want them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = ["penstock_testing.fixtures", "cli_fixtures"]

# How long an example takes says how busy the machine is. What else differs where CI is set (always the same examples)
# is hypothesis' own profile, which this one goes on from.
settings.register_profile("busy", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("busy")


def pytest_collection_finish() -> None:
    """Look for garbage less often: among all the tests of a session that takes a tenth of the time they run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


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
