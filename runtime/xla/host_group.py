"""Collectives over host memory (gloo) between the processes of a job; errors name the rank.

Three users stand on this: the emulated XLA collectives of CPU processes, the control plane of
`DeviceEnv` (agreeing to stop, adding up metrics) and plain data parallelism on CPU. Needs torch.

Whatever the time limit (see `hotfire.runtime.xla.calls`): a rank that died, ranks that came with
other shapes or to another collective, and ranks that wait for each other are an error within
seconds; a rank that is late is named in the log within seconds, and in the error when the limit
has passed.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import time
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
import torch.distributed

from hotfire.runtime.xla import agreement, neighbours
from hotfire.runtime.xla.buckets import carrier, pack, unpack
from hotfire.runtime.xla.calls import Calls, CollectiveError, default_timeout
from hotfire.runtime.xla.gloo_greeting import without_gloo_greeting
from hotfire.runtime.xla.in_order import InOrder
from hotfire.runtime.xla.neighbours import Neighbours
from hotfire.runtime.xla.peers import Call, Peers
from hotfire.runtime.xla.world import World

# torch describes this module to type checkers in part only.
dist: Any = torch.distributed

_MEETING_SECONDS = 0.02
Finish = Callable[[Sequence[Any]], None]
_groups: weakref.WeakSet[HostGroup] = weakref.WeakSet()


class HostGroup:
    """Processes that reduce, broadcast, gather and exchange CPU tensors.

    `members` are their ranks in the job, in the order of this group; this process is
    ``members[rank]``. All members call the same methods in the same order. Every method raises
    `CollectiveError`.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        members: Sequence[int],
        timeout: datetime.timedelta,
        name: str = "world",
    ) -> None:
        self.rank = rank
        self.members = tuple(members)
        self.size = len(self.members)
        self._receivers: dict[tuple[int, int], InOrder] = {}
        self._peers = _job_peers()
        self._calls = Calls(self._peers, rank, self.members, timeout.total_seconds(), name)
        self._near: Neighbours | None = None
        self._met = False
        call = self._calls.next("connecting")
        with self._calls.explained(call), without_gloo_greeting():
            # Ranks that call `new_group` with different members must not meet in one store.
            store = dist.PrefixStore(f"hotfire/{' '.join(map(str, self.members))}", store)
            self._meet(store, call)
            self._gloo = dist.ProcessGroupGloo(store, rank, self.size, timeout)
        _groups.add(self)

    def all_reduce_(
        self,
        tensors: Sequence[torch.Tensor],
        op: Any = dist.ReduceOp.SUM,
        scale: float = 1.0,
        *,
        in_place: Container[int] = (),
    ) -> list[torch.Tensor]:
        """Reduce a list of tensors of any shapes.

        Those at the indices `in_place` (the same on every rank) are reduced where they are, and
        not scaled: contiguous ones, of a type that gloo has. The others go in flat buckets. Sums
        of a megabyte and more do without gloo where the members can read each other's memory.

        Returns:
            Tensors in the order, shapes and dtypes of `tensors`, multiplied by `scale`: new ones,
            except those reduced in place.
        """
        options = dist.AllreduceOptions()
        options.reduceOp = op
        inside = [i for i in range(len(tensors)) if i in in_place]
        buckets = pack(tensors, [i for i in range(len(tensors)) if i not in in_place])
        flats = [tensors[i].detach().view(-1) for i in inside] + [flat for _, flat in buckets]
        items = agreement.described(tensors)
        for i in inside:
            items[i] += " in place"
        nbytes = sum(flat.numel() * flat.itemsize for flat in flats)
        with self._agreed(f"all_reduce {_named(op)}", items) as finish:
            here = op == dist.ReduceOp.SUM and nbytes >= neighbours.WORTH_BYTES
            if not (here and self._summed_here(flats, finish)):
                finish([self._gloo.allreduce([flat], options) for flat in flats])
        results = unpack(tensors, buckets, scale)
        return [results.get(i, tensors[i]) for i in range(len(tensors))]

    def broadcast_(self, tensors: Sequence[torch.Tensor], root: int) -> list[torch.Tensor]:
        """What `root` passed, to every member: new tensors shaped like `tensors`."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        buckets = pack(tensors, range(len(tensors)))
        with self._agreed(
            f"broadcast from {self.members[root]}", agreement.described(tensors)
        ) as finish:
            finish([self._gloo.broadcast([flat], options) for _, flat in buckets])
        results = unpack(tensors, buckets)
        return [results[i] for i in range(len(tensors))]

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every member's `tensor` (same shape and dtype everywhere), by rank."""
        carried = tensor.to(carrier(tensor)).contiguous()
        with self._agreed("all_gather", agreement.described([tensor])) as finish:
            parts = self._gathered(carried, finish)
        return [part.to(tensor.dtype) for part in parts]

    def exchange(
        self, parts: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        """Send ``parts[i]`` to member i; what member i sent, expected to have ``shapes[i]``.

        All parts of all members have one dtype. Lengths may differ.
        """
        dtype = parts[0].dtype
        received = [torch.empty(tuple(shape), dtype=dtype) for shape in shapes]
        lengths = [t.numel() * dtype.itemsize for t in received]
        sent = torch.cat([_bytes(part) for part in parts])
        sizes = [part.numel() * dtype.itemsize for part in parts]
        flat = torch.empty(sum(lengths), dtype=torch.uint8)
        with self._agreed(f"all_to_all of {dtype}", []) as finish:
            self._check_lengths(parts, received, finish)
            finish([self._gloo.alltoall_base(flat, sent, lengths, sizes)])
        for target, piece in zip(received, torch.split(flat, lengths), strict=True):
            _bytes(target).copy_(piece)
        return received

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
        with self._agreed("barrier", []):
            return

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Callable[[], None]:
        """Start sending to member `to`; what is returned waits until it has been received."""
        call = self._calls.next(f"send to rank {self.members[to]}", to)
        parts = (agreement.header(tensor), _bytes(tensor))
        with self._calls.explained(call):
            works = [self._gloo.send([part], to, tag) for part in parts]

        def wait() -> None:
            with self._calls.explained(call):
                for work, _ in zip(works, parts, strict=True):  # the memory is gloo's until then
                    work.wait()

        return wait

    def receive(self, like: torch.Tensor, source: int, tag: int) -> Callable[[], torch.Tensor]:
        """Start receiving what member `source` sends with `tag`; what is returned waits for it.

        A thread receives: the sender may wait for this before anybody here does.
        """
        call = self._calls.next(f"recv from rank {self.members[source]}", source)
        expected = agreement.header(like)
        found, data = torch.empty_like(expected), torch.empty(like.shape, dtype=like.dtype)

        def receive() -> None:
            self._gloo.recv([found], source, tag).wait()
            agreement.check_header(found, expected, self.members[source])
            self._gloo.recv([_bytes(data)], source, tag).wait()

        done = self._receivers.setdefault((source, tag), InOrder()).start(receive)

        def wait() -> torch.Tensor:
            with self._calls.explained(call):
                done()
            return data

        return wait

    def announce_failure(self, reason: str) -> None:
        """Leave for the others why this rank ends; the first announcement stays."""
        self._peers.announce(f"rank {self.members[self.rank]} ended: {reason}")

    # How a call is made.

    @contextlib.contextmanager
    def _agreed(self, operation: str, items: Sequence[str]) -> Iterator[Finish]:
        """A call that all members make alike; yields what waits for its works."""
        call = self._calls.next(operation)
        finish = functools.partial(self._calls.finish, call)
        with self._calls.explained(call):
            agreement.check(
                lambda tensor: self._gathered(tensor, finish), operation, items, self.members
            )
            yield finish

    def _gathered(self, tensor: torch.Tensor, finish: Finish) -> list[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        finish([self._gloo.allgather([parts], [tensor])])
        return parts

    def _summed_here(self, flats: Sequence[torch.Tensor], finish: Finish) -> bool:
        """Sum `flats` in the members' memory, if they are neighbours; the same answer on all."""
        gather = functools.partial(self._gathered, finish=finish)
        if not self._met:
            self._met = True
            self._near = neighbours.meet(self._peers.here(self.members), self.rank, gather)
        if self._near is None:
            return False
        self._near.sum_(flats, gather)
        return True

    def _meet(self, store: Any, call: Call) -> None:
        """Wait until all members make this group: gloo's own connecting cannot be watched."""
        store.set(f"here/{self.rank}", "")
        here = [f"here/{rank}" for rank in range(self.size)]
        started = looked = time.monotonic()
        with self._calls.watch(call) as watch:
            while not store.check(here):  # `wait` would log a warning at every look
                time.sleep(_MEETING_SECONDS)
                if time.monotonic() - started > self._calls.limit:
                    raise RuntimeError("the other ranks did not come to connect")
                if time.monotonic() - looked > watch.seconds:
                    watch.look()
                    looked = time.monotonic()
        self._peers.remember(self.members)

    def _check_lengths(
        self, sent: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], finish: Finish
    ) -> None:
        """Every member sees what all send and expect, so that all raise or none."""
        mine = [[t.numel() for t in sent], [t.numel() for t in expected]]
        table = torch.stack(self._gathered(torch.tensor(mine), finish))
        agreement.check_lengths(table[:, 0], table[:, 1], self.members)


def _named(op: Any) -> str:
    return str(op).rpartition(".")[2]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def announce_failure(error: BaseException) -> None:
    """Tell the other ranks that this one ends with `error`.

    A `CollectiveError` is not announced: it is the echo of another rank's end.
    """
    if not isinstance(error, CollectiveError):
        for group in list(_groups)[:1]:
            group.announce_failure(f"{type(error).__name__}: {error}"[:500])


@functools.cache
def world_group() -> HostGroup:
    """The group of all processes that torchrun started, made on first use from its environment.

    It owes nothing to ``init_process_group``, which accelerate never calls for XLA devices.

    Raises:
        CollectiveError: MASTER_ADDR or another variable of torchrun is missing.
    """
    world = World.from_environment(os.environ)
    store = dist.PrefixStore("world", _job_store())
    return HostGroup(store, world.rank, range(world.size), default_timeout())


@functools.cache
def subgroup(members: tuple[int, ...]) -> HostGroup:
    """The group of the job's ranks `members`, in that order, made by their first common call."""
    world = World.from_environment(os.environ)
    if members == tuple(range(world.size)):
        return world_group()
    name = "ranks " + " ".join(str(rank) for rank in members)
    store = dist.PrefixStore(name, _job_store())
    rank = members.index(world.rank)
    return HostGroup(store, rank, members, default_timeout(), name)


@functools.cache
def _job_store() -> Any:
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=default_timeout()))
    except ValueError as error:
        raise CollectiveError(
            f"no way to the other ranks: {error}; start the script with torchrun"
        ) from error
    return dist.PrefixStore("hotfire", store)


@functools.cache
def _job_peers() -> Peers:
    world = World.from_environment(os.environ)
    return Peers(dist.PrefixStore("peers", _job_store()), world.rank, world.size)
