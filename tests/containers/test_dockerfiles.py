"""Both Dockerfiles, unmodified, built against the stub world, then inspected, started and stopped."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.containers.conftest import World

pytestmark = [pytest.mark.docker, pytest.mark.slow]
GPU, NEURON, EFA = "hotfire-test/gpu", "hotfire-test/neuron", "hotfire-test/neuron:efa"


@pytest.fixture(scope="module")
def gpu(world: World) -> Iterator[str]:
    done = world.build(GPU, "Dockerfile.gpu", VERSION="1.2", REVISION="abc")
    assert done.returncode == 0, done.stderr[-3000:]
    yield GPU
    world.call("rmi", "-f", GPU)


@pytest.fixture(scope="module")
def neuron(world: World) -> Iterator[str]:
    done = world.build(NEURON, "Dockerfile.neuron")
    assert done.returncode == 0, done.stderr[-3000:]
    yield NEURON
    world.call("rmi", "-f", NEURON)


@pytest.fixture(params=["gpu", "neuron"])
def image(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def inspected(world: World, image: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.call("image", "inspect", image).stdout)[0]
    return found


def test_what_an_image_says_about_itself(world: World, image: str) -> None:
    config = inspected(world, image)["Config"]
    assert config["Entrypoint"] == ["/usr/local/bin/train"]
    assert config["WorkingDir"] == "/"
    assert config["User"] == ""
    family = image.rpartition("/")[2]
    assert config["Labels"]["hotfire.profile"] == family
    assert config["Labels"]["org.opencontainers.image.title"] == f"hotfire-{family}"
    names = {pair.partition("=")[0] for pair in config["Env"]}
    assert not any(
        name.startswith(("NEURON_", "FI_", "MALLOC_", "XLA_", "PJRT_")) for name in names
    )


def test_no_build_secret_or_cache_is_in_a_layer(world: World, image: str) -> None:
    script = "ls -A /run/secrets /root/.cache/pip /locks 2>/dev/null; ls /opt/ml 2>/dev/null; true"
    done = world.call("run", "--rm", "--entrypoint", "sh", image, "-c", script)
    assert (done.returncode, done.stdout) == (0, "")


def test_train_is_ours_and_the_toolkit_can_be_imported(world: World, image: str) -> None:
    script = "readlink -f $(command -v train); python3 -c 'import sagemaker_training, torch, hotfire.runtime; print(torch.__version__)'"
    done = world.call("run", "--rm", "--entrypoint", "sh", image, "-c", script)
    assert done.stdout.split() == ["/usr/local/bin/train", "2.9.1"], done.stderr


def test_without_the_word_train_it_says_how(world: World, image: str) -> None:
    done = world.call("run", "--rm", image)
    assert done.returncode == 2
    assert "docker run IMAGE train" in done.stdout + done.stderr


def folder(tmp_path: Path, script: str) -> Path:
    code = tmp_path / "ml" / "code"
    code.mkdir(parents=True)
    (code / "train.py").write_text(script)
    return tmp_path / "ml"


@pytest.mark.parametrize("init", [True, False])
def test_by_hand_with_no_config_file_at_all(
    world: World, image: str, tmp_path: Path, init: bool
) -> None:
    ml = folder(
        tmp_path, "import os; print('script', os.environ['SM_MODEL_DIR'], os.environ['SM_HOSTS'])\n"
    )
    flags = ["--init"] if init else []
    done = world.call("run", "--rm", *flags, "-v", f"{ml}:/opt/ml", image, "train")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "hyperparameters.json" in said and "assuming" in said
    assert 'script /opt/ml/model ["algo-1"]' in said


def test_an_exit_code_and_its_reason(world: World, image: str, tmp_path: Path) -> None:
    ml = folder(tmp_path, "import sys; sys.exit(42)\n")
    done = world.call("run", "--rm", "-v", f"{ml}:/opt/ml", image, "train")
    assert done.returncode == 42
    assert (ml / "output" / "failure").read_text()


_SAVING = """
import signal, sys, time
def save(number, frame):
    print("saving", flush=True)
    time.sleep(45)
    open("/opt/ml/model/checkpoint", "w").write("whole")
    print("saved", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, save)
