"""Points and statistics on disk, the table, the picture, TensorBoard's files."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path

from hotfire.runtime.observe.metric_files import (
    PointFile,
    known_statistics,
    read_points,
    read_statistics,
    table,
    to_csv,
    to_json,
    write_statistics,
)
from hotfire.runtime.observe.metrics import MetricPoint, Statistics
from hotfire.runtime.observe.plot import STROKES, Canvas, Panel, metric_panels, png, usage_panels
from hotfire.runtime.observe.samples import Usage
from hotfire.runtime.observe.tensorboard import crc32c, record, write_events

POINTS = [
    MetricPoint(1700000000.25, "loss", "algo-1", 0.1),
    MetricPoint(1700000001.0, 'odd "name",\n', "algo-2", -1e-30),
    MetricPoint(1700000002.0, "loss", "algo-1", 3.0),
]


def test_points_come_back_and_half_a_row_does_not(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    for part in (POINTS[:1], POINTS[2:]):  # a second attempt goes on in the same file
        with PointFile(path) as sink:
            sink(part)
    with path.open("a") as file:
        file.write("1700000003.0,loss,algo-1,4")
    assert list(read_points(path)) == [POINTS[0], POINTS[2]]
    assert list(read_points(tmp_path / "none")) == []


def test_a_full_disk_loses_points_and_not_the_job() -> None:
    with PointFile(Path("/dev/full")) as sink:
        sink(POINTS)
        sink(POINTS)
    assert sink.error is not None and sink.error.strerror == "No space left on device"


def test_statistics_come_back(tmp_path: Path) -> None:
    path = tmp_path / "statistics.json"
    assert read_statistics(path) == ()
    one = Statistics(name="a", regex="a(.)", matches=3, values=2, last=1.5, not_a_number="x")
    write_statistics(path, [one])
    assert read_statistics(path) == (one,)
    assert [found.name for found in tmp_path.iterdir()] == ["statistics.json"]


def test_exports() -> None:
    out = io.StringIO()
    to_csv(iter(POINTS), out)
    assert out.getvalue().splitlines()[:2] == [
        "time,metric,host,value",
        "1700000000.250,loss,algo-1,0.1",
    ]
    answer = json.loads(json.dumps(to_json(iter(POINTS), [Statistics(name="a", regex="a")])))
    assert [one["Value"] for one in answer["Points"]] == [0.1, -1e-30, 3.0]
    assert answer["FinalMetricDataList"] == []


def test_the_table() -> None:
    good = Statistics(
        name="loss", regex="", matches=2, values=2, last=0.5, smallest=0.25, largest=0.5
    )
    bad = Statistics(name="run\x1btime", regex="", matches=1, not_a_number="0:00:14")
    assert table([good, bad]).splitlines() == [
        "METRIC       LAST  SMALLEST  LARGEST  VALUES  NOT A NUMBER",
        "loss          0.5      0.25      0.5       2             0",
        r"run\x1btime     -         -        -       0             1",
        r"warning: metric 'run\x1btime' never got a number: matched 1, not a number 1 (for example '0:00:14')",
    ]


def decoded(data: bytes) -> tuple[int, int, list[bytes]]:
    """Width, height and rows of a PNG, its checksums tested."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        at += 12 + length
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    raw = zlib.decompress(chunks[b"IDAT"])
    stride = 3 * width + 1
    assert len(raw) == stride * height
    return width, height, [raw[row * stride + 1 : (row + 1) * stride] for row in range(height)]


def test_the_picture_shows_every_panel() -> None:
    usage = [
        Usage(
            time=1700000000.0 + second,
            cpu_percent=None if not second else 50.0,
            memory_bytes=second,
            disk_bytes=None,
            network_received_bytes=1_000_000 * second,
            network_sent_bytes=None,
            gpu_percent=None,
            gpu_memory_bytes=None,
        )
        for second in range(3)
    ]
    panels = metric_panels(POINTS) + usage_panels({"algo-1": usage, "algo-2": []})
    assert [panel.title for panel in panels] == [
        "loss",
        'odd "name",\n',
        "CPU percent",
        "Memory GB",
        "Network MB received",
    ]
    assert [value for _, value in panels[-1].series["algo-1"]] == [0, 1, 2]
    width, height, rows = decoded(png(panels))
    assert (width, height) == (900, 5 * 170)
    line = bytes((0, 90, 181))
    for number in range(5):
        assert any(line in row for row in rows[170 * number : 170 * (number + 1)])
    assert decoded(png([]))[:2] == (900, 170)


def test_a_curve_goes_where_it_should() -> None:
    series = [(second / 10, float(second >= 500)) for second in range(1000)]
    _, _, rows = decoded(png([Panel(title="step", series={"a": series})]))

    def coloured(row: bytes) -> list[int]:
        return [x for x in range(900) if row[3 * x : 3 * x + 3] == bytes((0, 90, 181))]

    low, high = coloured(rows[170 - 24]), coloured(rows[30])
    assert 77 <= min(low) <= 79 and 480 <= max(low) <= 484
    assert 480 <= min(high) <= 484 and 885 <= max(high) <= 887


def test_a_constant_and_huge_values_can_be_drawn() -> None:
    for value in (0.0, 5.0, 1e300, -1e-300):
        png([Panel(title="é", series={"a": [(0.0, value), (1.0, value)]})])
    png([Panel(title="both", series={"a": [(0.0, 1e300), (0.0, -1e300)]})])


def test_letters_stay_in_their_cells_and_differ() -> None:
    pictures = set()
    for char, strokes in STROKES.items():
        assert all(len(stroke) % 2 == 0 for stroke in strokes.split())
        assert all(char in "01234" for stroke in strokes.split() for char in stroke[::2])
        canvas = Canvas(6, 9)
        assert canvas.text(0, 0, char, (0, 0, 0)) == 6
        pictures.add(canvas.png())
    assert len(pictures) == len(STROKES) - 1, "O and 0 look the same"


def test_crc32c_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the catalogue
    assert crc32c(b"\0" * 32) == 0x8A9136AA  # RFC 3720 B.4


def events(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12 : at + 12 + length]
        assert data[at : at + 16 + length] == record(body)
        found.append(body)
        at += 16 + length
    return found


def test_tensorboard_files(tmp_path: Path) -> None:
    paths = write_events(POINTS, tmp_path)
    assert [path.parent.name for path in paths] == ["algo-1", "algo-2"]
    version, first, second = events(paths[0].read_bytes())
    assert version == b"\x09" + struct.pack("<d", 1700000000.25) + b"\x1a\x0dbrain.Event:2"
    value = b"\x0a\x04loss\x15" + struct.pack("<f", 0.1)
    assert first == (
        b"\x09" + struct.pack("<d", 1700000000.25) + b"\x10\x00\x2a\x0d\x0a\x0b" + value
    )
    assert second[9:11] == b"\x10\x01", "the step counts the values of one metric"


def test_a_job_without_statistics_is_known_by_its_points(tmp_path: Path) -> None:
    with PointFile(tmp_path / "points.csv") as sink:
        sink([MetricPoint(1.0, "a", "algo-1", 3.0), MetricPoint(2.0, "a", "algo-2", -1.0)])
    (one,) = known_statistics(tmp_path / "statistics.json", tmp_path / "points.csv")
    assert (one.values, one.last, one.smallest, one.largest) == (2, -1.0, -1.0, 3.0)
    write_statistics(tmp_path / "statistics.json", [Statistics(name="a", regex="b")])
    assert known_statistics(tmp_path / "statistics.json", tmp_path / "points.csv")[0].regex == "b"
