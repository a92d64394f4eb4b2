"""Collectives over host memory (gloo) between the processes of a job; errors name the rank.

Three users stand on this: the emulated XLA collectives of CPU processes, the control plane of
`DeviceEnv` (agreeing to stop, adding up metrics) and plain data parallelism on CPU. Needs torch.

The time limit of one collective is HOTFIRE_COLLECTIVE_TIMEOUT seconds (default 1800, the default
of torch.distributed). A rank that died is reported within seconds, whatever the limit: its peers
see the closed connection, and the store holds who each process was and why it failed.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed

# torch describes this module to type checkers in part only.
dist: Any = torch.distributed

TIMEOUT_VARIABLE = "HOTFIRE_COLLECTIVE_TIMEOUT"
BUCKET_BYTES = 32 << 20
DIAGNOSIS_SECONDS = 3.0
_FAILURE_KEY = "hotfire/failure"
# gloo has no kernels for these: carried as the wider type and cut back afterwards. Sums of the two
# half types are taken in float32, as the devices that these processes stand in for do.
_CARRIERS = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
_T = TypeVar("_T")
_groups: weakref.WeakSet[HostGroup] = weakref.WeakSet()
_world_group: HostGroup | None = None


class CollectiveError(RuntimeError):
    """A collective could not finish; the message names the rank at fault where that is known."""


def default_timeout() -> datetime.timedelta:
    """The limit of one collective, from HOTFIRE_COLLECTIVE_TIMEOUT (seconds)."""
    text = os.environ.get(TIMEOUT_VARIABLE) or "1800"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise ValueError(f"{TIMEOUT_VARIABLE}={text!r} is not a positive number of seconds")
    return datetime.timedelta(seconds=seconds)


class HostGroup:
    """`size` processes that reduce, broadcast and gather CPU tensors; this one is `rank`.

    All members call the same methods in the same order. Every method raises `CollectiveError`.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> None:
        self.rank = rank
        self.size = size
        self._timeout = timeout
        self._peers = _Peers(store, rank, size)
        with self._explained("connecting"), _without_gloo_greeting():
            self._gloo = dist.ProcessGroupGloo(
                dist.PrefixStore("hotfire/gloo", store), rank, size, timeout
            )
        _groups.add(self)

    def all_reduce_(
        self,
        tensors: Sequence[torch.Tensor],
        op: Any = dist.ReduceOp.SUM,
        scale: float = 1.0,
    ) -> list[torch.Tensor]:
        """Reduce a list of tensors of any shapes, in flat buckets of one dtype each.

        Returns:
            New tensors in the order, shapes and dtypes of `tensors`, multiplied by `scale`.
        """
        options = dist.AllreduceOptions()
        options.reduceOp = op
        buckets = [(b, _flatten([tensors[i] for i in b])) for b in _buckets(tensors)]
        with self._explained("all_reduce"):
            for work in [self._gloo.allreduce([flat], options) for _, flat in buckets]:
                work.wait()
        return _unpacked(tensors, buckets, scale)

    def broadcast_(self, tensors: Sequence[torch.Tensor], root: int) -> list[torch.Tensor]:
        """What `root` passed, to every member: new tensors shaped like `tensors`."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        buckets = [(b, _flatten([tensors[i] for i in b])) for b in _buckets(tensors)]
        with self._explained("broadcast"):
            for work in [self._gloo.broadcast([flat], options) for _, flat in buckets]:
                work.wait()
        return _unpacked(tensors, buckets)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every member's `tensor` (same shape and dtype everywhere), by rank."""
        carried = tensor.to(_carrier(tensor)).contiguous()
        parts = [torch.empty_like(carried) for _ in range(self.size)]
        with self._explained("all_gather"):
            self._gloo.allgather([parts], [carried]).wait()
        return [part.to(tensor.dtype) for part in parts]

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Every member's `payload`, of any lengths, by rank."""
        lengths = [int(n) for n in self.all_gather(torch.tensor([len(payload)]))]
        longest = max(lengths)
        if longest == 0:
            return [b""] * self.size
        padded = torch.zeros(longest, dtype=torch.uint8)
        if payload:
            padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        gathered = self.all_gather(padded)
        return [
            part.numpy().tobytes()[:length] for part, length in zip(gathered, lengths, strict=True)
        ]

    def broadcast_bytes(self, payload: bytes | None, root: int) -> bytes:
        """`root`'s payload; the others pass None and need not know its length."""
        data = payload if payload is not None and self.rank == root else b""
        [length] = self.broadcast_([torch.tensor([len(data)])], root)
        buffer = torch.zeros(int(length), dtype=torch.uint8)
        if data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if int(length) == 0:
            return b""
        [received] = self.broadcast_([buffer], root)
        return received.numpy().tobytes()

    def barrier(self) -> None:
        """Return when every member has called this."""
        with self._explained("barrier"):
            self._gloo.barrier().wait()

    def announce_failure(self, reason: str) -> None:
        """Leave for the others why this rank ends; the first announcement stays."""
        self._peers.announce(self.rank, reason)

    @contextlib.contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            seconds = time.monotonic() - started
            fault = self._peers.diagnose(str(error))
            if fault is None and seconds >= self._timeout.total_seconds():
                fault = (
                    f"no answer within {seconds:.0f} s from every rank: one of them is slower, or "
                    f"took a path without this collective ({TIMEOUT_VARIABLE} sets the limit)"
                )
            raise CollectiveError(
                f"rank {self.rank} of {self.size}: {operation} failed: {fault or error}"
            ) from error


