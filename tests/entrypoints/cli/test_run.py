"""`hotfire run` from end to end: real scripts, real hosts, real files."""

from __future__ import annotations

import json
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OK, FAILED, REFUSED, STOPPED = 0, 1, 2, 3

LOOK = """
import json, os, platform, sys
seen = {
    "argv": sys.argv[1:],
    "env": {k: v for k, v in os.environ.items() if k.startswith(("SM_", "TRAINING_", "HOT", "AWS_"))},
    "cwd": os.getcwd(), "node": platform.node(), "pid": os.getpid(), "uid": os.getuid(),
    "ml": sorted(os.path.relpath(os.path.join(d, f), "/opt/ml")
                 for d, ds, fs in os.walk("/opt/ml") for f in fs + ds),
    "config": {f: json.load(open("/opt/ml/input/config/" + f)) for f in os.listdir("/opt/ml/input/config")},
}
json.dump(seen, open(os.environ["SM_OUTPUT_DATA_DIR"] + "/" + os.environ["SM_CURRENT_HOST"], "w"))
"""


def outputs(hotfire: Any, job: str) -> dict[str, Any]:
    with tarfile.open(hotfire.cwd / "out" / job / "output" / "output.tar.gz") as archive:
        files = [member for member in archive if member.isfile()]
        return {
            member.name: json.load(archive.extractfile(member))  # type: ignore[arg-type]
            for member in files
        }


def test_a_script_sees_what_it_would_see_on_sagemaker(hotfire: Any) -> None:
    data = hotfire.cwd / "data, with: odd"
    data.mkdir()
    (data / "a.csv").write_text("1,2\n")
    hotfire.script(LOOK, "src/train.py")
    result = hotfire(
        *("run", "train.py", "--source-dir", "src", "--input", f"train={data}", "--name", "Look-1"),
        *("-p", "epochs=3", "-p", "lr=5e-5", "-p", "version:=1.10", "-p", "flag=true"),
        *("--env", "HOTEL=1", "--instance-type", "ml.g4dn.xlarge", "--output", "out"),
    )
    assert result.returncode == OK, result.stderr
    seen = outputs(hotfire, "Look-1")["algo-1"]
    assert seen["argv"] == [
        *("--epochs", "3", "--flag", "True", "--lr", "5e-05", "--version", "1.10"),
    ]
    env = seen["env"]
    assert env["SM_CHANNEL_TRAIN"] == "/opt/ml/input/data/train"
    assert env["SM_NUM_GPUS"] == "1"
    assert env["TRAINING_JOB_ARN"].endswith(":training-job/look-1")
    assert env["HOTEL"] == "1"
    assert "AWS_SECRET_ACCESS_KEY" not in env
    assert seen["node"].startswith("ip-10-")
    assert "input/data/train/a.csv" in seen["ml"]
    assert "input/data/train-manifest" in seen["ml"]
    assert "output/metrics/sagemaker" in seen["ml"]
    assert seen["config"]["hyperparameters.json"]["epochs"] == "3"
    assert seen["config"]["resourceconfig.json"]["current_instance_type"] == "ml.g4dn.xlarge"


def test_the_script_may_write_to_its_channel_and_the_source_stays(hotfire: Any) -> None:
    (hotfire.cwd / "data").mkdir()
    (hotfire.cwd / "data" / "a.csv").write_text("mine")
    hotfire.script(
        "import os\n"
        "d = os.environ['SM_CHANNEL_TRAIN']\n"
        "open(d + '/a.csv', 'a').write(' and theirs')\n"
        "open(d + '/cache', 'w').write('x')\n"
        "open('left.py', 'w').write('x')\n"
        "print(open(d + '/a.csv').read())\n"
    )
    result = hotfire("run", "train.py", "--input", "train=data", "--name", "cow")
    assert "mine and theirs" in result.stdout
    assert [path.name for path in (hotfire.cwd / "data").iterdir()] == ["a.csv"]
    assert (hotfire.cwd / "data" / "a.csv").read_text() == "mine"
    assert not (hotfire.cwd / "left.py").exists()


