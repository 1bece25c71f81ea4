from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = ["penstock_testing.fixtures", "cli_fixtures"]

# How long an example takes says how busy the machine is. What else differs where CI is set (always the same examples)
# is hypothesis' own profile, which this one goes on from.
settings.register_profile("busy", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("busy")


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
