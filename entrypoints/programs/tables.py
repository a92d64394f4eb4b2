"""Labelled texts out of a channel: csv, JSON lines, parquet, or what ``save_to_disk`` wrote.

Reading needs the standard library, and pyarrow or datasets for their formats alone.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

TEXT_COLUMNS = ("text", "sentence", "review", "content", "document", "comment", "body", "title")
LABEL_COLUMNS = ("label", "labels", "sentiment", "target", "class", "category", "y")
TEST_SPLITS = ("test", "validation", "eval", "val", "dev")


class DataError(ValueError):
    """The data cannot be used; the message says which file and what to do."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of equal length; `class_names` where a column's integers have names."""

    source: str
    columns: Mapping[str, Sequence[Any]]
    class_names: Mapping[str, Sequence[str]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


@dataclass(frozen=True, kw_only=True)
class LabelledTexts:
    """The two columns that matter: labels are the names that the model will have."""

    source: str
    texts: list[str]
    labels: list[str]


def read_channels(train: Path, test: Path | None) -> tuple[Table, Table | None]:
    """The tables of channels `train` and `test`; one channel may hold both as a DatasetDict.

    Raises:
        DataError: nothing to read, or several formats at once.
    """
    splits = _splits(train)
    if splits is not None:
        if "train" not in splits:
            raise DataError(f"the DatasetDict in {train} has no split train: {sorted(splits)}")
        held = next((splits[name] for name in TEST_SPLITS if name in splits), None)
        return splits["train"], read_directory(test) if test else held
    return read_directory(train), read_directory(test) if test else None


def read_directory(directory: Path) -> Table:
    """All files of the one format that `directory` holds, in the order of their names."""
    splits = _splits(directory)
    if splits is not None:
        name = next((n for n in (*TEST_SPLITS, "train") if n in splits), None)
        if name is None:
            raise DataError(f"the DatasetDict in {directory} has none of the splits {TEST_SPLITS}")
        return splits[name]
    for candidate in _and_children(directory):
        if (candidate / "dataset_info.json").is_file() and (candidate / "state.json").is_file():
            return _from_dataset(_load_from_disk(candidate), str(candidate))
    files = [p for p in sorted(directory.rglob("*")) if p.is_file() and _reader(p)]
    if not files:
        raise DataError(f"{directory} holds no .csv, .tsv, .jsonl, .json or .parquet file")
    suffixes = {path.suffix.lower() for path in files}
    if len(suffixes) > 1:
        raise DataError(f"{directory} mixes {', '.join(sorted(suffixes))}; give one format")
    return _concatenated([_read_file(path) for path in files], str(directory))


def labelled(table: Table, text_column: str | None, label_column: str | None) -> LabelledTexts:
    """The text and label columns, named or guessed.

    Raises:
        DataError: no such column, no likely one, an empty table, or a missing value.
    """
    if len(table) == 0:
        raise DataError(f"{table.source} has no rows")
    label = _choose(table, label_column, LABEL_COLUMNS, "label_column", taken=text_column)
    text = _choose(table, text_column, TEXT_COLUMNS, "text_column", taken=label)
    names = table.class_names.get(label)
    rows = zip(table.columns[text], table.columns[label], strict=True)
    texts, labels = [], []
    for number, (value, mark) in enumerate(rows, 1):
        if value is None or mark is None or mark == "":
            raise DataError(f"{table.source}, row {number}: {text!r} or {label!r} has no value")
        texts.append(str(value))
        labels.append(names[mark] if names else _label_name(mark, table.source, number))
    return LabelledTexts(source=table.source, texts=texts, labels=labels)


def label_names(train: LabelledTexts, test: LabelledTexts | None) -> list[str]:
    """The classes in a stable order, numbers by value.

    Raises:
        DataError: fewer than two classes, or a test label that training does not have.
    """
    names = sorted(set(train.labels), key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else n))
    if len(names) < 2:
        raise DataError(f"{train.source}: all labels are {names[0]!r}; classification needs two")
    unknown = sorted(set(test.labels) - set(names)) if test else []
    if test and unknown:
        raise DataError(f"{test.source} has labels that {train.source} lacks: {unknown[:5]}")
    return names


