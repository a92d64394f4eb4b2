"""What scripts read with: RecordIO and what is inside it, written by others and by us."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.runtime.data import augmented, mxnet, pipes, protobuf, recordio, tfrecord, wire

MAGIC = struct.pack("<I", 0xCED7230A)


class OneByOne(io.RawIOBase):
    """A stream that gives a byte at a time, as a pipe may."""

    def __init__(self, data: bytes) -> None:
        self._inner = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._inner.read(min(size, 1))


def written(*records: bytes) -> bytes:
    out = io.BytesIO()
    recordio.write(out, records)
    return out.getvalue()


class TestRecordIO:
    @given(st.lists(st.binary(max_size=50)))
    def test_reads_back(self, records: list[bytes]) -> None:
        data = written(*records)
        assert len(data) % 4 == 0
        assert list(recordio.read(io.BytesIO(data))) == records
        assert list(recordio.read(OneByOne(data))) == records

    def test_the_layout_is_the_contracts(self) -> None:
        assert written(b"hello") == MAGIC + b"\x05\0\0\0hello\0\0\0"

    def test_large_records_have_parts(self) -> None:
        (one, first), (two, second), (three, third) = recordio.parts(2 * recordio.LARGEST_PART + 5)
        assert first == second == recordio.LARGEST_PART
        assert third == 5
        assert [struct.unpack("<II", header)[1] >> 29 for header in (one, two, three)] == [1, 2, 3]

    def test_mxnets_writer_leaves_the_magic_out_where_it_splits(self) -> None:
        def part(flag: int, data: bytes) -> bytes:
            return MAGIC + struct.pack("<I", flag << 29 | len(data)) + data + bytes(-len(data) % 4)

        data = part(1, b"abcd") + part(2, b"") + part(3, b"tail") + written(b"next")
        assert list(recordio.read(io.BytesIO(data))) == [
            b"abcd" + MAGIC + MAGIC + b"tail",
            b"next",
        ]

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"plain text", "not RecordIO"),
            (MAGIC, "ends inside"),
            (MAGIC + b"\x09\0\0\0abc", "ends inside"),
            (MAGIC + struct.pack("<I", 3 << 29), "out of its order"),
            (MAGIC + struct.pack("<I", 1 << 29 | 4) + b"abcd", "ends inside"),
        ],
    )
    def test_what_is_not_recordio_is_said(self, data: bytes, why: str) -> None:
        with pytest.raises(recordio.RecordError, match=why):
            list(recordio.read(io.BytesIO(data)))


class TestMXNet:
    def test_one_label_and_several(self) -> None:
        several = struct.pack("<IfQQ", 2, 0, 7, 0) + struct.pack("<2f", 1.5, 2.5) + b"jpeg"
        one, two = mxnet.read(io.BytesIO(written(mxnet.pack(3, 9, b"png"), several)))
        assert (one.label, one.number, one.payload) == (3, 9, b"png")
        assert (two.labels, two.payload) == ((1.5, 2.5), b"jpeg")

    @pytest.mark.parametrize("data", [b"short", struct.pack("<IfQQ", 9, 0, 0, 0)])
    def test_a_short_record_is_said(self, data: bytes) -> None:
        with pytest.raises(recordio.RecordError):
            mxnet.unpack(data)


def field(number: int, data: bytes | int) -> bytes:
    if isinstance(data, int):
        return bytes([number << 3]) + varint(data)
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


class TestProtobuf:
    """Messages written here by hand, from the published record.proto and example.proto."""

    def record(self, tensor: bytes) -> bytes:
        label = field(1, b"values") + field(2, field(2, field(1, struct.pack("<f", 1))))
        features = field(1, b"values") + field(2, tensor)
        return field(1, features) + field(2, label) + field(3, b"id-7")

    def test_dense(self) -> None:
        tensor = field(2, field(1, struct.pack("<3f", 1, 2, 0.5)))
        (record,) = protobuf.read(io.BytesIO(written(self.record(tensor))))
        assert record.features["values"].dense() == [1, 2, 0.5]
        assert record.label["values"].values == [1]
        assert record.uid == "id-7"

    def test_sparse(self) -> None:
        content = field(1, struct.pack("<2d", 5, 6)) + field(2, b"\x01\x04") + field(3, varint(300))
        tensor = protobuf.parse(self.record(field(3, content))).features["values"]
        assert (tensor.keys, tensor.shape) == ([1, 4], [300])
        assert tensor.dense() == [0, 5, 0, 0, 6, *[0] * 295]
        assert protobuf.Tensor(values=[], shape=[3]).dense() == [0, 0, 0]
        with pytest.raises(recordio.RecordError, match="do not fit"):
            protobuf.Tensor(values=[1.0], keys=[5], shape=[3]).dense()

    def test_integers_and_bytes(self) -> None:
        minus = varint((1 << 64) - 3)
        whole = protobuf.parse(self.record(field(7, field(1, minus + b"\x02"))))
        assert whole.features["values"].values == [-3, 2]
        unpacked = protobuf.parse(self.record(field(7, field(1, 5) + field(1, 6))))
        assert unpacked.features["values"].values == [5, 6]
        raw = protobuf.parse(self.record(field(9, field(1, b"jpeg")))).features["values"]
        assert raw.values == [b"jpeg"]
        with pytest.raises(recordio.RecordError):
            raw.dense()

    @given(st.binary(max_size=40))
    def test_anything_else_is_an_error_and_no_crash(self, data: bytes) -> None:
        for read in (protobuf.parse, tfrecord.example, lambda data: list(wire.fields(data))):
            try:
                read(data)
            except recordio.RecordError:
                continue


class TestTFRecord:
    def framed(self, payload: bytes) -> bytes:
        def crc(data: bytes) -> bytes:
            return struct.pack("<I", tfrecord._masked(data))

        length = struct.pack("<Q", len(payload))
        return length + crc(length) + payload + crc(payload)

    def test_the_checksum_is_crc32c(self) -> None:
        assert tfrecord._crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C

    def test_examples(self) -> None:
        def feature(name: bytes, kind: int, data: bytes) -> bytes:
            return field(1, field(1, name) + field(2, field(kind, data)))

        example = field(
            1,
            feature(b"b", 1, field(1, b"x") + field(1, b"y"))
            + feature(b"f", 2, field(1, struct.pack("<2f", 1, 2)))
            + feature(b"i", 3, field(1, b"\x05\x06"))
            + field(1, field(1, b"none") + field(2, b"")),
        )
        stream = io.BytesIO(self.framed(example) + self.framed(b""))
        first, second = tfrecord.read(stream, check=True)
        assert tfrecord.example(first) == {"b": [b"x", b"y"], "f": [1, 2], "i": [5, 6], "none": []}
        assert second == b""

    def test_damage_is_noticed(self) -> None:
        data = bytearray(self.framed(b"payload"))
        with pytest.raises(recordio.RecordError, match="ends inside"):
            list(tfrecord.read(io.BytesIO(data[:-1])))
        data[13] ^= 1
        assert len(list(tfrecord.read(io.BytesIO(data)))) == 1
        with pytest.raises(recordio.RecordError, match="of a record is wrong"):
            list(tfrecord.read(io.BytesIO(data), check=True))
        data[0] ^= 1
        with pytest.raises(recordio.RecordError, match="not TFRecord"):
            list(tfrecord.read(io.BytesIO(data)))


class TestAugmented:
    def test_samples(self) -> None:
        stream = io.BytesIO(written(b"img", b'"cat"', b"img2", b"2"))
        assert list(augmented.read(stream, ["x-ref", "label"])) == [
            {"x-ref": b"img", "label": "cat"},
            {"x-ref": b"img2", "label": 2},
        ]

    @pytest.mark.parametrize(
        ("records", "why"), [((b"a",), "inside a sample"), ((b"a", b"no json"), "no JSON")]
    )
    def test_a_wrong_list_of_attributes_is_noticed(
        self, records: tuple[bytes, ...], why: str
    ) -> None:
        with pytest.raises(recordio.RecordError, match=why):
            list(augmented.read(io.BytesIO(written(*records)), ["x-ref", "label"]))


class TestPipes:
    def serve(self, base: Path, *epochs: bytes, first: int = 0) -> threading.Thread:
        data = base / "input" / "data"
        data.mkdir(parents=True, exist_ok=True)
        os.mkfifo(data / f"t_{first}")

        def run() -> None:
            for number, content in enumerate(epochs, start=first):
                with (data / f"t_{number}").open("wb") as out:
                    os.mkfifo(data / f"t_{number + 1}")
                    out.write(content)
                    (data / f"t_{number}").unlink()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def test_epochs_follow_each_other(self, tmp_path: Path) -> None:
        thread = self.serve(tmp_path, b"one", b"two", b"three")
        found = [stream.read() for stream in pipes.PipeChannel("t", base=tmp_path).epochs(3)]
        thread.join()
        assert found == [b"one", b"two", b"three"]

    def test_a_restarted_process_goes_on_with_what_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "input" / "data").mkdir(parents=True)
        (tmp_path / "input" / "data" / "t_12").touch()
        (tmp_path / "input" / "data" / "other_1").touch()
        thread = self.serve(tmp_path, b"late", first=9)
        with pipes.PipeChannel("t", base=tmp_path).epoch() as stream:
            assert stream.read() == b"late"
        thread.join()

    def test_a_second_reader_of_a_fifo_is_refused(self, tmp_path: Path) -> None:
        thread = self.serve(tmp_path, bytes(1 << 20))
        with pipes.PipeChannel("t", base=tmp_path).epoch() as stream:
            with (
                pytest.raises(pipes.SharedFifoError, match="channel t has one FIFO a host"),
                pipes.PipeChannel("t", base=tmp_path).epoch(),
            ):
                pass
            assert len(stream.read()) == 1 << 20
        thread.join()

    def test_no_fifo_is_told(self, tmp_path: Path) -> None:
        with (
            pytest.raises(TimeoutError, match=r"t_0 within 0\.05 s"),
            pipes.PipeChannel("t", base=tmp_path, timeout=0.05).epoch(),
        ):
            pass


def test_the_library_needs_the_standard_library_alone() -> None:
    root = Path(__file__).parents[2]
    code = (
        "import sys\n"
        "from hotfire.runtime.data import augmented, mxnet, pipes, protobuf, recordio, tfrecord\n"
        "outside = {m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names\n"
        "print(sorted(outside - {'__main__', 'hotfire'}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(root / "build" / "view")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


class TestSharing:
    def test_a_rank_that_does_not_come_is_named(self, tmp_path: Path) -> None:
        thread = TestPipes().serve(tmp_path, written(b"1"))
        text = ranked(ITERATES, tmp_path, 0).communicate()[0]
        thread.join()
        assert "channel t is shared by 2 processes" in text
        assert "number 1 did not come within 0.5 s" in text

    def test_a_leader_that_dies_is_no_end_of_the_epoch(self, tmp_path: Path) -> None:
        thread = TestPipes().serve(tmp_path, written(*[b"%d" % n for n in range(100)]))
        leader = ranked(
            ITERATES.replace("0.5", "60").replace("DIES = False", "DIES = True"), tmp_path, 0
        )
        follower = ranked(ITERATES.replace("0.5", "60"), tmp_path, 1)
        assert "local rank 0) died" in follower.communicate()[0]
        leader.communicate()
        thread.join()


@pytest.mark.xla
class TestTorch:
    def test_records_are_shared_out_over_ranks_and_workers(self, tmp_path: Path) -> None:
        from torch.utils.data import DataLoader

        from hotfire.runtime.data.torch import RecordDataset

        for number in range(2):
            with (tmp_path / f"{number}.rec").open("wb") as out:
                recordio.write(out, [bytes([number * 10 + n]) for n in range(10)])
        seen: list[list[int]] = []
        for rank in range(3):
            dataset = RecordDataset([*tmp_path.iterdir()], lambda r: r[0], rank=rank, world=3)
            loader = DataLoader(dataset, batch_size=None, num_workers=2)
            seen.append(sorted(loader))
        assert sorted(seen[0] + seen[1] + seen[2]) == list(range(20))
        assert [len(one) for one in seen] == [7, 7, 6]

    def test_each_iteration_is_an_epoch_of_the_pipe(self, tmp_path: Path) -> None:
        from torch.utils.data import DataLoader

        from hotfire.runtime.data.torch import PipeDataset

        thread = TestPipes().serve(tmp_path, written(b"1", b"2"), written(b"3"))
        loader: Any = DataLoader(PipeDataset("t", int, base=tmp_path), batch_size=None)
        assert [list(loader), list(loader)] == [[1, 2], [3]]
        thread.join()

    def test_a_channel_of_its_own_is_named_by_rank(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from hotfire.runtime.data.torch import PipeDataset

        monkeypatch.setenv("LOCAL_RANK", "1")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        (tmp_path / "input" / "data").mkdir(parents=True)
        with pytest.raises(TimeoutError, match="t-1_0"):
            next(iter(PipeDataset("t-{rank}", base=tmp_path, timeout=0.01)))

    @pytest.mark.slow
    def test_ranks_share_one_fifo_and_feed_their_devices(self, tmp_path: Path) -> None:
        epochs = [[b"%d" % (100 * epoch + n) for n in range(11)] for epoch in range(2)]
        thread = TestPipes().serve(tmp_path, *(written(*records) for records in epochs))
        ranks = [ranked(FEEDS_DEVICE, tmp_path, rank) for rank in range(2)]
        found = [json.loads(rank.communicate()[0]) for rank in ranks]
        thread.join()
        # Two ranks of two workers and whole turns of four: 8 of 11 records, 4 to a rank.
        assert [[len(epoch) for epoch in rank] for rank in found] == [[4, 4], [4, 4]]
        for number in range(2):
            both = sorted(found[0][number] + found[1][number])
            assert both == [100 * number + n for n in range(8)]


FEEDS_DEVICE = """
import json, sys
from pathlib import Path
import torch, torch_xla
from torch.utils.data import DataLoader
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from hotfire.runtime.data.torch import PipeDataset

