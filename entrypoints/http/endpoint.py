"""A running endpoint: everything put together, until it is told to end. Jobs go on without it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotfire.entrypoints.http.application import Application, Parts, call_moto
from hotfire.entrypoints.http.moto import Moto, check
from hotfire.entrypoints.http.server import HOST, serve
from hotfire.runtime.endpoint import clients, rules
from hotfire.runtime.endpoint.admission import Capacity
from hotfire.runtime.endpoint.log_operations import LogOperations
from hotfire.runtime.endpoint.metrics import Publisher
from hotfire.runtime.endpoint.objects import ObjectStore
from hotfire.runtime.endpoint.operations import Operations
from hotfire.runtime.errors import PlatformError, ValidationError
from hotfire.runtime.surroundings import Options, Surroundings

logger = logging.getLogger(__name__)
LOOK_SECONDS = 0.3
"""Precision of the times of log events, and of what tuning jobs see."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    port: int
    region: str
    capacity: Capacity
    persist: Path | None = None
    """Keeps the buckets; None: they are gone with the server."""
    s3_url: str = ""
    options: Options
    rules: Path | None = None


def run(settings: Settings, around: Surroundings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ValidationError: the port is taken, the rules are wrong, moto is missing, or an endpoint runs already.
    """
    check()
    with ExitStack() as undo:
        undo.enter_context(_ending())
        address = clients.Address(
            url=f"http://{HOST}:{settings.port}", region=settings.region, s3_url=settings.s3_url
        )
        application: list[Application] = []
        try:
            server = serve(settings.port, lambda request: application[0](request))
        except OSError as error:
            raise ValidationError(
                f"port {settings.port} of {HOST} cannot be listened on: {error.strerror}.",
                do="Give another one with --port (0: any that is free).",
            ) from error
        undo.callback(server.server_close)
        address = replace(address, url=f"http://{HOST}:{server.server_address[1]}")
        lock = clients.announce(around.store.home, address)
        undo.callback(lock.close)
        # Jobs, and S3 as this process uses it, find everything at this address as well.
        environ = clients.environment(address, around.store.home, around.environ)
        _become(environ)
        around = replace(around, environ=environ)
        operations = _operations(settings, around)
        undo.callback(_farewell, settings, around, operations, say)
        application.append(_assembled(settings, around, operations, undo))
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="hotfire-http")
        thread.start()
        undo.callback(thread.join)
        undo.callback(server.shutdown)
        say(f"the endpoint is {address.url}")
        say('point a shell at it with: eval "$(hotfire env)"')
        _until_told()


def _operations(settings: Settings, around: Surroundings) -> Operations:
    return Operations(around, rules.load(settings.rules, settings.options), settings.capacity)


def _farewell(
    settings: Settings,
    around: Surroundings,
    operations: Operations,
    say: Callable[[str], None],
) -> None:
    """Remove the buckets, unless they are to be kept or a job may still need them."""
    jobs = sum(not row.ended for row in operations.index.rows())
    tuning = sum(not record.terminal for record in operations.tuner.shelf.records())
    if jobs or tuning:
        say(
            f"{jobs} training jobs go on, {tuning} tuning jobs wait: start the endpoint again on the same port for their "
            "data and their models"
        )
    elif settings.persist is None:
        shutil.rmtree(clients.directory(around.store.home) / "objects", ignore_errors=True)


def _assembled(
    settings: Settings, around: Surroundings, operations: Operations, undo: ExitStack
) -> Application:
    moto = Moto()
    logs = LogOperations(around, operations.index)

    def put(region: str, metrics: Mapping[str, Any]) -> None:
        target = "GraniteServiceVersion20100801.PutMetricData"
        answer = call_moto(moto, "monitoring", json.dumps(metrics).encode(), region, target)
        if answer.status != 200:
            raise PlatformError(f"CloudWatch refused metrics: {answer.body!r}")

    publisher = Publisher(around.store, operations.index, put)
    objects = None if settings.s3_url else _objects(settings, around, undo)
    if objects:
        objects.create_bucket(f"sagemaker-{settings.region}-{clients.ACCOUNT}", settings.region)
    parts = Parts(operations=operations, logs=logs, objects=objects, region=settings.region)
    application = Application(parts, publisher, moto)
    application.prepare()
    _repeat("hotfire-logs", logs.look, undo)
    _repeat("hotfire-tuner", operations.tuner.step, undo)
    return application


def _objects(settings: Settings, around: Surroundings, undo: ExitStack) -> ObjectStore:
    # Not in the system's temporary directory, which is often memory. What a killed server left is taken over.
    root = settings.persist or clients.directory(around.store.home) / "objects"
    try:
        root.mkdir(parents=True, exist_ok=True)
        store = ObjectStore(root)
    except OSError as error:
        raise ValidationError(f"{root} cannot be used: {error}.") from error
    undo.callback(store.close)
    return store


def _repeat(name: str, step: Callable[[], None], undo: ExitStack) -> None:
    """Take ``step`` in a thread of its own until the end."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(LOOK_SECONDS):
            try:
                step()
            except Exception:  # what is wrong with one job now must not end the looking
                logger.debug("%s failed", name, exc_info=True)

    thread = threading.Thread(target=work, name=name)
    thread.start()
    undo.callback(thread.join)
    undo.callback(done.set)


def _become(environ: Mapping[str, str]) -> None:
    """Make ``environ`` this process's own: boto3 looks nowhere else."""
    for name in set(os.environ) - set(environ):
        del os.environ[name]
    os.environ.update(environ)


class _Told(BaseException):
    """SIGTERM."""


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """SIGTERM and SIGINT end the ``with`` in good order, wherever it is."""

    def told(number: int, frame: object) -> None:
        raise _Told

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except _Told:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _until_told() -> None:
    while True:
        time.sleep(3600)
