"""Rehearsals: every move is one the record allows, and the texts are the service's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotfire.runtime import request
from hotfire.runtime.errors import ResourceLimitExceeded
from hotfire.runtime.rehearse import Rehearsal, play
from hotfire.runtime.spec import TrainingJob
from hotfire.runtime.status import JobRecord, SecondaryStatus, utc_now


def job(**changes: Any) -> TrainingJob:
    raw: dict[str, Any] = {
        "TrainingJobName": "j",
        "RoleArn": "arn:aws:iam::123456789012:role/r",
        "AlgorithmSpecification": {"TrainingImage": "i", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://b/o"},
        "ResourceConfig": {
            "InstanceType": "ml.trn1.2xlarge",
            "InstanceCount": 2,
            "VolumeSizeInGB": 30,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "InputDataConfig": [
            {
                "ChannelName": "train",
                "DataSource": {
                    "S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/train"}
                },
            }
        ],
    }
    return replace(request.parse(raw, region="us-east-1"), **changes)


JOBS = [job(), job(enable_managed_spot_training=True), job(input_data_config=())]


@pytest.mark.parametrize("rehearsal", Rehearsal)
@pytest.mark.parametrize("one", JOBS, ids=["on demand", "spot", "no channels"])
def test_every_move_is_allowed_and_leads_to_the_outcome(
    rehearsal: Rehearsal, one: TrainingJob
) -> None:
    found = play(rehearsal, one)
    if found.refusal is not None:
        assert not found.steps and found.outcome is None
        return
    record = JobRecord(name="j", creation_time=utc_now())
    for step in found.steps:
        record = record.moved(step.status, step.message, utc_now())
    if found.outcome is None:
        assert record.secondary_status is SecondaryStatus.STARTING
        return
    assert not record.status.terminal
    assert record.moved(found.outcome.status, "", utc_now()).status.terminal
    assert len(found.outcome.failure_reason) <= 1024


def test_no_capacity_fails_on_demand_and_outwaits_spot() -> None:
    found = play(Rehearsal.CAPACITY, job())
    assert found.outcome is not None
    assert found.outcome.failure_reason.startswith(
        "CapacityError: Unable to provision requested ML compute capacity."
    )
    messages = [step.message for step in found.steps]
    assert (
        messages[2] == "Insufficient capacity error from EC2 while launching instances, retrying!"
    )
    spot = play(Rehearsal.CAPACITY, job(enable_managed_spot_training=True)).outcome
    assert spot is not None and spot.status is SecondaryStatus.MAX_WAIT_TIME_EXCEEDED
    assert spot.failure_reason == ""


def test_the_quota_names_the_type_and_the_request() -> None:
    found = play(Rehearsal.QUOTA, job()).refusal
    assert isinstance(found, ResourceLimitExceeded)
    assert found.what.startswith(
        "The account-level service limit 'ml.trn1.2xlarge for training job usage' is 0 Instances, with current "
        "utilization of 0 Instances and a request delta of 2 Instances."
    )
    spot = play(Rehearsal.QUOTA, job(enable_managed_spot_training=True)).refusal
    assert spot is not None and "'ml.trn1.2xlarge for spot training job usage'" in spot.what


def test_an_unhealthy_host_is_replaced_and_the_job_goes_on() -> None:
    found = play(Rehearsal.UNHEALTHY_HOST, job())
    assert found.outcome is None
    assert found.steps[-1].message == "Launched instance was unhealthy, replacing it!"


def test_a_download_error_names_the_data() -> None:
    found = play(Rehearsal.DOWNLOAD_ERROR, job())
    assert found.outcome is not None
    assert found.outcome.failure_reason.startswith("ClientError: Data download failed:")
    assert "s3://bucket/train" in found.outcome.failure_reason
    assert found.steps[-1].status is SecondaryStatus.DOWNLOADING
