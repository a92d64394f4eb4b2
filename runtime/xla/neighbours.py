"""Sums between processes of one host that read each other's memory. Needs torch, and Linux.

gloo sends every byte through a socket. Here each process adds up its own share of every tensor
where it lies, reading the others' with process_vm_readv(2), and then fetches the shares that the
others have added up. All results have the same bits: each number is computed once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Sequence

import torch

# Below this a few more rounds of messages cost more than gloo's copies.
WORTH_BYTES = 1 << 20
# What is read at once stays in a core's cache until it is added.
_CHUNK_BYTES = 1 << 20
_PR_SET_PTRACER = 0x59616D61
_STRANGER = -1  # no errno: the process is not that member
_READY = torch.zeros(1)
_libc = ctypes.CDLL(None, use_errno=True)
Gather = Callable[[torch.Tensor], list[torch.Tensor]]


class _Range(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Neighbours:
    """The processes `pids`, in the order of their group; this one is at `rank`.

    The argument `gather` of the methods gives every member's tensor, and raises when one is gone.
    """

    def __init__(self, pids: Sequence[int], rank: int) -> None:
        self._pids = tuple(pids)
        self._rank = rank
        self._others = [m for m in range(len(pids)) if m != rank]

    def sum_(self, flats: Sequence[torch.Tensor], gather: Gather) -> None:
        """Replace `flats`, contiguous vectors of the same lengths and types on all, by their sums.

        Raises:
            RuntimeError: another member's memory cannot be read any more.
        """
        table = torch.tensor([flat.data_ptr() for flat in flats])
        addresses = [row.tolist() for row in gather(table)]
        scratch = torch.empty(_CHUNK_BYTES, dtype=torch.uint8)
        for i, flat in enumerate(flats):
            for part in torch.split(self._share(flat, self._rank), _CHUNK_BYTES // flat.itemsize):
                theirs = scratch.view(flat.dtype)[: part.numel()]
                for m in self._others:
                    self._fetch(m, addresses[m][i] + _offset(part, flat), theirs)
                    part.add_(theirs)
        gather(_READY)  # every member has added up its share
        for i, flat in enumerate(flats):
            for m in self._others:
                part = self._share(flat, m)
                self._fetch(m, addresses[m][i] + _offset(part, flat), part)
        gather(_READY)  # nobody reads this process any more

    def _share(self, flat: torch.Tensor, member: int) -> torch.Tensor:
        """The elements that `member` adds up."""
        size = len(self._pids)
        return flat[flat.numel() * member // size : flat.numel() * (member + 1) // size]

    def _fetch(self, member: int, address: int, into: torch.Tensor) -> None:
        code = _read(self._pids[member], address, into)
        if code:
            where = f"process {self._pids[member]}"
            raise RuntimeError(f"the memory of {where} cannot be read: {os.strerror(code)}")


def meet(pids: Sequence[int] | None, rank: int, gather: Gather) -> Neighbours | None:
    """The members of a group, if all live here and can read each other; the same answer on all.

    `pids` is None where a member lives elsewhere. Containers may forbid the system call, which
    the log then says. Yama's default allows it to a process's ancestors alone; so the parent, and
    with it the processes that it started, are allowed as well.
    """
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)
    secret = torch.frombuffer(bytearray(os.urandom(16)), dtype=torch.int64)
    cards = gather(torch.cat([torch.tensor([secret.data_ptr()]), secret]))
    problem = _STRANGER if pids is None or sys.platform != "linux" else 0
    for pid, card in zip(pids or (), cards, strict=False):
        found = torch.empty_like(secret)
        problem = problem or _read(pid, int(card[0]), found)
        problem = problem or (0 if torch.equal(found, card[1:]) else _STRANGER)
    problems = [int(answer) for answer in gather(torch.tensor([problem]))]
    if rank == 0 and max(problems) > 0:
        print(
            "hotfire: the ranks may not read each other's memory "
            f"({os.strerror(max(problems))}); their sums go through sockets, which takes longer",
            file=sys.stderr,
            flush=True,
        )
    return Neighbours(pids, rank) if pids is not None and not any(problems) else None


def _offset(part: torch.Tensor, whole: torch.Tensor) -> int:
    return part.data_ptr() - whole.data_ptr()


def _read(pid: int, address: int, into: torch.Tensor) -> int:
    """Fill `into` from `address` in process `pid`; 0, or an errno."""
    size, done = into.numel() * into.itemsize, 0
    one, flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
    while done < size:  # the kernel stops a little below 2 GiB
        here = _Range(into.data_ptr() + done, size - done)
        there = _Range(address + done, size - done)
        got = _libc.process_vm_readv(pid, ctypes.byref(here), one, ctypes.byref(there), one, flags)
        if got <= 0:
            return ctypes.get_errno() or errno.EFAULT
        done += got
    return 0
