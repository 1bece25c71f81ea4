"""What is installed is locked by hashes, and an audit that nobody answered does not pass."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import subprocess
import sys
import tomllib
import zipfile
from contextlib import suppress
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sweeps import sampled

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
LOCKS = ("build", "dev", "image", "supply")


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tool_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins(lock: str) -> list[tuple[Requirement, list[str]]]:
    """Return what a lock file pins, each with its hashes."""
    text = (ROOT / "locks" / f"{lock}.txt").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.lstrip().startswith(("#", "--"))]
    return [
        (
            Requirement(" ".join(word for word in words if not word.startswith("--hash="))),
            [word.removeprefix("--hash=") for word in words if word.startswith("--hash=")],
        )
        for words in lines
    ]


def asked(extras: tuple[str, ...]) -> list[Requirement]:
    """Return the direct dependencies of Penstock and of some extras, and of those that these name."""
    found = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    for extra in extras:
        for requirement in map(Requirement, EXTRAS[extra]):
            found += asked(tuple(requirement.extras)) if requirement.name == "penstock" else [requirement]
    return found


WANTED = {
    "build": [Requirement(line) for line in PROJECT["dependency-groups"]["build"]],
    "dev": asked(("dev",)),
    "image": asked(("examples", "kubernetes", "oidc", "optuna")),
    "supply": [Requirement(line) for line in PROJECT["dependency-groups"]["supply"]],
}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_all_that_pyproject_asks_for(lock: str) -> None:
    versions: dict[str, list[str]] = {}
    for pin, _ in pins(lock):
        (specifier,) = pin.specifier
        versions.setdefault(canonicalize_name(pin.name), []).append(specifier.version)
    for wanted in WANTED[lock]:
        locked = versions.get(canonicalize_name(wanted.name), [])
        assert locked, f"{wanted} is not in locks/{lock}.txt; run `make lock` and commit it"
        assert all(wanted.specifier.contains(one) for one in locked), f"{wanted}, but {locked}; run `make lock`"


def test_what_the_locked_distributions_need_is_locked_too() -> None:
    """Of those that are here, and of the extras that pyproject.toml asks them for."""
    locked = {canonicalize_name(pin.name) for pin, _ in pins("dev")}
    extras = {canonicalize_name(one.name): one.extras for one in WANTED["dev"] if one.extras}
    missing = []
    for name in locked:
        with suppress(PackageNotFoundError):
            for needed in map(Requirement, metadata.requires(name) or ()):
                applies = needed.marker is None or any(
                    needed.marker.evaluate({"extra": extra}) for extra in ("", *extras.get(name, ()))
                )
                if applies and canonicalize_name(needed.name) not in locked:
                    missing.append(f"{name} needs {needed}")
    assert not missing, "run `make lock` and commit it"


@pytest.mark.parametrize("lock", LOCKS)
def test_each_pin_is_one_version_with_hashes(lock: str) -> None:
    for pin, hashes in pins(lock):
        assert [one.operator for one in pin.specifier] == ["=="], pin
        assert hashes, pin
        assert all(one.startswith("sha256:") and len(one) == 71 for one in hashes), pin


@pytest.mark.parametrize("lock", LOCKS)
def test_nothing_is_built_but_what_has_no_wheel(lock: str) -> None:
    lines = (ROOT / "locks" / f"{lock}.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("--")] == ["--only-binary :all:", "--no-binary nkeys"]


def test_the_image_has_the_versions_that_the_tests_have() -> None:
    tested = {(pin.name, str(pin.specifier)) for pin, _ in pins("dev")}
    assert {(pin.name, str(pin.specifier)) for pin, _ in pins("image")} <= tested


def test_what_builds_penstock_is_locked() -> None:
    built_by = {Requirement(line).name for line in PROJECT["build-system"]["requires"]}
    assert built_by <= {pin.name for pin, _ in pins("build")}


def test_the_image_installs_nothing_without_a_hash() -> None:
    steps = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    installs = [step for part in steps for step in part.split("&&") if "pip install" in step or "pip wheel" in step]
    assert installs
    for step in installs:
        assert "--require-hashes" in step or {"--no-deps", "--no-index"} <= set(step.split()), step


def wheel(folder: Path, name: str, version: str) -> str:
    """Write a wheel with one module; return its hash."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()) for path, text in files.items()}
    record = [f"{path},sha256={digest.decode().rstrip('=')}," for path, digest in digests.items()]
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "right_hash", "installed", "may_go_by_ranges"),
    sampled(
        [
            pytest.param("1.0", False, False, False, id="another file under its name"),
            pytest.param("1.0", True, True, None, id="as locked"),
            pytest.param("2.0", True, False, True, id="not on this index"),
        ]
    ),
)
def test_only_a_file_that_the_index_lacks_is_taken_unlocked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    version: str,
    right_hash: bool,
    installed: bool,
    may_go_by_ranges: bool | None,
) -> None:
    install = tool("install")
    index = tmp_path / "index"
    (tmp_path / "locks").mkdir()
    index.mkdir()
    digest = wheel(index, "locked_thing", "1.0")
    (tmp_path / "locks" / "build.txt").touch()
    line = f"locked_thing=={version} --hash=sha256:{digest if right_hash else '0' * 64}\n"
    (tmp_path / "locks" / "tiny.txt").write_text(line)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_PYTHON", str(tmp_path / "venv"))
    done = install.locked("tiny")
    assert (done.returncode == 0) is installed, done.stderr
    assert bool(list((tmp_path / "venv").glob("lib/*/site-packages/locked_thing.py"))) is installed
    if may_go_by_ranges is not None:
        assert install.is_missing_file(done.stderr) is may_go_by_ranges, done.stderr


CLEAN = {"name": "nats-py", "version": "2.16.0", "vulns": []}
VULNERABLE = {
    "name": "jinja2",
    "version": "2.10",
    "vulns": [{"id": "GHSA-462w-v97r-4m45", "fix_versions": ["2.10.1"], "aliases": [], "description": ""}],
}
UNKNOWN = {"name": "numba", "skip_reason": "Dependency not found on PyPI and could not be audited: numba (0.68.1)"}


@pytest.mark.parametrize(
    ("reported", "code", "printed"),
    [
        ([CLEAN], 0, ["1 distributions"]),
        ([CLEAN, VULNERABLE], 1, ["VULNERABLE: 1 ", "jinja2 2.10: GHSA-462w-v97r-4m45, fixed in 2.10.1"]),
        ([CLEAN, UNKNOWN], 2, ["NOT AUDITED: the service answered for 1 of 2", "numba: "]),
        ([VULNERABLE, UNKNOWN], 1, ["VULNERABLE", "NOT AUDITED"]),
        ([], 2, ["NOT AUDITED: the service answered for 0 of 0"]),
    ],
)
def test_an_audit_passes_only_when_all_was_answered_for(
    reported: list[dict[str, Any]], code: int, printed: list[str]
) -> None:
    given, lines = tool("audit").verdict({"dependencies": reported})
    assert given == code
    assert all(text in "\n".join(lines) for text in printed), lines


def test_an_audit_without_its_tool_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = tool("audit")
    monkeypatch.setattr(audit.sys, "executable", "/bin/false")
    code, lines = audit.audit("locks/dev.txt", [])
    assert (code, lines[0]) == (2, "NOT AUDITED: pip-audit said nothing")