def announce_failure(error: BaseException) -> None:
    """Tell every group of this process that this rank ends with `error`.

    A `CollectiveError` is not announced: it is the echo of another rank's end.
    """
    if not isinstance(error, CollectiveError):
        for group in list(_groups):
            group.announce_failure(f"{type(error).__name__}: {error}"[:500])


def world_group() -> HostGroup:
    """The group of all processes that torchrun started, made on first use from its environment.

    It owes nothing to ``init_process_group``, which accelerate never calls for XLA devices.

    Raises:
        CollectiveError: MASTER_ADDR or another variable of torchrun is missing.
    """
    global _world_group
    if _world_group is None:
        timeout = default_timeout()
        try:
            store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
        except ValueError as error:
            raise CollectiveError(
                f"no way to the other ranks: {error}; start the script with torchrun"
            ) from error
        store = dist.PrefixStore("hotfire/world", store)
        _world_group = HostGroup(store, rank, size, timeout)
    return _world_group


@contextlib.contextmanager
def _without_gloo_greeting() -> Iterator[None]:
    """torch 2.9's gloo greets on the standard output of every rank, among the metrics.

    What other threads print meanwhile comes after it.
    """
    try:
        kept = os.dup(1)
    except OSError:  # closed: nobody to greet
        yield
        return
    _flush_stdout()
    caught = os.memfd_create("stdout")
    os.dup2(caught, 1)
    try:
        yield
    finally:
        _flush_stdout()
        os.dup2(kept, 1)
        with os.fdopen(caught, "rb") as file:
            file.seek(0)
            rest = [line for line in file if not line.startswith(b"[Gloo] Rank ")]
        with os.fdopen(kept, "wb") as file:
            file.writelines(rest)


def _flush_stdout() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _carrier(tensor: torch.Tensor) -> torch.dtype:
    return _CARRIERS.get(tensor.dtype, tensor.dtype)


