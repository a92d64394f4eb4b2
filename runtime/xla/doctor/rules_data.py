"""Rules about input: waiting for it, its types and places, how it is cut, how it is tokenised."""

from __future__ import annotations

import re
import statistics
from typing import Any

from hotfire.runtime.xla.doctor.findings import Finding, Run, Severity
from hotfire.runtime.xla.doctor.rules_graphs import WARM_UP_STEPS, compile_cost
from hotfire.runtime.xla.doctor.shapes import has_partial_batch
from hotfire.runtime.xla.doctor.timeline import Event, site_of

# A wait below this is the machine's noise and no loader's.
_WAIT_SECONDS = 0.02
_WAIT_SHARE = 0.3
_STEPS = 3
_WAITS = 2
_TEXTS = 200
_MIXED = re.compile(
    r"on the same device|not an? XLA tensor|Expected XLA tensor|"
    r"tensor is not on XLA|found at least two devices"
)


def loader_failed(run: Run) -> list[Finding]:
    """A loader raised where torch_xla reads ahead: the script's loop just ended."""
    return [
        run.finding(
            "loader-failed",
            Severity.ERROR,
            site_of(event["site"]),
            f"the loader raised {event['type']} in MpDeviceLoader's thread: {event['message']}. The "
            "loop ended there as if the data had ended.",
            cost="the rest of the data is never seen, and the job ends as Completed",
            fix="mend what raised; the log has the traceback",
        )
        for event in run.first.of("loader_error")
    ]


def loader_stall(run: Run) -> list[Finding]:
    """The script waits for its loader for a good part of the step, or soon will."""
    quiet = [
        segment.mark
        for segment in run.first.observed
        if segment.trained
        and segment.opt_before >= WARM_UP_STEPS
        and not any(report.compiled for report in segment.reports)
    ]
    if len(quiet) < _STEPS:
        return []
    step = statistics.mean(mark["seconds"] for mark in quiet)
    wait = statistics.mean(mark["wait"] for mark in quiet)
    loader, batch, fastest = _slowest(run)
    # Batches come in bursts where they are uploaded ahead, so means; a single pause is no rule.
    pauses = sum(mark["wait"] > _WAIT_SECONDS for mark in quiet)
    waits = pauses >= _WAITS and _long(wait, step) and (loader is None or batch >= wait / 2)
    # Or all steps lived on what was read ahead while the first ones compiled.
    later = fastest - (step - wait)
    if not waits and not _long(later, fastest):
        return []
    wait, step = (wait, step) if waits else (later, fastest)
    workers = loader["workers"] if loader else 0
    return [
        run.finding(
            "loader-stall",
            Severity.WARNING,
            site_of(loader["site"]) if loader else None,
            f"the step {'waits' if waits else 'will wait'} {wait * 1000:.0f} ms for its batch, "
            f"{wait / step:.0%} of its time (num_workers={workers})"
            f"{'.' if waits else ', once what was read ahead is used up.'}",
            cost=f"{wait * 1000:.0f} ms at every step; a faster device waits just as long",
            fix="do this work once, before training; or num_workers=2 and more, "
            "persistent_workers=True, and MpDeviceLoader, which uploads ahead",
        )
    ]


def _long(wait: float, step: float) -> bool:
    return wait >= max(_WAIT_SECONDS, _WAIT_SHARE * step)


def _slowest(run: Run) -> tuple[Event | None, float, float]:
    """The loader that takes longest for a batch; its mean and its smallest seconds for one."""
    busy = run.first.end.get("loaders", {})
    loaders = {str(event["id"]): event for event in run.first.of("loader")}
    means = {
        key: total / count for key, (total, count, _) in busy.items() if count and key in loaders
    }
    slowest = max(means, key=lambda key: means[key], default=None)
    if slowest is None:
        return None, 0.0, 0.0
    return loaders[slowest], means[slowest], busy[slowest][2]


def partial_batch(run: Run) -> list[Finding]:
    """The last batch of an epoch is smaller, so it is a program of its own."""
    found = []
    filled = run.first.end.get("filled_loaders", ())
    for loader in _loaders(run):
        if loader["id"] in filled:
            continue
        if has_partial_batch(loader) and loader["rows"] > loader["batch_size"]:
            rest = loader["rows"] % loader["batch_size"]
            found.append(
                run.finding(
                    "partial-batch",
                    Severity.WARNING,
                    site_of(loader["site"]),
                    f"the last batch has {rest} of {loader['batch_size']} rows "
                    f"({loader['rows']} rows): dimension 0 changes there.",
                    cost=compile_cost(run, 1) + "; the device is used for "
                    f"{rest / loader['batch_size']:.0%} in that step",
                    fix="drop_last=True for training; for evaluation fill the batch up and "
                    "give the added rows weight 0 (hotfire.runtime.xla.data.EvalBatches)",
                )
            )
    return found


def oversized_batch(run: Run) -> list[Finding]:
    """A loader has fewer rows than one batch."""
    found = []
    for loader in _loaders(run):
        rows, size = loader["rows"], loader["batch_size"]
        if loader["plain_batches"] and rows and size and rows < size:
            lost, cost = f"one batch of {rows} rows", "an epoch is one step, and another shape"
            if loader["drop_last"]:
                lost, cost = "no batch at all", "nothing is trained, and the job ends as Completed"
            found.append(
                run.finding(
                    "oversized-batch",
                    Severity.WARNING,
                    site_of(loader["site"]),
                    f"the batch size is {size}, and a worker has {rows} rows: {lost}.",
                    cost=cost,
                    fix=f"a batch size of at most {rows}, or fewer workers",
                )
            )
    return found


