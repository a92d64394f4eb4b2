"""Contract 3.2: which path each key gets."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.keys import key_tree, stripped


def paths(prefix: str, *keys: str) -> dict[str, str]:
    return {key: str(path) for key, path in key_tree(prefix, keys).files.items()}


@pytest.mark.parametrize(
    ("prefix", "key", "path"),
    [
        # The rows of the contract's table.
        ("p/input", "p/input/test", "test"),
        ("p/training", "p/training/en-ja/train.en", "en-ja/train.en"),
        ("p/input/", "p/input/a/b.txt", "a/b.txt"),
        ("data/train", "data/train-data.csv", "train-data.csv"),
        ("p/model.tar.gz", "p/model.tar.gz", "model.tar.gz"),
        # Whole buckets, and keys without folders.
        ("", "a/b", "a/b"),
        ("tr", "train.csv", "train.csv"),
        ("train", "train/x", "x"),
        ("p", "p//x", "x"),
        ("p/", "p/a//./b", "a/b"),
    ],
)
def test_one_key(prefix: str, key: str, path: str) -> None:
    assert paths(prefix, key) == {key: path}


def test_a_prefix_that_matches_two_folders_keeps_their_names() -> None:
    assert paths("p/input", "p/input/y", "p/input2/x") == {
        "p/input/y": "input/y",
        "p/input2/x": "input2/x",
    }


def test_an_object_named_like_the_folder_keeps_its_name() -> None:
    assert paths("p/in", "p/in", "p/in/x") == {"p/in": "in", "p/in/x": "x"}


def test_folder_markers_become_directories() -> None:
    tree = key_tree("p", ["p/", "p/a/", "p/b/x"])
    assert tree.directories == {PurePosixPath("a")}
    assert set(tree.files) == {"p/b/x"}


@pytest.mark.parametrize(
    ("prefix", "keys"),
    [
        ("p/", ["p/../x"]),
        ("p/", ["p/a/../../x"]),
        ("p", ["p/.."]),
        ("p/", ["p/a\0b"]),
        ("p/", ["p/" + "x" * 256]),
    ],
)
def test_keys_that_are_no_paths_below_the_channel_are_refused(prefix: str, keys: list[str]) -> None:
    with pytest.raises(ValidationError):
        key_tree(prefix, keys)


@pytest.mark.parametrize(
    "keys",
    [
        ["p/a", "p/a/b"],
        ["p/a/b", "p/a"],
        ["p/a", "p//a"],
        ["p/a", "p/a/"],
        ["p/a", "p/a/b/"],
        ["p/in/in", "p/in", "p/in/x"],
    ],
)
def test_clashes_are_refused_by_name(keys: list[str]) -> None:
    prefix = "p/in" if "p/in" in keys else "p/"
    with pytest.raises(ValidationError, match="both need the path"):
        key_tree(prefix, keys)


names = st.text(st.sampled_from("ab./"), min_size=1, max_size=8)


@given(st.text(st.sampled_from("ab/"), max_size=4), st.lists(names, max_size=6, unique=True))
def test_accepted_trees_can_be_made(prefix: str, rests: list[str]) -> None:
    """No path leaves the channel, none is another's directory, and each is the tail of its key."""
    keys = [prefix + rest for rest in rests]
    try:
        tree = key_tree(prefix, keys)
    except ValidationError:
        return
    files = list(tree.files.values())
    assert len(set(files)) == len(files)
    assert not set(files) & {parent for path in files for parent in path.parents}
    assert not set(files) & tree.directories
    assert set(tree.files) == {key for key in keys if not key.endswith("/")}
    for key, path in tree.files.items():
        assert not path.is_absolute()
        assert ".." not in path.parts
        parts = [part for part in key.split("/") if part not in ("", ".")]
        assert tuple(parts[len(parts) - len(path.parts) :]) == path.parts


@given(st.text(st.sampled_from("ab/"), max_size=5), st.lists(names, min_size=1, max_size=5))
def test_what_is_cut_is_the_prefix_or_its_folder(prefix: str, rests: list[str]) -> None:
    cut = stripped(prefix, [prefix + rest for rest in rests])
    assert cut == "" or cut.endswith("/")
    assert prefix.startswith(cut) or cut == prefix + "/"
