"""The processes of a job as torchrun describes them in the environment (standard library only)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class World:
    """One process's place: `rank` of `size` over all hosts, `local_rank` of `local_size` here."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> World:
        """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; alone when they are absent.

        Raises:
            ValueError: the variables contradict each other or are no numbers.
        """
        size = int(environment.get("WORLD_SIZE") or 1)
        world = cls(
            rank=int(environment.get("RANK") or 0),
            size=size,
            local_rank=int(environment.get("LOCAL_RANK") or 0),
            local_size=int(environment.get("LOCAL_WORLD_SIZE") or 1),
        )
        if not (0 <= world.rank < size and 0 <= world.local_rank < world.local_size):
            raise ValueError(f"the environment describes an impossible {world}")
        return world

    @property
    def host_leader(self) -> int:
        """The rank of local rank 0 on this host (torchrun numbers a host's ranks in a row)."""
        return self.rank - self.local_rank
