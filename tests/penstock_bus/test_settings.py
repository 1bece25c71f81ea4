from pathlib import Path

import msgspec
import pytest

from penstock_bus.settings import BusAddress, SettingsError, load, mistakes_in, tables_in


class Inner(msgspec.Struct, frozen=True):
    kind: str
    speed: float = 1.0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    debounce_s: float = 0.01
    replicas: int = 1
    verbose: bool = False
    pools: tuple[str, ...] = ()
    devices: tuple[Inner, ...] = ()
    label: str | None = None


class Needed(msgspec.Struct, frozen=True, kw_only=True):
    node_id: str


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "penstock.toml"


def test_defaults_apply_where_nothing_is_set(config: Path) -> None:
    assert load(Sample, "sample", environ={}) == Sample()


def test_the_file_in_the_working_directory_is_read(config: Path) -> None:
    config.write_text("[sample]\ndebounce_s = 2\ndevices = [{kind = 'fast', speed = 0.5}]\n")
    settings = load(Sample, "sample", environ={})
    assert settings.debounce_s == 2.0
    assert settings.devices == (Inner("fast", 0.5),)


def test_variables_go_over_the_file(config: Path) -> None:
    config.write_text("[sample]\nreplicas = 2\nverbose = true\n")
    environ = {"PENSTOCK_SAMPLE_REPLICAS": "3", "PENSTOCK_SAMPLE_POOLS": "a, b", "PENSTOCK_SAMPLE_LABEL": "7"}
    settings = load(Sample, "sample", environ=environ)
    assert settings == Sample(replicas=3, verbose=True, pools=("a", "b"), label="7")


def test_structs_come_as_json_from_a_variable(config: Path) -> None:
    settings = load(Sample, "sample", environ={"PENSTOCK_SAMPLE_DEVICES": '[{"kind": "slow", "speed": 0.4}]'})
    assert settings.devices == (Inner("slow", 0.4),)


def test_an_unknown_key_is_refused_naming_the_file_and_what_is_known(config: Path) -> None:
    config.write_text("[sample]\nreplica = 2\n")
    with pytest.raises(SettingsError, match=r"penstock\.toml:2, \[sample\]: .*'replica'; did you mean replicas\? exp"):
        load(Sample, "sample", environ={})


