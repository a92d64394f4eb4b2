"""The job store: names, whole files, locks, and the truth about jobs whose supervisor has gone."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from hotfire.runtime.errors import PlatformError, ResourceInUse, ResourceNotFound, ValidationError
from hotfire.runtime.spec import (
    AlgorithmSpecification,
    InstanceGroup,
    OutputDataConfig,
    ResourceConfig,
    TrainingJob,
)
from hotfire.runtime.status import SecondaryStatus, TrainingJobStatus, utc_now
from hotfire.runtime.store import JobLock, Store, read_record, write_json, write_record


def job(name: str = "first") -> TrainingJob:
    group = InstanceGroup(
        instance_group_name="g", instance_type="local", instance_count=1, hosts=("algo-1",)
    )
    return TrainingJob(
        training_job_name=name,
        role_arn="arn:aws:iam::000000000000:role/hotfire",
        region="us-east-1",
        algorithm_specification=AlgorithmSpecification(training_image="hotfire"),
        output_data_config=OutputDataConfig(s3_output_path="file:///out"),
        resource_config=ResourceConfig(instance_groups=(group,)),
        request={"TrainingJobName": name},
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home with spaces é")


def test_a_name_is_free_or_belongs_to_a_whole_job(store: Store) -> None:
    job_dir, lock = store.create(job(), {}, utc_now())
    with pytest.raises(ResourceInUse, match="already exists"):
        store.create(job(), {}, utc_now())
    lock.close()
    assert store.names() == ["first"]
    assert [path.name for path in store.jobs.iterdir()] == ["first"]
    assert json.loads(job_dir.request.read_text()) == {"TrainingJobName": "first"}


def test_of_many_that_want_one_name_one_gets_it(store: Store) -> None:
    won: list[JobLock] = []
    barrier = threading.Barrier(8)

    def contend() -> None:
        barrier.wait()
        with contextlib.suppress(ResourceInUse):
            won.append(store.create(job(), {}, utc_now())[1])

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    won[0].close()
    assert [path.name for path in store.jobs.iterdir()] == ["first"]


def test_a_job_whose_supervisor_was_killed_is_failed(store: Store, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from hotfire.runtime.store import JobLock\n"
        "lock = JobLock.take(Path(sys.argv[1]))\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    job_dir, lock = store.create(job(), {}, utc_now())
    lock.close()
    with subprocess.Popen(
        [sys.executable, "-c", code, job_dir.lock],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "build" / "view")},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert store.record("first").status is TrainingJobStatus.IN_PROGRESS
        with pytest.raises(ResourceInUse), store.removing("first"):
            pass
        holder.kill()
        holder.wait()
        record = store.record("first")
    assert record.secondary_status is SecondaryStatus.FAILED
    assert record.failure_reason.startswith("InternalServerError: ")
    assert read_record(job_dir) == record


def test_deleting_frees_the_name_even_without_permissions(store: Store) -> None:
    job_dir, lock = store.create(job(), {}, utc_now())
    lock.close()
    store.record("first")
    locked = job_dir.root / "attempts" / "1" / "algo-1" / "ml" / "model"
    locked.mkdir(parents=True)
    (locked / "file").write_text("x")
    locked.chmod(0)
    with store.removing("first"):
        pass
    assert list(store.jobs.iterdir()) == []
    with pytest.raises(ResourceNotFound):
        store.open("first")


@pytest.mark.parametrize("name", ["", ".", "..", "../first", "a/b", "missing"])
def test_odd_names_are_not_found(store: Store, name: str) -> None:
    store.create(job(), {}, utc_now())[1].close()
    with pytest.raises(ResourceNotFound):
        store.open(name)


def test_a_broken_record_is_named(store: Store) -> None:
    job_dir, lock = store.create(job(), {}, utc_now())
    lock.close()
    job_dir.record.write_text('{"name": "fi')
    with pytest.raises(PlatformError, match="cannot be read"):
        store.record("first")


def test_a_store_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ValidationError, match="cannot be written"):
        Store(blocked).create(job(), {}, utc_now())


def test_sweeping_leaves_jobs_and_what_is_being_made(store: Store) -> None:
    store.create(job(), {}, utc_now())[1].close()
    (store.jobs / ".gone-1-old" / "attempts").mkdir(parents=True)
    (store.jobs / ".new-left").mkdir()
    os.utime(store.jobs / ".new-left", (0, 0))
    (store.jobs / ".new-a-moment-ago").mkdir()
    making = store.jobs / ".new-made"
    making.mkdir()
    os.utime(making, (0, 0))
    held = JobLock.take(making / "lock")
    assert held is not None
    store.sweep()
    assert sorted(path.name for path in store.jobs.iterdir()) == [
        ".new-a-moment-ago",
        ".new-made",
        "first",
    ]
    held.close()


def test_json_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]
    assert path.stat().st_mode & 0o077 == 0


def test_a_lost_job_is_resumed_as_often_as_its_retry_strategy_says(tmp_path: Path) -> None:
    resumed: list[str] = []
    store = Store(tmp_path, resume=lambda job_dir, lock: resumed.append(job_dir.name))
    made = replace(
        job(),
        request={"TrainingJobName": "first", "RetryStrategy": {"MaximumRetryAttempts": 1}},
    )
    job_dir, lock = store.create(made, {}, utc_now())
    lock.close()
    assert store.record("first").secondary_status is SecondaryStatus.RESTARTING
    assert resumed == ["first"]
    again = read_record(job_dir).moved(SecondaryStatus.STARTING, "", utc_now())
    write_record(job_dir, again)
    ended = store.record("first")
    assert (ended.status, resumed) == (TrainingJobStatus.FAILED, ["first"])
    assert ended.failure_reason.startswith("InternalServerError")


@pytest.mark.parametrize("tries", [0, 1])
def test_the_time_until_a_lost_job_is_missed_is_no_training_time(
    tmp_path: Path, tries: int
) -> None:
    store = Store(tmp_path, resume=lambda job_dir, lock: None)
    request = {"TrainingJobName": "first", "RetryStrategy": {"MaximumRetryAttempts": tries}}
    began = utc_now() - timedelta(hours=9)
    job_dir, lock = store.create(replace(job(), request=request), {}, began)
    found = read_record(job_dir).moved(SecondaryStatus.TRAINING, "", began)
    write_record(job_dir, replace(found, training_start_time=began))
    samples = job_dir.host(1, "algo-1").samples
    samples.parent.mkdir(parents=True)
    samples.touch()
    for seconds, path in ((10, job_dir.record), (600, samples)):
        os.utime(path, (began.timestamp() + seconds,) * 2)
    lock.close()
    lost = store.record("first")
    assert lost.spent_seconds == pytest.approx(600, abs=1)
    if not tries:
        assert (lost.status, lost.training_seconds) == (TrainingJobStatus.FAILED, 600)


def test_a_job_that_was_lost_while_it_stopped_is_not_resumed(tmp_path: Path) -> None:
    store = Store(tmp_path, resume=lambda job_dir, lock: pytest.fail("resumed"))
    made = replace(job(), request={"RetryStrategy": {"MaximumRetryAttempts": 9}})
    job_dir, lock = store.create(made, {}, utc_now())
    write_record(job_dir, read_record(job_dir).moved(SecondaryStatus.STOPPING, "", utc_now()))
    lock.close()
    assert store.record("first").status is TrainingJobStatus.FAILED
