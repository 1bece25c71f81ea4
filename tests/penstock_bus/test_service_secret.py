"""The secret that an agent and the executor of its node share."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock_bus.service_folder import SECRET_BYTES, secret_in


def test_a_secret_is_made_once_whoever_asks_first_and_is_its_owners_alone(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: secret_in(tmp_path / "agent"), range(32)))
    (secret,) = found
    assert len(secret) == SECRET_BYTES
    assert stat.S_IMODE((tmp_path / "agent" / "secret").stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "agent").iterdir()] == ["secret"]


def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(ValueError, match="holds 5 bytes, expected 32; delete it, and start again"):
        secret_in(tmp_path)
