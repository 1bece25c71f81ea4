"""The synchronous client is what its tool writes, and has all that the asynchronous one has."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from penstock.client import Client
from penstock.sync_client import SyncClient

ROOT = Path(__file__).parents[2]
ON_THE_LOOP = {"bus", "follow_output"}


def test_the_synchronous_client_is_what_is_written_from_the_asynchronous_one() -> None:
    command = [sys.executable, str(ROOT / "tools" / "sync_client.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_method_is_there_with_the_same_parameters() -> None:
    for name, method in inspect.getmembers(Client, callable):
        if not name.startswith("_") and name not in ON_THE_LOOP:
            here = getattr(SyncClient, name)
            theirs, ours = inspect.signature(method), inspect.signature(here)
            assert list(theirs.parameters.values()) == list(ours.parameters.values()), name
            assert here.__doc__, name
            assert not inspect.iscoroutinefunction(here), name


def test_its_documentation_does_not_speak_of_awaiting() -> None:
    for name, method in inspect.getmembers(SyncClient, callable):
        if not name.startswith("_"):
            assert "async " not in (method.__doc__ or ""), name