def _buckets(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Indices in runs of one carrier dtype and at most BUCKET_BYTES (or one larger tensor)."""
    buckets: list[list[int]] = []
    used, dtype = 0, None
    for i, tensor in enumerate(tensors):
        carrier = _carrier(tensor)
        nbytes = tensor.numel() * carrier.itemsize
        if carrier != dtype or used + nbytes > BUCKET_BYTES:
            buckets.append([])
            used, dtype = 0, carrier
        buckets[-1].append(i)
        used += nbytes
    return buckets


def _flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A fresh flat tensor of the carrier dtype: gloo works in place."""
    carrier = _carrier(tensors[0])
    return torch.cat([t.detach().reshape(-1).to(carrier) for t in tensors])


def _unpacked(
    like: Sequence[torch.Tensor],
    buckets: Sequence[tuple[list[int], torch.Tensor]],
    scale: float = 1.0,
) -> list[torch.Tensor]:
    """The buckets' parts in the order, shapes and dtypes of `like`, times `scale`."""
    results: dict[int, torch.Tensor] = {}
    for indices, flat in buckets:
        # Whole numbers are cut, as a device does it; `mul_` would refuse.
        scaled = flat if scale == 1.0 else (flat * scale).to(flat.dtype)
        parts = torch.split(scaled, [like[i].numel() for i in indices])
        for i, part in zip(indices, parts, strict=True):
            results[i] = part.view(like[i].shape).to(like[i].dtype)
    return [results[i] for i in range(len(like))]


@dataclass(frozen=True, kw_only=True)
class _Process:
    """Where a rank lives: process ids mean something only within one PID namespace."""

    pid: int
    started: str
    namespace: str
    host: str


class _Peers:
    """Who the other ranks are and what became of them, kept in the rendezvous store."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._known: dict[int, _Process] = {}
        me = _this_process()
        store.set(f"hotfire/peer/{rank}", json.dumps(me.__dict__))

    def announce(self, rank: int, reason: str) -> None:
        """First come, first kept: later failures are mostly echoes of the first."""
        self._attempt(
            lambda: self._store.compare_set(
                _FAILURE_KEY, "", json.dumps({"rank": rank, "reason": reason})
            )
        )

    def diagnose(self, error: str) -> str | None:
        """Which rank is at fault, waiting a little for somebody to find out; None if unknown."""
        deadline = time.monotonic() + DIAGNOSIS_SECONDS
        while True:
            found = self._announced() or self._find_dead()
            if found is not None or time.monotonic() > deadline:
                return found or self._by_address(error)
            time.sleep(0.05)

    def _announced(self) -> str | None:
        if not self._attempt(lambda: self._store.check([_FAILURE_KEY])):
            return None
        text = self._attempt(lambda: self._store.get(_FAILURE_KEY))
        if text is None:
            return None
        failure = json.loads(text)
        return f"rank {failure['rank']} ended: {failure['reason']}"

    def _find_dead(self) -> str | None:
        """A vanished process of this host; announced, for the hosts that cannot see it."""
        me = self._process(self._rank)
        for rank in range(self._size):
            process = self._process(rank)
            if process is None or me is None or process.namespace != me.namespace:
                continue
            if rank != self._rank and _process_start(process.pid) != process.started:
                reason = f"its process {process.pid} on {process.host} is gone, see its log"
                self.announce(rank, reason)
                return self._announced() or f"rank {rank} ended: {reason}"
        return None

    def _by_address(self, error: str) -> str | None:
        """Nobody could look: say at least which hosts the other ranks were on."""
        if "onnection" not in error:
            return None
        others = ", ".join(
            f"{rank} on {process.host}"
            for rank in range(self._size)
            if rank != self._rank and (process := self._process(rank)) is not None
        )
        return f"a rank closed its connection without a reason (the others were: {others}): {error}"

    def _process(self, rank: int) -> _Process | None:
        if rank not in self._known:
            key = f"hotfire/peer/{rank}"
            if not self._attempt(lambda: self._store.check([key])):
                return None
            text = self._attempt(lambda: self._store.get(key))
            if text is None:
                return None
            self._known[rank] = _Process(**json.loads(text))
        return self._known[rank]

    @staticmethod
    def _attempt(call: Callable[[], _T]) -> _T | None:
        """The store dies with the process that serves it; then it knows nothing more."""
        try:
            return call()
        except RuntimeError:
            return None


def _this_process() -> _Process:
    return _Process(
        pid=os.getpid(),
        started=_process_start(os.getpid()),
        namespace=f"{_read('/proc/sys/kernel/random/boot_id')} {_link('/proc/self/ns/pid')}",
        host=os.environ.get("SM_CURRENT_HOST") or os.uname().nodename,
    )


def _process_start(pid: int) -> str:
    """The start time of a living process in clock ticks; "" when it is gone or a zombie (proc(5))."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return "" if not fields or fields[0] in "ZX" else fields[19]


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _link(path: str) -> str:
    with contextlib.suppress(OSError):
        return str(Path(path).readlink())
    return ""
