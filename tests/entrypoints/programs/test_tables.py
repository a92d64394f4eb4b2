"""Labelled texts out of channels, in every format, with errors that say where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotfire.entrypoints.programs import tables
from hotfire.entrypoints.programs.tables import DataError

ROWS = [("a fine film , truly", 1), ('dull "and" long', 0), ("zwölf\nZeilen", 1)]


def write_csv(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path.parent


def read(
    directory: Path, text: str | None = None, label: str | None = None
) -> tables.LabelledTexts:
    return tables.labelled(tables.read_directory(directory), text, label)


def test_csv_with_quotes_newlines_and_byte_order_mark(tmp_path: Path) -> None:
    body = '\ufefflabel,text\r\n1,"a fine film , truly"\r\n0,"dull ""and"" long"\r\n\r\n1,"zwölf\nZeilen"\r\n'
    found = read(write_csv(tmp_path / "train.csv", body))
    assert found.texts == [text for text, _ in ROWS]
    assert found.labels == ["1", "0", "1"]


def test_json_lines_and_tsv(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"sentence": t, "sentiment": y}) for t, y in ROWS)
    assert read(write_csv(tmp_path / "a" / "d.jsonl", lines)).texts == [t for t, _ in ROWS]
    found = read(write_csv(tmp_path / "b" / "d.tsv", "review\ty\ngood, really\tpos\nbad\tneg\n"))
    assert (found.texts, found.labels) == (["good, really", "bad"], ["pos", "neg"])


def test_files_of_a_channel_are_read_in_order_and_manifests_are_not(tmp_path: Path) -> None:
    write_csv(tmp_path / "part-2.csv", "text,label\nc,x\n")
    write_csv(tmp_path / "deep" / "part-1.csv", "label,text\ny,a\n")
    (tmp_path / "train-manifest").write_text("s3://bucket/\n")
    (tmp_path / ".hidden.csv").write_text("nothing")
    assert read(tmp_path).texts == ["a", "c"]


@pytest.mark.xla
def test_parquet_and_datasets_with_named_classes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the hf extra")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    columns = {"text": [t for t, _ in ROWS], "label": [y for _, y in ROWS]}
    part = datasets.Dataset.from_dict(columns, features=features)
    (tmp_path / "p").mkdir()
    part.to_parquet(str(tmp_path / "p" / "train.parquet"))
    assert read(tmp_path / "p").texts == columns["text"]
    part.save_to_disk(str(tmp_path / "d" / "train"))
    assert read(tmp_path / "d").labels == ["pos", "neg", "pos"]

    both = datasets.DatasetDict({"train": part, "test": part.select([1])})
    both.save_to_disk(str(tmp_path / "both"))
    train, test = tables.read_channels(tmp_path / "both", None)
    assert test is not None
    assert tables.labelled(train, None, None).labels == ["pos", "neg", "pos"]
    assert tables.labelled(test, None, None).labels == ["neg"]


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("d.csv", "", "is empty"),
        ("d.csv", "text,label\n", "has no rows"),
        ("d.csv", "text,label\ngood, really,1\n", "line 2: 3 fields where the header has 2"),
        ("d.csv", "q,answer\nx,1\n", "which of ['q', 'answer']"),
        ("d.csv", "text,note,other\nx,1,2\n", "--label_column"),
        ("d.csv", "text,label\ngood,\n", "row 1: 'text' or 'label' has no value"),
        ("d.jsonl", '{"text": "a", "label": 1}\n{"text"\n', "line 2: "),
        ("d.jsonl", '["a", 1]\n', "one JSON object per line"),
        ("d.jsonl", '{"text": "a", "label": 0.5}\n', "no regression"),
        ("d.jsonl", '{"text": "a", "label": [1, 2]}\n', "is not one class"),
        ("notes.txt", "text,label\n", "no .csv, .tsv, .jsonl, .json or .parquet"),
    ],
)
def test_unusable_data_is_refused_with_its_place(
    tmp_path: Path, name: str, body: str, message: str
) -> None:
    with pytest.raises(DataError) as error:
        read(write_csv(tmp_path / name, body))
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_mixed_formats_and_broken_encodings_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", "text,label\nx,1\n")
    write_csv(tmp_path / "b.jsonl", '{"text": "x", "label": 1}\n')
    with pytest.raises(DataError, match=r"mixes \.csv, \.jsonl"):
        read(tmp_path)
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "a.csv").write_bytes(b"text,label\n\xff\xfe,1\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read(tmp_path)


def test_named_columns_win_over_guesses(tmp_path: Path) -> None:
    directory = write_csv(tmp_path / "d.csv", "text,body,label,stars\na,b,0,5\nc,d,1,1\n")
    found = read(directory, "body", "stars")
    assert (found.texts, found.labels) == (["b", "d"], ["5", "1"])
    with pytest.raises(DataError, match=r"no column 'titel' .*--text_column"):
        read(directory, "titel")


def labels(*names: str) -> tables.LabelledTexts:
    return tables.LabelledTexts(source="d.csv", texts=["x"] * len(names), labels=list(names))


def test_label_names_are_ordered_by_value() -> None:
    assert tables.label_names(labels("10", "2", "1"), None) == ["1", "2", "10"]
    assert tables.label_names(labels("pos", "neg"), labels("neg")) == ["neg", "pos"]
    with pytest.raises(DataError, match=r"labels that d.csv lacks: \['meh'\]"):
        tables.label_names(labels("pos", "neg"), labels("meh"))
    with pytest.raises(DataError, match="needs two"):
        tables.label_names(labels("pos", "pos"), None)
