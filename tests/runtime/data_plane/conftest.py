"""Channels on real directories, FIFOs and a real S3 server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.channels import ChannelInput, Feeds, materialise, plan_inputs
from hotfire.runtime.data_settings import DataSettings
from hotfire.runtime.events import ignore
from hotfire.runtime.layout import HostDir
from hotfire.runtime.spec import (
    AlgorithmSpecification,
    Channel,
    Distribution,
    InputMode,
    InstanceGroup,
    OutputDataConfig,
    ResourceConfig,
    S3DataSource,
    TrainingJob,
)
from hotfire.runtime.storage import Locations


def _job(channels: tuple[Channel, ...], hosts: int) -> TrainingJob:
    group = InstanceGroup(
        instance_group_name="homogeneousCluster",
        instance_type="ml.m5.large",
        instance_count=hosts,
        hosts=tuple(f"algo-{n + 1}" for n in range(hosts)),
    )
    return TrainingJob(
        training_job_name="job",
        role_arn="arn:aws:iam::000000000000:role/hotfire",
        region="us-east-1",
        algorithm_specification=AlgorithmSpecification(training_image="hotfire"),
        output_data_config=OutputDataConfig(s3_output_path="file:///tmp/out"),
        resource_config=ResourceConfig(instance_groups=(group,)),
        input_data_config=channels,
    )


def _channel(uri: str, mode: str, name: str, sharded: bool, fields: dict[str, Any]) -> Channel:
    source = {key: fields.pop(key) for key in ("s3_data_type", "attribute_names") if key in fields}
    kind = Distribution.SHARDED_BY_S3_KEY if sharded else Distribution.FULLY_REPLICATED
    return Channel(
        channel_name=name,
        data_source=S3DataSource(s3_uri=uri, s3_data_distribution_type=kind, **source),
        input_mode=InputMode(mode),
        **fields,
    )


@dataclass
class Plane:
    """Plans one channel and brings it to hosts below ``root``; the hosts' data directories are real ones."""

    root: Path

    def plan(
        self,
        uri: str,
        mode: str = "Pipe",
        *,
        name: str = "train",
        hosts: int = 1,
        sharded: bool = False,
        maps: tuple[str, ...] = (),
        settings: DataSettings | None = None,
        **fields: Any,
    ) -> Any:
        (one,) = plan_inputs(
            _job((_channel(uri, mode, name, sharded, fields),), hosts),
            Locations.parse(maps, self.root),
            self.root / "staging",
            self.root / "cache",
            settings=settings,
        )
        return one

    def job(self, *channels: Channel, hosts: int = 1) -> TrainingJob:
        return _job(channels, hosts)

    def data(self, host: str = "algo-1") -> Path:
        return HostDir(self.root / host).ml.data


@pytest.fixture
def plane(tmp_path: Path) -> Plane:
    return Plane(tmp_path)


@pytest.fixture
def feed(plane: Plane) -> Iterator[Callable[..., Feeds]]:
    """Materialise inputs until the test ends; no thread and no FIFO may be left then."""
    before = set(threading.enumerate())
    with ExitStack() as stack:

        def feed(*inputs: ChannelInput, observer: Any = ignore) -> Feeds:
            hosts = {host for one in inputs for host in one.hosts}
            dirs = {host: HostDir(plane.root / host) for host in hosts}
            return stack.enter_context(materialise(inputs, observer, dirs))

        yield feed
    left = [one.name for one in set(threading.enumerate()) - before if one.name.startswith("pipe")]
    assert left == []
    assert [path for path in plane.root.rglob("*") if path.is_fifo()] == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Five files whose S3 order is not the order of their names by part."""
    top = tmp_path / "data ü"
    for name in ("a/1", "a-b", "b 2", "ü", "zero"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("" if name == "zero" else f"<{name}>")
    return top