def indivisible_rows(run: Run) -> list[Finding]:
    """The rows cannot be divided among the workers: a sampler repeats some."""
    found = []
    for loader in _loaders(run):
        rows, replicas = loader["dataset_rows"], loader["replicas"]
        if rows and replicas and rows % replicas and not loader["sampler_drop_last"]:
            found.append(
                run.finding(
                    "indivisible-rows",
                    Severity.NOTE,
                    site_of(loader["site"]),
                    f"{rows} rows are not divisible by {replicas} workers: {loader['sampler']} "
                    f"repeats {-rows % replicas} of them in every epoch.",
                    cost="some rows count twice; metrics over all rows are slightly wrong",
                    fix="DistributedSampler(drop_last=True) for training; for evaluation weigh "
                    "the repeated rows with 0",
                )
            )
    return found


def mixed_devices(run: Run) -> list[Finding]:
    """Some tensors of a step are on the host and some on the device."""
    error = run.first.end.get("error") or {}
    if _MIXED.search(error.get("message", "")):
        message = error["message"].strip().splitlines()[0]
        return [_mixed(run, site_of(error["site"]), f"the step fails: {message}", Severity.ERROR)]
    for event in run.first.of("call"):
        weights = {key.split()[0] for key in event["parameters"]}
        inputs = {place for _, _, place in event["tensors"].values()}
        stray = [name for name, (_, _, place) in event["tensors"].items() if place == "cpu"]
        if "cpu" in weights and "xla" in weights | inputs:
            names = [n for k, v in event["parameters"].items() if k.startswith("cpu") for n in v]
            what = f"{', '.join(names)} of {event['module']} stayed on the CPU"
            return [_mixed(run, site_of(event["site"]), what, Severity.WARNING)]
        if "xla" in weights and stray:
            what = f"{', '.join(stray)} of {event['module']} comes on the CPU"
            return [_mixed(run, site_of(event["site"]), what, Severity.WARNING)]
    return []


def _mixed(run: Run, site: Any, what: str, severity: Severity) -> Finding:
    return run.finding(
        "mixed-devices",
        severity,
        site,
        f"{what}; other tensors of this step are on the device.",
        cost="an error, or a transfer at every step",
        fix="move the model and every tensor of the step with .to(torch_xla.device()) before the "
        "loop; register constants as buffers",
    )


def double_precision(run: Run) -> list[Finding]:
    """float64 on the device: Neuron has none, and others emulate it."""
    for event in run.first.of("call", "double_loss"):
        if event["event"] == "double_loss":
            what = "the loss, and so a tensor that it was made from,"
        else:
            names = [n for n, (_, kind, _) in event["tensors"].items() if kind == "float64"]
            names = names or event["parameters"].get("xla float64", [])
            what = f"{', '.join(names)} of {event['module']}" if names else ""
        if what:
            return [
                run.finding(
                    "float64",
                    Severity.WARNING,
                    site_of(event["site"]),
                    f"{what} is float64.",
                    cost="accelerators have no fast float64: emulated, refused, or cut to float32",
                    fix="convert on the host: .float(), np.float32, torch.set_default_dtype",
                )
            ]
    return []


def tokenising(run: Run) -> list[Finding]:
    """Texts are tokenised one by one, or all of them in every worker."""
    found = []
    for entry in run.first.end.get("texts", ()):
        site, texts = site_of(entry["site"]), entry["texts"]
        if texts < _TEXTS:
            continue
        others = [_texts_at(rank.end, entry["site"]) for rank in run.ranks[1:]]
        if others and all(count == texts for count in others):
            found.append(_every_rank(run, entry))
        elif entry["calls"] * 2 > texts:
            found.append(
                run.finding(
                    "tokenising",
                    Severity.WARNING,
                    site,
                    f"{texts} texts were tokenised one at a time, in one process: "
                    f"{run.quote(site)}",
                    cost=f"{entry['seconds']:.1f} s here, before or between steps",
                    fix="tokenise once and in batches: dataset.map(..., batched=True, num_proc=4)",
                )
            )
    return found


def _every_rank(run: Run, entry: Event) -> Finding:
    return run.finding(
        "tokenising",
        Severity.WARNING,
        site_of(entry["site"]),
        f"all {run.world_size} workers tokenise the same {entry['texts']} texts.",
        cost=f"{entry['seconds']:.1f} s and the memory, {run.world_size} times",
        fix="let one worker of each host do it and share the result (a file, or the cache of "
        "datasets behind a barrier)",
    )


def _texts_at(end: Event, site: Any) -> int:
    return sum(entry["texts"] for entry in end.get("texts", ()) if entry["site"] == site)


def _loaders(run: Run) -> list[Event]:
    """Loaders that were used, one for each line that makes them."""
    used = run.first.end.get("loaders", {})
    unique = {str(e["site"]): e for e in run.first.of("loader") if str(e["id"]) in used}
    return list(unique.values())


RULES = (
    loader_failed,
    loader_stall,
    partial_batch,
    oversized_batch,
    indivisible_rows,
    mixed_devices,
    double_precision,
    tokenising,
)
