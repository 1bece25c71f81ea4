from hypothesis import HealthCheck, settings

pytest_plugins = ["penstock_testing.fixtures"]

# How long an example takes says how busy the machine is. What else differs where CI is set (always the same examples)
# is hypothesis' own profile, which this one goes on from.
settings.register_profile("busy", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("busy")
