"""Rules about graphs: what compiles again, what cuts a step, what never ends one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hotfire.runtime.xla.doctor.findings import Finding, Run, Severity
from hotfire.runtime.xla.doctor.graphs import ASSUMED_MINUTES
from hotfire.runtime.xla.doctor.shapes import Change, changes, is_shape_change
from hotfire.runtime.xla.doctor.timeline import Segment, Site, site_of
from hotfire.runtime.xla.doctor.trace import Cause, Report

# Gradients and optimizer states appear in the first two steps.
WARM_UP_STEPS = 2
_OFTEN = 3
# Lengths to which a script may well pad on purpose.
_FEW_SIZES = 3
_SHARE = 0.2
_READS = {
    "item": (
        "read by the host",
        "collect tensors and read them all every some hundred steps, in xm.add_step_closure",
    ),
    "__bool__": ("used as a condition", "keep the decision on the device: torch.where"),
    "__repr__": ("printed", "print every some hundred steps, in xm.add_step_closure"),
    "__format__": ("formatted", "log every some hundred steps, in xm.add_step_closure"),
}
# transformers' functions that build a mask for sdpa: masking_utils.py, modeling_attn_mask_utils.py.
_MASKS = ("masking_utils.py", "mask_utils.py")
# Operators whose results have as many rows as the data says.
_DYNAMIC = {"nonzero", "masked_select", "unique", "_unique2"}


def compile_cost(run: Run, count: int) -> str:
    """Of `count` compilations: measured here, assumed elsewhere."""
    end = run.first.end
    total = end.get("compilations") or 0
    here = f", {end['compile_seconds'] / total * count:.1f} s here" if total else ""
    low, high = (minutes * count for minutes in ASSUMED_MINUTES)
    plural = "s" if count != 1 else ""
    return f"{count} more compilation{plural}{here}; on Trainium about {low:.0f} to {high:.0f} min"


def recompilation(run: Run) -> list[Finding]:
    """Graphs compiled after warm-up because an input's shape or a Python value changed.

    What an operator of dynamic shape makes anew is told where that operator is (`host_fallback`).
    """
    shaped = [change for change in changes(run) if change.dimension > 0 or not change.partial]
    found = [_shape_finding(run, change) for change in shaped]
    constant = [
        segment
        for segment in run.first.observed
        if segment.trained
        and segment.opt_before >= WARM_UP_STEPS
        and segment.causes(Cause.MARKER, Cause.COLLECTIVE, compiled=True)
        and not is_shape_change(run, segment)
    ]
    dynamic = _DYNAMIC & {
        name.removeprefix("aten::") for name in run.first.end.get("fallbacks", ())
    }
    if len(constant) >= _OFTEN and not dynamic and not run.first.of("unmarked"):
        found.append(_constant_finding(run, constant))
    return found


def _shape_finding(run: Run, change: Change) -> Finding:
    count = len(change.sizes)
    ragged = run.sources.ragged_padding() if change.dimension else None
    chosen = run.first.end.get("filled_loaders") or not ragged
    few = count <= _FEW_SIZES and run.first.observed_steps >= _OFTEN * count
    sizes = ", ".join(map(str, change.sizes[:6])) + (", ..." if count > 6 else "")
    site = ragged or change.origin
    return run.finding(
        "recompilation",
        Severity.NOTE if few and chosen and change.dimension else Severity.WARNING,
        site,
        f"`{change.name}` of {change.module} changes in dimension {change.dimension}: {sizes}. "
        "Every new size is a new program.",
        cost=compile_cost(run, count - 1),
        fix="pad every batch to one length (padding='max_length', max_length=...), "
        "or to a few fixed ones"
        if change.dimension
        else "give every batch the same number of rows (drop_last=True, or fill it up)",
    )


def _constant_finding(run: Run, segments: list[Segment]) -> Finding:
    calls = [e for s in run.first.segments for e in s.events if e["event"] == "call"]
    training = [e for e in calls if e["training"]]
    frames = segments[0].causes(Cause.MARKER, Cause.COLLECTIVE, compiled=True)[0].frames
    site = site_of(training[-1]["site"]) if training else run.first.user_site(frames)
    return run.finding(
        "recompilation",
        Severity.WARNING,
        site,
        f"{len(segments)} steps after warm-up compiled a new program although no input of the "
        "model changed its shape: a Python number (a step count, a schedule's factor, a length) "
        "or Python control flow is built into the graph.",
        cost=compile_cost(run, len(segments)),
        fix="make the number a tensor on the device, or keep it out of the graph",
    )


def growing_results(run: Run) -> list[Finding]:
    """Results of an evaluation are joined on the device: each batch makes them longer.

    Seen as graphs of one form, from one line, of which every one was compiled for itself.
    """
    forms: dict[tuple[Site | None, int, int], set[str]] = defaultdict(set)
    for segment in run.first.segments:
        if segment.trained or not segment.opt_before or is_shape_change(run, segment):
            continue
        for report in segment.causes(Cause.MARKER, Cause.COLLECTIVE, compiled=True):
            form = run.first.user_site(report.frames), report.inputs, report.outputs
            forms[form].add(report.graph)
    counts: dict[Site | None, int] = defaultdict(int)
    for (site, _, _), graphs in forms.items():
        counts[site] += len(graphs) if len(graphs) >= _OFTEN else 0
    return [
        run.finding(
            "recompilation",
            Severity.WARNING,
            site,
            f"an evaluation compiled {count} graphs that differ in the size of what has been collected on the device: "
            f"it grows with every batch. {run.quote(site)}".rstrip(),
            cost="new programs for every batch of the evaluation, small ones or with the forward pass in them",
            fix="eval_accumulation_steps=1 (Trainer); elsewhere keep a list of tensors, and join it on the host",
        )
        for site, count in counts.items()
        if count
    ]


def late_optimizer_state(run: Run) -> list[Finding]:
    """The second step compiles once more because the optimizer's state has appeared."""
    optimizers = run.first.of("optimizer")
    states = [event for event in run.first.of("optimizer_state") if event["tensors"]]
    second = [
        segment
        for segment in run.first.training
        if segment.opt_before == 1
        and segment.causes(Cause.MARKER, Cause.COLLECTIVE, compiled=True)
        and not is_shape_change(run, segment)
    ]
    if not (optimizers and optimizers[0]["stateless"] and states and second):
        return []
    site = site_of(optimizers[0]["made"]) or site_of(optimizers[0]["site"])
    return [
        run.finding(
            "late-optimizer-state",
            Severity.NOTE,
            site,
            f"{optimizers[0]['kind']} makes its state in the first step, so the second step is "
            "another program.",
            cost=compile_cost(run, 1),
            fix="make the state before the first step "
            "(hotfire.runtime.xla.loop.create_adam_state does for Adam and AdamW)",
        )
    ]


