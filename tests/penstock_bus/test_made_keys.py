"""Keys and logins that are made before the server: in Secrets of a cluster, and in folders."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from secret_server import SecretServer, serving

from penstock_bus import made_keys
from penstock_bus.identity import access
from penstock_bus.identity.keyring import Keyring
from penstock_bus.identity.logins import Login, read_login
from penstock_bus.made_keys import FolderSecrets, KubernetesSecrets, Names, SecretsUnavailable, make_all, take_keys
from penstock_bus.servers.server import ServerError
from penstock_log.services import LOGINS

NAMES = Names(keys="p-keys", logins="p-login-", url="tls://p:4222", hosts=("localhost",), authority=None, owner="jane")
ROLES = [access.ADMIN, *LOGINS, *access.users_of_roles()]
SECRETS = ["p-keys", *(f"p-login-{role}" for role in ROLES)]


@pytest.fixture
def folders(tmp_path: Path) -> FolderSecrets:
    return FolderSecrets(tmp_path / "made")


def login(store: FolderSecrets, role: str) -> Login:
    return msgspec.json.decode(store.read(f"p-login-{role}").files[f"{role}.json"], type=Login)


def test_every_role_gets_a_login_of_its_own_by_the_keys_that_the_servers_take(
    folders: FolderSecrets, tmp_path: Path
) -> None:
    assert make_all(folders, NAMES, 1.0) == SECRETS
    keys = folders.read("p-keys").files
    assert set(keys) == {"keys.json", "routes.key", "ca.pem", "ca.key"}
    keyring = Keyring.kept_in(tmp_path / "made" / "p-keys")
    for role in ROLES:
        found = login(folders, role)
        assert (found.url, found.hosts, found.ca) == ("tls://p:4222", ("localhost",), keys["ca.pem"].decode())
        assert found.user_jwt
        assert found.user == {"client": "jane"}.get(role, role)
    assert login(folders, "gateway").user_seed == keyring.service_logins("x", (), 1.0)["gateway"].user_seed


def test_a_second_run_changes_nothing(folders: FolderSecrets) -> None:
    make_all(folders, NAMES, 1.0)
    assert make_all(folders, NAMES, 2.0) == []


def test_what_is_missing_is_added_and_what_was_given_away_stays_good(folders: FolderSecrets, tmp_path: Path) -> None:
    make_all(folders, NAMES, 1.0)
    before = login(folders, "client")
    (tmp_path / "made" / "p-login-ranker" / "ranker.json").unlink()
    more = msgspec.structs.replace(NAMES, extensions=("billing",), url="tls://q:4222")
    assert set(make_all(folders, more, 2.0)) == {*SECRETS, "p-login-extension-billing"} - {"p-keys"}
    assert login(folders, "client") == msgspec.structs.replace(before, url="tls://q:4222")
    assert read_login(tmp_path / "made" / "p-login-extension-billing" / "extension-billing.json").user == "billing"


def test_logins_of_other_keys_are_made_anew(folders: FolderSecrets, tmp_path: Path) -> None:
    make_all(folders, NAMES, 1.0)
    before = {role: login(folders, role).user_jwt for role in ROLES}
    (tmp_path / "made" / "p-keys" / "keys.json").unlink()
    assert make_all(folders, NAMES, 2.0) == SECRETS
    assert not [role for role in ROLES if login(folders, role).user_jwt == before[role]]


def test_an_owners_login_of_after_a_revocation_is_kept(folders: FolderSecrets, tmp_path: Path) -> None:
    make_all(folders, NAMES, 1.0)
    keyring = Keyring.kept_in(tmp_path / "made" / "p-keys")
    ca = folders.read("p-keys").files["ca.pem"].decode()
    rotated = msgspec.structs.replace(
        keyring.person_login(NAMES.url, "jane", 6.0, valid_from_s=5.0, ca=ca), hosts=NAMES.hosts
    )
    folders.add("p-login-client", {"client.json": msgspec.json.encode(rotated)}, "")
    assert make_all(folders, NAMES, 7.0) == []
    assert login(folders, "client") == rotated


def test_another_owner_gets_another_login(folders: FolderSecrets) -> None:
    make_all(folders, NAMES, 1.0)
    assert make_all(folders, msgspec.structs.replace(NAMES, owner="sam"), 2.0) == ["p-login-client"]
    assert login(folders, "client").user == "sam"


@pytest.mark.parametrize(("secret", "file"), [("p-keys", "keys.json"), ("p-login-tuner", "tuner.json")])
def test_a_file_that_is_none_is_named_and_left(folders: FolderSecrets, secret: str, file: str) -> None:
    make_all(folders, NAMES, 1.0)
    folders.add(secret, {file: b"{torn"}, "")
    with pytest.raises(SecretsUnavailable, match=f"the Secret {secret} holds no "):
        make_all(folders, NAMES, 2.0)
    assert folders.read(secret).files[file] == b"{torn"


def test_secrets_of_a_cluster_are_filled_by_a_token_that_may_read_and_change_these_alone(tmp_path: Path) -> None:
    with serving(SecretServer(tmp_path, *SECRETS)) as server:
        store = KubernetesSecrets.of_this_pod(server.environ, server.account)
        assert make_all(store, NAMES, 1.0) == SECRETS
        assert {method for method, _ in server.asked} == {"GET", "PATCH"}
        kept = base64.b64decode(server.secrets["p-login-gateway"]["gateway.json"])
        assert msgspec.json.decode(kept, type=Login).user == "gateway"
        assert make_all(store, NAMES, 2.0) == []


def test_a_patch_of_another_type_would_be_refused_as_by_kubernetes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(made_keys, "_MERGE", "application/json")
    with serving(SecretServer(tmp_path, *SECRETS)) as server:
        store = KubernetesSecrets.of_this_pod(server.environ, server.account)
        with pytest.raises(SecretsUnavailable, match="415"):
            make_all(store, NAMES, 1.0)


def test_two_runs_at_the_same_time_make_one_set_of_keys(tmp_path: Path) -> None:
    with serving(SecretServer(tmp_path, *SECRETS)) as server:
        slow, fast = (KubernetesSecrets.of_this_pod(server.environ, server.account) for _ in range(2))
        begun: list[str] = []

        def overtake(name: str) -> None:
            if not begun:
                begun.append(name)
                make_all(fast, NAMES, 1.0)

        server.before_patch = overtake
        assert make_all(slow, NAMES, 2.0) == []  # all was there when it tried to write its own
        assert begun == ["p-keys"]


def test_a_secret_that_may_not_be_changed_or_is_not_there_is_named(tmp_path: Path) -> None:
    with serving(SecretServer(tmp_path, *SECRETS)) as server:
        store = KubernetesSecrets.of_this_pod(server.environ, server.account)
        server.allowed.remove("p-login-tuner")
        with pytest.raises(SecretsUnavailable, match="GET of the Secret p-login-tuner was answered with 403"):
            make_all(store, NAMES, 1.0)
        server.allowed.add("p-login-tuner")
        del server.secrets["p-login-tuner"]
        with pytest.raises(SecretsUnavailable, match=r"p-login-tuner was answered with 404.*made by the chart"):
            make_all(store, NAMES, 1.0)
    with pytest.raises(SecretsUnavailable, match=r"got no answer: .*NetworkPolicy"):
        make_all(store, NAMES, 1.0)


def test_outside_a_pod_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SecretsUnavailable, match=r"this is no pod; give --out FOLDER"):
        KubernetesSecrets.of_this_pod({})
    with pytest.raises(SecretsUnavailable, match="no token of a service account"):
        KubernetesSecrets.of_this_pod({"KUBERNETES_SERVICE_HOST": "::1"}, tmp_path)


def test_a_server_takes_its_keys_and_refuses_others_than_those_of_its_log(
    folders: FolderSecrets, tmp_path: Path
) -> None:
    make_all(folders, NAMES, 1.0)
    given, kept = tmp_path / "made" / "p-keys", tmp_path / "data" / "nats"
    take_keys(given, kept)
    take_keys(given, kept)
    assert (kept / "keys.json").read_bytes() == (given / "keys.json").read_bytes()
    (given / "keys.json").unlink()
    with pytest.raises(ServerError, match="made_keys` has filled"):
        take_keys(given, kept)
    make_all(folders, NAMES, 2.0)
    with pytest.raises(ServerError, match=r"kept by other keys .* Put the file keys.json of this volume back"):
        take_keys(given, kept)
    assert made_keys.take_secret(given)
