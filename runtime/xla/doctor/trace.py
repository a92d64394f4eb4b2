"""What torch_xla writes to PT_XLA_DEBUG_FILE: one block per compilation and per execution.

The format is that of torch_xla 2.8 and 2.9 (``torch_xla/csrc/debug_util.cpp``), which are frozen.
Its "cause" is not used: it goes by the name of the innermost function, which may be a wrapper.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_BLOCK = re.compile(
    rb"^(Compilation|Execution) Analysis: \1 Cause\n(.*?)^\1 Analysis: -+\n",
    re.DOTALL | re.MULTILINE,
)
_FRAME = re.compile(r"Analysis:   (.+) \((.+):(\d+)\)$", re.MULTILINE)
_HASH = re.compile(r"Graph Hash: ([0-9a-f]+)")
_INPUTS = re.compile(r"Number of Graph Inputs: (\d+)")
_OUTPUTS = re.compile(r"Number of Graph Outputs: (\d+)")
_MARKERS = ("sync", "mark_step", "_run_step_closures")
_OURS = "/runtime/xla/"


class Cause(StrEnum):
    MARKER = "marker"
    """A step marker: `torch_xla.sync`, `xm.mark_step`, a device loader's next batch."""
    COLLECTIVE = "collective"
    """A collective of our CPU emulation; on a device it is part of the graph."""
    OWN = "own"
    """The doctor's own reading of parameters."""
    EVALUATION = "evaluation"
    """A value was wanted in the middle of a step."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    function: str
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """One block. `end` is the offset behind it; `frames` are innermost first."""

    compiled: bool
    graph: str
    inputs: int
    outputs: int
    frames: tuple[Frame, ...]
    end: int

    @property
    def cause(self) -> Cause:
        own = [frame for frame in self.frames if "/runtime/xla/doctor/" in frame.file]
        if any(frame.file.endswith("/replicas.py") for frame in own):
            return Cause.OWN
        frames = [frame for frame in self.frames if frame not in own]
        if not frames or frames[0].function == "extract_graph_helper":
            return Cause.MARKER
        first = frames[0]
        if first.function in _MARKERS and "torch_xla" in first.file:
            return Cause.MARKER
        emulated = _OURS in first.file and first.file.endswith(_COLLECTIVES)
        return Cause.COLLECTIVE if emulated else Cause.EVALUATION


_COLLECTIVES = ("/staging.py", "/c10d_backend.py", "/cpu_collectives.py", "/host_group.py")


def parse(data: bytes) -> list[Report]:
    """All complete blocks of a trace, in order."""
    return [_report(match) for match in _BLOCK.finditer(data)]


def _report(match: re.Match[bytes]) -> Report:
    text = match[2].decode(errors="replace")
    hashed, inputs, outputs = _HASH.search(text), _INPUTS.search(text), _OUTPUTS.search(text)
    stack = text.partition("Python Frame Triggered Execution:")[2]
    return Report(
        compiled=match[1] == b"Compilation",
        graph=hashed[1] if hashed else "",
        inputs=int(inputs[1]) if inputs else 0,
        outputs=int(outputs[1]) if outputs else 0,
        frames=tuple(
            Frame(function=name, file=file, line=int(line))
            for name, file, line in _FRAME.findall(stack)
        ),
        end=match.end(),
    )