def _choose(
    table: Table, name: str | None, likely: Sequence[str], option: str, *, taken: str | None
) -> str:
    columns = list(table.columns)
    if name is not None:
        if name in columns:
            return name
        raise DataError(f"{table.source} has no column {name!r} (--{option}); it has {columns}")
    by_lower = {column.lower().strip(): column for column in columns if column != taken}
    for candidate in likely:
        if candidate in by_lower:
            return by_lower[candidate]
    if len(columns) == 2 and taken in columns:
        return next(column for column in columns if column != taken)
    raise DataError(f"{table.source}: which of {columns} is it? name it with --{option}")


def _label_name(mark: Any, source: str, row: int) -> str:
    if isinstance(mark, float):
        if mark != int(mark):
            raise DataError(
                f"{source}, row {row}: label {mark} is not a class (no regression here)"
            )
        mark = int(mark)
    if isinstance(mark, bool):
        mark = int(mark)
    if isinstance(mark, list | dict):
        raise DataError(f"{source}, row {row}: label {mark!r} is not one class")
    return str(mark).strip()


def _reader(path: Path) -> Callable[[Path], Table] | None:
    if path.name.startswith(".") or path.name in {"dataset_info.json", "state.json"}:
        return None
    return _READERS.get(path.suffix.lower())


def _read_file(path: Path) -> Table:
    reader = _reader(path)
    assert reader is not None
    try:
        return reader(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error}") from error


def _read_csv(path: Path) -> Table:
    # csv.field_size_limit's default of 128 KiB is less than some documents.
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        header = next(reader, None)
        if not header:
            raise DataError(f"{path} is empty; its first line names the columns")
        columns: dict[str, list[Any]] = {name: [] for name in header}
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(row)} fields where the header has "
                    f"{len(header)}; quote fields that contain the separator"
                )
            for name, value in zip(header, row, strict=True):
                columns[name].append(value)
    return Table(source=str(path), columns=columns, class_names={})


def _read_json_lines(path: Path) -> Table:
    records: list[dict[str, Any]] = []
    for number, line in enumerate(_lines(path), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: one JSON object per line is expected")
        records.append(record)
    names = list(dict.fromkeys(name for record in records for name in record))
    columns = {name: [record.get(name) for record in records] for name in names}
    return Table(source=str(path), columns=columns, class_names={})


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as file:
        yield from (line for line in file if line.strip())


def _read_parquet(path: Path) -> Table:
    parquet: Any = import_module("pyarrow.parquet")
    # As one file: a directory named key=value above it must not turn into a column.
    with path.open("rb") as file:
        table = parquet.read_table(file)
    return Table(source=str(path), columns=table.to_pydict(), class_names={})


_READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_json_lines,
    ".json": _read_json_lines,
    ".parquet": _read_parquet,
}


def _concatenated(tables: Sequence[Table], source: str) -> Table:
    if len(tables) == 1:
        return tables[0]
    names = list(tables[0].columns)
    for table in tables[1:]:
        if set(table.columns) != set(names):
            raise DataError(
                f"{table.source} has columns {list(table.columns)}, {tables[0].source} has {names}"
            )
    columns = {n: [value for table in tables for value in table.columns[n]] for n in names}
    return Table(source=source, columns=columns, class_names={})


def _and_children(directory: Path) -> list[Path]:
    """`datasets` is often saved one level below the channel's root."""
    children = [p for p in sorted(directory.iterdir()) if p.is_dir()] if directory.is_dir() else []
    return [directory, *(children if len(children) == 1 else [])]


def _splits(directory: Path) -> dict[str, Table] | None:
    for candidate in _and_children(directory):
        if (candidate / "dataset_dict.json").is_file():
            loaded = _load_from_disk(candidate)
            return {n: _from_dataset(d, f"{candidate}/{n}") for n, d in loaded.items()}
    return None


def _load_from_disk(directory: Path) -> Any:
    return import_module("datasets").load_from_disk(str(directory))


def _from_dataset(dataset: Any, source: str) -> Table:
    columns = {name: dataset[name] for name in dataset.column_names}
    names = {
        name: feature.names
        for name, feature in dataset.features.items()
        if getattr(feature, "names", None) is not None
    }
    return Table(
        source=source, columns={n: list(values) for n, values in columns.items()}, class_names=names
    )
