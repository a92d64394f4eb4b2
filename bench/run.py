"""Every benchmark, one after the other, each a ratio measured side by side in one run; a table on stdout.

Nothing else should run on the machine meanwhile. Name benchmarks to run only those.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
# Name -> what is measured, and the limits by the keys of the result.
BENCHMARKS = {
    "overhead": (
        "`hotfire run` of a trivial script minus `python` of it; `hotfire --help` minus `python -c pass`",
        "at most 0.35 s and 0.12 s more",
    ),
    "archive": (
        '250 MB of float weights against `tarfile` "w:gz"',
        "at least 10 times faster at the same size",
    ),
    "logs": (
        "1,000,000 lines through `hotfire run` against the script alone, start-up subtracted",
        "none lost, at most 1.15 times",
    ),
    "metrics": (
        "1,000,000 lines through ten MetricDefinitions, one line in 1,000 matching, against none; 100,000 that all match",
        "none lost, at most 1.15 times; reported",
    ),
    "sync": (
        "1 GB of checkpoints in 1,000 files to a local path against `cp -r`; 10,000 files; a sparse 5 GB file",
        "at most 1.2 times; reported",
    ),
    "jobs": (
        "`hotfire ps` with 1,000 jobs; from a worker's death to the job's Failed, alone and under torchrun",
        "0.3 s; 2 s each",
    ),
    "endpoint": (
        "CreateTrainingJob to the script's first line minus `hotfire run` to it; Describe; List of 5,000 jobs",
        "at most 0.15 s more; 1,000 calls a second on one core; 100 ms",
    ),
    "loop": ("our training step against a hand-written torch_xla step", "at most 1.02 times"),
    "collectives": (
        "91 MB of gradients reduced between two processes, against a bare gloo all-reduce of the same bytes",
        "at most 1.15 times in the device's buffers, 1.7 when copied",
    ),
    "compilers": (
        "a MiniLM-sized classifier under eager, Inductor and XLA: step, compilation, memory",
        "none: XLA on a CPU is for correctness",
    ),
    "doctor": (
        "a BERT step with the summary and with the doctor watching, against neither; CPU time of its thread",
        "at most 1.05 times",
    ),
    "prefetch": (
        "`.to(device)` in the loop against MpDeviceLoader, a batch waiting as long as a step computes",
        "none",
    ),
}


def measured(name: str) -> dict[str, object]:
    # Bytecode is what an installed program runs from; a shell that forbids it triples every import.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    print(f"{name} ...", file=sys.stderr, flush=True)
    result = subprocess.run(
        [sys.executable, HERE / f"{name}.py"],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return found


def main(names: list[str]) -> None:
    processors = os.cpu_count()
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    print(
        f"{now}, {processors} cores, Linux {platform.release()}, Python {platform.python_version()}\n"
    )
    print("| benchmark | what | limit | measured |\n|---|---|---|---|")
    for name in names or BENCHMARKS:
        what, limit = BENCHMARKS[name]
        figures = json.dumps(measured(name)).replace("|", "\\|")
        print(f"| {name} | {what} | {limit} | `{figures}` |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
