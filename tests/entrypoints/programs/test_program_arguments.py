"""Hyperparameters as SageMaker passes them, and refusals that name what comes near."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotfire.entrypoints.programs import text_classification
from hotfire.entrypoints.programs.arguments import Parser


def parser(**environment: str) -> Parser:
    return text_classification.parser(environment)


def test_values_arrive_as_the_service_writes_them() -> None:
    """Contract 2.3: every hyperparameter is a string; the toolkit writes --name value."""
    words = "--bf16 True --num_train_epochs 3 --learning-rate 5e-05 --max_train_steps -1"
    args = parser().parse([*words.split(), "--per_device_train_batch_size", "8.0"])
    assert args.bf16 is True
    assert args.num_train_epochs == 3.0
    assert args.learning_rate == 5e-5
    assert args.max_train_steps == -1
    assert args.per_device_train_batch_size == 8


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--bf16"], True), (["--bf16", "False"], False), (["--bf16=0"], False), ([], False)],
)
def test_booleans_are_what_they_say(words: list[str], expected: bool) -> None:
    assert parser().parse(words).bf16 is expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning_rat", "1"], "unknown argument --learning_rat (near: --learning_rate)"),
        (["--epochs=3"], "unknown argument --epochs=3"),
        (["--bf16", "maybe"], "'maybe' is neither true nor false"),
        (["--per_device_train_batch_size", "0"], "'0' is below 1"),
        (["--max_length", "12.5"], "'12.5' is not a whole number"),
        (["--learning_rate", "-1"], "'-1' is not a number from 0 up"),
        (["--learning_rate", "nan"], "'nan' is not a number from 0 up"),
        (["--compiler", "tvm"], "invalid choice: 'tvm'"),
        (["stray"], "stray"),
    ],
)
def test_what_is_wrong_is_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parser().parse(words)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_paths_come_from_the_job(tmp_path: Path) -> None:
    args = parser(
        SM_CHANNEL_TRAIN="/opt/ml/input/data/train",
        SM_MODEL_DIR="/opt/ml/model",
        SM_OUTPUT_DATA_DIR="/opt/ml/output/data",
    ).parse([])
    assert args.train_dir == Path("/opt/ml/input/data/train")
    assert args.test_dir is None
    assert args.model_dir == Path("/opt/ml/model")
    assert args.output_data_dir == Path("/opt/ml/output/data")
    relocated = parser(SAGEMAKER_BASE_DIR=str(tmp_path)).parse([])
    assert relocated.checkpoint_dir == tmp_path / "checkpoints"


def test_no_training_data_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        text_classification.main(["--test_dir", "/nowhere"])
    assert exit_.value.code == 2
    assert "channel named train" in capsys.readouterr().err
