"""
For tests of services: scenarios over deciders, a real NATS server, and both buses as fixtures.

In reading order:

* ``scenario``: Given, when, then over a decider.
* ``fixtures``: Pytest fixtures, ports, waiting.
"""

from penstock_log.codec import subject_of
from penstock_testing.fixtures import eventually, free_port
from penstock_testing.scenario import Scenario, check_replay, delivery

__all__ = ["Scenario", "check_replay", "delivery", "eventually", "free_port", "subject_of"]
