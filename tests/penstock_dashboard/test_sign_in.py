"""The file that signs sessions."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock_bus.settings import SettingsError
from penstock_dashboard.sign_in import TokenSigner, secret_of


def test_a_secret_is_made_for_its_owner_alone_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    first = secret_of(str(file))
    assert (len(first), file.stat().st_mode & 0o777) == (32, 0o600)
    assert secret_of(str(file)) == first
    assert [one.name for one in tmp_path.iterdir()] == ["secret"]


def test_dashboards_that_start_at_once_have_one_secret(tmp_path: Path) -> None:
    file = str(tmp_path / "secret")
    with ThreadPoolExecutor(8) as many:
        assert len(set(many.map(secret_of, [file] * 8))) == 1


def test_a_secret_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    secret_of(str(tmp_path / "secret"))
    assert synced[0] == 32
    assert len(synced) == 2


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [(b"", 0o600, "has 0 bytes, expected 32"), (b"x" * 32, 0o644, "is open to others; expected mode 0600")],
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, content: bytes, mode: int, said: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(SettingsError, match=said):
        secret_of(str(file))


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file or directory; expected a file that this user may read"):
        secret_of(str(tmp_path / "nowhere" / "secret"))


def test_a_session_ends_when_its_time_is_over() -> None:
    now = [1000.0]
    signer = TokenSigner(b"s" * 32, lambda: now[0], session_s=60.0)
    session = signer.open_session(signer.new_key("alice"))
    assert session is not None
    now[0] += 61.0
    assert signer.visitor(session) is None