def test_an_unknown_variable_is_refused(config: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown variable PENSTOCK_SAMPLE_REPLICA; .*PENSTOCK_SAMPLE_REPLICAS"):
        load(Sample, "sample", environ={"PENSTOCK_SAMPLE_REPLICA": "2"})


def test_what_a_job_finds_in_its_environment_is_no_setting_of_a_service_that_it_starts(config: Path) -> None:
    found = load(Sample, "memory", environ={"PENSTOCK_MEMORY_SOCKET": "/run/memory.sock"})
    assert found == load(Sample, "memory", environ={})


def test_a_wrong_type_in_the_file_is_refused_naming_key_and_type(config: Path) -> None:
    config.write_text("[sample]\nreplicas = '2'\n")
    with pytest.raises(SettingsError, match=r"penstock\.toml.*'replicas': Expected `int`.*got '2', expected int"):
        load(Sample, "sample", environ={})


def test_a_wrong_value_in_a_variable_is_refused_naming_it(config: Path) -> None:
    with pytest.raises(SettingsError, match=r"variable PENSTOCK_SAMPLE_VERBOSE: .*got 'maybe', expected bool"):
        load(Sample, "sample", environ={"PENSTOCK_SAMPLE_VERBOSE": "maybe"})


def test_a_missing_required_setting_says_how_to_set_it(config: Path) -> None:
    with pytest.raises(SettingsError, match=r"variable PENSTOCK_EXECUTOR_NODE_ID or key 'node_id' of \[executor\]"):
        load(Needed, "executor", environ={})


def test_a_named_file_must_exist(config: Path) -> None:
    with pytest.raises(SettingsError, match=r"PENSTOCK_CONFIG names /nowhere\.toml, which does not exist"):
        load(Sample, "sample", environ={"PENSTOCK_CONFIG": "/nowhere.toml"})


def test_a_file_that_is_not_toml_is_refused_with_its_name(config: Path) -> None:
    config.write_text("[sample\n")
    with pytest.raises(SettingsError, match=r"penstock\.toml cannot be read as TOML"):
        load(Sample, "sample", environ={})


def test_a_section_that_is_no_table_is_refused(config: Path) -> None:
    config.write_text("sample = 3\n")
    with pytest.raises(SettingsError, match=r"'sample' is not a table; write it as \[sample\]"):
        load(Sample, "sample", environ={})


def test_the_connection_stands_at_the_top_level_beside_the_tables(config: Path) -> None:
    config.write_text("url = 'nats://bus:4222'\n[sample]\nreplicas = 2\n")
    settings = load(BusAddress, "", environ={"PENSTOCK_USER": "matcher", "PENSTOCK_RANK": "0"})
    assert (settings.url, settings.user) == ("nats://bus:4222", "matcher")


def test_a_password_is_never_shown(config: Path) -> None:
    config.write_text("password = 12345\n")
    with pytest.raises(SettingsError) as caught:
        load(BusAddress, "", environ={})
    assert "12345" not in str(caught.value)


def test_the_file_that_says_ready_does_not_say_so_yet(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    file.touch()
    assert load(BusAddress, "", environ={"PENSTOCK_READY_FILE": str(file)}).fresh_ready_file() == file
    assert not file.exists()
    assert BusAddress().fresh_ready_file() is None


def test_a_file_that_cannot_say_ready_is_named(tmp_path: Path) -> None:
    nowhere = tmp_path / "missing" / "ready"
    with pytest.raises(SettingsError, match=r"PENSTOCK_READY_FILE names .*/missing/ready, which cannot be written"):
        BusAddress(ready_file=str(nowhere)).fresh_ready_file()
    with pytest.raises(SettingsError, match=r"PENSTOCK_LIVE_FILE names .*/missing/ready, which cannot be written"):
        BusAddress(live_file=str(nowhere)).fresh_live_file()


@pytest.mark.parametrize("text", ["replicas = " + "1" * 5_000, "pools = " + "[" * 200_000, "\x00", "a = 1\na = 2"])
def test_a_file_that_is_meant_to_do_harm_is_refused_by_a_sentence(config: Path, text: str) -> None:
    config.write_text(f"[sample]\n{text}")
    with pytest.raises(SettingsError, match=r"penstock\.toml cannot be read as TOML: .*; correct it"):
        load(Sample, "sample", environ={})


@pytest.mark.parametrize("value", ["[" * 100_000, "x" * 100_000])
def test_a_long_wrong_value_is_shown_short(config: Path, value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(Sample, "sample", environ={"PENSTOCK_SAMPLE_REPLICAS": value, "PENSTOCK_SAMPLE_DEVICES": value})
    assert len(str(refused.value)) < 400


def test_everything_that_is_wrong_with_a_section_is_told_at_once_with_its_line(config: Path) -> None:
    config.write_text("url = 'x'\n\n[sample]\nreplicas = 'two'\ncolour = 1\n\n[sample.devices]\nkind = 3\n")
    found = mistakes_in(Sample, "sample", environ={"PENSTOCK_SAMPLE_VERBOSE": "maybe", "PENSTOCK_SAMPLE_X": "1"})
    assert [text.partition(": ")[0] for text in found] == [
        "penstock.toml:4, [sample], key 'replicas'",
        "penstock.toml:5, [sample]",
        "penstock.toml:7, [sample], key 'devices'",
        "unknown variable PENSTOCK_SAMPLE_X; expected one of PENSTOCK_SAMPLE_DEBOUNCE_S, PENSTOCK_SAMPLE_DEVICES, "
        "PENSTOCK_SAMPLE_LABEL, PENSTOCK_SAMPLE_POOLS, PENSTOCK_SAMPLE_REPLICAS, PENSTOCK_SAMPLE_VERBOSE",
        "variable PENSTOCK_SAMPLE_VERBOSE",
    ]


def test_what_is_required_and_not_set_is_no_mistake_of_what_is_set(config: Path) -> None:
    assert mistakes_in(Needed, "executor", environ={}) == []


def test_the_tables_of_the_file_are_told_with_their_lines(config: Path) -> None:
    config.write_text("url = 'x'\n[a]\nlist = [\n  ['b'],\n  ['c']]\n[ d . e ] # a comment\n['f']\n")
    assert tables_in(environ={}) == {"a": "penstock.toml:2", "d": "penstock.toml", "f": "penstock.toml:7"}
