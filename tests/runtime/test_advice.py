"""Advice: each line for its cause, and silence without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime import advice, request
from hotfire.runtime.advice import Facts
from hotfire.runtime.spec import TrainingJob

DATA = Path(__file__).parent / "data"

SCRIPT = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--shuffle", type=bool, default=True)
parser.add_argument("--epochs", type=int)
parser.add_argument("--lr", "--learning-rate", type=float)
parser.add_argument("--release")
parser.add_argument("--debug", type=lambda text: text == "True")
parser.add_argument("--output_dir", default=os.environ.get("OUT"))
print(os.environ["SM_CHANNEL_TRAIN"])
"""


def job(hyperparameters: dict[str, str] | None = None, **changes: Any) -> TrainingJob:
    name = "sdk_torch_distributed.json"
    raw = request.load_text((DATA / name).read_text(encoding="utf-8"), name)
    raw["HyperParameters"] = hyperparameters or {}
    raw["AlgorithmSpecification"]["TrainingImage"] = changes.pop("image", "hotfire")
    raw["InputDataConfig"] = [
        {**raw["InputDataConfig"][0], "ChannelName": name}
        for name in changes.pop("channels", ["train"])
    ]
    raw["ResourceConfig"] |= {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1}
    raw["ResourceConfig"] |= changes.pop("resources", {})
    return request.parse({**raw, **changes}, region="us-east-1")


def said(one: TrainingJob, **facts: Any) -> list[str]:
    return advice.advise(one, Facts(**facts))


ARGUMENTS = {
    "store_true": ({"fp16": "true"}, "'--fp16 True'", "action='store_true'"),
    "type bool": ({"shuffle": "false"}, "'--shuffle False'", "type=bool"),
    "type bool, text": ({"shuffle": '"False"'}, "'--shuffle False'", "type=bool"),
    "trailing zero": ({"release": "1.10"}, "arrives as 1.1", "-p release:=1.10"),
    "version without a script": ({"transformers_version": "4.10"}, "arrives as 4.1", ":="),
}


