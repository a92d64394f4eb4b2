"""The judge's parts over events and traces written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.xla.doctor import report as reports
from hotfire.runtime.xla.doctor import sarif, timeline, trace
from hotfire.runtime.xla.doctor.judge import hyperparameters, judge
from hotfire.runtime.xla.doctor.settings import Settings

XLA = "/site/torch_xla/torch_xla.py"
STAGING = "/site/hotfire/runtime/xla/staging.py"
MODULE = "/site/torch/module.py"


def block(kind: str, graph: str, *frames: tuple[str, str, int]) -> bytes:
    head = f"{kind} Analysis: "
    lines = ["=" * 80, f"{kind} Cause", "  user torch_xla.sync", "Graph Info: "]
    lines += [f"  Graph Hash: {graph}", "  Number of Graph Inputs: 3"]
    lines += ["  Number of Graph Outputs: 2", "Python Frame Triggered Execution: "]
    lines += [f"  {name} ({file}:{line})" for name, file, line in frames]
    lines += ["-" * 80, "=" * 80]
    return ("\n" + "\n".join(head + line for line in lines) + "\n").encode()


MARKER = (("sync", XLA, 87), ("<module>", "/code/train.py", 9))
COLLECTIVE = (("_staged", STAGING, 60), ("reduce", XLA, 1), ("<module>", "/code/train.py", 8))
EVALUATION = (("item", "/site/hotfire/runtime/xla/doctor/watch_steps.py", 5),
              ("forward", MODULE, 5), ("<module>", "/code/train.py", 7))  # fmt: skip


def test_trace_blocks_and_their_causes() -> None:
    data = b"".join(
        [
            block("Compilation", "aa", *MARKER),
            b"\nComputation hash: 17\n\nPost Compilation Analysis: ====\n",
            block("Execution", "aa", *MARKER),
            block("Execution", "bb", *COLLECTIVE),
            block("Execution", "cc", *EVALUATION),
            block("Execution", "dd", ("_to_host", "/x/runtime/xla/doctor/replicas.py", 3)),
            block("Execution", "ee", *MARKER)[:-200],
        ]
    )
    found = trace.parse(data)
    assert [(r.compiled, r.graph, r.cause.value) for r in found] == [
        (True, "aa", "marker"),
        (False, "aa", "marker"),
        (False, "bb", "collective"),
        (False, "cc", "evaluation"),
        (False, "dd", "own"),
    ]
    assert (found[0].inputs, found[0].outputs) == (3, 2)
    assert [report.end for report in found] == sorted(report.end for report in found)


def written(directory: Path, steps: int, blocks: list[bytes], **end: Any) -> timeline.Rank:
    """A rank whose every step runs `blocks`."""
    start = {"event": "start", "rank": 0, "world_size": 2, "steps": steps, "root": "/code",
             "script": "/code/train.py", "argv": [], "libraries": ["/site"]}  # fmt: skip
    events, data = [start], b""
    for step in range(1, steps + 1):
        data += b"".join(blocks)
        events.append({"event": "mark", "mark": step, "opt": step, "back": step, "seconds": 0.1,
                       "wait": 0.0, "trace": len(data), "nodes": [40] * len(blocks)})  # fmt: skip
    events.append({"event": "end", "mark": steps, "opt": steps, "back": steps, "trace": len(data),
                   "compilations": 2, "compile_seconds": 3.0, **end})  # fmt: skip
    directory.mkdir(exist_ok=True)
    lines = [json.dumps(event) + "\n" for event in events]
    (directory / "rank-0.jsonl").write_text("".join(lines) + '{"event": "cut sho')
    (directory / "trace-0.txt").write_bytes(data)
    [rank] = timeline.read(directory)
    return rank


def test_a_collective_does_not_divide_a_graph(tmp_path: Path) -> None:
    steps = [block("Execution", "aa", *COLLECTIVE), block("Execution", "bb", *MARKER)]
    report = judge([written(tmp_path, 6, steps)])
    [graph] = report.graphs
    assert (graph.nodes, graph.runs, graph.kind) == (80, 6, "training")
    assert (graph.file, graph.line) == ("train.py", 9)
    assert report.findings == ()


def test_a_wanted_value_does_divide_it(tmp_path: Path) -> None:
    steps = [block("Execution", "aa", *EVALUATION), block("Execution", "bb", *MARKER)]
    report = judge([written(tmp_path, 6, steps)])
    assert [graph.kind for graph in report.graphs] == ["value", "training"]
    [finding] = report.findings
    assert (finding.rule, finding.place) == ("explicit-evaluation", "train.py:7")


@pytest.mark.parametrize(("every", "found"), [(10, 0), (4, 1)])
def test_what_happens_rarely_is_no_finding(tmp_path: Path, every: int, found: int) -> None:
    start = written(tmp_path, 1, []).events[0]
    events, data = [{**start, "steps": 20}], b""
    for step in range(1, 21):
        parts = [block("Execution", "bb", *MARKER)]
        parts += [block("Execution", "aa", *EVALUATION)] * (step % every == 0)
        data += b"".join(parts)
        events.append({"event": "mark", "mark": step, "opt": step, "back": step, "seconds": 0.1,
                       "wait": 0.0, "trace": len(data), "nodes": []})  # fmt: skip
    report = judge([timeline.Rank(events, trace.parse(data))])
    assert len(report.findings) == found


def digests(rank: int, later: float) -> timeline.Rank:
    common = {"event": "digest", "opt": 0, "mark": 0}
    return timeline.Rank(
        [
            {"event": "start", "rank": rank, "world_size": 2},
            {**common, "when": "initial", "values": [[1.0, 2.0]]},
            {**common, "when": "later", "values": [[later, 2.0]]},
        ]
    )


def test_drift_is_more_than_rounding() -> None:
    same = judge([digests(0, 1.0), digests(1, 1.0 + 1e-8)])
    assert same.findings == ()
    [finding] = judge([digests(0, 1.0), digests(1, 1.0 + 1e-5)]).findings
    assert (finding.rule, finding.severity.value) == ("replica-drift", "error")
    alone = judge([digests(0, 1.0)])
    assert alone.findings == (), "half of the ranks says nothing"


def test_a_report_comes_back_from_json_and_fits_sarif(tmp_path: Path) -> None:
    steps = [block("Execution", "aa", *EVALUATION), block("Execution", "bb", *MARKER)]
    report = judge([written(tmp_path, 6, steps)])
    again = reports.Report.from_json(json.loads(json.dumps(report.to_json())))
    assert again.to_json() == report.to_json()
    document = sarif.document(report, "src")
    [result] = document["runs"][0]["results"]
    assert result["level"] == "warning"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "src/train.py"
    assert place["region"]["startLine"] == 7


def test_budget_files(tmp_path: Path) -> None:
    path, report = tmp_path / "budget.json", reports.Report()
    assert reports.stored(path) is None
    reports.store(path, report)
    assert reports.stored(path) == 0
    assert reports.compared(0, report) == ""
    assert reports.compared(3, report) == "this change removes 3 graphs (3 -> 0)"
    path.write_text("[]")
    with pytest.raises(ValueError, match="no graph budget"):
        reports.stored(path)


def test_hyperparameters_as_the_launcher_gives_them() -> None:
    argv = ["--max-train-steps", "5", "--lr=0.1", "--flag", "--last"]
    assert hyperparameters(argv) == {"max_train_steps": "5", "lr": "0.1", "flag": "--last",
                                     "last": ""}  # fmt: skip


def test_settings_say_where_and_refuse_nonsense(tmp_path: Path) -> None:
    output = {"SM_OUTPUT_DATA_DIR": str(tmp_path / "data"), "HOTFIRE_WORKER_DIR": str(tmp_path)}
    doctor = Settings.from_environment({**output, "HOTFIRE_DOCTOR": "20", "RANK": "1"})
    assert doctor.events == str(tmp_path / "data" / "doctor" / "rank-1.jsonl")
    summary = Settings.from_environment(output)
    assert summary.summary and summary.directory == str(tmp_path / "doctor")
    with pytest.raises(ValueError, match="no number of steps"):
        Settings.from_environment({"HOTFIRE_DOCTOR": "many"})


@pytest.mark.parametrize(("fastest", "found"), [(0.05, 0), (0.3, 1)])
def test_a_loader_slower_than_the_step_is_found_behind_what_was_read_ahead(
    tmp_path: Path, fastest: float, found: int
) -> None:
    """Steps of 0.1 s that never waited: all their batches were there when the first one began."""
    rank = written(
        tmp_path, 6, [block("Execution", "bb", *MARKER)], loaders={"0": [9.0, 20, fastest]}
    )
    loader = {"event": "loader", "id": 0, "site": ["/code/train.py", 4], "workers": 0,
              "batch_size": 8, "rows": 160, "dataset_rows": 160, "drop_last": True,
              "plain_batches": True, "replicas": None, "sampler_drop_last": False}  # fmt: skip
    report = judge([timeline.Rank([*rank.events, loader], rank.reports)])
    assert [(f.rule, f.place) for f in report.findings] == [("loader-stall", "train.py:4")] * found


def test_a_job_that_failed_says_so_before_anything_else(tmp_path: Path) -> None:
    error = {
        "type": "ValueError",
        "message": "no label\nsecond line",
        "site": ["/code/train.py", 5],
    }
    report = judge([written(tmp_path, 3, [block("Execution", "bb", *MARKER)], error=error)])
    first, *_ = report.text().splitlines()
    assert first == "the job failed after 3 steps: ValueError: no label (train.py:5)"
    assert "no findings" not in report.text()
