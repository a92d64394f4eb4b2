"""Which processes of this machine descend from one of them."""

# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os


def parents() -> dict[int, int]:
    """The parent of every process of this machine."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def descendants(root: int, parent_of: dict[int, int] | None = None) -> list[int]:
    """The children of a process, their children and so on; parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in (parents() if parent_of is None else parent_of).items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        more = sorted(children.get(queue.pop(0), ()))
        found += more
        queue += more
    return found
