"""Records of the built-in algorithms (recordio-protobuf), dense and sparse: named tensors of features and labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from hotfire.runtime.data import recordio, wire

_FLOAT32, _FLOAT64, _INT32, _BYTES = 2, 3, 7, 9


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """``values`` in order; of a sparse tensor, ``keys`` are their places and ``shape`` is its whole extent."""

    values: list[float] | list[int] | list[bytes]
    keys: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)

    def dense(self) -> list[float]:
        """All values, the absent ones 0."""
        values = [float(value) for value in self.values if not isinstance(value, bytes)]
        if len(values) != len(self.values):
            raise recordio.RecordError("a tensor of bytes has no numbers")
        if not self.keys and (values or not self.shape):
            return values
        size = math.prod(self.shape)
        if max(self.keys, default=-1) >= size or len(self.keys) != len(values):
            raise recordio.RecordError(
                f"keys up to {max(self.keys, default=-1)} do not fit {len(values)} values in {self.shape}"
            )
        found = [0.0] * size
        for key, value in zip(self.keys, values, strict=True):
            found[key] = value
        return found


@dataclass(frozen=True, kw_only=True)
class Record:
    """One example; the usual names in both maps are ``values``."""

    features: dict[str, Tensor]
    label: dict[str, Tensor]
    uid: str = ""
    metadata: str = ""


def read(stream: recordio.Readable) -> Iterator[Record]:
    """Records of a stream or file.

    Raises:
        RecordError: not RecordIO, or not such records inside.
    """
    return map(parse, recordio.read(stream))


def parse(data: bytes) -> Record:
    """The contents of one record."""
    features: dict[str, Tensor] = {}
    label: dict[str, Tensor] = {}
    texts = {3: "", 4: ""}
    for number, _, value in wire.fields(data):
        if number in (1, 2):
            name, tensor = _entry(wire.message(value))
            (features if number == 1 else label)[name] = tensor
        elif number in texts:
            texts[number] = wire.text(value)
    return Record(features=features, label=label, uid=texts[3], metadata=texts[4])


def _entry(data: bytes) -> tuple[str, Tensor]:
    name, tensor = "", Tensor(values=[])
    for number, _, value in wire.fields(data):
        if number == 1:
            name = wire.text(value)
        elif number == 2:
            for kind, _, content in wire.fields(wire.message(value)):
                tensor = _tensor(kind, wire.message(content))
    return name, tensor


def _tensor(kind: int, data: bytes) -> Tensor:
    if kind == _BYTES:
        found = wire.fields(data)
        return Tensor(values=[wire.message(value) for number, _, value in found if number == 1])
    values: list[float] | list[int]
    reals: list[float] = []
    whole: list[int] = []
    keys: list[int] = []
    shape: list[int] = []
    for number, wire_type, value in wire.fields(data):
        if number == 1 and kind == _INT32:
            whole += wire.integers(wire_type, value)
        elif number == 1 and kind in (_FLOAT32, _FLOAT64):
            reals += wire.floats(value, "f" if kind == _FLOAT32 else "d")
        elif number in (2, 3):
            target = keys if number == 2 else shape
            target += wire.integers(wire_type, value, signed=False)
        else:
            raise recordio.RecordError(f"a tensor of the unknown kind {kind}")
    values = whole if kind == _INT32 else reals
    return Tensor(values=values, keys=keys, shape=shape)
