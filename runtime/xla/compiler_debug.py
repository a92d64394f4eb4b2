"""What the compiler does, written down below /opt/ml/output/data/compiler (standard library only).

The files of torch_xla are named as SageMaker Training Compiler named them:

- ``XLA_METRICS_FILE.txt``: torch_xla's counters and times, once per step. It writes them in the
  first process of a host alone, and adds that one's local number to the name where it has others
- ``XLA_SAVE_TENSORS_FILE.hlo`` and ``.ir``: each different graph of the training step, once; the IR
  names source lines. torch_xla's own writer repeats the graph at every step without end
- ``metrics-report.txt``: the report of torch_xla at the end

With several ranks their names end in ``-rank<N>`` before the suffix. Inductor writes its graphs
and generated code below ``torch_compile_debug``.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotfire.runtime.xla.compilers import parameters

if TYPE_CHECKING:
    from hotfire.runtime.xla.compilers import StepHook

MAX_GRAPHS = 20
"""Of a script that makes a new one at every step."""


def output_data(environment: Mapping[str, str]) -> Path:
    """SM_OUTPUT_DATA_DIR: what is there travels in output.tar.gz."""
    base = environment.get("SAGEMAKER_BASE_DIR", "/opt/ml")
    return Path(environment.get("SM_OUTPUT_DATA_DIR", f"{base}/output/data"))


def prepare(compiler: str, environment: MutableMapping[str, str]) -> list[StepHook]:
    """Switch the compiler's own files on; returns what must be called after each optimizer step."""
    where = output_data(environment) / "compiler"
    if compiler != "none":
        where.mkdir(parents=True, exist_ok=True)
    if compiler == "inductor":
        _set(environment, TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR=str(where))
        return []
    if compiler != "xla":
        return []
    rank = environment.get("RANK", "0") if environment.get("WORLD_SIZE", "1") != "1" else ""
    files = _Files(where, f"-rank{rank}" if rank else "")
    _set(
        environment,
        XLA_METRICS_FILE=files.path("XLA_METRICS_FILE", ".txt"),
        XLA_IR_DEBUG="1",
        XLA_HLO_DEBUG="1",
        PT_XLA_DEBUG_LEVEL="1",
    )
    atexit.register(_report, files, rank or "0")
    return [_SaveGraphs(files)]


def _set(environment: MutableMapping[str, str], **values: str) -> None:
    """The user's own settings stay."""
    for name, value in values.items():
        environment.setdefault(name, value)


class _Files:
    """The paths of one rank's files."""

    def __init__(self, where: Path, suffix: str) -> None:
        self.where = where
        self._suffix = suffix

    def path(self, name: str, kind: str) -> str:
        return str(self.where / f"{name}{self._suffix}{kind}")


class _SaveGraphs:
    """Appends the update's pending graph to the files unless it has been there before."""

    def __init__(self, files: _Files) -> None:
        self._files = files
        self._step = 0
        self._seen: set[str] = set()

    def __call__(self, optimizer: Any) -> None:
        self._step += 1
        updated = parameters(optimizer)
        if updated[0].device.type != "xla" or len(self._seen) >= MAX_GRAPHS:
            return
        library: Any = vars(sys.modules["torch_xla"])["_XLAC"]
        graph = str(library._get_graph_hash(updated))
        if graph in self._seen:
            return
        self._seen.add(graph)
        for kind, text in (
            (".hlo", library._get_xla_tensors_hlo(updated)),
            (".ir", library._get_xla_tensors_text(updated)),
        ):
            path = self._files.path("XLA_SAVE_TENSORS_FILE", kind)
            # A full disk is no reason to end a training.
            with suppress(OSError), Path(path).open("a", encoding="utf-8") as out:
                out.write(f"# step {self._step}\n{text}\n")


def _report(files: _Files, rank: str) -> None:
    """At the interpreter's end: the whole report into a file, what matters into the log."""
    if "torch_xla" not in sys.modules:
        return
    metrics: Any = import_module("torch_xla.debug.metrics")

    Path(files.path("metrics-report", ".txt")).write_text(metrics.metrics_report())
    count, seconds = xla_compilations()
    line = f"{count} compilations in {seconds:.1f} s"
    if executed := metrics.metric_data("ExecuteTime"):
        line += f", {executed[0]} executions"
    if fallbacks := metrics.executed_fallback_ops():
        line += f", on the host: {', '.join(fallbacks)}"
    text = f"hotfire: compiler (rank {rank}): {line}; files in {files.where}"
    print(text, file=sys.stderr, flush=True)


def xla_compilations() -> tuple[int, float]:
    """How many programs torch_xla has compiled in this process, and the seconds that it took."""
    if "torch_xla" not in sys.modules:
        return 0, 0.0
    metrics: Any = import_module("torch_xla.debug.metrics")

    found = metrics.metric_data("CompileTime")
    return (int(found[0]), found[1] / 1e9) if found else (0, 0.0)
