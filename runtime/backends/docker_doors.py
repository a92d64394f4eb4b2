"""Doors from a container's own loopback to services of this machine: AWS credentials, an S3 stand-in, a proxy.

A service on this machine's 127.0.0.1 is another 127.0.0.1 inside a container. A door listens at the same address in
the container's network namespace and passes every connection on, so that the container's variables stay as they are.
Root enters the namespace to listen. Other users may not; for them a second container of the same image shares the
first one's network, and its Python carries the connections to a socket file of ours.

Credentials get the address where the service has them, 169.254.170.2 (contract 8), where root can add it; else the
loopback URL which every AWS SDK accepts as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hotfire.containers.engine import Engine
from hotfire.containers.trouble import StartRefused
from hotfire.containers.values import Bind, Creation
from hotfire.runtime.backends import netlink, syscalls
from hotfire.runtime.errors import HotfireError
from hotfire.runtime.events import Note, Observer

CREDENTIALS_ADDRESS = "169.254.170.2"
FULL_URI = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
RELATIVE_URI = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
_ADDRESSES = re.compile(
    rf"{FULL_URI}|AWS_ENDPOINT_URL(_\w+)?|(HTTPS?|ALL)_PROXY|(PIP|UV)_\w*INDEX\w*|HF_ENDPOINT"
    r"|MLFLOW_TRACKING_URI|WANDB_BASE_URL",
    re.IGNORECASE,
)
"""Variables whose value is the URL of a service."""
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|\[?::1\]?")


@dataclass(frozen=True, order=True)
class Door:
    """Listens at ``address``:``port`` in the container, leads to ``target``:``port_outside`` here."""

    address: str
    port: int
    target: str
    port_outside: int


@dataclass(frozen=True, kw_only=True)
class Doors:
    """The doors that an environment asks for, and that environment as the container is to have it."""

    environment: Mapping[str, str]
    doors: tuple[Door, ...] = ()
    names: tuple[str, ...] = ()
    """Of the variables that need them."""


def wanted(environment: Mapping[str, str], *, native: bool) -> Doors:
    """Pure. ``native``: the doors can be opened at any address, so credentials get the service's own."""
    changed = dict(environment)
    doors: set[Door] = set()
    names = []
    for name, value in environment.items():
        if not _ADDRESSES.fullmatch(name):
            continue
        parts = urlsplit(value)
        try:
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        except ValueError:
            continue
        if port is None or parts.hostname is None or not _LOOPBACK.fullmatch(parts.hostname):
            continue
        names.append(name)
        target = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
        if name == FULL_URI and native:
            del changed[name]
            changed[RELATIVE_URI] = parts.path
            doors.add(Door(CREDENTIALS_ADDRESS, 80, target, port))
        else:
            inside = "127.0.0.1" if ":" in target else target
            doors.add(Door(inside, port, target, port))
    return Doors(environment=changed, doors=tuple(sorted(doors)), names=tuple(names))


# --- the two ways to open them -----------------------------------------------------------------


def can_enter(engine: Engine) -> bool:
    """Whether this process may listen in the network namespaces of the engine's containers."""
    return os.geteuid() == 0 and not engine.rootless


def open_natively(pid: int, doors: Sequence[Door]) -> Callable[[], None]:
    """Listen in the network namespace of process ``pid``; the function returned closes the doors.

    Raises:
        OSError: the container has ended, or has the port itself.
    """
    listeners = [socket.socket(fileno=fd) for fd in _in_namespace(pid, doors)]
    return _serve(listeners, [(door.target, door.port_outside) for door in doors])