def decode(record):
    return torch.tensor(int(record))

data = PipeDataset("t", decode, base=Path(sys.argv[1]), drop_last=True, timeout=300)
loader = DataLoader(data, batch_size=2, num_workers=2, persistent_workers=True)
device = torch_xla.device()
feed = MpDeviceLoader(loader, device)
found = []
for epoch in range(2):
    found.append([])
    for batch in feed:
        assert batch.device == device
        found[-1] += batch.tolist()
print(json.dumps(found))
"""

ITERATES = """
import os, sys
from pathlib import Path
from hotfire.runtime.data import pipes, recordio, sharing

DIES = False
channel = pipes.PipeChannel("t", base=Path(sys.argv[1]))
index = int(os.environ["LOCAL_RANK"])
share = sharing.Share(name="t", place=channel.place, index=index, count=2, timeout=0.5)
try:
    if index:
        for record in sharing.follow(share):
            pass
    else:
        with channel.epoch() as stream:
            for record in sharing.lead(recordio.read(stream), share):
                if DIES:
                    os._exit(1)
except (RuntimeError, TimeoutError, ValueError) as error:
    print(error)
"""


def ranked(code: str, base: Path, rank: int) -> subprocess.Popen[str]:
    """``code`` as one of two local ranks."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "build" / "view")}
    env |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "PJRT_DEVICE": "CPU"}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(base)], env=env, stdout=subprocess.PIPE, text=True
    )
