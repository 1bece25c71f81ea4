from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = ["penstock_testing.fixtures"]

# How long an example takes says how busy the machine is. What else differs where CI is set (always the same examples)
# is hypothesis' own profile, which this one goes on from.
settings.register_profile("busy", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("busy")


@pytest.fixture(scope="session", autouse=True)
def _loggers_that_can_be_captured() -> Iterator[None]:
    """Let no logger keep the form that some test configured: what it says later would escape whoever captures it."""
    configure = structlog.configure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            structlog, "configure", lambda **chosen: configure(**{**chosen, "cache_logger_on_first_use": False})
        )
        yield