def test_describe_is_the_services_answer(hotfire: Any) -> None:
    hotfire.script("import os\nopen(os.environ['SM_MODEL_DIR'] + '/w', 'w').write('w')\n")
    result = hotfire(
        *("run", "train.py", "--name", "Full", "--json", "--output", "out"),
        *("--env", "API_TOKEN=hush", "-p", "lr=1"),
    )
    assert result.returncode == OK, result.stderr
    described = json.loads(result.stdout)
    assert described == hotfire.describe("Full")
    assert described["TrainingJobStatus"] == described["SecondaryStatus"] == "Completed"
    assert [visit["Status"] for visit in described["SecondaryStatusTransitions"]] == [
        *("Starting", "Downloading", "Training", "Uploading", "Completed"),
    ]
    assert described["TrainingTimeInSeconds"] == described["BillableTimeInSeconds"] >= 1
    assert described["ModelArtifacts"]["S3ModelArtifacts"].endswith("/out/Full/output/model.tar.gz")
    assert described["OutputDataConfig"]["CompressionType"] == "GZIP"
    assert "hush" not in result.stdout + result.stderr

    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    model = ServiceModel(Loader().load_service_model("sagemaker", "service-2"))
    known = model.operation_model("DescribeTrainingJob").output_shape.members
    assert set(described) <= set(known)


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("raise SystemExit(42)", 42, ""),
        ("raise ValueError('shapes differ')", 1, "ValueError: shapes differ"),
        ("import no_such_module", 1, "ModuleNotFoundError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, ""),
    ],
)
def test_a_failure_is_told_with_its_exit_code(
    hotfire: Any, script: str, code: int, reason: str
) -> None:
    hotfire.script(
        f"import os\nopen(os.environ['SM_MODEL_DIR'] + '/half', 'w').write('x')\n{script}\n"
    )
    result = hotfire("run", "train.py", "--name", "bad", "--output", "out")
    assert result.returncode == FAILED, result.stderr
    described = hotfire.describe("bad")
    assert described["TrainingJobStatus"] == "Failed"
    assert described["FailureReason"].startswith("AlgorithmError: ")
    assert described["FailureReason"].endswith(f", exit code: {code}")
    assert reason in described["FailureReason"]
    # Artifacts are kept all the same (contract 5.6).
    assert (hotfire.cwd / "out" / "bad" / "output" / "model.tar.gz").is_file()


TALK = """
import json, os, socket, time
me, hosts = os.environ["SM_CURRENT_HOST"], json.loads(os.environ["SM_HOSTS"])
server = socket.create_server((socket.gethostbyname(me), 5{port}))
if me == hosts[0]:
    for _ in hosts[1:]:
        peer, _ = server.accept()
        print("got", peer.recv(99).decode())
else:
    for _ in range(100):
        try:
            socket.create_connection((hosts[0], 5{port}), 5).send(me.encode())
            break
        except OSError:
            time.sleep(0.1)
    else:
        raise SystemExit("nobody there")
open(os.environ["SM_MODEL_DIR"] + "/" + me, "w").write(me)
"""