@pytest.mark.parametrize(("sent", "what", "why"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_bite(sent: dict[str, str], what: str, why: str) -> None:
    (line,) = said(job(sent), script=SCRIPT)
    assert what in line
    assert why in line


@pytest.mark.parametrize(
    "sent",
    [
        {"epochs": "3", "lr": "5e-5", "learning-rate": "0.10"},
        {"lr": "0.10"},
        {"shuffle": "true"},
        {"debug": "true"},
        {"release": '"1.10"'},
        {"release": "1.0"},
        {"unknown": "1.10"},
        {"unknown": "true"},
    ],
)
def test_arguments_that_do_not(sent: dict[str, str]) -> None:
    assert said(job(sent), script=SCRIPT) == []


@pytest.mark.parametrize("script", ["def broken(", "", "\0", "parser.add_argument()", "x" * 10])
def test_scripts_that_cannot_be_judged_are_not(script: str) -> None:
    assert said(job({"fp16": "true", "shuffle": "false"}), script=script) == []


def test_an_entry_point_of_its_own_gets_no_arguments() -> None:
    algorithm = {
        "TrainingImage": "hotfire",
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["sh"],
    }
    one = job({"fp16": "true", "x_version": "1.10"}, AlgorithmSpecification=algorithm)
    assert said(one, script=SCRIPT, whole_code=SCRIPT) == []


def test_secrets_that_would_be_written_down() -> None:
    one = job(
        {"hub_token": '"hunter2"', "pad_token": '"[PAD]"'}, Environment={"HF_TOKEN": "hunter2"}
    )
    in_environment, in_hyperparameters = said(one)
    assert "Environment HF_TOKEN" in in_environment and "--env HF_TOKEN" in in_environment
    assert "hub_token" in in_hyperparameters
    assert "hunter2" not in in_environment + in_hyperparameters


def test_channels_that_nothing_reads() -> None:
    two = job(channels=["train", "evaluation"])
    (line,) = said(two, whole_code=SCRIPT)
    assert "channel evaluation" in line and "SM_CHANNEL_EVALUATION" in line
    assert said(two) == []
    assert said(two, whole_code=SCRIPT + 'os.environ["SM_CHANNELS"]') == []
    assert said(two, whole_code=SCRIPT + 'Path("/opt/ml/input/data")') == []
    assert said(two, whole_code=SCRIPT + 'os.environ["SM_CHANNEL_EVALUATION"]') == []
    by_argument = job({"dir": '"/opt/ml/input/data/evaluation"'}, channels=["train", "evaluation"])
    assert said(by_argument, whole_code=SCRIPT) == []


def test_results_that_are_lost() -> None:
    (line,) = said(job({"output_dir": '"/tmp/out"'}), script=SCRIPT)
    assert "/tmp/out is lost" in line
    for kept in ("/opt/ml/model", "/opt/ml/output/data/x", "/opt/ml/checkpoints", "relative"):
        assert said(job({"output_dir": f'"{kept}"'}), script=SCRIPT) == []
    assert said(job({"output_dir": '"/tmp/out"'}), script=SCRIPT + "'SM_MODEL_DIR'") == []
    assert said(job({"output_dir": '"/tmp/out"'})) == []
    state = job(
        {"output_dir": '"/state"'}, CheckpointConfig={"S3Uri": "s3://b/c", "LocalPath": "/state"}
    )
    assert said(state, script=SCRIPT) == []


IMAGES = {
    "1.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1.0-cpu-py310-ubuntu20.04-sagemaker": {
        "torch": "2.1.0",
        "python": "3.10",
    },
    "1.dkr/huggingface-pytorch-training:2.1.0-transformers4.36.0-gpu-py310-cu121": {
        "torch": "2.1.0",
        "transformers": "4.36.0",
        "python": "3.10",
    },
    "1.dkr/huggingface-pytorch-trcomp-training:1.9.0-transformers4.11.0-gpu-py38-cu111": {
        "torch": "1.9.0",
        "transformers": "4.11.0",
        "python": "3.8",
    },
    "1.dkr/pytorch-training-neuronx:2.9.0-neuronx-py311-sdk2.29": {
        "torch": "2.9.0",
        "python": "3.11",
    },
    "1.dkr/pytorch-training:2.1": {"torch": "2.1"},
    "1.dkr/pytorch-training:latest": {},
    "1.dkr/pytorch-training@sha256:0123": {},
    "localhost:5000/mine:2.1.0-py38": {},
    "hotfire": {},
}


@pytest.mark.parametrize("image", IMAGES)
def test_versions_in_image_names(image: str) -> None:
    assert advice.image_versions(image) == IMAGES[image]


def test_versions_that_differ_from_the_images() -> None:
    one = job(image="1.dkr/huggingface-pytorch-training:2.1.0-transformers4.36.0-gpu-py310-cu121")
    here = {"torch": "2.9.1+cpu", "transformers": "4.36.2"}
    (line,) = said(one, versions=here, python="3.11.9")
    assert "torch 2.1.0, here 2.9.1+cpu" in line and "python 3.10, here 3.11.9" in line
    assert "transformers" not in line.partition("versions:")[2]
    assert said(one, versions={"torch": "2.1.2"}, python="3.10.1") == []
    assert said(one) == []


@pytest.mark.parametrize(
    ("kind", "count", "larger"),
    [
        ("ml.p3.2xlarge", 8, "ml.p3.16xlarge"),
        ("ml.g5.xlarge", 4, "ml.g5.12xlarge"),
        ("ml.trn1.2xlarge", 16, "ml.trn1.32xlarge"),
        ("ml.p3.2xlarge", 3, None),
        ("ml.p3.2xlarge", 1, None),
        ("ml.p3.16xlarge", 2, None),
        ("ml.trn1.2xlarge", 2, None),
        ("ml.m5.xlarge", 8, None),
        ("ml.g6.xlarge", 8, None),
        ("local", 8, None),
    ],
)
def test_many_small_hosts(kind: str, count: int, larger: str | None) -> None:
    lines = said(job(resources={"InstanceType": kind, "InstanceCount": count}))
    if larger is None:
        assert lines == []
    else:
        assert len(lines) == 1 and f"one {larger} has as many" in lines[0]
