"""SageMaker Python SDK 2, unchanged: upload, fit with logs, metrics, attach, download.

Run it as `hotfire exec -- python examples/endpoint/sdk_v2.py`, while `hotfire serve` runs in another terminal.
"""

import tarfile
import tempfile
from pathlib import Path

import sagemaker
from sagemaker.pytorch import PyTorch
from sagemaker.s3 import S3Downloader

here = Path(__file__).parent
session = sagemaker.Session()
role = sagemaker.get_execution_role()
print("role:", role, "bucket:", session.default_bucket())

with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "words.txt").write_text("ready\nsteady\ngo\n")
    train = session.upload_data(folder, key_prefix="example-v2/train")

estimator = PyTorch(
    entry_point="train.py",
    source_dir=str(here / "src"),
    role=role,
    framework_version="2.1",
    py_version="py310",
    instance_type="ml.m5.large",
    instance_count=1,
    hyperparameters={"epochs": 3, "greeting": "hello from v2"},
    metric_definitions=[{"Name": "loss", "Regex": r"loss=([0-9.]+);"}],
    sagemaker_session=session,
    base_job_name="example-v2",
)
estimator.fit({"train": train})
print("model:", estimator.model_data)

again = PyTorch.attach(estimator.latest_training_job.name, sagemaker_session=session)
assert again.model_data == estimator.model_data
frame = estimator.training_job_analytics.dataframe()
print(frame)
assert set(frame["metric_name"]) == {"loss"}

with tempfile.TemporaryDirectory() as folder:
    S3Downloader.download(estimator.model_data, folder, sagemaker_session=session)
    with tarfile.open(Path(folder) / "model.tar.gz") as archive:
        text = archive.extractfile("weights.txt").read().decode()
print("weights:", text.strip())
