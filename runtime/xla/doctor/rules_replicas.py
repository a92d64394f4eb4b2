"""Rules about several workers: they must stay one model, and see different rows."""

from __future__ import annotations

from collections.abc import Sequence

from hotfire.runtime.xla.doctor.findings import Finding, Run, Severity
from hotfire.runtime.xla.doctor.timeline import Event, Rank, Site, site_of

# Equal sums in another order differ by less; the first steps of any training by far more.
_TOLERANCE = 1e-7


def replica_drift(run: Run) -> list[Finding]:
    """The ranks' parameters differ, from the start or from the first step on."""
    initial, later = _digests(run, "initial"), _digests(run, "later")
    if initial and not _equal(initial):
        return [_unequal_start(run)]
    if later and not _equal(later):
        return [_drift(run)]
    return []


def _digests(run: Run, when: str) -> list[Event]:
    """Of all ranks, or nothing while one is missing."""
    found = [[e for e in rank.of("digest") if e["when"] == when] for rank in run.ranks]
    complete = len(found) == run.world_size > 1 and all(found)
    return [events[0] for events in found] if complete else []


def _equal(digests: Sequence[Event]) -> bool:
    first = digests[0]["values"]
    return all(
        len(other["values"]) == len(first)
        and all(_close(a, b) for a, b in zip(first, other["values"], strict=True))
        for other in digests[1:]
    )


def _close(a: Sequence[float], b: Sequence[float]) -> bool:
    return abs(a[0] - b[0]) <= _TOLERANCE * max(a[1], b[1])


def _unequal_start(run: Run) -> Finding:
    models = run.first.of("model")
    site = site_of(models[0]["site"]) if models else None
    return run.finding(
        "replica-drift",
        Severity.ERROR,
        site,
        f"the {run.world_size} workers start from different weights.",
        cost="the workers train different models and average gradients that do not belong together",
        fix="torch.manual_seed(...) before the model is made, or "
        "xm.broadcast_master_param(model) after it is on the device",
    )


def _drift(run: Run) -> Finding:
    optimizers = run.first.of("optimizer")
    site: Site | None = site_of(optimizers[0]["site"]) if optimizers else None
    return run.finding(
        "replica-drift",
        Severity.ERROR,
        site,
        f"the {run.world_size} workers' parameters are equal at the start and differ after "
        f"two steps: gradients are not averaged. {run.quote(site)}".rstrip(),
        cost=f"{run.world_size} separate trainings; the one that is saved has seen "
        f"1/{run.world_size} of the data",
        fix="xm.optimizer_step(optimizer) in the place of optimizer.step(), or "
        "xm.reduce_gradients(optimizer) before it",
    )


def overlapping_shards(run: Run) -> list[Finding]:
    """Two workers read the same batches."""
    for first in run.ranks:
        for other in run.ranks:
            if first.number < other.number and (loader := _same_batches(first, other)):
                return [
                    run.finding(
                        "overlapping-shards",
                        Severity.ERROR,
                        site_of(loader["site"]),
                        f"workers {first.number} and {other.number} read the same batches: the "
                        "data is not divided among the workers.",
                        cost=f"{run.world_size} workers do the work of one, in the time of one",
                        fix="DistributedSampler(dataset, num_replicas=xr.world_size(), "
                        "rank=xr.global_ordinal()) as the loader's sampler",
                    )
                ]
    return []


def _same_batches(first: Rank, other: Rank) -> Event | None:
    """The training loader of `first` whose first batches are all those of `other`'s."""
    trained = {e["id"]: e for e in first.of("loader")}
    for number, loader in trained.items():
        mine, theirs = _batches(first, number), _batches(other, number)
        if mine and mine == theirs and loader["id"] in _training_loaders(first):
            return loader
    return None


def _batches(rank: Rank, loader: int) -> list[str]:
    return [e["digest"] for e in rank.of("batch") if e["loader"] == loader][:3]


def _training_loaders(rank: Rank) -> set[int]:
    """Evaluation may well read the same rows everywhere."""
    return set(rank.end.get("trained_loaders", ()))


RULES = (replica_drift, overlapping_shards)
