"""The file that signs sessions."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock_bus.settings import SettingsError
from penstock_dashboard.sign_in import EndedSessions, TokenSigner, secret_of


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


def test_sessions_that_were_ended_are_known_to_all_who_share_the_file_and_forgotten_when_they_would_have_ended(
    tmp_path: Path,
) -> None:
    now, file = [1000.0], str(tmp_path / "secret")
    signers = [TokenSigner(b"s" * 32, lambda: now[0], 60.0, EndedSessions(file, lambda: now[0])) for _ in range(2)]
    sessions = [signers[0].open_session(signers[0].new_key("alice")) or "" for _ in range(3)]
    assert [signers[1].visitor(one) is not None for one in sessions] == [True, True, True]
    signers[0].end_session(sessions[0])
    signers[1].end_session(sessions[1])
    for signer in (*signers, TokenSigner(b"s" * 32, lambda: now[0], 60.0, EndedSessions(file, lambda: now[0]))):
        assert [signer.visitor(one) is not None for one in sessions] == [False, False, True]
    ended = tmp_path / "secret.ended"
    assert (len(ended.read_text().splitlines()), ended.stat().st_mode & 0o777) == (2, 0o600)
    now[0] += 61.0
    late = signers[0].open_session(signers[0].new_key("alice")) or ""
    signers[0].end_session(late)
    assert len(ended.read_text().splitlines()) == 1
    signers[0].end_session("forged")


def test_where_the_list_of_ended_sessions_cannot_be_written_the_session_ends_here_all_the_same(tmp_path: Path) -> None:
    ended = EndedSessions(str(tmp_path / "gone" / "secret"), lambda: 0.0)
    signer = TokenSigner(b"s" * 32, lambda: 0.0, 60.0, ended)
    session = signer.open_session(signer.new_key("alice")) or ""
    with pytest.raises(FileNotFoundError):
        signer.end_session(session)
    assert signer.visitor(session) is None


def test_a_session_ends_when_its_time_is_over() -> None:
    now = [1000.0]
    signer = TokenSigner(b"s" * 32, lambda: now[0], session_s=60.0)
    session = signer.open_session(signer.new_key("alice"))
    assert session is not None
    now[0] += 61.0
    assert signer.visitor(session) is None


@pytest.mark.parametrize("spoil", [lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff\xfe 9\n")])
def test_a_list_of_ended_sessions_that_cannot_be_read_is_told_once_and_keeps_nobody_out(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(tmp_path / "secret.ended")
    signer = TokenSigner(b"s" * 32, lambda: 0.0, 60.0, EndedSessions(str(tmp_path / "secret"), lambda: 0.0))
    session = signer.open_session(signer.new_key("alice")) or ""
    with capture_logs() as logs:
        assert [signer.visitor(session) is not None for _ in range(3)] == [True] * 3
    assert [line["event"] for line in logs] == ["ended_sessions_not_read"]
