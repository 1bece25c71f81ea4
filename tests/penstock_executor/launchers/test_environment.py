import os
import sys

from penstock_executor.launchers import process_launcher


def test_a_job_gets_what_the_machine_is_like_and_nothing_that_its_operator_holds(monkeypatch):
    for name, value in {
        "AWS_SECRET_ACCESS_KEY": "x",
        "GITHUB_TOKEN": "x",
        "PENSTOCK_PASSWORD": "x",
        "CUDA_HOME": "/cuda",
        "TZ": "UTC",
    }.items():
        monkeypatch.setenv(name, value)
    env = process_launcher.base_environment()
    assert (env["CUDA_HOME"], env["TZ"]) == ("/cuda", "UTC")
    assert not {"AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "PENSTOCK_PASSWORD"} & set(env)


def test_the_operator_may_let_more_through_by_name_or_pattern(monkeypatch):
    monkeypatch.setenv("SITE_SCRATCH", "/scratch")
    monkeypatch.setenv("LICENCE_SERVER", "l1")
    env = process_launcher.base_environment(("SITE_*", "LICENCE_SERVER"))
    assert (env["SITE_SCRATCH"], env["LICENCE_SERVER"]) == ("/scratch", "l1")


def test_python_is_first_of_all_the_one_that_has_penstock(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    assert process_launcher.base_environment()["PATH"] == f"{os.path.dirname(sys.executable)}:/usr/bin"
