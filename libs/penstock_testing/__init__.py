"""For tests of services: scenarios over deciders, a real NATS server, and both buses as fixtures."""

from penstock_testing.facts import delivery, subject_of
from penstock_testing.ports import free_port
from penstock_testing.scenario import Scenario, check_replay
from penstock_testing.waiting import eventually

__all__ = ["Scenario", "check_replay", "delivery", "eventually", "free_port", "subject_of"]
