"""Request documents: what is read, and where a fault is said to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.request import load_text

DATA = Path(__file__).parent / "data"

scalars = st.none() | st.booleans() | st.integers() | st.text()
documents = st.dictionaries(
    st.text(),
    st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
)


@given(documents)
def test_json_is_read_as_json(document: dict[str, object]) -> None:
    assert load_text(json.dumps(document), "job.json") == document


def test_json_may_begin_with_a_byte_order_mark() -> None:
    assert load_text('\ufeff{"a": 1}', "job") == {"a": 1}


def test_yaml_and_json_say_the_same() -> None:
    text = (DATA / "heterogeneous.yaml").read_text()
    document = load_text(text, "job.yaml")
    assert document == load_text(json.dumps(document), "job.json")
    assert (
        document["InputDataConfig"][1]["DataSource"]["FileSystemDataSource"]["DirectoryPath"]
        == "/data"
    )


def test_yaml_merge_keys_are_no_duplicates() -> None:
    text = "base: &base {a: 1, b: 2}\nmore:\n  <<: *base\n  b: 3\n"
    assert load_text(text, "job.yaml")["more"] == {"a": 1, "b": 3}


FAULTS = {
    "comma": ('{\n  "A": 1,\n}', "job.json:3:1", "A", "Remove the comma"),
    "missing comma": ('{\n  "A": 1\n  "B": 2\n}', "job.json:3:3", "A", ""),
    "single quotes": ("{'A': 1}", "job.json:1:2", "", "double quotes"),
    "comment": ('{"A": 1, # one\n}', "job.json:1:10", "A", "comments"),
    "cut off": ('{"ResourceConfig": {"InstanceCount": ', "job.json:1:38", "InstanceCount", ""),
    "nan": ('{"A": "NaN",\n "B": NaN}', "job.json:2:7", "NaN", "string"),
    "twice": ('{"A": 1,\n "B": {"C": 1,\n  "C": 2}}', "job.json:3:3", '"C"', "one of the two"),
    "huge number": ('{"A": ' + "9" * 5000 + "}", "job.json", "", ""),
    "empty": ("", "job.json", "", ""),
    "list": ("[1]", "job.json", "list", "one CreateTrainingJob"),
}


@pytest.mark.parametrize(("text", "where", "field", "advice"), FAULTS.values(), ids=FAULTS)
def test_json_faults_are_located(text: str, where: str, field: str, advice: str) -> None:
    with pytest.raises(ValidationError) as caught:
        load_text(text, "job.json")
    assert where in caught.value.what
    assert field in caught.value.what
    assert advice in caught.value.do


YAML_FAULTS = {
    "indentation": ("A: 1\n B: 2\n", "job.yaml:2:3", "B"),
    "twice": ("A: 1\nB:\n  C: 1\n  C: 2\n", "job.yaml:4:3", "C"),
    "tab": ("A:\n\tB: 1\n", "job.yaml:2:1", "A"),
    "open": ("A: [1, 2\n", "job.yaml:2:1", "A"),
    "python": ("A: !!python/object/apply:os.system [id]\n", "job.yaml:1:4", "A"),
    "two documents": ("A: 1\n---\nB: 1\n", "job.yaml:2:1", ""),
    "control character": ("A: \x01\n", "job.yaml", ""),
    "date": ("A: 2026-02-31\n", "job.yaml", ""),
    "scalar": ("hello\n", "a str", ""),
    "unhashable": ("? [1]\n: 2\n", "job.yaml:1:3", ""),
}


@pytest.mark.parametrize(("text", "where", "field"), YAML_FAULTS.values(), ids=YAML_FAULTS)
def test_yaml_faults_are_located(text: str, where: str, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        load_text(text, "job.yaml")
    assert where in caught.value.what
    assert field in caught.value.what
    assert "\n" not in caught.value.what


@pytest.mark.parametrize("text", ['{"A": ' + "[" * 100_000, "A: " + "[" * 5_000])
def test_depth_is_no_traceback(text: str) -> None:
    with pytest.raises(ValidationError, match="nested too deeply"):
        load_text(text, "job")


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_text_is_a_document_or_refused(text: str) -> None:
    for name in ("job.json", "job.yaml"):
        try:
            assert isinstance(load_text(text, name), dict)
        except ValidationError as refused:
            assert name in refused.what