open("/opt/ml/model/up", "w").close()
while True: time.sleep(0.1)
"""


def test_a_long_checkpoint_is_finished_after_docker_stop(
    world: World, gpu: str, tmp_path: Path
) -> None:
    """With and without an init program, at the same time: 45 seconds are 45 seconds."""
    started = {}
    for flags in ("--init", "--log-driver=json-file"):
        ml = folder(tmp_path / flags, _SAVING)
        done = world.call("run", "-d", flags, "-v", f"{ml}:/opt/ml", gpu, "train")
        assert done.returncode == 0, done.stderr
        started[done.stdout.strip()] = ml
    try:
        for ml in started.values():
            end = time.monotonic() + 60
            while not (ml / "model" / "up").exists():
                assert time.monotonic() < end
                time.sleep(0.1)
        argv = [world.docker, "stop", "-t", "120", *started]
        stopping = [
            subprocess.Popen([*argv[:4], one], env=world.environ, stdout=subprocess.DEVNULL)
            for one in started
        ]
        assert [process.wait(110) for process in stopping] == [0, 0]
        for container, ml in started.items():
            code = world.call("inspect", "-f", "{{.State.ExitCode}}", container).stdout.strip()
            assert (code, (ml / "model" / "checkpoint").read_text()) == ("5", "whole")
    finally:
        world.call("rm", "-f", *started)


def test_neuron_finds_its_cores_and_has_no_efa_unasked(
    world: World, neuron: str, tmp_path: Path
) -> None:
    ml = folder(tmp_path, "import os; print('cores', os.environ['SM_NUM_NEURONS'])\n")
    done = world.call("run", "--rm", "-v", f"{ml}:/opt/ml", neuron, "train")
    assert "cores 2" in done.stdout, done.stdout + done.stderr
    script = "ls /opt/amazon 2>/dev/null; ls /opt/aws/neuron/lib; echo $LD_LIBRARY_PATH"
    done = world.call("run", "--rm", "--entrypoint", "sh", neuron, "-c", script)
    assert "efa" not in done.stdout.splitlines()
    assert "aws-neuronx-runtime-lib.so" in done.stdout


def test_efa_is_installed_when_asked_for(world: World) -> None:
    done = world.build(EFA, "Dockerfile.neuron", WITH_EFA="1")
    assert done.returncode == 0, done.stderr[-3000:]
    done = world.call("run", "--rm", "--entrypoint", "cat", EFA, "/opt/amazon/efa/bin/fi_info")
    world.call("rmi", "-f", EFA)
    assert done.stdout == "-y --skip-kmod --skip-limit-conf --no-verify\n"


def test_a_changed_efa_archive_is_not_unpacked(world: World) -> None:
    archive = world.files / "efa" / "aws-efa-installer-1.47.0.tar.gz"
    original = archive.read_bytes()
    archive.write_bytes(original + b"\0")
    try:
        # Another version of nothing, so that the layer that was verified before is not taken from the cache.
        done = world.build(EFA, "Dockerfile.neuron", WITH_EFA="1", EFA_URL=f"{world.url}/./efa")
    finally:
        archive.write_bytes(original)
    assert done.returncode != 0
    assert "BAD signature" in done.stderr


def test_another_key_than_the_expected_is_refused(world: World) -> None:
    done = world.build("hotfire-test/no", "Dockerfile.neuron", NEURON_KEY_FINGERPRINT="0" * 40)
    assert done.returncode != 0


def test_a_wheel_that_is_not_the_locked_one_is_refused(world: World) -> None:
    lock = world.context / ".ci" / "locks" / "gpu.txt"
    original = lock.read_text()
    lock.write_text(original.replace("sha256:", "sha256:0").replace("0\n", "\n"))
    lines = [line[: line.index("sha256:") + 7] + "0" * 64 for line in original.splitlines()]
    lock.write_text("\n".join(lines) + "\n")
    try:
        done = world.build("hotfire-test/no", "Dockerfile.gpu")
    finally:
        lock.write_text(original)
    assert done.returncode != 0
    assert "HASH" in done.stderr.upper()


def test_the_inductor_variant_has_no_torch_xla(world: World) -> None:
    done = world.build("hotfire-test/gpu:inductor", "Dockerfile.gpu", PROFILE="gpu-inductor")
    assert done.returncode == 0, done.stderr[-3000:]
    words = (
        "--entrypoint",
        "python3",
        "hotfire-test/gpu:inductor",
        "-c",
        "import torch, torch_xla",
    )
    done = world.call("run", "--rm", *words)
    labels = inspected(world, "hotfire-test/gpu:inductor")["Config"]["Labels"]
    world.call("rmi", "-f", "hotfire-test/gpu:inductor")
    assert done.returncode == 1 and "No module named 'torch_xla'" in done.stderr
    assert labels["hotfire.profile"] == "gpu-inductor"