def missing_step_marker(run: Run) -> list[Finding]:
    """Optimizer steps follow each other and nothing launches the graph."""
    events = run.first.of("unmarked")
    if not events:
        return []
    site = site_of(events[0]["site"])
    return [
        run.finding(
            "missing-step-marker",
            Severity.ERROR,
            site,
            "optimizer steps follow each other without a step marker: the graph grows with every "
            "step and each launch compiles a larger one.",
            cost="a compilation per launch, larger every time; memory grows until it fails",
            fix="call torch_xla.sync() after the step, iterate over MpDeviceLoader, or use "
            "xm.optimizer_step(optimizer, barrier=True)",
        )
    ]


def host_fallback(run: Run) -> list[Finding]:
    """Operators without an XLA kernel run on the host, between two transfers."""
    sites: dict[Site | None, set[str]] = defaultdict(set)
    located = set()
    # What an operator's backward needs as well is told where the operator is.
    for event in sorted(run.first.of("fallback"), key=lambda event: event["backward"]):
        if not (event["backward"] and event["op"] in located):
            sites[site_of(event["site"])].add(event["op"])
            located.add(event["op"])
    for name, count in run.first.end.get("fallbacks", {}).items():
        if count >= _OFTEN and name.removeprefix("aten::") not in located:
            sites[None].add(name.removeprefix("aten::"))
    return [_fallback_finding(run, site, sorted(ops)) for site, ops in sites.items()]


