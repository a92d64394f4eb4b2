"""The Docker backend: each host is a container of the job's image, on a network of the job's own."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from hotfire.containers.engine import Engine, connect
from hotfire.containers.trouble import EngineGone, StartRefused
from hotfire.containers.values import Creation, Joined, Limits
from hotfire.runtime.backend import Attempt, ContainerSpec, Place
from hotfire.runtime.backends import docker_doors as doorway
from hotfire.runtime.backends import docker_image, docker_mounts, docker_network
from hotfire.runtime.backends.copying import remove_tree
from hotfire.runtime.backends.docker_container import DockerContainer
from hotfire.runtime.backends.docker_labels import HOST, SESSION, Alive, labels_of
from hotfire.runtime.backends.docker_mounts import Mounts
from hotfire.runtime.errors import HotfireError
from hotfire.runtime.events import Event, Note, Observer

_NAME = re.compile(r"[^a-zA-Z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class DockerBackend:
    """See :class:`hotfire.runtime.backend.Backend`. ``environ`` says where the engine is (DOCKER_HOST ...)."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def name(self) -> str:
        return "docker"

    @contextlib.contextmanager
    def open(self, attempt: Attempt, observer: Observer) -> Iterator[DockerSession]:
        with contextlib.ExitStack() as undo:
            engine = connect(self.environ)
            undo.callback(engine.close)
            alive = undo.enter_context(Alive())
            session = DockerSession(engine, attempt, alive.session, observer)
            undo.callback(session.close)
            session.make_network()
            yield session


