"""From a channel of the request to the input that carries it out: which kind, with which data, for which hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotfire.runtime import channel_advice, channel_local, channel_s3, fastfile, listing
from hotfire.runtime.backend import MountMode
from hotfire.runtime.channel_tree import TreeInput
from hotfire.runtime.data_settings import DataSettings
from hotfire.runtime.errors import UnsupportedError, ValidationError
from hotfire.runtime.listing import Listing
from hotfire.runtime.manifests import Attributes
from hotfire.runtime.object_cache import ObjectCache
from hotfire.runtime.pipe import PipeInput
from hotfire.runtime.pipe_source import LineUnits, ObjectUnits, Units
from hotfire.runtime.s3 import S3
from hotfire.runtime.sharding import Assignment, numeric
from hotfire.runtime.spec import (
    Channel,
    Distribution,
    FileSystemDataSource,
    InputMode,
    S3DataSource,
    TrainingJob,
)
from hotfire.runtime.storage import LocalLocation, Locations

if TYPE_CHECKING:
    from hotfire.runtime.channels import ChannelInput

_PORTS = {"EFS": "TCP 2049 (NFS)", "FSxLustre": "TCP 988 and 1018-1023 (Lustre)"}


@dataclass(frozen=True, kw_only=True)
class Planner:
    """What planning the channels of one job needs to know."""

    job: TrainingJob
    locations: Locations
    staging: Path
    cache: Path
    s3: S3
    settings: DataSettings

    def plan(self, channel: Channel) -> ChannelInput:
        """The input of one channel; see :func:`hotfire.runtime.channels.plan_inputs`."""
        source = channel.data_source
        hosts = self._hosts(channel)
        if isinstance(source, FileSystemDataSource):
            return self._file_system(channel, source, hosts)
        if source.s3_data_type == "AugmentedManifestFile":
            return self._augmented(channel, source, hosts)
        if whole := self._whole(channel, source, hosts):
            return whole
        found = self._listing(channel, source, hosts)
        if channel.input_mode is InputMode.PIPE:
            lines = (found.prefix, *found.uris) if self._has_manifest(channel) else ()
            return self._pipe(channel, hosts, ObjectUnits(found.objects), lines)
        return self._tree(channel, hosts, found)

    def _hosts(self, channel: Channel) -> frozenset[str]:
        """Hosts of the channel's groups (contract 3.1)."""
        config, source = self.job.resource_config, channel.data_source
        names = source.instance_group_names if isinstance(source, S3DataSource) else ()
        known = [group.instance_group_name for group in config.instance_groups]
        if unknown := sorted(set(names) - set(known)):
            raise ValidationError(
                f"channel {channel.channel_name}: no instance group {', '.join(unknown)}",
                do=f"InstanceGroupNames may name: {', '.join(known)}.",
            )
        return frozenset(
            host
            for group in config.instance_groups
            if not names or group.instance_group_name in names
            for host in group.hosts
        )

    def _assignment(self, channel: Channel, hosts: frozenset[str], units: int) -> Assignment:
        rules, source = self.settings.rules, channel.data_source
        pipe = channel.input_mode is InputMode.PIPE
        sharded = (
            isinstance(source, S3DataSource)
            and source.s3_data_distribution_type is Distribution.SHARDED_BY_S3_KEY
        )
        if channel.input_mode is InputMode.FAST_FILE and rules["fastfile-shards"] == "off":
            sharded = False
        return Assignment(
            units=units,
            hosts=numeric(hosts),
            sharded=sharded,
            seed=channel.shuffle_seed if pipe or rules["file-shuffle"] == "on" else None,
            contiguous=rules["shards"] == "contiguous",
            sample=self.settings.samples.get(channel.channel_name),
        )

    def _has_manifest(self, channel: Channel) -> bool:
        rule = self.settings.rules["manifest-beside"]
        return rule == "always" or (rule == "file" and channel.input_mode is InputMode.FILE)

    # --- kinds

    def _whole(
        self, channel: Channel, source: S3DataSource, hosts: frozenset[str]
    ) -> ChannelInput | None:
        """A local path that every host gets whole: mounted where it lies, without a look inside."""
        if channel.input_mode is InputMode.PIPE or source.s3_data_type != "S3Prefix":
            return None
        location = self.locations.resolve(source.s3_uri)
        assignment = self._assignment(channel, hosts, 0)
        in_parts = assignment.sample or (assignment.sharded and len(hosts) > 1)
        if not isinstance(location, LocalLocation) or in_parts:
            return None
        found = self._local(channel, source, hosts, location)
        if found.stem and self.settings.rules["prefix-cut"] == "prefix":
            return None
        walks = self.settings.thorough or self.settings.bandwidth
        if channel.input_mode is not InputMode.FILE or not walks:
            return found
        sizes = found.sizes()
        advice = self._advice(channel, sizes, replace(assignment, units=len(sizes)))
        return replace(found, notes=(*found.notes, *advice))

    def _local(
        self,
        channel: Channel,
        source: S3DataSource,
        hosts: frozenset[str],
        location: LocalLocation,
    ) -> channel_local.LocalInput:
        fast = channel.input_mode is InputMode.FAST_FILE
        found = channel_local.find(
            channel,
            hosts,
            location,
            source.s3_uri,
            mode=MountMode.READ_ONLY if fast else MountMode.COPY_ON_WRITE,
            has_manifest=self._has_manifest(channel),
        )
        if fast and found.stem:
            raise fastfile.partial(channel.channel_name, source.s3_uri)
        return found

    def _listing(self, channel: Channel, source: S3DataSource, hosts: frozenset[str]) -> Listing:
        rules = self.settings.rules
        if source.s3_data_type == "ManifestFile":
            return listing.of_manifest(source.s3_uri, self.locations, rules, self.s3)
        location = self.locations.resolve(source.s3_uri)
        if isinstance(location, LocalLocation):
            found = self._local(channel, source, hosts, location)
            return _of_local(found, cut=found.stem if rules["prefix-cut"] == "prefix" else "")
        objects = channel_s3.find(self.job, location, self.s3)
        if channel.input_mode is InputMode.FAST_FILE and channel_s3.partial_folder(
            location, objects
        ):
            raise fastfile.partial(channel.channel_name, source.s3_uri)
        return listing.of_prefix(location, objects, rules)

    def _tree(self, channel: Channel, hosts: frozenset[str], found: Listing) -> ChannelInput:
        fast = channel.input_mode is InputMode.FAST_FILE
        assignment = self._assignment(channel, hosts, len(found.objects))
        tree = TreeInput(
            channel=channel,
            hosts=hosts,
            listing=found,
            tree=found.tree(),
            assignment=assignment,
            staging=self.staging / channel.channel_name,
            cache=ObjectCache(self.cache),
            cache_limit=self.settings.cache_limit,
            s3=self.s3,
            mode=MountMode.READ_ONLY if fast else MountMode.COPY_ON_WRITE,
            has_manifest=self._has_manifest(channel),
            notes=tuple(self._advice(channel, [one.size for one in found.objects], assignment)),
        )
        return fastfile.choose(tree, containers=self.settings.containers) if fast else tree

    def _pipe(
        self, channel: Channel, hosts: frozenset[str], units: Units, lines: tuple[str, ...] = ()
    ) -> PipeInput:
        assignment = self._assignment(channel, hosts, len(units))
        sizes = [one.size for one in units.objects] if isinstance(units, ObjectUnits) else []
        return PipeInput(
            channel=channel,
            hosts=hosts,
            units=units,
            assignment=assignment,
            locations=self.locations,
            s3=self.s3,
            rules=self.settings.rules,
            # '@' is no character of channel names.
            epochs=self.staging / "@epochs"
            if self.settings.rules["pipe-restart"] == "continue"
            else None,
            manifest_lines=lines,
            notes=tuple(self._advice(channel, sizes, assignment)),
        )

    def _augmented(
        self, channel: Channel, source: S3DataSource, hosts: frozenset[str]
    ) -> PipeInput:
        rules = self.settings.rules
        manifest = listing.augmented(
            source.s3_uri,
            Attributes(names=source.attribute_names, bare=rules["attribute-text"] == "bare"),
            self.locations,
            self.cache,
            self.s3,
            missing=rules["attribute-missing"],
        )
        return self._pipe(channel, hosts, LineUnits(manifest))

    def _advice(self, channel: Channel, sizes: list[int], assignment: Assignment) -> Iterator[str]:
        return channel_advice.advise(
            channel.channel_name, sizes, channel.input_mode, assignment, self.settings.bandwidth
        )

    def _file_system(
        self, channel: Channel, source: FileSystemDataSource, hosts: frozenset[str]
    ) -> ChannelInput:
        """An EFS or FSx file system, mapped to a directory of this machine (contract 3.6)."""
        identity = source.file_system_id
        root = self.locations.file_system(identity)
        if root is None:
            raise UnsupportedError(
                f"channel {channel.channel_name}: file system {identity} is not here",
                do=f"Map it to a directory of this machine: --map {identity}=/mnt/data.",
            )
        path = _below_root(root, source)
        writes = source.file_system_access_mode == "rw"
        found = channel_local.find(
            channel,
            hosts,
            LocalLocation(path),
            path.as_uri(),
            mode=MountMode.READ_WRITE if writes else MountMode.READ_ONLY,
            has_manifest=self.settings.rules["manifest-beside"] == "always",
        )
        kind = source.file_system_type
        note = (
            f"channel {channel.channel_name}: {path} stands for {identity}; on SageMaker the security groups of "
            f"VpcConfig must allow {_PORTS.get(kind, kind)}"
        )
        return replace(found, notes=(note,))


def _of_local(found: channel_local.LocalInput, *, cut: str) -> Listing:
    """Files of this machine, whose place in the channel is known already, but for what they ``cut`` off."""
    objects = tuple(replace(one, key=str(path)) for one, path in found.objects())
    uris = tuple(one.uri for one in objects)
    return Listing(prefix=found.manifest_first, objects=objects, uris=uris, cut=cut)


def _below_root(root: Path, source: FileSystemDataSource) -> Path:
    parts = [part for part in source.directory_path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValidationError(
            f"DirectoryPath {source.directory_path} would leave the file system",
            do="Name it without '..'.",
        )
    # A Lustre path begins with the mount name, which the mapped directory stands for (contract 3.1).
    return root.joinpath(*(parts[1:] if source.file_system_type == "FSxLustre" else parts))