@pytest.mark.parametrize("network", ["host", "private"])
def test_hosts_find_each_other_by_name(hotfire: Any, network: str) -> None:
    hotfire.script(TALK.format(port="117" if network == "host" else "118"))
    result = hotfire(
        *("run", "train.py", "--instance-count", "3", "--network", network),
        *("--name", "three", "--output", "out"),
    )
    assert result.returncode == OK, result.stderr + result.stdout
    assert "algo-1 | got algo-2\n" in result.stdout
    assert "algo-1 | got algo-3\n" in result.stdout
    with tarfile.open(hotfire.cwd / "out" / "three" / "output" / "model.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["algo-1", "algo-2", "algo-3"]


def test_one_failing_host_stops_the_rest(hotfire: Any) -> None:
    hotfire.script(
        "import os, signal, sys, time\n"
        "if os.environ['SM_CURRENT_HOST'] == 'algo-2':\n"
        "    time.sleep(1); sys.exit('algo-2 gives up')\n"
        "signal.signal(signal.SIGTERM, lambda *a: (print('told to stop', flush=True), sys.exit(0)))\n"
        "time.sleep(100)\n"
    )
    result = hotfire("run", "train.py", "--instance-count", "2", "--name", "two")
    assert result.returncode == FAILED
    assert "algo-1 | told to stop" in result.stdout
    assert hotfire.describe("two")["FailureReason"].endswith(", exit code: 1")
    assert "algo-2" in result.stderr


SLEEP = """
import os, signal, sys, time
def leave(*_):
    open(os.environ["SM_MODEL_DIR"] + "/checkpoint", "w").write("saved")
    print("saved on SIGTERM", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("training", flush=True)
time.sleep(100)
"""


def test_ctrl_c_stops_the_job_and_leaves_nothing(
    hotfire: Any, traces: Callable[[Path], list[str]]
) -> None:
    hotfire.script(SLEEP)
    process = hotfire.start("run", "train.py", "--name", "stopped", "--output", "out")
    assert process.stdout is not None
    while process.stdout.readline() != "training\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == STOPPED, stderr
    assert "saved on SIGTERM" in stdout
    described = hotfire.describe("stopped")
    assert described["TrainingJobStatus"] == described["SecondaryStatus"] == "Stopped"
    assert [visit["Status"] for visit in described["SecondaryStatusTransitions"]][-3:] == [
        *("Stopping", "Uploading", "Stopped"),
    ]
    assert (hotfire.cwd / "out" / "stopped" / "output" / "model.tar.gz").is_file()
    assert traces(hotfire.home) == []
    host = hotfire.home / "jobs" / "stopped" / "attempts" / "1" / "algo-1"
    assert not (host / "scratch").exists()


def test_a_second_ctrl_c_does_not_wait(hotfire: Any) -> None:
    hotfire.script(
        SLEEP.replace("signal.signal(signal.SIGTERM, leave)", "signal.signal(15, print)")
    )
    process = hotfire.start("run", "train.py", "--name", "stubborn")
    assert process.stdout is not None
    while process.stdout.readline() != "training\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if "SIGTERM" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == STOPPED
    assert hotfire.describe("stubborn")["TrainingJobStatus"] == "Stopped"


def test_stop_from_another_terminal_and_max_run(hotfire: Any) -> None:
    hotfire.script(SLEEP)
    process = hotfire.start("run", "train.py", "--name", "far")
    assert process.stdout is not None
    while process.stdout.readline() != "training\n":
        assert process.poll() is None
    assert hotfire("stop", "far").returncode == OK
    process.communicate(timeout=60)
    assert process.returncode == STOPPED
    again = hotfire("stop", "far")
    assert again.returncode == REFUSED
    assert "in status Stopped" in again.stderr

    result = hotfire("run", "train.py", "--name", "long", "--max-run", "1")
    assert result.returncode == STOPPED
    assert hotfire.describe("long")["SecondaryStatus"] == "MaxRuntimeExceeded"


def test_a_killed_supervisor_takes_its_hosts_along_and_the_record_says_so(
    hotfire: Any,
    traces: Callable[[Path], list[str]],
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    hotfire.script(SLEEP)
    process = hotfire.start("run", "train.py", "--name", "orphan")
    assert process.stdout is not None
    while process.stdout.readline() != "training\n":
        assert process.poll() is None
    assert traces(hotfire.home)
    process.kill()
    process.wait()
    eventually(lambda: traces(hotfire.home) == [])
    described = hotfire.describe("orphan")
    assert described["TrainingJobStatus"] == "Failed"
    assert described["FailureReason"].startswith("InternalServerError: ")
    assert hotfire("delete", "orphan").returncode == OK
    assert list((hotfire.home / "jobs").iterdir()) == []


def test_a_background_child_cannot_keep_the_job_open(hotfire: Any) -> None:
    hotfire.script("import subprocess\nsubprocess.Popen(['sleep', '1000'])\nprint('done')\n")
    result = hotfire("run", "train.py", "--name", "child")
    assert result.returncode == OK
    assert result.stdout.endswith("done\n")


@pytest.mark.parametrize("dialect", ["json", "yaml"])
def test_a_document_of_the_aws_cli_runs_offline(hotfire: Any, dialect: str) -> None:
    (hotfire.cwd / "data" / "train").mkdir(parents=True)
    (hotfire.cwd / "data" / "train" / "x").write_text("1")
    (hotfire.cwd / "data" / "src").mkdir()
    hotfire.script(LOOK, "src/job.py")
    with tarfile.open(hotfire.cwd / "data" / "src" / "sourcedir.tar.gz", "w:gz") as archive:
        archive.add(hotfire.cwd / "src" / "job.py", "job.py")
    request = {
        "TrainingJobName": "from-file",
        "RoleArn": "arn:aws:iam::111122223333:role/service-role/training",
        "AlgorithmSpecification": {
            "TrainingImage": "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.9",
            "TrainingInputMode": "File",
        },
        "HyperParameters": {
            "sagemaker_program": '"job.py"',
            "sagemaker_submit_directory": '"s3://bucket/prefix/src/sourcedir.tar.gz"',
            "epochs": "2",
        },
        "InputDataConfig": [
            {
                "ChannelName": "training",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": "s3://bucket/prefix/train",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
        ],
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/prefix/out"},
        "ResourceConfig": {
            "InstanceType": "ml.m5.xlarge",
            "InstanceCount": 1,
            "VolumeSizeInGB": 30,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    }
    document = hotfire.cwd / f"job.{dialect}"
    if dialect == "json":
        document.write_text(json.dumps(request))
    else:
        import yaml

        document.write_text(yaml.safe_dump(request))
    result = hotfire("run", document.name, "--map", "s3://bucket/prefix=./data")
    assert result.returncode == OK, result.stderr
    assert (hotfire.cwd / "data/out/from-file/output/output.tar.gz").is_file()
    assert hotfire("run", document.name, "--map", "s3://bucket/prefix=data").returncode == REFUSED
    again = hotfire("run", document.name, "--map", "s3://bucket/prefix=data", "--replace")
    assert again.returncode == OK


def test_a_dry_run_starts_nothing(hotfire: Any) -> None:
    hotfire.script("raise SystemExit('must not run')")
    (hotfire.cwd / "d").mkdir()
    words = ("run", "train.py", "--input", "train=d", "--instance-count", "2", "--name", "dry")
    result = hotfire(*words, "-p", "version=1.10", "--dry-run")
    assert result.returncode == OK, result.stderr
    assert "--version 1.1" in result.stdout
    assert "algo-2" in result.stdout
    document = json.loads(hotfire(*words, "--dry-run", "--json").stdout)
    assert [host["host"] for host in document["Hosts"]] == ["algo-1", "algo-2"]
    assert not (hotfire.home / "jobs").exists()
    assert not (hotfire.cwd / "hotfire-out").exists()


REFUSALS: list[tuple[tuple[str, ...], str]] = [
    (("run", "missing.py"), "missing.py"),
    (("run", "train.py", "--input", "train=./nowhere"), "nowhere"),
    (("run", "train.py", "--source-dir", "src"), "train.py"),
    (("run", "../outside.py", "--source-dir", "."), "outside"),
    (("run", "train.py", "--instance-type", "ml.trn1.2xlrge"), "ml.trn1.2xlarge"),
    (("run", "train.py", "--name", "under_score"), "under_score"),
    (("run", "train.py", "--instance-count", "0"), "instanceCount"),
    (("run", "train.py", "--distribution", "smdistributed"), "smdistributed"),
    (("run", "train.py", "--input", "train=."), "--input-mode"),
    (("run", "broken.json"), "broken.json:2:12"),
    (("run", "train.py", "--map", "s3://b"), "FROM=TO"),
    (("run", "train.py", "--python", "no-such-python"), "no-such-python"),
    (("run", "train.py", "--backend", "podman"), "podman"),
    (("run", "train.py", *(f"-pk{n}=1" for n in range(120))), "HyperParameters"),
]


@pytest.mark.parametrize(("words", "named"), REFUSALS, ids=lambda value: str(value)[:40])
def test_bad_input_is_refused_before_anything_starts(
    hotfire: Any, words: tuple[str, ...], named: str
) -> None:
    hotfire.script("pass")
    (hotfire.cwd / "src").mkdir()
    (hotfire.cwd / "broken.json").write_text('{"TrainingJobName": "x",\n "RoleArn" 3}')
    if named == "--input-mode":
        words = (*words, "--input-mode", "test=File")
    result = hotfire(*words)
    assert result.returncode == REFUSED, result.stderr
    assert named.lower() in result.stderr.lower()
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not list((hotfire.home / "jobs").glob("*")) if hotfire.home.exists() else True


def test_a_reader_that_leaves_does_not_end_the_job(hotfire: Any) -> None:
    hotfire.script(
        "for i in range(200000): print('line', i)\nopen('/opt/ml/model/w','w').write('w')"
    )
    process = hotfire.start("run", "train.py", "--name", "head")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == OK
    shown = hotfire("logs", "head").stdout
    assert shown.endswith("line 199999\n")


def test_jobs_are_listed_followed_and_deleted(hotfire: Any) -> None:
    hotfire.script("print('h\\u00e9llo')")
    for name in ("one", "two"):
        assert hotfire("run", "train.py", "--name", name, "--instance-count", "2").returncode == OK
    listed = json.loads(hotfire("ps", "--json").stdout)["TrainingJobSummaries"]
    assert [job["TrainingJobName"] for job in listed] == ["two", "one"]
    assert "two" in hotfire("ps").stdout
    assert "h\u00e9llo" in hotfire("logs", "-f", "one", "--host", "algo-2").stdout
    assert hotfire("logs", "one", "--host", "algo-9").returncode == REFUSED
    assert hotfire("delete", "--older-than", "1h").returncode == OK
    assert hotfire("delete", "--older-than", "0s", "one").returncode == OK
    assert json.loads(hotfire("ps", "--json").stdout) == {"TrainingJobSummaries": []}
    assert hotfire("describe", "one").returncode == REFUSED


def test_a_shell_in_a_live_host_and_in_a_fresh_one(hotfire: Any) -> None:
    (hotfire.cwd / "d").mkdir()
    (hotfire.cwd / "d" / "file").write_text("data")
    hotfire.script(
        "import time\nprint('training', flush=True)\nopen('/opt/ml/model/m','w')\ntime.sleep(60)"
    )
    process = hotfire.start("run", "train.py", "--name", "live", "--input", "train=d")
    assert process.stdout is not None
    while process.stdout.readline() != "training\n":
        assert process.poll() is None
    look = (
        "shell",
        "live",
        "--",
        "sh",
        "-c",
        "ls /opt/ml/model /opt/ml/input/data/train; uname -n",
    )
    inside = hotfire(*look)
    assert inside.returncode == OK, inside.stderr
    assert inside.stdout.split()[:1] != []
    assert "m\n" in inside.stdout
    assert "file\n" in inside.stdout
    assert "ip-10-" in inside.stdout
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    fresh = hotfire(*look)
    assert fresh.returncode == OK, fresh.stderr
    assert "m\n" not in fresh.stdout
    assert "file\n" in fresh.stdout
    assert hotfire("shell", "live", "--", "sh", "-c", "exit 7").returncode == 7
    assert [path.name for path in hotfire.home.iterdir()] == ["jobs"]


def test_two_jobs_at_once_do_not_meet(hotfire: Any) -> None:
    hotfire.script(TALK.format(port="119"))
    words = ("run", "train.py", "--instance-count", "2", "--output", "out")
    both = [hotfire.start(*words, "--name", f"job-{n}") for n in range(2)]
    for process in both:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == OK, stderr


def test_the_python_api(hotfire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hotfire import runtime

    monkeypatch.chdir(hotfire.cwd)
    hotfire.script("print('from python')")
    events: list[Any] = []
    described = runtime.run(
        {
            "TrainingJobName": "api",
            "RoleArn": "arn:aws:iam::000000000000:role/hotfire",
            "AlgorithmSpecification": {"TrainingImage": "hotfire", "TrainingInputMode": "File"},
            "HyperParameters": {
                "sagemaker_program": "train.py",
                "sagemaker_submit_directory": f"file://{hotfire.cwd}".replace(" ", "%20"),
            },
            "OutputDataConfig": {"S3OutputPath": f"file://{hotfire.cwd}/out".replace(" ", "%20")},
            "ResourceConfig": {"InstanceType": "local", "InstanceCount": 1, "VolumeSizeInGB": 1},
            "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        },
        observer=events.append,
        environ=hotfire.env,
    )
    assert described["TrainingJobStatus"] == "Completed"
    assert any(b"from python" in getattr(event, "data", b"") for event in events)