class DockerSession:
    """See :class:`hotfire.runtime.backend.Session`. Hosts may be started from several threads at once."""

    parallel = True
    """An engine takes a quarter of a second for each host, most of it waiting."""

    def __init__(self, engine: Engine, attempt: Attempt, name: str, observer: Observer) -> None:
        self.engine = engine
        self._attempt = attempt
        self._name = name
        self._observer = observer
        self._labels = labels_of(attempt, name)
        self._places: Mapping[str, Place] = {}
        self._network = ""
        self._containers: list[DockerContainer] = []
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._images: dict[str, str] = {}
        self._without: set[str] = set()

    @property
    def places(self) -> Mapping[str, Place]:
        return self._places

    def make_network(self) -> None:
        hosts = list(self._attempt.dirs)
        network = docker_network.create(
            self.engine,
            self._called(""),
            hosts,
            seed=f"{self._attempt.job}/{self._attempt.number}",
            labels=self._labels,
            internal=self._attempt.isolated,
        )
        self._network = network.id
        self._places = {host: Place(host=host, address=network.addresses[host]) for host in hosts}

    def _called(self, host: str) -> str:
        """Unique on the engine, and still telling: names of jobs repeat over time and between users."""
        job = _NAME.sub("-", self._attempt.job)
        return "-".join(filter(None, ("hotfire", job, host, self._name[:8])))

    def start(self, spec: ContainerSpec) -> DockerContainer:
        spec.dir.scratch.mkdir(parents=True, exist_ok=True)
        try:
            container = self._start_somehow(spec)
        except BaseException:
            self._forget(spec)
            raise
        with self._lock:
            self._containers.append(container)
        return container

    def _start_somehow(self, spec: ContainerSpec) -> DockerContainer:
        """Without what the engine turns out to refuse; it is not asked for again in this session."""
        while True:
            without = frozenset(self._without)  # other hosts start meanwhile, and may add to it
            try:
                return self._start(spec)
            except StartRefused as error:
                refused = next((what for text, what in _DOABLE_WITHOUT if text in error.what), None)
                if refused is None or refused in without:
                    raise
                self._without.add(refused)
                self._note_once(Note(text=f"the engine refuses {refused}: {error.what[-200:]}"))

    def _start(self, spec: ContainerSpec) -> DockerContainer:
        labels = {**self._labels, HOST: spec.host}
        image = self._image(spec.image)
        native = doorway.can_enter(self.engine)
        doors = doorway.wanted({} if self._attempt.isolated else spec.env, native=native)
        environment = spec.env if self._attempt.isolated else doors.environment
        with contextlib.ExitStack() as undo:
            overlays = _OVERLAYS not in self._without
            mounts = docker_mounts.prepare(
                self.engine, spec, labels, self._observer, overlays=overlays
            )
            undo.callback(self._clean, spec, image, mounts)
            environment, files = docker_mounts.named_files(environment)
            mounts.binds += files
            made = self.engine.create(self._creation(spec, environment, labels, mounts))
            undo.callback(self.engine.remove_container, made)
            output = self.engine.attach(made)
            reading = undo.enter_context(contextlib.ExitStack())
            reading.callback(output.finish)
            refused: StartRefused | None = None
            try:
                self.engine.start(made)
            except StartRefused as error:
                if error.code == 125:
                    raise
                refused = error
            state = None if refused else self.engine.state(made)
            if refused is None:
                reading.pop_all()  # its reader closes it
            container = DockerContainer(
                self.engine, spec, made, undo=undo.pop_all(), observer=self._observer
            )
        if refused is not None:
            container.never_ran(refused.code, f"{refused.what}\n{refused.do}")
            return container
        pid = state.pid if state else 0
        container.begin(output, pid)
        if doors.doors and pid:
            container.on_removal(self._open(doors, made, pid, image, native=native))
        return container

    def _open(
        self,
        doors: doorway.Doors,
        container: str,
        pid: int,
        image: str,
        *,
        native: bool,
    ) -> Callable[[], None]:
        try:
            if native:
                return doorway.open_natively(pid, doors.doors)
            return doorway.open_beside(self.engine, container, image, self._labels, doors.doors)
        except (HotfireError, OSError) as error:
            state = self.engine.state(container)
            if state is not None and state.code is None:  # else it was too quick to miss anything
                doorway.explain(doors, error, self._note_once)
        return lambda: None

    def _image(self, name: str) -> str:
        """The id of an image: what is started does not change when its name is given to another."""
        with self._lock:
            if name not in self._images:
                self._images[name] = self._look_up(name)
            return self._images[name]

    def _look_up(self, name: str) -> str:
        image = self.engine.image(name)
        if image is None:
            raise docker_image.missing(name)
        return image.id

    def _creation(
        self,
        spec: ContainerSpec,
        environment: Mapping[str, str],
        labels: Mapping[str, str],
        mounts: Mounts,
    ) -> Creation:
        asked = spec.resources
        init = self.engine.has_init
        if not init:
            self._note_once(
                Note(text="this engine has no init program: the container's own is PID 1 here")
            )
        return Creation(
            name=self._called(spec.host),
            image=spec.image,
            entrypoint=spec.entrypoint,
            command=spec.argv,
            environment=environment,
            hostname=spec.hostname,
            labels=labels,
            binds=tuple(mounts.binds),
            joined=Joined(
                network=self._network,
                address=spec.place.address,
                aliases=(spec.host,),
                others={host: place.address for host, place in self._places.items()},
            ),
            init=init,
            limits=Limits(
                shm_bytes=asked.shm_bytes,
                cpus=asked.cpus,
                memory_bytes=asked.memory_bytes,
                ulimits=self._ulimits(asked.ulimits),
                gpus=asked.gpus,
                devices=asked.devices,
                capabilities=asked.capabilities,
            ),
        )

    def _ulimits(self, asked: Mapping[str, int]) -> dict[str, int]:
        if _ULIMITS in self._without:
            return {}
        hard = self.engine.hard_limits
        lowered = {
            name: hard[name]
            for name, value in asked.items()
            if name in hard and (value == -1 or value > hard[name])
        }
        for name, value in lowered.items():
            self._note_once(Note(text=f"ulimit {name} is {value}: the engine may not raise it"))
        return {**asked, **lowered}

    def _clean(self, spec: ContainerSpec, image: str, mounts: Mounts) -> None:
        """After a container: its volumes and layers are gone, its files belong to the user."""
        mounts.undo()
        folders = (spec.dir.ml.root, spec.dir.scratch)
        docker_mounts.give_back(self.engine, image, folders, self._labels, self._observer)
        remove_tree(spec.dir.scratch)

    def _forget(self, spec: ContainerSpec) -> None:
        with contextlib.suppress(OSError):
            remove_tree(spec.dir.scratch)

    def _note_once(self, event: Event) -> None:
        if isinstance(event, Note):
            with self._lock:
                if event.text in self._told:
                    return
                self._told.add(event.text)
        self._observer(event)

    def close(self) -> None:
        """Remove everything of this session, known or not: an interrupted call may have made more than it returned."""
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(self._remove_owned)
                for container in self._containers:
                    undo.callback(container.remove)
        except EngineGone as error:
            text = f"{error.what}: run hotfire prune when it is back, to remove what this job left"
            self._observer(Note(text=text, warning=True))

    def _remove_owned(self) -> None:
        with contextlib.ExitStack() as undo:
            for owned in reversed(self.engine.owned(f"{SESSION}={self._name}")):
                undo.callback(self.engine.remove, owned)


_OVERLAYS = "copy-on-write volumes"
_ULIMITS = "these limits"
_DOABLE_WITHOUT = (("mount local volume", _OVERLAYS), ("setting rlimit", _ULIMITS))
