"""The process backend: each host is a process tree with its own /opt/ml, without any container engine."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotfire.runtime.backend import Attempt, ContainerSpec, Mount, MountMode, Place
from hotfire.runtime.backends import isolation, network, spawn, syscalls
from hotfire.runtime.backends.container import ProcessContainer
from hotfire.runtime.backends.copying import copy_tree, remove_tree
from hotfire.runtime.backends.explained import explained
from hotfire.runtime.backends.isolation import Chosen, Isolation
from hotfire.runtime.backends.network import JobNetwork
from hotfire.runtime.backends.placing import Placing, copied
from hotfire.runtime.backends.steps import SetUpError
from hotfire.runtime.errors import PlatformError, ValidationError
from hotfire.runtime.events import Note, Observer
from hotfire.runtime.layout import ML_ROOT

CREDENTIALS = ("169.254.170.2", 80)
"""Where the service serves a container's credentials (contract 8)."""


@dataclass(frozen=True, kw_only=True)
class ProcessBackend:
    """See :class:`hotfire.runtime.backend.Backend`. HOTFIRE_ISOLATION in ``environ`` forces one kind of isolation.

    ``serve`` gets, for each host on a private network that is not isolated, a socket that listens at CREDENTIALS and
    that this host alone can reach; it is to serve contract 8 there in the background until the socket is closed,
    which the session does when the host is removed. None: nothing listens there.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    serve: Callable[[socket.socket], None] | None = None

    @property
    def name(self) -> str:
        return "process"

    @contextlib.contextmanager
    def open(self, attempt: Attempt, observer: Observer) -> Iterator[ProcessSession]:
        with ExitStack() as undo:
            chosen = isolation.choose(attempt, self.environ, observer, undo)
            net = undo.enter_context(_open_network(attempt, chosen, observer))
            session = ProcessSession(attempt, chosen, net, observer, self.serve)
            undo.callback(session.close)
            yield session


def _open_network(
    attempt: Attempt, chosen: Chosen, observer: Observer
) -> contextlib.AbstractContextManager[JobNetwork]:
    seed = f"{attempt.job}/{attempt.number}"
    hosts = list(attempt.dirs)
    if attempt.network == "host" and not attempt.isolated:
        return network.host_network(seed, hosts)
    why = "network isolation" if attempt.isolated else "--network private"
    if chosen.isolation is not Isolation.NAMESPACE:
        reason = isolation.why_refused(isolation.probe("user"))
        raise ValidationError(
            f"{why} needs namespaces, which this job does not have here ({reason}).",
            do="Use --network host, or run `hotfire setup` to see what would allow it.",
        )
    outside = None if attempt.isolated else isolation.outbound_program()
    if not attempt.isolated and outside is None:
        text = "the private network has no way out: neither pasta nor slirp4netns is installed"
        observer(Note(text=f"{text}; run `hotfire setup`", warning=True))
    own_users = bool(chosen.flags & syscalls.CLONE_NEWUSER)
    return network.private_network(seed, hosts, own_users=own_users, outside=outside)


class ProcessSession:
    """See :class:`hotfire.runtime.backend.Session`."""

    parallel = False
    """A host ends with the thread that started it, should hotfire be killed (PR_SET_PDEATHSIG)."""

    def __init__(
        self,
        attempt: Attempt,
        chosen: Chosen,
        net: JobNetwork,
        observer: Observer,
        serve: Callable[[socket.socket], None] | None,
    ) -> None:
        self._serve = serve
        self._attempt = attempt
        self._chosen = chosen
        self._network = net
        self._observer = observer
        self._containers: list[ProcessContainer] = []
        self._told: set[str] = set()
        self._ports = itertools.count(1)
        relocated = chosen.isolation is Isolation.RELOCATED
        self._places = {
            host: Place(
                host=host,
                address=net.addresses[host],
                ml_root=type(ML_ROOT)(directory.ml.root.absolute()) if relocated else ML_ROOT,
                network_interface=net.interface,
            )
            for host, directory in attempt.dirs.items()
        }

    @property
    def places(self) -> Mapping[str, Place]:
        return self._places

    @property
    def isolation(self) -> Isolation:
        return self._chosen.isolation

    def start(self, spec: ContainerSpec) -> ProcessContainer:
        for directory in (spec.dir.ml.root, spec.dir.scratch):
            directory.mkdir(parents=True, exist_ok=True)
        try:
            container = self._start(spec)
        except BaseException:
            remove_tree(spec.dir.scratch)
            raise
        self._containers.append(container)
        return container

    def _start(self, spec: ContainerSpec) -> ProcessContainer:
        if self._chosen.isolation is not Isolation.NAMESPACE:
            return self._start_in_place(spec)
        mounts = list(spec.mounts)
        while True:
            try:
                return self._launch(spec, mounts, None)
            except SetUpError as error:
                if error.what != "overlay" or not 0 <= error.mount < len(mounts):
                    raise explained(error) from error
                mounts[error.mount] = self._copy(spec, mounts[error.mount], error)

    def _start_in_place(self, spec: ContainerSpec) -> ProcessContainer:
        placing = Placing(spec, self._observer)
        try:
            return self._launch(spec, [], placing)
        except SetUpError as error:
            placing.undo()
            raise explained(error) from error
        except BaseException:
            placing.undo()
            raise

    def _copy(self, spec: ContainerSpec, mount: Mount, error: SetUpError) -> Mount:
        """A copy in the place of an overlay that the kernel has refused."""
        copies = spec.dir.scratch / "copies"
        copies.mkdir(exist_ok=True)
        place = copies / str(len(list(copies.iterdir())))
        size, shared = copy_tree(mount.source, place)
        reason = f"an overlay is refused here ({os.strerror(error.errno)})"
        self._observer(copied(mount.source, size, shared, reason))
        return replace(mount, source=place, mode=MountMode.READ_WRITE)

    def _launch(
        self, spec: ContainerSpec, mounts: Sequence[Mount], placing: Placing | None
    ) -> ProcessContainer:
        plan = self._plan(spec, mounts)
        log = os.open(spec.dir.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            keep = [*(fd for fd, _ in plan["join"]), *plan["hold"]]
            launcher = spawn.take().order("host", plan, keep=keep, output=log)
        finally:
            os.close(log)
        try:
            answer = launcher.receive()
            assert answer is not None
        except EOFError:
            launcher.close()
            raise PlatformError(
                f"{spec.host} could not be started: its launcher was killed.",
                do=f"See {spec.dir.log}.",
            ) from None
        except BaseException:
            launcher.close()
            raise
        container = ProcessContainer(spec.host, answer["pid"], launcher, spec.dir.scratch, placing)
        try:
            for note in answer["notes"]:
                self._note_once(note)
            for listener in launcher.sockets:
                assert self._serve is not None
                self._serve(listener)
        except BaseException:
            container.remove()
            raise
        return container

    def _note_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._observer(Note(text=f"{text}; run `hotfire setup`", warning=True))

    def _plan(self, spec: ContainerSpec, mounts: Sequence[Mount]) -> dict[str, Any]:
        """What the launcher carries out: bytes, numbers, lists and dicts only."""
        namespaced = self._chosen.isolation is Isolation.NAMESPACE
        net = dict(self._network.configuration.get(spec.host, {}))
        if net:
            # A name of its own each time: the kernel removes the cable of a host that ended when it finds the time.
            net["port"] = f"host{next(self._ports)}"
            serves = self._serve is not None and not self._attempt.isolated
            net["services"] = [CREDENTIALS] if serves else []
        return {
            "flags": self._chosen.flags | self._network.flags,
            "join": list(self._network.join),
            "hold": [] if self._chosen.lock is None else [self._chosen.lock],
            "net": net,
            "stage": os.fsencode(_fresh(spec.dir.scratch / "mounts")),
            "mounts": self._mounts(spec, mounts) if namespaced else [],
            "stand_in": self._stand_in(spec),
            "hostname": os.fsencode(spec.hostname),
            "cwd": os.fsencode(spec.cwd),
            "argv": [os.fsencode(part) for part in spec.argv],
            "env": {os.fsencode(name): os.fsencode(value) for name, value in spec.env.items()},
        }

    def _mounts(self, spec: ContainerSpec, mounts: Sequence[Mount]) -> list[dict[str, Any]]:
        """The spec's own mounts first, because their numbers come back with an error; then what every host has."""
        hosts = spec.dir.scratch / "hosts"
        hosts.write_text(self._hosts_file(spec), encoding="utf-8", errors="surrogateescape")
        every = [
            *mounts,
            Mount(source=spec.dir.ml.root, target=ML_ROOT, mode=MountMode.READ_WRITE),
            Mount(source=hosts, target=type(ML_ROOT)("/etc/hosts"), mode=MountMode.READ_WRITE),
        ]
        if resolver := self._network.resolver:
            text = spec.dir.scratch / "resolv.conf"
            text.write_text(f"nameserver {resolver}\n", encoding="ascii")
            target = type(ML_ROOT)("/etc/resolv.conf")
            every.append(Mount(source=text, target=target, mode=MountMode.READ_WRITE))
        return [
            {
                "source": os.fsencode(mount.source.absolute()),
                "target": os.fsencode(mount.target),
                "mode": str(mount.mode),
            }
            for mount in every
        ]

    def _hosts_file(self, spec: ContainerSpec) -> str:
        """The job's names, then this machine's own lines; the first line with a name wins."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
        lines += [f"{place.address} {host}" for host, place in self._places.items()]
        own = self._places[spec.host].address
        lines.append(f"{own} {spec.hostname} {spec.hostname.partition('.')[0]}")
        with contextlib.suppress(OSError):
            machine = Path("/etc/hosts").read_text(encoding="utf-8", errors="surrogateescape")
            lines += machine.splitlines()
        return "\n".join(lines) + "\n"

    def _stand_in(self, spec: ContainerSpec) -> dict[str, Any] | None:
        if self._chosen.isolation is not Isolation.NATIVE:
            return None
        (spec.dir.scratch / isolation.STALE_MARK).touch()
        return {
            "root": os.fsencode(ML_ROOT),
            "home": os.fsencode(spec.dir.ml.root.absolute()),
            "whole": self._chosen.whole,
        }

    def close(self) -> None:
        """Remove every host that is still there; the first error is raised once all were tried."""
        with ExitStack() as undo:
            for container in self._containers:
                undo.callback(container.remove)


def _fresh(path: Path) -> Path:
    remove_tree(path)
    path.mkdir()
    return path.absolute()
