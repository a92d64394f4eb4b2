"""A host's directories as mounts of an engine, and their files back in the user's hands afterwards.

/opt/ml itself is never mounted over, because images bring code in /opt/ml/code (contract 1.4): every entry of the
host's tree is a mount of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hotfire.containers.engine import Engine
from hotfire.containers.values import Bind, Creation
from hotfire.runtime.backend import ContainerSpec, Mount, MountMode
from hotfire.runtime.backends.copying import copy_tree, remove_tree
from hotfire.runtime.backends.placing import copied, missing
from hotfire.runtime.errors import HotfireError
from hotfire.runtime.events import Note, Observer

_CLEAN = re.compile(r"[\w./+@%=~ -]+", re.ASCII)
"""What needs no quoting among mount options."""


@dataclass
class Mounts:
    """The mounts of one host. Make them with :func:`prepare`, undo them with :meth:`undo` when the container is gone."""

    engine: Engine
    binds: list[Bind] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    _folders: list[Path] = field(default_factory=list)

    def undo(self) -> None:
        for volume in self.volumes:
            self.engine.remove_volume(volume)
        for folder in self._folders:
            remove_tree(folder)
        self.volumes, self._folders = [], []


def prepare(
    engine: Engine,
    spec: ContainerSpec,
    labels: Mapping[str, str],
    observer: Observer,
    *,
    overlays: bool = True,
) -> Mounts:
    """Everything that ``spec`` mounts. Without ``overlays`` copy-on-write means a copy.

    Raises:
        DataError: a source is not there, or there is no space for a copy.
    """
    made = Mounts(engine)
    try:
        for entry in sorted(spec.dir.ml.root.iterdir()):
            target = str(spec.place.ml_root / entry.name)
            made.binds.append(Bind(source=str(entry.absolute()), target=target))
        for mount in sorted(spec.mounts, key=lambda one: len(one.target.parts)):
            if not mount.source.exists():
                raise missing(mount.source)
            _make_mount_point(spec, mount)
            made.binds.append(_bind(made, spec, mount, labels, observer, overlays))
    except BaseException:
        made.undo()
        raise
    return made


def _make_mount_point(spec: ContainerSpec, mount: Mount) -> None:
    """Made by us, where it lies in the host's own tree: the engine would make it as root."""
    if not mount.target.is_relative_to(spec.place.ml_root):
        return
    relative = mount.target.relative_to(spec.place.ml_root)
    if len(relative.parts) < 2 or not (spec.dir.ml.root / relative.parts[0]).is_dir():
        return
    place = spec.dir.ml.root / relative
    if mount.source.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def _bind(
    made: Mounts,
    spec: ContainerSpec,
    mount: Mount,
    labels: Mapping[str, str],
    observer: Observer,
    overlays: bool,
) -> Bind:
    source, target = mount.source.absolute(), str(mount.target)
    if mount.mode is not MountMode.COPY_ON_WRITE:
        read_only = mount.mode is MountMode.READ_ONLY
        return Bind(source=str(source), target=target, read_only=read_only)
    layers = spec.dir.scratch / "layers" / str(len(made.binds))
    layers.mkdir(parents=True, exist_ok=True)
    if overlays and source.is_dir():
        return Bind(source=_overlay(made, source, layers, labels), target=target, volume=True)
    place = layers / "copy"
    size, shared = copy_tree(source, place)
    if source.is_dir():
        observer(copied(source, size, shared, "the engine grants no overlay here"))
    return Bind(source=str(place.absolute()), target=target)


def _overlay(made: Mounts, source: Path, layers: Path, labels: Mapping[str, str]) -> str:
    paths = {"lower": source, "upper": layers / "upper", "work": layers / "work"}
    for name in ("upper", "work"):
        paths[name].mkdir(exist_ok=True)
    # What the container sees as its channel has the rights of the source, not of our own directory.
    paths["upper"].chmod(source.stat().st_mode & 0o7777)
    if not all(_CLEAN.fullmatch(str(path.absolute())) for path in paths.values()):
        folder = Path(tempfile.mkdtemp(prefix="hotfire-", dir=_clean_directory()))
        made._folders.append(folder)
        for name, path in paths.items():
            (folder / name).symlink_to(path.absolute())
            paths[name] = folder / name
    volume = f"hotfire-{uuid.uuid4().hex}"
    options = {name: str(path.absolute()) for name, path in paths.items()}
    made.engine.create_overlay(volume, labels=labels, **options)
    made.volumes.append(volume)
    return volume


