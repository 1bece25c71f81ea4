from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="module")
def _quick_collections() -> Iterator[None]:
    """A host looks through all objects once; among those of some thousand tests that takes it longer than its work."""
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock_packed.host.quick_collections", nullcontext)
        yield
