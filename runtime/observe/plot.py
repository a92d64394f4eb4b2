"""Line charts as PNG, written here: a library for plots is a hundred times this program, for one picture.

A panel per metric, one line per host, below each other; x is the time since the first point of all panels.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hotfire.runtime.observe.metrics import MetricPoint
from hotfire.runtime.observe.samples import Usage

Series = Sequence[tuple[float, float]]
"""Points (seconds, value) in order of time."""
Color = tuple[int, int, int]

WIDTH = 900
HEIGHT = 170
"""Of one panel, in pixels."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 14, 30, 24
_INK: Color = (40, 40, 40)
_GRID: Color = (225, 225, 225)
# Told apart also by those who see few colours.
_COLORS: tuple[Color, ...] = (
    (0, 90, 181),
    (220, 50, 32),
    (0, 128, 96),
    (148, 82, 178),
    (200, 130, 0),
    (90, 90, 90),
)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """``series`` maps a label (a host) to its points."""

    title: str
    series: Mapping[str, Series] = field(default_factory=dict)


def metric_panels(points: Iterable[MetricPoint]) -> list[Panel]:
    """A panel per metric in order of first appearance, a line per host."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for one in points:
        found.setdefault(one.name, {}).setdefault(one.host, []).append((one.time, one.value))
    # A host has the same colour in every panel.
    return [
        Panel(title=name, series=dict(sorted(series.items(), key=lambda one: (len(one[0]), one))))
        for name, series in found.items()
    ]


def usage_panels(samples: Mapping[str, Sequence[Usage]]) -> list[Panel]:
    """CPU, memory, disk, network and GPU of each host, as far as they were measured."""

    def scaled(unit: float, count: int | None) -> float | None:
        return None if count is None else count / unit

    kinds: tuple[tuple[str, Callable[[Usage], float | None]], ...] = (
        ("CPU percent", lambda one: one.cpu_percent),
        ("Memory GB", lambda one: scaled(1e9, one.memory_bytes)),
        ("Disk GB", lambda one: scaled(1e9, one.disk_bytes)),
        ("Network MB received", lambda one: scaled(1e6, one.network_received_bytes)),
        ("Network MB sent", lambda one: scaled(1e6, one.network_sent_bytes)),
        ("GPU percent", lambda one: one.gpu_percent),
        ("GPU memory GB", lambda one: scaled(1e9, one.gpu_memory_bytes)),
    )
    panels = []
    for title, value in kinds:
        series = {
            host: [(one.time, found) for one in rows if (found := value(one)) is not None]
            for host, rows in samples.items()
        }
        series = {host: points for host, points in series.items() if points}
        if series:
            panels.append(Panel(title=title, series=series))
    return panels


def png(panels: Sequence[Panel]) -> bytes:
    """The picture; one empty panel if there is nothing to show."""
    panels = panels or [Panel(title="no values")]
    canvas = Canvas(WIDTH, HEIGHT * len(panels))
    times = [time for one in panels for points in one.series.values() for time, _ in points]
    start, end = min(times, default=0.0), max(times, default=1.0)
    for number, panel in enumerate(panels):
        _draw(canvas, panel, number * HEIGHT, start, max(end, start + 1e-3))
    return canvas.png()


def _draw(canvas: Canvas, panel: Panel, top: int, start: float, end: float) -> None:
    left, right = _LEFT, WIDTH - _RIGHT
    upper, lower = top + _TOP, top + HEIGHT - _BOTTOM
    values = [value for points in panel.series.values() for _, value in points]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low <= 1e-12 * max(abs(high), abs(low)):
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    for part in range(5):
        y = lower - (lower - upper) * part // 4
        canvas.line(left, y, right, y, _GRID)
        label = f"{low + (high - low) * part / 4:.4g}"
        canvas.text(left - 6 - canvas.text_width(label), y - 3, label, _INK)
        x = left + (right - left) * part // 4
        canvas.line(x, lower, x, lower + 3, _INK)
        label = _duration((end - start) * part / 4)
        canvas.text(min(x, right - canvas.text_width(label)), lower + 8, label, _INK)
    x = canvas.text(left, top + 10, panel.title, _INK) + 18
    for number, (label, points) in enumerate(panel.series.items()):
        color = _COLORS[number % len(_COLORS)]
        if len(panel.series) > 1 and x < right - 60:
            x = canvas.text(x, top + 10, label, color) + 12
        pixels = [
            (
                left + round((right - left) * (time - start) / (end - start)),
                lower - round((lower - upper) * (value - low) / (high - low)),
            )
            for time, value in points
        ]
        if not pixels:
            continue
        for px, py in (pixels[0], pixels[-1]):  # a dash, so that a single value is seen
            canvas.line(px - 1, py, px + 1, py, color)
        for (x0, y0), (x1, y1) in pairwise(_thinned(pixels)):
            canvas.line(x0, y0, x1, y1, color)


def _thinned(pixels: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """First, lowest, highest and last point of each column: the picture is the same, however many points there are."""
    column: list[int] = []
    at = None
    for x, y in [*pixels, (None, 0)]:
        if x != at and at is not None:
            kept = dict.fromkeys((column[0], min(column), max(column), column[-1]))
            yield from ((at, one) for one in kept)
            column = []
        at = x
        column.append(y)


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 36_000 else f"{seconds / 3600:.3g} h"


class Canvas:
    """Red, green, blue, 8 bits each, white to begin with. What lies outside is not drawn."""

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self._height = height
        self._rows = [bytearray(b"\xff" * (3 * width)) for _ in range(height)]

    def dot(self, x: int, y: int, color: Color) -> None:
        if 0 <= x < self._width and 0 <= y < self._height:
            self._rows[y][3 * x : 3 * x + 3] = bytes(color)

    def line(self, x0: int, y0: int, x1: int, y1: int, color: Color) -> None:
        steps = max(abs(x1 - x0), abs(y1 - y0))
        for step in range(steps + 1):
            share = step / steps if steps else 0
            self.dot(round(x0 + (x1 - x0) * share), round(y0 + (y1 - y0) * share), color)

    def text(self, x: int, y: int, text: str, color: Color) -> int:
        """Write with the upper left corner of the first letter at (x, y); returns where it ends."""
        for char in text:
            for stroke in STROKES.get(char, "0040460600").split():
                ends = [(int(stroke[at]), int(stroke[at + 1])) for at in range(0, len(stroke), 2)]
                for (x0, y0), (x1, y1) in pairwise(ends):
                    self.line(x + x0, y + y0, x + x1, y + y1, color)
            x += 6
        return x

    @staticmethod
    def text_width(text: str) -> int:
        return 6 * len(text) - 1

    def png(self) -> bytes:
        """The file (ISO/IEC 15948): no interlace, filter 0 on every row."""
        raw = b"".join(b"\0" + row for row in self._rows)
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )


# Letters as strokes on a grid 5 wide and 7 high (lower case begins at row 2, tails end at row 8): each stroke is the
# digits of its corners, column and row in turn.
STROKES = {
    " ": "",
    "0": "103041453616050110",
    "1": "112026 1636",
    "2": "01103041420646",
    "3": "0110304142334445361605 1333",
    "4": "36300444",
    "5": "400003334445361605",
    "6": "4130100105163645443303",
    "7": "004016",
    "8": "13020110304142331304051636454433",
    "9": "4313020110304145361605",
    "a": "12324346 441405163645",
    "b": "0006 0312324345361605",
    "c": "4332120305163645",
    "d": "4046 4332120305163645",
    "e": "044443321203051636",
    "f": "30201116 0333",
    "g": "42473818 4332120305163645",
    "h": "0006 0312324346",
    "i": "122226 1636 2020",
    "j": "32372818 3030",
    "k": "0006 0442 1346",
    "l": "102026 1636",
    "m": "0206 03122326 23324346",
    "n": "0206 0312324346",
    "o": "123243453616050312",
    "p": "0208 0312324345361605",
    "q": "4248 4332120305163645",
    "r": "0206 03123243",
    "s": "4212031434453606",
    "t": "1015263645 0232",
    "u": "0205163645 4246",
    "v": "022642",
    "w": "0216233642",
    "x": "0246 4206",
    "y": "0225 4218",
    "z": "02420646",
    "A": "062046 1434",
    "B": "00063645443342413000 0333",
    "C": "4130100105163645",
    "D": "00062644422000",
    "E": "40000646 0333",
    "F": "400006 0333",
    "G": "41301001051636454323",
    "H": "0006 4046 0343",
    "I": "1030 2026 1636",
    "J": "4045361605",
    "K": "0006 4004 1346",
    "L": "000646",
    "M": "0600234046",
    "N": "06004640",
    "O": "103041453616050110",
    "P": "06003041423303",
    "Q": "103041453616050110 2446",
    "R": "06003041423303 2346",
    "S": "413010010213334445361605",
    "T": "0040 2026",
    "U": "000516364540",
    "V": "002640",
    "W": "0016223640",
    "X": "0046 4006",
    "Y": "002340 2326",
    "Z": "00400646",
    ".": "2626",
    ",": "2617",
    ":": "2222 2626",
    "-": "0343",
    "+": "0343 2125",
    "_": "0747",
    "/": "4006",
    "%": "4006 0000 4646",
    "(": "30212536",
    ")": "10212516",
    "[": "30101636",
    "]": "10303616",
    "=": "0242 0444",
    "#": "1016 3036 0242 0444",
}