def _fallback_finding(run: Run, site: Site | None, ops: list[str]) -> Finding:
    cost = "the step is cut in two, and tensors go to the host and back, at every step"
    fix = "use operators that XLA has, or move this part into the data loader"
    if _DYNAMIC & set(ops):
        cost += "; every new number of rows is a new program"
        fix = "use torch.where or a product with the mask: their results have one shape"
    return run.finding(
        "host-fallback",
        Severity.WARNING,
        site,
        f"without an XLA kernel, run on the host: {', '.join(ops)}. {run.quote(site)}".rstrip(),
        cost=cost,
        fix=fix,
    )


def explicit_evaluation(run: Run) -> list[Finding]:
    """A value is wanted in the middle of a step, so that the graph ends there."""
    fallback = {site_of(event["site"]) for event in run.first.of("fallback")}
    steps = max(run.first.observed_steps, 1)
    found = []
    for (site, trained), reports in _evaluations(run).items():
        if site is None or site in fallback or _hidden(reports[0]):
            continue
        if len(reports) < _OFTEN or (trained and len(reports) < _SHARE * steps):
            continue
        found.append(_evaluation_finding(run, site, len(reports), steps if trained else 0))
    unique = {finding.place: finding for finding in reversed(found)}
    return list(reversed(unique.values()))


def _evaluation_finding(run: Run, site: Site, count: int, steps: int) -> Finding:
    method = run.first.reads.get(site, {}).get("method", "")
    what, fix = _READS.get(method, _READS["item"])
    often = f"in the middle of a step, {count} times in {steps} steps"
    if not steps:
        often = f"batch by batch, {count} times, in an evaluation"
        fix = "collect or add up tensors on the device, and read them once after the last batch"
    return run.finding(
        "explicit-evaluation",
        Severity.WARNING,
        site,
        f"a device tensor is {what} {often}: {run.quote(site)}",
        cost="one more graph to compile, and at each of these steps the host and the device wait "
        "for each other",
        fix=fix,
    )


def sdpa_evaluation(run: Run) -> list[Finding]:
    """transformers' attention masks look at the mask's values: one evaluation per step."""
    hidden = [r for reports in _evaluations(run).values() for r in reports if _hidden(r)]
    if len(hidden) < _OFTEN:
        return []
    models = run.sources.calls("from_pretrained", "from_config")
    made = [site for site, call in models if not _names_attention(call)]
    site = made[-1] if made else run.first.user_site(hidden[0].frames)
    return [
        run.finding(
            "sdpa-evaluation",
            Severity.WARNING,
            site,
            "the model's sdpa attention reads the attention mask on the host, "
            f"{len(hidden)} times in {run.first.observed_steps} steps.",
            cost="one more graph, and a wait for the device, at every forward pass",
            fix="make the model with attn_implementation='eager'",
        )
    ]


def _names_attention(call: object) -> bool:
    return any(k.arg == "attn_implementation" for k in getattr(call, "keywords", ()))


def _hidden(report: Report) -> bool:
    return any(frame.file.endswith(_MASKS) for frame in report.frames)


def _evaluations(run: Run) -> dict[tuple[Site | None, bool], list[Report]]:
    """Runs of graphs that a wanted value cut off, by line and by whether training went on.

    A summary's trace has compilations alone: the reads at that line tell how often.
    """
    summary = not run.first.start.get("steps")
    found: dict[tuple[Site | None, bool], list[Report]] = defaultdict(list)
    for segment in run.first.observed:
        for report in segment.causes(Cause.EVALUATION, compiled=summary):
            if not _saving(report.frames):
                site = run.first.user_site(report.frames)
                reads = run.first.reads.get(site, {}) if site else {}
                runs = reads.get("steps" if segment.trained else "count", 1) if summary else 1
                found[site, segment.trained] += [report] * runs
    return found


def _saving(frames: Iterable[object]) -> bool:
    return any(getattr(f, "function", "") in {"_maybe_convert_to_cpu", "host_copy"} for f in frames)


RULES = (
    recompilation,
    growing_results,
    late_optimizer_state,
    missing_step_marker,
    host_fallback,
    explicit_evaluation,
    sdpa_evaluation,
)
