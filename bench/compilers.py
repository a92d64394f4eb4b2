"""Eager, Inductor and XLA on the same job: seconds per step, compilation, memory.

    python bench/compilers.py [--steps 5] [--only fp32] [--compilers none,xla]

Each cell is a run of `hotfire bench` on `compilers_job.py`: fresh processes, one compiler after the
other. Prints JSON, and each row on stderr as soon as it is there. There is no limit to meet: XLA on
a CPU is for correctness.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

JOB = Path(__file__).with_name("compilers_job.py")
CASES = {
    "fp32": ["-p", "dropout=0.0"],
    "fp32, dropout": ["-p", "dropout=0.1"],
    # What torch_xla takes unless the launcher chooses: see docs/xla.md.
    "fp32, dropout, default generator": [
        "-p",
        "dropout=0.1",
        "--env",
        "XLA_RNG_BIT_GENERATOR=default",
    ],
    "bf16 autocast": ["-p", "dropout=0.0", "-p", "bf16=true"],
}
ONE_COMPILER = {"fp32, dropout, default generator": "xla"}


def measured(case: str, compilers: str, steps: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "hotfire.entrypoints", "bench", str(JOB), "--json"),
                *("--compilers", ONE_COMPILER.get(case, compilers), "--steps", str(steps)),
                *("-p", "batch_size=8", *CASES[case]),
            ],
            env={**os.environ, "HOTFIRE_HOME": f"{folder}/home"},
            stdout=subprocess.PIPE,
            check=True,
        )
    rows: list[dict[str, Any]] = json.loads(done.stdout)["Compilers"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--compilers", default="none,inductor,xla")
    args = parser.parse_args()
    report: dict[str, Any] = {
        "bench": "compilers",
        "what": "MiniLM-sized classifier, batch 8 x 128, AdamW",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
    }
    for case in args.only or CASES:
        print(f"{case} ...", file=sys.stderr, flush=True)
        report[case] = {
            row["compiler"]: {
                "step_seconds": round(row["step_seconds"], 4),
                "compile_seconds": round(row["compile_seconds"], 1),
                "compilations": row["compilations"],
                "host_gb": round(row["peak_host_bytes"] / 1e9, 2),
                "ahead_from_step": row["break_even_step"],
            }
            for row in measured(case, args.compilers, args.steps)
        }
        print(f"{case}: {json.dumps(report[case])}", file=sys.stderr, flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
