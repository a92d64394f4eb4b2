"""Rules about what a job leaves and reads: saves, logging, and arguments that nothing reads."""

from __future__ import annotations

from collections import defaultdict

from hotfire.runtime.xla.doctor.findings import Finding, Run, Severity
from hotfire.runtime.xla.doctor.timeline import Event, Site, site_of
from hotfire.runtime.xla.doctor.trace import Cause

_LIMITS = ("max_train_steps", "max_steps")
_TIMES = 3
_SAVE_INTERVAL = 10
_LOG_SHARE = 0.8
_LOG_STEPS = 5


def device_save(run: Run) -> list[Finding]:
    """`torch.save` of device tensors: files that only an XLA machine reads, from every rank."""
    found = {}
    for event in run.first.of("save"):
        if event["kind"] == "torch.save" and event["device"]:
            site = site_of(event["site"])
            every = " by every worker, to the same file" if _everywhere(run, event) else ""
            found[site] = run.finding(
                "torch-save",
                Severity.WARNING,
                site,
                f"tensors on the device are written by torch.save{every}: {run.quote(site)}",
                cost="one transfer for each tensor, and torch.load wants an XLA device",
                fix="xm.save, which moves all tensors to the CPU at once and writes on one worker",
            )
    return list(found.values())


def _everywhere(run: Run, event: Event) -> bool:
    others = [[(e["site"], e["path"]) for e in rank.of("save")] for rank in run.ranks[1:]]
    return bool(others) and all((event["site"], event["path"]) in saves for saves in others)


def frequent_save(run: Run) -> list[Finding]:
    """Checkpoints at every few steps."""
    sites: dict[Site | None, list[Event]] = defaultdict(list)
    for event in run.first.of("save"):
        if 0 < event["opt"] <= run.first.observed_steps:
            sites[site_of(event["site"])].append(event)
    found = []
    for site, events in sites.items():
        steps = sorted({event["opt"] for event in events})
        if len(steps) < _TIMES:
            continue
        interval = (steps[-1] - steps[0]) / (len(steps) - 1)
        if interval < _SAVE_INTERVAL:
            seconds = sum(event["seconds"] for event in events) / len(steps)
            found.append(
                run.finding(
                    "frequent-checkpoint",
                    Severity.WARNING,
                    site,
                    f"a checkpoint is written every {interval:.0f} steps: {run.quote(site)}",
                    cost=f"{seconds * 1000:.0f} ms each here, the device idle, and an upload of "
                    "each file",
                    fix="save every few minutes, at least some hundred steps apart",
                )
            )
    return found


def frequent_log(run: Run) -> list[Finding]:
    """Values are read from the device at every step, even if after the step's marker."""
    steps = run.first.observed_steps
    if steps < _LOG_STEPS:
        return []
    cut = {
        run.first.user_site(report.frames)
        for segment in run.first.segments
        for report in segment.causes(Cause.EVALUATION, compiled=True)
    }
    often = {site: e["steps"] for site, e in run.first.reads.items() if site not in cut}
    closures: dict[Site | None, set[int]] = defaultdict(set)
    for event in run.first.of("closure"):
        closures[site_of(event["site"])].add(event["opt"])
    often |= {site: len(at) for site, at in closures.items() if site is not None}
    return [
        run.finding(
            "frequent-log",
            Severity.WARNING,
            site,
            f"a value is fetched from the device in {count} of {steps} steps: {run.quote(site)}",
            cost="the host waits for the device at every step and cannot prepare the next one",
            fix="log every some hundred steps",
        )
        for site, count in often.items()
        if count >= _LOG_SHARE * steps
    ]


def ignored_limit(run: Run) -> list[Finding]:
    """A limit of steps was given, and the script goes on, or never looks at it."""
    for name in _LIMITS:
        text = run.hyperparameters.get(name, "")
        if not (text.isdecimal() and int(text)):
            continue
        steps, declared = run.first.end.get("opt", 0), run.sources.argument(name)
        passed = steps > int(text)
        read = [site for site in run.sources.mentions(name) if site != declared]
        if passed or (run.sources.trees and not read and not _parsed_elsewhere(run)):
            script = run.first.start.get("script")
            what = f"{steps} steps were made" if passed else "the script never reads it"
            return [
                run.finding(
                    "ignored-limit",
                    Severity.ERROR,
                    declared or ((str(script), 1) if script else None),
                    f"{name}={text} was asked for, and {what}.",
                    cost="the job trains longer than asked, and costs as much more",
                    fix=f"end the loop when the number of optimizer steps reaches {name}",
                )
            ]
    return []


def _parsed_elsewhere(run: Run) -> bool:
    """Whether a library takes the arguments: transformers' parser fills TrainingArguments."""
    return bool(run.sources.mentions("HfArgumentParser"))


def no_xla_steps(run: Run) -> list[Finding]:
    """torch_xla was imported and no optimizer step ran on its device."""
    end = run.first.end
    if not end or end.get("opt") or end.get("error") or run.first.of("loader_error"):
        return []
    script = run.first.start.get("script")
    return [
        run.finding(
            "no-xla-steps",
            Severity.NOTE,
            (str(script), 1) if script else None,
            "no optimizer step ran on an XLA device: there was nothing to look at.",
            cost="none known",
            fix="see that the loop gets batches and reaches the optimizer's step"
            if run.first.of("model", "call")
            else "move the model to torch_xla.device()",
        )
    ]


RULES = (device_save, frequent_save, frequent_log, ignored_limit, no_xla_steps)
