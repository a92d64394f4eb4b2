"""Configuration files that are bad or missing, devices, hosts, a full disk."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from hotfire.entrypoints.train import hosts
from hotfire.entrypoints.train.talk import command_line, hidden
from hotfire.runtime.errors import DataError, ValidationError

SHOW = (
    "import json, os\nprint(json.dumps({k: v for k, v in os.environ.items() if k[:3] == 'SM_'}))\n"
)


def test_by_hand_it_says_what_is_missing_and_what_it_assumes(container: Any) -> None:
    container.write("train.py", SHOW)
    for channel in ("train", "test"):
        (container.ml / "input" / "data" / channel).mkdir(parents=True)
    container.env["SAGEMAKER_PROGRAM"] = "train.py"
    process = container.start()
    result = container.finish(process)
    assert result.code == 0
    env = json.loads(result.out)
    assert json.loads(env["SM_CHANNELS"]) == ["test", "train"]
    assert json.loads(env["SM_HOSTS"]) == ["algo-1"]
    assert result.talk[0] == (
        f"inputdataconfig.json, resourceconfig.json are not in {container.config}: "
        "assuming channels test, train; one host, algo-1"
    )
    assert (container.ml / "model").is_dir()


def test_complete_files_are_not_talked_about(container: Any) -> None:
    container.write("train.py", "")
    container.configure(sagemaker_program="train.py")
    container.hosts("algo-1")
    (container.config / "inputdataconfig.json").write_text("{}")
    assert not any("assuming" in line for line in container.run().talk)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("inputdataconfig.json", '{"train": {"a" 1}}', "is not JSON: line 1 column 16"),
        ("inputdataconfig.json", "{\n  'a': 1\n}", "is not JSON: line 2 column 3"),
        ("inputdataconfig.json", "[]", "holds a JSON array where an object belongs"),
        ("resourceconfig.json", "", "is not JSON: line 1 column 1"),
        ("resourceconfig.json", "{}", "hosts must be a list of host names"),
        (
            "resourceconfig.json",
            '{"hosts": ["algo-1"], "current_host": "algo-2"}',
            "current_host 'algo-2' is not one of hosts ['algo-1']",
        ),
        (
            "resourceconfig.json",
            '{"hosts": ["a"], "current_host": "a", "instance_groups": [{}]}',
            "every member of instance_groups needs",
        ),
    ],
)
def test_a_bad_file_is_named_with_line_and_column(
    container: Any, name: str, text: str, reason: str
) -> None:
    container.write("train.py", "print('ran')\n")
    container.configure(sagemaker_program="train.py")
    (container.config / name).write_text(text)
    result = container.run()
    assert (result.code, result.out) == (1, "")
    assert str(container.config / name) in result.failure
    assert reason in result.failure


def test_bytes_that_are_no_text_are_named(container: Any) -> None:
    (container.config / "resourceconfig.json").write_bytes(b'{"a": "\xff"}')
    assert "not UTF-8 text at byte 7" in container.run().failure


def stand_in(container: Any, tool: str, script: str) -> None:
    path = container.root / "bin" / tool
    path.write_text(f"#!/bin/sh\necho {tool} >> {container.root}/asked\n{script}\n")
    path.chmod(0o755)


def test_emulated_devices_are_counted_once_and_announced(container: Any) -> None:
    container.write("train.py", SHOW)
    stand_in(container, "neuron-ls", """echo '[{"neuron_device": 0, "nc_count": 2}]'""")
    stand_in(container, "nvidia-smi", "exit 9")
    container.hosts("algo-1", current_instance_type="ml.trn1.2xlarge")
    container.env["HOTFIRE_DEVICE"] = "cpu"
    result = container.run()
    env = json.loads(result.out)
    assert (env["SM_NUM_NEURONS"], env["SM_NUM_GPUS"]) == ("2", "0")
    assert any("2 NeuronCores, emulated on the CPU" in line for line in result.talk)
    assert "1 of 2 NeuronCores used: no distribution asked for" in result.talk
    assert sorted((container.root / "asked").read_text().split()) == ["neuron-ls", "nvidia-smi"]


@pytest.mark.parametrize("said", ["echo not json", "echo '{}'", "echo '[1]'", "exit 1", "true"])
def test_a_device_tool_that_babbles_fails_nothing(container: Any, said: str) -> None:
    container.write("train.py", SHOW)
    stand_in(container, "neuron-ls", said)
    result = container.run()
    assert result.code == 0
    assert json.loads(result.out)["SM_NUM_NEURONS"] == "0"


def test_gpus_are_counted_by_line(container: Any) -> None:
    container.write("train.py", SHOW)
    stand_in(container, "nvidia-smi", "echo 'GPU 0: T4'; echo 'GPU 1: T4'; echo '  MIG x'")
    assert json.loads(container.run().out)["SM_NUM_GPUS"] == "2"


def test_xla_is_chosen_on_an_emulated_neuron_host(container: Any) -> None:
    container.write(
        "train.py", "import os; print(os.environ['PJRT_DEVICE'], os.environ.get('USE_TORCH_XLA'))\n"
    )
    container.hosts("algo-1", current_instance_type="ml.trn1.2xlarge")
    container.env["HOTFIRE_DEVICE"] = "cpu"
    assert container.run().out == "CPU None\n"


@pytest.mark.parametrize(("device", "found"), [("gpu", "['GPU']"), ("cpu", "[]")])
def test_the_cuda_plugin_is_registered_for_workers_on_gpus_alone(
    container: Any, device: str, found: str
) -> None:
    container.write(
        "train.py",
        "from importlib.metadata import entry_points\n"
        "print([one.name for one in entry_points(group='torch_xla.plugins') if 'hotfire' in one.value])\n",
    )
    container.env |= {"HOTFIRE_DEVICE": device, "HOTFIRE_COMPILER": "xla"}
    assert container.run().out == f"{found}\n"


@pytest.mark.parametrize("installed", [True, False])
def test_inductor_needs_a_compiler_of_c(container: Any, installed: bool) -> None:
    names = ("ACCELERATE_DYNAMO_BACKEND", "USE_TORCH_XLA", "TORCHINDUCTOR_CACHE_DIR")
    container.write("train.py", f"import os; print([os.environ[n] for n in {names}])\n")
    compiler = container.root / "bin" / "compiler"
    if installed:
        stand_in(container, "compiler", "exit 1")
    container.env |= {
        "HOTFIRE_COMPILER": "inductor",
        "CXX": str(compiler),
        "HOTFIRE_CACHE": str(container.root / "cache"),
    }
    result = container.run()
    if installed:
        assert eval(result.out) == ["inductor", "0", f"{container.root}/cache/compile/inductor"]
    else:
        assert result.code != 0
        assert f"{compiler} is not installed here" in result.failure
        assert "apt-get install g++" in result.err


def test_the_training_compilers_configuration_is_honoured(container: Any) -> None:
    names = ("HOTFIRE_COMPILER", "HOTFIRE_COMPILER_DEBUG", "PJRT_DEVICE")
    container.write("train.py", f"import os; print([os.environ.get(n) for n in {names}])\n")
    container.configure(
        sagemaker_training_compiler_enabled="true", sagemaker_training_compiler_debug_mode="true"
    )
    assert container.run().out == "['xla', '1', 'CPU']\n"


@pytest.mark.parametrize(
    ("variables", "checkpoints", "kept"),
    [
        ({}, False, None),
        ({}, True, "checkpoints/.compile-cache"),
        ({"HOTFIRE_CACHE": "/cache"}, True, "/cache/compile"),
        ({"HOTFIRE_COMPILE_CACHE": "/mine", "HOTFIRE_CACHE": "/cache"}, True, "/mine"),
    ],
)
def test_what_was_compiled_is_kept_where_something_outlives_the_job(
    container: Any, variables: dict[str, str], checkpoints: bool, kept: str | None
) -> None:
    container.write("train.py", "import os; print(os.environ.get('HOTFIRE_COMPILE_CACHE'))\n")
    container.env |= variables
    if checkpoints:
        directory = container.ml / "checkpoints"
        (container.config / "checkpointconfig.json").write_text(
            json.dumps({"LocalPath": str(directory)})
        )
    expected = str(container.ml / kept) if kept else str(kept)
    assert container.run().out == f"{expected}\n"


def test_a_distribution_that_is_not_run_is_refused_before_anything_else(container: Any) -> None:
    container.configure(
        sagemaker_program="train.py",
        sagemaker_submit_directory="s3://bucket/never-asked-for.tar.gz",
        sagemaker_mpi_enabled=True,
    )
    result = container.run()
    assert result.code == 1
    assert result.failure.startswith("The mpi distribution is not supported yet")
    assert "torch_distributed" in result.failure


def test_hosts_given_are_not_looked_up() -> None:
    given = {"HOTFIRE_HOSTS": '{"algo-1": "127.77.0.1", "algo-2": "127.77.0.2"}'}
    assert hosts.addresses(["algo-1", "algo-2"], given) == json.loads(given["HOTFIRE_HOSTS"])
    with pytest.raises(ValidationError, match="no address for host 'algo-3'"):
        hosts.addresses(["algo-3"], given)
    with pytest.raises(ValidationError, match="not a JSON object"):
        hosts.addresses(["algo-1"], {"HOTFIRE_HOSTS": "algo-1=1.2.3.4"})


def test_a_host_that_never_comes_is_named_after_the_deadline() -> None:
    with pytest.raises(DataError, match=r"Host nowhere\.invalid of this job cannot be found"):
        hosts.addresses(["localhost", "nowhere.invalid"], {}, deadline=0.3)


def test_hosts_become_addresses() -> None:
    found = hosts.addresses(["localhost", "127.0.0.9"], {})
    assert found == {"localhost": "127.0.0.1", "127.0.0.9": "127.0.0.9"}
    assert hosts.addresses(["alone.invalid"], {}) == {"alone.invalid": "127.0.0.1"}


@pytest.mark.parametrize("prepared", [True, False])
def test_a_full_disk_ends_the_job_with_the_right_code(container: Any, prepared: bool) -> None:
    """A file system of a few pages as the output directory: the failure file itself cannot be written."""
    container.write(
        "train.py",
        "import os\nfrom pathlib import Path\n"
        "for n in range(100): Path(os.environ['SM_OUTPUT_DATA_DIR'], str(n)).write_bytes(b'x' * 4096)\n",
    )
    container.configure(sagemaker_program="train.py")
    output = container.ml / "output"
    output.mkdir()
    (output / "data").mkdir()
    full = "" if prepared else f"head -c 1M /dev/zero > {output}/filler; "
    script = f'mount -t tmpfs -o size=64k none {output}; {full}"$@"; code=$?; ls -s {output} >&2; exit $code'
    container.prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    try:
        subprocess.run([*container.prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine refuses mount namespaces: {error}")
    result = container.run()
    assert result.code == 1
    assert "No space left on device" in result.err
    assert not [line for line in result.err.splitlines() if line.split()[-1:] == ["failure"]]
    assert any("output/failure cannot be written: No space left" in line for line in result.talk)


def test_an_output_directory_that_cannot_be_made_is_named(container: Any) -> None:
    container.write("train.py", "")
    (container.ml / "output").write_text("a file where a directory belongs")
    result = container.run()
    assert result.code == 1
    assert "output" in result.err


def test_command_lines_are_shown_without_secrets() -> None:
    shown = command_line(
        ["train.py", "--hf_token", "x1", "--password=y2", "--n", "1", "--url", "https://a:b3@h/"]
    )
    assert shown == (
        "train.py --hf_token '******' '--password=******' --n 1 --url 'https://******@h/'"
    )


@pytest.mark.parametrize(
    "text",
    [
        "key AKIAIOSFODNN7EXAMPLE here",
        "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG",
        "{'SecretAccessKey': 'wJalrXUtnFEMI/K7MDENG'}",
        "token hf_abcdefghijklmnopqrstuvwxyz0123456789",
        "index https://user:pw99@pypi.example/simple",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    shown = hidden(text)
    assert "******" in shown
    for secret in ("IOSFODNN7", "wJalr", "hf_abc", "pw99"):
        assert secret not in shown
