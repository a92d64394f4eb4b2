"""Mounts without a mount namespace: links and copies below the host's /opt/ml, and back again."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from hotfire.runtime.backend import ContainerSpec, Mount, MountMode
from hotfire.runtime.backends.copying import copy_tree, remove_tree
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Note, Observer


class Placing:
    """Puts a spec's mounts into ``spec.dir.ml``; :meth:`undo` leaves empty mount points, as a namespace would."""

    def __init__(self, spec: ContainerSpec, observer: Observer) -> None:
        self._spec = spec
        self._observer = observer
        self._placed: list[tuple[Path, bool]] = []
        try:
            for mount in sorted(spec.mounts, key=lambda m: len(m.target.parts)):
                self._place(mount)
        except BaseException:
            self.undo()
            raise

    def _place(self, mount: Mount) -> None:
        if not mount.source.exists():
            raise missing(mount.source)
        place = self._inside(mount.target)
        directory = mount.source.is_dir()
        if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
            place.rmdir()
        elif place.is_file() and place.stat().st_size == 0:
            place.unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists() or place.is_symlink():
            raise DataError(
                f"{mount.target} is not empty.", do="Give each mount a path of its own."
            )
        self._placed.append((place, directory))
        if mount.mode is MountMode.COPY_ON_WRITE:
            size, shared = copy_tree(mount.source, place)
            self._observer(copied(mount.source, size, shared, "mounts need namespaces"))
            return
        place.symlink_to(mount.source.absolute())
        if mount.mode is MountMode.READ_ONLY:
            self._observer(
                Note(
                    text=f"{mount.target} is a link to {mount.source}, which nothing keeps the script from writing"
                    " to: read-only mounts need namespaces; run `hotfire setup`",
                    warning=True,
                )
            )

    def _inside(self, target: PurePosixPath) -> Path:
        root = self._spec.place.ml_root
        if not target.is_relative_to(root) or target == root:
            raise DataError(
                f"{target} cannot be mounted on this machine: without namespaces only paths below {root} can.",
                do="Run `hotfire setup` to see how to allow namespaces.",
            )
        place = self._spec.dir.ml.root / target.relative_to(root)
        for parent in place.relative_to(self._spec.dir.ml.root).parents:
            if (self._spec.dir.ml.root / parent).is_symlink():
                raise DataError(
                    f"{target} lies inside another mount, which needs namespaces.",
                    do="Run `hotfire setup` to see how to allow namespaces.",
                )
        return place

    def undo(self) -> None:
        for place, directory in reversed(self._placed):
            if place.is_symlink() or place.is_file():
                place.unlink()
            else:
                remove_tree(place)
            if directory:
                place.mkdir(parents=True, exist_ok=True)
        self._placed = []


def missing(source: Path) -> DataError:
    return DataError(f"{source} is not there or cannot be read.", do="Check the path of the mount.")


def copied(source: Path, size: int, shared: bool, reason: str) -> Note:
    how = "shared with it by the file system" if shared else "copied"
    return Note(
        text=f"{source}: {size:,} bytes {how}, because {reason}; run `hotfire setup`",
        warning=not shared,
    )