def _in_namespace(pid: int, doors: Sequence[Door]) -> list[int]:
    """A thread that enters the namespace, and ends: nobody else is moved, and its sockets stay there."""
    opened: list[int] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            with open(f"/proc/{pid}/ns/net", "rb") as namespace:  # noqa: PTH123
                syscalls.setns(namespace.fileno(), syscalls.CLONE_NEWNET)
            if any(door.address == CREDENTIALS_ADDRESS for door in doors):
                network = netlink.Network()
                network.add_address("lo", CREDENTIALS_ADDRESS, 32)
                network.close()
            for door in doors:
                listener = socket.create_server((door.address, door.port), backlog=64)
                opened.append(listener.detach())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="hotfire-doors")
    thread.start()
    thread.join()
    if failed:
        for descriptor in opened:
            os.close(descriptor)
        raise failed[0]
    return opened


def open_beside(
    engine: Engine,
    container: str,
    image: str,
    labels: Mapping[str, str],
    doors: Sequence[Door],
) -> Callable[[], None]:
    """The same through a second container in the first one's network; the function returned removes it.

    Raises:
        StartRefused: the image has no python3.
    """
    folder = Path(tempfile.mkdtemp(prefix="hotfire-doors-"))
    listeners = []
    for number, _ in enumerate(doors):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / str(number)))
        listener.listen(64)
        listeners.append(listener)
    close = _serve(listeners, [(door.target, door.port_outside) for door in doors])
    beside = ""

    def undo() -> None:
        close()
        if beside:
            engine.remove_container(beside)
        shutil.rmtree(folder, ignore_errors=True)

    try:
        beside = engine.create(
            Creation(
                name=f"hotfire-doors-{uuid.uuid4().hex[:12]}",
                image=image,
                entrypoint=("python3",),
                command=("-c", _RELAY, *(f"{door.address}:{door.port}" for door in doors)),
                user="0:0",
                labels=labels,
                binds=(Bind(source=str(folder), target="/run/hotfire-doors"),),
                shares_network_of=container,
                stop_seconds=0,
            )
        )
        engine.start(beside)
    except BaseException:
        undo()
        raise
    return undo


_RELAY = """
import os, socket, sys, threading
def pump(a, b):
    try:
        while data := a.recv(65536): b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError: pass
def carry(here, path):
    with here, socket.socket(socket.AF_UNIX) as there:
        there.connect(path)
        back = threading.Thread(target=pump, args=(there, here), daemon=True)
        back.start(); pump(here, there); back.join()
def serve(listener, path):
    while True: threading.Thread(target=carry, args=(listener.accept()[0], path), daemon=True).start()
for number, text in enumerate(sys.argv[1:]):
    host, _, port = text.rpartition(":")
    listener = socket.create_server((host, int(port)))
    thread = threading.Thread(target=serve, args=(listener, f"/run/hotfire-doors/{number}"))
    thread.start()
"""


def explain(doors: Doors, error: HotfireError | OSError, observer: Observer) -> None:
    """One note that says which variables of the container lead nowhere."""
    why = (
        "the image has no python3 to carry the connections for a user who is not root"
        if isinstance(error, StartRefused)
        else str(error).splitlines()[0]
    )
    names = ", ".join(doors.names)
    text = f"{names} cannot be reached from inside the container: {why}"
    observer(Note(text=text, warning=True))


# --- carrying ----------------------------------------------------------------------------------


def _serve(
    listeners: Iterable[socket.socket], targets: Sequence[tuple[str, int]]
) -> Callable[[], None]:
    opened = list(listeners)
    for listener, target in zip(opened, targets, strict=True):
        threading.Thread(
            target=_accept, args=(listener, target), name="hotfire-door", daemon=True
        ).start()

    def close() -> None:
        for listener in opened:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread up, which closes it

    return close


def _accept(listener: socket.socket, target: tuple[str, int]) -> None:
    with listener:
        while True:
            try:
                here, _ = listener.accept()
            except OSError:
                return
            threading.Thread(
                target=_carry, args=(here, target), name="hotfire-door", daemon=True
            ).start()


def _carry(here: socket.socket, target: tuple[str, int]) -> None:
    with here:
        try:
            there = socket.create_connection(target, timeout=10)
        except OSError:
            return
        with there:
            there.settimeout(None)
            back = threading.Thread(target=_pump, args=(there, here), daemon=True)
            back.start()
            _pump(here, there)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
