"""What is refused before anything starts, each with the reason and the way out."""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime import preflight
from hotfire.runtime.channels import Size
from hotfire.runtime.devices import Machine
from hotfire.runtime.errors import HotfireError, ResourceLimitExceeded, ValidationError
from hotfire.runtime.plan import Code, CodeKind
from hotfire.runtime.spec import (
    AlgorithmSpecification,
    CheckpointConfig,
    InstanceGroup,
    OutputDataConfig,
    ResourceConfig,
    TrainingJob,
)
from hotfire.runtime.storage import Locations

GB = 10**9


@dataclass(frozen=True)
class Chosen:
    python: str = "python3"
    processes_per_host: int | None = None


@dataclass(frozen=True)
class Input:
    """A channel that is known only by what it will download."""

    bytes: int
    notes: tuple[str, ...] = ()

    def to_download(self) -> int:
        return self.bytes

    def size(self) -> Size:
        raise AssertionError("preflight must not walk a channel")


class Bench:
    """A job that passes, and changes to it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.source = top / "src"
        self.source.mkdir()
        (self.source / "train.py").write_text("")
        (self.source / "sub").mkdir()
        (self.source / "sub" / "eval.py").write_text("")
        (top / "bin").mkdir()
        self.program("python3")
        self.code = Code(kind=CodeKind.DIRECTORY, source=self.source)
        self.inputs: list[Any] = []
        self.options = Chosen()
        self.machine = Machine(cpus=2, memory=8 * GB, memory_free=8 * GB)
        self.hyper: dict[str, Any] = {
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": self.source.as_uri(),
        }
        self.output = (top / "out").as_uri()
        self.instance_type = "ml.m5.large"
        self.hosts = 1
        self.checkpoints: str | None = None
        self.maps: dict[str, str] = {}

    def program(self, name: str) -> None:
        path = self.top / "bin" / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)

    def check(self) -> list[str]:
        group = InstanceGroup(
            instance_group_name="homogeneousCluster",
            instance_type=self.instance_type,
            instance_count=self.hosts,
            hosts=tuple(f"algo-{n + 1}" for n in range(self.hosts)),
        )
        job = TrainingJob(
            training_job_name="job",
            role_arn="arn:aws:iam::000000000000:role/hotfire",
            region="us-east-1",
            algorithm_specification=AlgorithmSpecification(training_image="hotfire"),
            output_data_config=OutputDataConfig(s3_output_path=self.output),
            resource_config=ResourceConfig(instance_groups=(group,)),
            hyper_parameters={key: json.dumps(value) for key, value in self.hyper.items()},
            checkpoint_config=CheckpointConfig(s3_uri=self.checkpoints)
            if self.checkpoints
            else None,
        )
        return preflight.check(
            job,
            self.inputs,
            self.code,
            self.options,
            self.machine,
            self.top / "home",
            locations=Locations(self.maps),
            cache=self.top / "cache",
            path=str(self.top / "bin"),
        )

    def refused(self, kind: type[HotfireError] = ValidationError) -> HotfireError:
        with pytest.raises(kind) as caught:
            self.check()
        assert type(caught.value) is kind
        assert caught.value.do
        return caught.value


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_good_job_passes_and_touches_nothing(bench: Bench) -> None:
    before = sorted(bench.top.rglob("*"))
    assert bench.check() == []
    assert sorted(bench.top.rglob("*")) == before


def test_the_notes_of_channels_are_handed_on(bench: Bench) -> None:
    bench.inputs = [Input(0, ("empty",)), Input(0)]
    assert bench.check() == ["empty"]


class TestCode:
    def test_a_missing_script_with_what_is_near(self, bench: Bench) -> None:
        bench.hyper["sagemaker_program"] = "trian.py"
        error = bench.refused()
        assert error.what == f"script trian.py is not in {bench.source}"
        assert error.do == "It has: train.py."

    def test_a_script_that_lies_elsewhere_in_the_tree(self, bench: Bench) -> None:
        bench.hyper["sagemaker_program"] = "eval.py"
        assert bench.refused().do == "It has: sub/eval.py."

    def test_a_script_below_a_folder(self, bench: Bench) -> None:
        bench.hyper["sagemaker_program"] = "sub/../sub/eval.py"
        assert bench.check() == []

    @pytest.mark.parametrize("program", ["../train.py", "/etc/passwd", "sub/../../x.py", ".."])
    def test_a_script_outside(self, program: str, bench: Bench) -> None:
        bench.hyper["sagemaker_program"] = program
        assert "outside the source directory" in bench.refused().what

    def test_a_directory_is_no_script(self, bench: Bench) -> None:
        bench.hyper["sagemaker_program"] = "sub"
        assert "is a directory" in bench.refused().what

    def test_a_missing_source_directory(self, bench: Bench) -> None:
        bench.code = Code(kind=CodeKind.DIRECTORY, source=bench.top / "scr")
        error = bench.refused()
        assert error.what == f"source directory {bench.top / 'scr'} does not exist"
        assert "src" in error.do

    def test_a_package_may_bring_the_program(self, bench: Bench) -> None:
        (bench.source / "setup.py").write_text("")
        bench.hyper["sagemaker_program"] = "package.module"
        assert bench.check() == []

    @pytest.mark.parametrize(
        ("program", "refused"), [("train.py", False), ("trian.py", True), ("../x.py", True)]
    )
    def test_archives(self, program: str, refused: bool, bench: Bench) -> None:
        archive = bench.top / "x.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(bench.source, arcname=".")
        bench.code = Code(kind=CodeKind.ARCHIVE, source=archive)
        bench.hyper["sagemaker_program"] = program
        if refused:
            assert f"script {program} is not in {archive}" in bench.refused().what
        else:
            assert bench.check() == []

    def test_broken_archives(self, bench: Bench) -> None:
        archive = bench.top / "x.tar.gz"
        bench.code = Code(kind=CodeKind.ARCHIVE, source=archive)
        assert "does not exist" in bench.refused().what
        archive.write_bytes(b"\x1f\x8bbroken")
        assert "cannot be read" in bench.refused().what

    def test_an_archive_in_s3(self, bench: Bench, s3_environ: Any, s3_bucket: str) -> None:
        bench.code = Code()
        bench.hyper["sagemaker_submit_directory"] = f"s3://{s3_bucket}/code.tar.gz"
        assert "does not exist" in bench.refused().what
        s3_environ.client().put_object(Bucket=s3_bucket, Key="code.tar.gz", Body=b"")
        assert bench.check() == []

    def test_values_of_a_wrong_type(self, bench: Bench) -> None:
        bench.hyper["sagemaker_program"] = ["train.py"]
        assert "must be texts" in bench.refused().what


class TestPrograms:
    def test_no_interpreter(self, bench: Bench) -> None:
        bench.options = Chosen(python="/no/python")
        assert "/no/python" in bench.refused().what

    def test_mpi_needs_mpirun(self, bench: Bench) -> None:
        bench.hyper["sagemaker_mpi_enabled"] = False
        assert bench.check() == []
        bench.hyper["sagemaker_mpi_enabled"] = True
        error = bench.refused()
        assert "mpirun" in error.what
        assert "openmpi" in error.do
        bench.program("mpirun")
        assert bench.check() == []


class TestOutputs:
    def test_a_file_in_the_way(self, bench: Bench) -> None:
        (bench.top / "file").write_text("")
        bench.output = (bench.top / "file" / "out").as_uri()
        assert f"{bench.top / 'file'} is not a directory" in bench.refused().what

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_directory_of_somebody_else(self, bench: Bench) -> None:
        bench.output = "file:///proc/1/out"
        assert "cannot be written" in bench.refused().what

    def test_a_missing_bucket(self, bench: Bench, s3_environ: Any) -> None:
        bench.output = "s3://there-is-no-such-bucket/p"
        assert "S3OutputPath" in bench.refused().what

    def test_a_map_needs_no_bucket(self, bench: Bench) -> None:
        bench.output = bench.checkpoints = "s3://there-is-no-such-bucket/p"
        bench.maps = {"s3://there-is-no-such-bucket": str(bench.top)}
        assert bench.check() == []

    def test_checkpoints_too(self, bench: Bench) -> None:
        (bench.top / "file").write_text("")
        bench.checkpoints = (bench.top / "file").as_uri()
        assert bench.refused().what.startswith("CheckpointConfig.S3Uri")


class TestRoom:
    def test_downloads_that_do_not_fit(self, bench: Bench) -> None:
        bench.inputs = [Input(10**18), Input(1)]
        error = bench.refused(ResourceLimitExceeded)
        assert "TB" in error.what
        assert "HOTFIRE_HOME" in error.do

    def test_a_home_that_cannot_be(self, bench: Bench) -> None:
        (bench.top / "home").write_text("")
        assert "job directory" in bench.refused().what


class TestMemory:
    def test_more_workers_than_memory(self, bench: Bench) -> None:
        bench.hyper["sagemaker_torch_distributed_enabled"] = True
        bench.instance_type = "ml.trn1.32xlarge"
        error = bench.refused(ResourceLimitExceeded)
        assert error.what == (
            "32 workers take about 22.4 GB before any model, and this machine has 8 GB"
        )
        assert error.do == "Try --processes-per-host 11."
        bench.options = Chosen(processes_per_host=11)
        assert bench.check() == []

    def test_hosts_count_too(self, bench: Bench) -> None:
        bench.options = Chosen(processes_per_host=4)
        bench.hosts = 4
        assert "--processes-per-host 2" in bench.refused(ResourceLimitExceeded).do
        bench.hosts = 100
        assert "fewer hosts" in bench.refused(ResourceLimitExceeded).do

    def test_little_free_memory_is_a_note(self, bench: Bench) -> None:
        bench.options = Chosen(processes_per_host=4)
        bench.machine = replace(bench.machine, memory_free=GB)
        (note,) = bench.check()
        assert note == "4 workers take about 2.8 GB before any model; 1 GB are free now"

    def test_a_plain_script_is_not_estimated(self, bench: Bench) -> None:
        bench.instance_type = "ml.trn1.32xlarge"
        bench.machine = replace(bench.machine, memory=1, memory_free=1)
        assert bench.check() == []

    def test_devices_of_this_machine(self, bench: Bench) -> None:
        bench.instance_type = "local"
        bench.hyper["sagemaker_torch_distributed_enabled"] = True
        bench.machine = replace(bench.machine, neuron_chips=16, neuron_cores=32)
        assert bench.refused(ResourceLimitExceeded).what.startswith("32 workers")


def test_all_faults_at_once(bench: Bench) -> None:
    bench.hyper |= {"sagemaker_program": "trian.py", "sagemaker_mpi_enabled": True}
    bench.options = Chosen(python="/no/python", processes_per_host=1000)
    error = bench.refused()
    lines = error.what.splitlines()
    assert lines[0] == "4 things are wrong:"
    assert [
        text in line
        for text, line in zip(
            ("trian.py", "/no/python", "mpirun", "1000 workers"), lines[1:], strict=True
        )
    ] == [True] * 4
    assert "(It has: train.py)" in lines[1]
