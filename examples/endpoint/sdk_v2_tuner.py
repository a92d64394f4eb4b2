"""SageMaker Python SDK 2, unchanged: a hyperparameter tuning job, its analytics, its best model.

Run it as `hotfire exec -- python examples/endpoint/sdk_v2_tuner.py`, while `hotfire serve` runs in another terminal.
"""

import tempfile
from pathlib import Path

import sagemaker
from sagemaker.pytorch import PyTorch
from sagemaker.tuner import CategoricalParameter, HyperparameterTuner, IntegerParameter

here = Path(__file__).parent
session = sagemaker.Session()

with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "words.txt").write_text("ready\nsteady\ngo\n")
    train = session.upload_data(folder, key_prefix="example-tuner/train")

estimator = PyTorch(
    entry_point="train.py",
    source_dir=str(here / "src"),
    role=sagemaker.get_execution_role(),
    framework_version="2.1",
    py_version="py310",
    instance_type="ml.m5.large",
    instance_count=1,
    sagemaker_session=session,
)
tuner = HyperparameterTuner(
    estimator,
    objective_metric_name="loss",
    objective_type="Minimize",
    metric_definitions=[{"Name": "loss", "Regex": r"loss=([0-9.]+);"}],
    hyperparameter_ranges={
        "epochs": IntegerParameter(1, 4),
        "greeting": CategoricalParameter(["hello", "good morning"]),
    },
    max_jobs=6,
    max_parallel_jobs=2,
    early_stopping_type="Auto",
    base_tuning_job_name="example",
)
tuner.fit({"train": train})
name = tuner.latest_tuning_job.name

frame = sagemaker.HyperparameterTuningJobAnalytics(name, sagemaker_session=session).dataframe()
print(frame[["TrainingJobName", "TrainingJobStatus", "FinalObjectiveValue", "epochs", "greeting"]])
assert len(frame) == 6
assert frame["FinalObjectiveValue"].min() == min(
    frame[frame["TrainingJobStatus"] == "Completed"]["FinalObjectiveValue"]
)

again = HyperparameterTuner.attach(name, sagemaker_session=session)
best = again.best_estimator()
print("best:", again.best_training_job(), best.hyperparameters()["epochs"], best.model_data)