def _clean_directory() -> str:
    """A place for links whose own name needs no quoting either."""
    usual = (tempfile.gettempdir(), "/tmp", "/var/tmp")
    return next(path for path in usual if _CLEAN.fullmatch(path) and os.access(path, os.W_OK))


# --- files that variables name -----------------------------------------------------------------

_FILES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "AWS_CA_BUNDLE",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
)
_FOLDER = PurePosixPath("/run/hotfire/files")


def named_files(environment: Mapping[str, str]) -> tuple[dict[str, str], list[Bind]]:
    """Variables that lead to a file of this machine lead to the same file in the container, mounted read-only.

    A directory of certificates is left out: its links lead elsewhere on this machine.
    """
    changed = dict(environment)
    binds: dict[str, Bind] = {}
    for name in _FILES:
        path = environment.get(name, "")
        if path.startswith("/") and Path(path).is_file():
            target = str(_FOLDER / str(len(binds)))
            bind = binds.setdefault(path, Bind(source=path, target=target, read_only=True))
            changed[name] = bind.target
    if "SSL_CERT_FILE" in changed:
        changed.pop("SSL_CERT_DIR", None)
    return changed, list(binds.values())


# --- ownership ---------------------------------------------------------------------------------


def give_back(
    engine: Engine,
    image: str,
    folders: Sequence[Path],
    labels: Mapping[str, str],
    observer: Observer,
) -> None:
    """Files that root wrote in a container become the user's, without opening them to anybody else.

    Only a container may do that for a user who is not root: one more of the same image, with its ``chown`` or Python.
    With a rootless engine, root in the container is the user already.
    """
    uid, gid = os.getuid(), os.getgid()
    if uid == 0 or engine.rootless:
        return
    roots = [path for path in folders if _has_foreign(path, uid)]
    if not roots:
        return
    targets = [str(PurePosixPath("/hotfire") / str(number)) for number in range(len(roots))]
    binds = tuple(
        Bind(source=str(root.absolute()), target=target)
        for root, target in zip(roots, targets, strict=True)
    )
    for program in (
        ("chown", "-hR", f"{uid}:{gid}"),
        ("python3", "-c", _CHOWN, str(uid), str(gid)),
    ):
        creation = Creation(
            name=f"hotfire-chown-{uuid.uuid4().hex[:12]}",
            image=image,
            entrypoint=program[:1],
            command=(*program[1:], *targets),
            user="0:0",
            labels=labels,
            binds=binds,
            init=False,
        )
        if _ran(engine, creation):
            return
    commands = " ".join(shlex.quote(str(root)) for root in roots)
    observer(
        Note(
            text="what the container wrote belongs to root: the image has neither chown nor python3. "
            f"Run: sudo chown -hR {uid}:{gid} {commands}",
            warning=True,
        )
    )


_CHOWN = (
    "import os, sys\n"
    "uid, gid = map(int, sys.argv[1:3])\n"
    "for top in sys.argv[3:]:\n"
    "    os.lchown(top, uid, gid)\n"
    "    for folder, names, files in os.walk(top):\n"
    "        for name in names + files:\n"
    "            os.lchown(os.path.join(folder, name), uid, gid)\n"
)


def _ran(engine: Engine, creation: Creation) -> bool:
    container = ""
    try:
        container = engine.create(creation)
        engine.start(container)
        return engine.wait(container) == 0
    except HotfireError:
        return False
    finally:
        if container:
            engine.remove_container(container)


def _has_foreign(top: Path, uid: int) -> bool:
    """Whether anything below is somebody else's, or cannot be looked into."""

    def every() -> Iterator[bool]:
        for folder, names, files in os.walk(top):
            for name in (*names, *files):
                yield os.lstat(f"{folder}/{name}").st_uid != uid
            yield not os.access(folder, os.R_OK | os.X_OK)

    try:
        return top.exists() and any(every())
    except OSError:
        return True
