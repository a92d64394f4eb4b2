"""SageMaker Python SDK 3, unchanged: ModelTrainer with a source directory, logs, the finished job.

Run it as `hotfire exec -- python examples/endpoint/sdk_v3.py`, while `hotfire serve` runs in another terminal.
"""

import logging
import tempfile
from pathlib import Path

import boto3
from sagemaker.core.helper.session_helper import Session, get_execution_role
from sagemaker.core.resources import TrainingJob
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode

logging.basicConfig(level=logging.INFO, format="%(message)s")  # the SDK shows the job's log there
here = Path(__file__).parent
session = Session(boto3.Session())
role = get_execution_role()
bucket = session.default_bucket()
print("role:", role, "bucket:", bucket)

with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "words.txt").write_text("ready\nsteady\ngo\n")
    train = session.upload_data(folder, bucket=bucket, key_prefix="example-v3/train")

trainer = ModelTrainer(
    training_image="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5.1-cpu-py311",
    source_code=SourceCode(source_dir=str(here / "src"), entry_script="train.py"),
    compute=Compute(instance_type="ml.m5.large", instance_count=1),
    hyperparameters={"epochs": 2, "greeting": "hello from v3"},
    role=role,
    sagemaker_session=session,
    base_job_name="example-v3",
)
trainer.train(input_data_config=[InputData(channel_name="train", data_source=train)])

name = trainer._latest_training_job.training_job_name
job = TrainingJob.get(training_job_name=name)
print("status:", job.training_job_status, "model:", job.model_artifacts.s3_model_artifacts)
assert job.training_job_status == "Completed"
assert name in [one.training_job_name for one in TrainingJob.get_all()]
