"""What the steps of several compilers come to."""

from __future__ import annotations

from itertools import accumulate

from hotfire.runtime.trials.comparison import HEADS, WARM_UP, cells, remarks, rows
from hotfire.runtime.trials.trial import Measured, Verdict


def measured(compiler: str, start: float, step: float, **more: object) -> Measured:
    """A job that takes ``start`` seconds beyond its steps, all of it before the first one ends."""
    ends = tuple(accumulate([start + step, *[step] * (WARM_UP + 9)]))
    return Measured(
        **{  # type: ignore[arg-type]
            "compiler": compiler,
            "verdict": Verdict.FITS,
            "device": "cpu",
            "step_ends": ends,
            "compilations": 0 if compiler == "none" else 2,
            "peak_host_bytes": 10**9,
            **more,
        }
    )


def test_a_faster_step_pays_for_its_compilation_at_the_break_even() -> None:
    found = rows([measured("none", 2.0, 0.5), measured("xla", 12.0, 0.25)], 32)
    none, xla = found
    assert (none.step_seconds, xla.step_seconds) == (0.5, 0.25)
    assert round(xla.start_seconds, 6) == 12.0
    assert xla.samples_per_second == 128
    # 10 s later at the start, 0.25 s faster at each step.
    assert (none.break_even_step, xla.break_even_step) == (None, 40)


def test_a_slower_step_never_pays() -> None:
    found = rows([measured("none", 2.0, 0.5), measured("xla", 12.0, 0.5)], None)
    assert found[1].break_even_step is None
    assert found[1].samples_per_second is None
    baseline, xla = (dict(zip(HEADS, line, strict=True)) for line in cells(found))
    assert (baseline["ahead from step"], xla["ahead from step"]) == ("-", "never")
    assert xla["step s"] == "0.5" and xla["device memory"] == "-"


def test_one_slow_step_does_not_move_the_median() -> None:
    one = measured("none", 1.0, 0.5)
    late = Measured(
        compiler="none",
        verdict=Verdict.FITS,
        step_ends=(*one.step_ends[:8], *(end + 60 for end in one.step_ends[8:])),
    )
    assert rows([late], None)[0].step_seconds == 0.5


def test_rounds_are_pooled() -> None:
    found = rows([measured("none", 1.0, 0.4), measured("none", 3.0, 0.4)], None)
    assert len(found) == 1
    assert round(found[0].start_seconds, 6) == 2.0


def test_what_was_not_compiled_is_said() -> None:
    found = rows([measured("none", 1, 1, compilations=2), measured("xla", 1, 1, compilations=0)], 1)
    assert "busy" not in "".join(remarks(found))
    said = "\n".join(remarks(found, 2.0))
    assert "the machine was busy (load 2.0 on each processor)" in said
    assert "xla compiled nothing" in said
    assert "none: the script compiles by itself" in said
    assert "no device's memory" in said
