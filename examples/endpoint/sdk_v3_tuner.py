"""SageMaker Python SDK 3, unchanged: a hyperparameter tuning job over a ModelTrainer, and its best training job.

Run it as `hotfire exec -- python examples/endpoint/sdk_v3_tuner.py`, while `hotfire serve` runs in another terminal.
"""

import tempfile
from pathlib import Path

import boto3
from sagemaker.core.helper.session_helper import Session, get_execution_role
from sagemaker.core.parameter import IntegerParameter
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.tuner import HyperparameterTuner

here = Path(__file__).parent
session = Session(boto3.Session())

with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "words.txt").write_text("ready\nsteady\ngo\n")
    bucket = session.default_bucket()
    train = session.upload_data(folder, bucket=bucket, key_prefix="example-tuner-v3/train")

tuner = HyperparameterTuner(
    ModelTrainer(
        training_image="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5.1-cpu-py311",
        source_code=SourceCode(source_dir=str(here / "src"), entry_script="train.py"),
        compute=Compute(instance_type="ml.m5.large", instance_count=1),
        hyperparameters={"greeting": "hello from v3"},
        role=get_execution_role(),
        sagemaker_session=session,
    ),
    objective_metric_name="loss",
    objective_type="Minimize",
    metric_definitions=[{"Name": "loss", "Regex": r"loss=([0-9.]+);"}],
    hyperparameter_ranges={"epochs": IntegerParameter(1, 4)},
    strategy="Random",
    max_jobs=3,
    max_parallel_jobs=2,
    base_tuning_job_name="example-v3",
)
tuner.tune([InputData(channel_name="train", data_source=train)])
job = tuner.describe()
print("status:", job.hyper_parameter_tuning_job_status, "best:", tuner.best_training_job())
assert job.training_job_status_counters.completed == 3
