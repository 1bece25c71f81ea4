"""What other people's code imports is there under the names that it was published with."""

from importlib import import_module

import pytest

PUBLISHED = {
    "penstock": (
        "Batch",
        "Client",
        "JobFilter",
        "JobSpec",
        "Resize",
        "Session",
        "SessionError",
        "SweepSpec",
        "session",
    ),
    "penstock.estimate": ("need_of",),
    "penstock.results": ("study",),
    "penstock_bus.memory": ("MemoryBus",),
    "penstock_bus.replica": ("run_decider",),
    "penstock_bus.shell": ("Shell", "main"),
    "penstock_events": ("Event", "JobSubmitted", "Jobs", "Misplaced", "Rank", "RunEnded", "Sample", "State", "decode"),
    "penstock_events.codec": ("encode",),
    "penstock_events.lifecycle": ("last_checkpoint",),
    "penstock_events.spec": ("JobSpec",),
    "penstock_events.subjects": ("WRITERS",),
    "penstock_packed": ("Device", "Endpoint", "Host", "Model", "Outcome", "Reading", "Rules", "Trial", "Turn"),
    "penstock_policies.elastic": ("Profile", "allocate"),
    "penstock_policies.gittins": ("index",),
    "penstock_policies.matching": ("Assignment", "KeptMatching", "assign", "warm"),
    "penstock_policies.waterfill": ("allot",),
}


@pytest.mark.parametrize("module", PUBLISHED)
def test_a_published_name_is_importable_where_it_was(module: str) -> None:
    found = import_module(module)
    assert [name for name in PUBLISHED[module] if not hasattr(found, name)] == []
