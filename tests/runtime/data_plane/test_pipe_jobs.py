"""Whole jobs whose channels are streamed, sharded or sampled, run by the command as a user runs it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

READER = """
import json, os, pathlib
from hotfire.runtime.data import pipes, recordio

root = pathlib.Path("/opt/ml/input/data")
epochs = [[r.decode() for r in recordio.read(s)] for s in pipes.PipeChannel("train").epochs(2)]
found = {
    "epochs": epochs,
    "config": json.loads(pathlib.Path("/opt/ml/input/config/inputdataconfig.json").read_text()),
    "train": (root / "train").exists(),
    "val": sorted(p.name for p in (root / "val").iterdir()),
    "manifest": len((root / "val-manifest").read_text().splitlines()),
}
(root / "val" / "written").write_text("the channel is copy-on-write")
out = pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"])
(out / (os.environ["SM_CURRENT_HOST"] + ".json")).write_text(json.dumps(found))
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT / "build" / "view"),
            "HOTFIRE_HOME": str(tmp_path / "home"),
            "HOTFIRE_CACHE": str(tmp_path / "cache"),
            **{key: value for key, value in os.environ.items() if key.startswith("AWS_")},
        }
        return subprocess.run(
            [sys.executable, "-m", "hotfire.entrypoints", *map(str, words)],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(6):
        (tmp_path / "data" / f"{number}.txt").write_text(f"record {number}")
    return tmp_path / "data"


def fifos(top: Path) -> list[Path]:
    return [path for path in top.rglob("*") if path.is_fifo()]


def test_two_hosts_read_shuffled_shards(run: Any, data: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(READER)
    words = ["--input-mode", "train=Pipe", "--record-wrapper", "train=RecordIO", "--shuffle"]
    words += ["train=59", "--sharding", "train=ShardedByS3Key", "--sharding"]
    words += ["val=ShardedByS3Key", "--instance-count", "2", "--output", "out", "--name", "shards"]
    done = run("run", "train.py", "--input", "train=data", "--input", "val=data", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    with subprocess.Popen(
        ["tar", "xzOf", tmp_path / "out" / "shards" / "output" / "output.tar.gz"],
        stdout=subprocess.PIPE,
        text=True,
    ) as tar:
        assert tar.stdout is not None
        text = tar.stdout.read()
    decoder, hosts = json.JSONDecoder(), []
    while text:
        one, end = decoder.raw_decode(text)
        hosts.append(one)
        text = text[end:]
    assert len(hosts) == 2
    for number in range(2):
        records = [host["epochs"][number] for host in hosts]
        assert [len(one) for one in records] == [3, 3]
        assert sorted(records[0] + records[1]) == [f"record {n}" for n in range(6)]
    assert sorted(host["val"] for host in hosts) == [
        ["0.txt", "2.txt", "4.txt"],
        ["1.txt", "3.txt", "5.txt"],
    ]
    assert {host["manifest"] for host in hosts} == {7}
    assert {host["train"] for host in hosts} == {False}
    assert hosts[0]["config"]["train"] == {
        "TrainingInputMode": "Pipe",
        "S3DistributionType": "ShardedByS3Key",
        "RecordWrapperType": "RecordIO",
    }
    assert len(list(data.iterdir())) == 6
    assert fifos(tmp_path) == []


def test_a_channel_that_nobody_opens_does_not_hold_the_job(
    run: Any, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('done')")
    done = run("run", "train.py", "--input", "train=data", "--input-mode", "train=Pipe")
    assert done.returncode == 0, done.stderr
    assert fifos(tmp_path) == []


def test_a_damaged_object_fails_the_job_by_its_name(run: Any, data: Path, tmp_path: Path) -> None:
    (data / "0.txt").write_bytes(gzip.compress(b"good"))
    for number in range(1, 6):
        (data / f"{number}.txt").write_bytes(gzip.compress(b"good")[:-4])
    (tmp_path / "train.py").write_text(
        "print(open('/opt/ml/input/data/train_0', 'rb').read(), 'never')"
    )
    words = ["--input-mode", "train=Pipe", "--compression", "train=Gzip", "--name", "damaged"]
    done = run("run", "train.py", "--input", "train=data", *words)
    assert done.returncode == 1
    assert "never" not in done.stdout
    described = json.loads(run("describe", "damaged", "--json").stdout)
    assert described["FailureReason"].startswith("ClientError: Data download failed: file://")
    assert "1.txt is not a sound gzip file" in described["FailureReason"]
    assert fifos(tmp_path) == []


def test_a_sample_and_a_rule_from_the_command_line(run: Any, data: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os; print('files', sorted(os.listdir('/opt/ml/input/data')), "
        "len(os.listdir('/opt/ml/input/data/train')))"
    )
    words = ["--sample", "train=50%", "--data-rule", "manifest-beside=never"]
    done = run("run", "train.py", "--input", "train=data", *words)
    assert done.returncode == 0, done.stderr
    assert "files ['train'] 3" in done.stdout
    refused = run("run", "train.py", "--input", "train=data", "--sample", "train=x")
    assert refused.returncode == 2
    assert "--sample" in refused.stderr


def test_preview_pack_and_cache(
    run: Any, data: Path, tmp_path: Path, s3_environ: Any, s3_bucket: str
) -> None:
    s3_environ.client().put_object(Bucket=s3_bucket, Key="p/a", Body=b"12345")
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{s3_bucket}/p"}
    local = {"S3DataType": "S3Prefix", "S3Uri": data.as_uri()}
    local["S3DataDistributionType"] = "ShardedByS3Key"
    document = {
        "TrainingJobName": "previewed",
        "RoleArn": "arn:aws:iam::000000000000:role/hotfire",
        "AlgorithmSpecification": {"TrainingImage": "hotfire", "TrainingInputMode": "File"},
        "InputDataConfig": [
            {"ChannelName": "train", "DataSource": {"S3DataSource": local}, "InputMode": "Pipe"},
            {"ChannelName": "val", "DataSource": {"S3DataSource": source}},
        ],
        "OutputDataConfig": {"S3OutputPath": (tmp_path / "out").as_uri()},
        "ResourceConfig": {
            "InstanceType": "ml.m5.large",
            "InstanceCount": 2,
            "VolumeSizeInGB": 10,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    }
    (tmp_path / "job.json").write_text(json.dumps(document))
    shown = run("data", "preview", "job.json", "--host", "algo-2", "--json")
    assert shown.returncode == 0, shown.stderr
    train, val = json.loads(shown.stdout)
    assert [Path(one["Uri"]).name for one in train["Objects"]] == ["1.txt", "3.txt", "5.txt"]
    assert val["Objects"] == [{"Uri": f"s3://{s3_bucket}/p/a", "Bytes": 5, "Path": "a"}]
    assert not (tmp_path / "home" / "jobs").exists()
    text = run("data", "preview", "job.json", "--channel", "train", "--limit", "1").stdout
    assert "train (Pipe) on algo-1 epoch 0: 3 objects, 24 bytes" in text
    assert "... and 2 more" in text
    assert run("data", "preview", "job.json", "--host", "algo-3").returncode == 2

    script = tmp_path / "train.py"
    script.write_text("")
    assert run("run", "train.py", "--input", f"train=s3://{s3_bucket}/p").returncode == 0
    (cached,) = json.loads(run("cache", "ls", "--json").stdout)
    assert (cached["Uri"], cached["Bytes"]) == (f"s3://{s3_bucket}/p/a", 5)
    assert f"s3://{s3_bucket}/p/a" in run("cache", "ls").stdout
    assert "1 files" in run("cache", "clear").stderr
    assert json.loads(run("cache", "ls", "--json").stdout) == []

    (tmp_path / "classes" / "one").mkdir(parents=True)
    (tmp_path / "classes" / "one" / "x").write_bytes(b"1")
    packed = run("data", "pack", "classes", f"s3://{s3_bucket}/packed")
    assert packed.returncode == 0, packed.stderr
    assert "1 records of 1 classes in 1 chunks" in packed.stderr
