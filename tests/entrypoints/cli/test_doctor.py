"""``hotfire doctor``: a job of emulated workers, its findings, and what programs read of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from hotfire.entrypoints import cli
from hotfire.entrypoints.cli.doctor import doctor
from hotfire.runtime.xla.doctor.pytest_plugin import hotfire_doctor  # noqa: F401

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "runtime" / "xla" / "doctor" / "corpus"
TEXT = (CORPUS / "tutorial.py").read_text()
WORKFLOW = ROOT / "examples" / "ci" / "hotfire-doctor.yml"


@pytest.mark.xla
@pytest.mark.slow
def test_findings_of_two_workers_as_json_sarif_and_budget(hotfire: Any) -> None:
    """The tutorial's faults, in a job as `hotfire run` runs it, hyperparameters and all."""
    script = hotfire.script(TEXT, "src/job/tutorial.py")
    lines = {
        (rule, number)
        for number, line in enumerate(TEXT.splitlines(), 1)
        for rule in re.findall(r"# doctor: (\S+)", line)
    }
    words = ["doctor", "job/tutorial.py", "--source-dir", "src", "--processes-per-host", "2"]
    words += ["-p", "max_train_steps=4", "--steps", "6", "--json", "--strict"]
    done = hotfire(*words, "--sarif", "out.sarif", "--budget", "budget.json")
    assert done.returncode == 4, done.stderr
    report = json.loads(done.stdout)
    assert {(f["rule"], f["line"]) for f in report["findings"]} == lines
    assert {f["file"] for f in report["findings"]} == {"job/tutorial.py"}
    assert report["world_size"] == 2
    assert len(report["graphs"]) == json.loads((hotfire.cwd / "budget.json").read_text())["graphs"]
    [run] = json.loads((hotfire.cwd / "out.sarif").read_text())["runs"]
    places = [r["locations"][0]["physicalLocation"] for r in run["results"]]
    assert {p["artifactLocation"]["uri"] for p in places} == {str(script.relative_to(hotfire.cwd))}
    assert {(r["ruleId"], p["region"]["startLine"])
            for r, p in zip(run["results"], places, strict=True)} == lines  # fmt: skip
    assert not (hotfire.cwd / "hotfire-out").exists(), "a few steps' model is worth nothing"


@pytest.mark.xla
@pytest.mark.slow
def test_a_change_that_adds_graphs_fails_against_the_budget(hotfire: Any) -> None:
    hotfire.script((CORPUS / "item_every_step.py").read_text())
    (hotfire.cwd / "budget.json").write_text('{"graphs": 1}')
    words = ["doctor", "train.py", "--steps", "5", "--budget", "budget.json"]
    done = hotfire(*words)
    assert done.returncode == 0, done.stderr
    assert "train.py:17: warning: a device tensor is read by the host" in done.stdout
    assert "this change adds 1 graph (1 -> 2)" in done.stdout
    assert json.loads((hotfire.cwd / "budget.json").read_text()) == {"graphs": 1}


def test_a_script_without_torch_xla_has_nothing_to_look_at(hotfire: Any) -> None:
    hotfire.script("print('hello')\n")
    done = hotfire("doctor", "train.py")
    assert done.returncode == 2
    assert "never imported torch_xla" in done.stderr
    assert done.stdout == ""


def test_a_document_sends_nothing_where_the_real_job_does(hotfire: Any) -> None:
    """Its output and its checkpoints stay as they are, and its name may be taken."""
    hotfire.script(
        "import pathlib\n"
        "assert not list(pathlib.Path('/opt/ml/checkpoints').iterdir()), 'no resuming here'\n"
        "for place in ('model', 'checkpoints'):\n"
        "    pathlib.Path('/opt/ml', place, 'new').write_text('x')\n"
    )
    kept = hotfire.cwd / "checkpoints"
    kept.mkdir()
    (kept / "old").write_text("x")
    run = hotfire("run", "train.py", "--name", "real", "--checkpoint-s3-uri", kept)
    assert run.returncode == 1, "the script asserts that there are no checkpoints"
    request = hotfire.home / "jobs" / "real" / "request.json"
    (hotfire.cwd / "job.json").write_text(request.read_text())
    before = sorted(p for p in hotfire.cwd.rglob("*"))
    done = hotfire("doctor", "job.json")
    assert done.returncode == 2
    assert "never imported torch_xla; it ran to its end" in done.stderr
    assert "real-2" in done.stderr
    assert sorted(p for p in hotfire.cwd.rglob("*")) == before


def test_update_budget_needs_a_budget(hotfire: Any) -> None:
    hotfire.script("print('hello')\n")
    done = hotfire("doctor", "train.py", "--update-budget")
    assert done.returncode == 2
    assert "--budget" in done.stderr


def test_files_that_cannot_be_written_are_refused_before_the_run(hotfire: Any) -> None:
    hotfire.script("raise AssertionError('ran')\n")
    for flag in ("--sarif", "--budget"):
        done = hotfire("doctor", "train.py", flag, "missing/file")
        assert done.returncode == 2
        assert "there is no directory" in done.stderr
    (hotfire.cwd / "budget.json").write_text("[]")
    done = hotfire("doctor", "train.py", "--budget", "budget.json")
    assert done.returncode == 2
    assert "is no graph budget" in done.stderr


@pytest.mark.xla
@pytest.mark.slow
def test_the_fixture_gives_the_report(hotfire_doctor: Any, tmp_path: Path) -> None:  # noqa: F811
    budget = tmp_path / "budget.json"
    budget.write_text('{"graphs": 9}')
    report = hotfire_doctor(CORPUS / "clean_loader.py", steps=4, budget=str(budget))
    assert not report.findings, report.text()
    assert report.change == "this change removes 6 graphs (9 -> 3)"
    assert report.steps >= 4


def test_the_workflow_calls_what_there_is() -> None:
    """Every option in the workflow's command is one of `hotfire doctor`."""
    workflow = yaml.safe_load(WORKFLOW.read_text())
    runs = [step.get("run", "") for step in workflow["jobs"]["doctor"]["steps"]]
    [command] = [run for run in runs if "hotfire doctor" in run]
    known = {name for param in doctor.params for name in param.opts}
    assert set(re.findall(r"--[\w-]+", command)) <= known
    context = click.Context(cli.hotfire)
    assert "doctor" in cli.hotfire.list_commands(context)
