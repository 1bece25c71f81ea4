"""Clusters by word and by file."""

from __future__ import annotations

import pytest

from penstock_simulator.virtual_cluster import load, parse, read_cluster


def test_a_word_names_nodes_and_devices():
    assert parse("3x4").gpus == 12
    assert parse("3x4").sizes.tolist() == [4, 4, 4]
    assert parse("2x8@fast+4x4@slow").of_kind("fast") == 16


@pytest.mark.parametrize("word", ["", "3", "3x", "0x4", "3x0", "3x4+", "x4", "3x4@"])
def test_what_is_no_word_for_a_cluster_is_refused(word):
    with pytest.raises(ValueError, match="expected NODESxGPUS"):
        parse(word)


def test_a_file_says_all_of_a_group(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(
        '[[nodes]]\ncount = 2\ngpus = 4\nkind = "fast"\nmemory_gib = 80\nspeed = 0.5\nlabels = {rack = "a"}\n'
    )
    (group,) = load(str(path)).groups
    assert (group.count, group.memory_bytes, group.speed, group.labels) == (2, 80 * 2**30, 0.5, {"rack": "a"})


@pytest.mark.parametrize(
    "text", ["", "[[nodes]]\ncount = 1", "[[nodes]]\ngpus = 0", "[[nodes]]\ngpus = 1\nname = 'a'", "="]
)
def test_a_file_that_says_something_else_is_refused_by_name(tmp_path, text):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"cluster\.toml"):
        read_cluster(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        load(str(tmp_path / "none.toml"))
