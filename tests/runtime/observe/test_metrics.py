"""MetricDefinitions over the log of a job, against what the service does to the same lines."""

from __future__ import annotations

import struct
import time
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.events import LogChunk, Note
from hotfire.runtime.observe.metrics import (
    LINE_CAP,
    LineCutter,
    MetricPoint,
    Scraper,
    Statistics,
    escape,
    final_metrics,
    number,
)
from hotfire.runtime.observe.patterns import Engine, check, matcher
from hotfire.runtime.spec import MetricDefinition

# Verbatim from the Hugging Face guide to training on SageMaker.
HUGGING_FACE = [
    MetricDefinition(name="train_runtime", regex=r"train_runtime.*=\D*(.*?)$"),
    MetricDefinition(name="eval_accuracy", regex=r"eval_accuracy.*=\D*(.*?)$"),
    MetricDefinition(name="eval_loss", regex=r"eval_loss.*=\D*(.*?)$"),
]


def define(*regexes: str) -> list[MetricDefinition]:
    return [MetricDefinition(name=f"m{n}", regex=regex) for n, regex in enumerate(regexes)]


def scrape(
    definitions: list[MetricDefinition],
    *chunks: bytes,
    engine: Engine = Engine.RE2,
    host: str = "algo-1",
) -> tuple[list[tuple[str, float]], tuple[Statistics, ...]]:
    points: list[MetricPoint] = []
    scraper = Scraper(definitions=definitions, sink=points.extend, engine=engine)
    with scraper:
        for chunk in chunks:
            scraper(LogChunk(host=host, data=chunk))
    return [(one.name, one.value) for one in points], scraper.statistics


def values(regex: str, *chunks: bytes, engine: Engine = Engine.RE2) -> list[float]:
    return [value for _, value in scrape(define(regex), *chunks, engine=engine)[0]]


def test_every_match_of_every_line_of_every_host_counts_in_order() -> None:
    points: list[MetricPoint] = []
    scraper = Scraper(
        definitions=define(r"loss=([0-9.]+)", r"acc=([0-9.]+)"),
        sink=points.extend,
        clock=lambda: 1_700_000_000.9,
    )
    scraper(LogChunk(host="algo-1", data=b"loss=1 acc=0.5 loss=2\nnothing\nloss=3"))
    scraper(LogChunk(host="algo-2", data=b"loss=7\n"))
    scraper(Note(text="loss=99"))
    scraper(LogChunk(host="algo-1", data=b"5\n"))
    assert [(one.host, one.name, one.value) for one in points] == [
        ("algo-1", "m0", 1.0),
        ("algo-1", "m0", 2.0),
        ("algo-1", "m1", 0.5),
        ("algo-2", "m0", 7.0),
        ("algo-1", "m0", 35.0),
    ]
    assert [(one.last, one.smallest, one.largest) for one in scraper.statistics] == [
        (35.0, 1.0, 35.0),
        (0.5, 0.5, 0.5),
    ]
    assert final_metrics(scraper.statistics) == [
        {"MetricName": "m0", "Value": 35.0, "Timestamp": "2023-11-14T22:13:20+00:00"},
        {"MetricName": "m1", "Value": 0.5, "Timestamp": "2023-11-14T22:13:20+00:00"},
    ]


def test_the_three_patterns_of_the_hugging_face_guide() -> None:
    log = (
        b"***** train metrics *****\n"
        b"  epoch                    =        3.0\n"
        b"  train_runtime            = 0:00:14.23\n"
        b"***** eval metrics *****\n"
        b"  eval_accuracy            =     0.9183\n"
        b"  eval_loss                =    -0.4512\n"
        b"{'eval_loss': 0.25, 'eval_accuracy': 0.5, 'epoch': 1.0}\n"
    )
    points, (runtime, accuracy, loss) = scrape(HUGGING_FACE, log)
    assert points == [("eval_accuracy", 0.9183), ("eval_loss", 0.4512)]
    assert runtime.counts == "matched 1, not a number 1 (for example '0:00:14.23')"
    assert "never got a number" in runtime.warnings[0]
    assert accuracy.warnings == ()
    assert loss.counts == "matched 1"
    assert "lost a minus sign in 1 of 1 values: it took '0.4512' from '-0.4512'" in loss.warnings[0]
    assert [one["MetricName"] for one in final_metrics((runtime, accuracy, loss))] == [
        "eval_accuracy",
        "eval_loss",
    ]


def test_a_minus_that_belongs_to_a_word_is_no_sign() -> None:
    _, (one,) = scrape(define(r"step-(\d+)"), b"step-5\nstep_-6\n")
    assert one.lost_signs == 0
    _, (one,) = scrape(define(r"lr=(-?[0-9.e-]+)"), b"lr=-1e-5\n")
    assert (one.last, one.lost_signs) == (-1e-5, 0)


def test_lines_tagged_by_mpi_match_as_on_the_service() -> None:
    """XGBoost's own definition, which has the escaped tab in it."""
    regex = r".*\[[0-9]+\].*#011train-error:([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?).*"
    line = b"[1,0]<stdout>:[12]\ttrain-error:0.0625\tvalidation-error:0.125\n"
    assert values(regex, line) == [0.0625]
    assert values(r"^\[1,0\]<stdout>:.*#011validation-error:([0-9.]+)$", line) == [0.125]
    assert values(r"\ttrain-error:([0-9.]+)", line) == []


def test_digits_of_an_escaped_tab_are_told() -> None:
    _, (one,) = scrape(define(r"loss.*=\D*(.*?)$"), b"loss =\t0.7\n")
    assert one.last == 110.7
    assert (
        "took the digits of a control character in 1 of 1 values: '0110.7' from '#0110.7'"
        in (one.warnings[0])
    )


def test_a_carriage_return_does_not_end_a_line() -> None:
    assert values(r"^it=(\d+)", b"it=1\rit=2\rit=3\n") == [1]
    assert values(r"it=(\d+)", b"it=1\rit=2\rit=3\n") == [1, 2, 3]
    assert values(r"it=(\d+)$", b"it=1\r\n") == [], "the line ends in #015"


def test_escapes() -> None:
    assert escape(b"\t\r\x1b[0m\0\x7f \n\xc3\xa9#011") == b"#011#015#033[0m#000#177 \n\xc3\xa9#011"


def test_text_that_is_not_utf_8_does_not_hide_a_value() -> None:
    assert values(r"loss.*: ([0-9.]+)", b"loss \xff\xfe caf\xc3\xa9: 2.5\n") == [2.5]
    assert values(r"caf\x{e9}=(\d)", "café=1 naïve\n".encode()) == [1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        (" +1.5e-3 ", 0.0015),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0", -0.0),
        ("nan", None),
        ("Infinity", None),
        ("1e39", None),
        ("3.4028235e38", 3.4028235e38),
        ("1_000", None),
        ("0:00:14", None),
        ("1,5", None),
        ("0x10", None),
        ("\u0661", None),
        ("", None),
    ],
)
def test_numbers(text: str, value: float | None) -> None:
    assert number(text) == value


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_what_float32_holds_is_a_number_and_comes_back(value: float) -> None:
    _, statistics = scrape(define(r"v=(\S+)"), f"v={value!r}\n".encode())
    (final,) = final_metrics(statistics)
    assert struct.pack("<f", final["Value"]) == struct.pack("<f", value)


def test_final_values_are_float32_of_at_most_forty_metrics_and_the_later_of_one_name() -> None:
    definitions = [MetricDefinition(name=f"m{n}", regex=rf"a{n}=(\S+)") for n in range(50)]
    text = b"".join(b"a%d=0.1\n" % n for n in range(50))
    final = final_metrics(scrape(definitions, text)[1])
    assert len(final) == 40 and final[0]["Value"] == 0.10000000149011612
    twice = [
        MetricDefinition(name="m", regex=r"a=(\d)"),
        MetricDefinition(name="m", regex=r"b=(\d)"),
    ]
    assert [one["Value"] for one in final_metrics(scrape(twice, b"b=2\n", b"a=1\n")[1])] == [1.0]


def test_a_group_that_took_no_part_and_no_group_at_all() -> None:
    points, (one,) = scrape(define(r"a(\d)?"), b"a a1\n")
    assert points == [("m0", 1.0)] and (one.matches, one.not_a_number) == (2, None)
    _, (one,) = scrape(define(r"abc"), b"abc\n")
    assert (one.matches, one.values) == (1, 0)
    assert check(define("abc")) != ()


def test_long_lines_go_on_in_the_next_event() -> None:
    text = b"x" * (LINE_CAP - 6) + b"loss=1loss=2" + b"y" * LINE_CAP + b" loss=3\n"
    assert values(r"loss=(\d)", text) == [1, 2, 3]
    assert values(r"^loss=(\d)", text) == [2]
    cutter = LineCutter()
    for _ in range(100):
        cutter.feed(b"z" * 10_000)
        assert len(cutter._pending) <= LINE_CAP, "an endless line takes bounded memory"


LINES = st.binary(max_size=60) | st.sampled_from(
    [b"loss=1", b"\r\t", b"\n", b"\xc3", b"\xa9", b"a\nb", b"0.5 ", b"-"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(LINES, max_size=20), st.lists(st.integers(0, 300), max_size=8))
def test_the_borders_of_chunks_do_not_matter(parts: list[bytes], cuts: list[int]) -> None:
    text = b"".join(parts)
    whole = LineCutter()
    want = whole.feed(text) + whole.rest()
    pieces = LineCutter()
    borders = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    got = b"".join(pieces.feed(text[start:end]) for start, end in pairwise(borders))
    assert got + pieces.rest() == want


# Pieces of patterns and of lines that get in each other's way: newlines in classes, anchors, flags, empty matches.
ATOMS = st.sampled_from(
    [r"a", r"b=", r"\D*", r".*", r"[^a]", r"^", r"$", r"\b", r"\s", r"(?i:A)", r"a?", r"\n",
     r"(\d+)", r"(-?\d*)", r"(.*?)$", r"(?:x|)", r"(?s:.)", r"[\s\S]", r"\A", r"\z", r"(?-s:.)", r"(?U)a*"]
)  # fmt: skip
PATTERNS = st.lists(ATOMS, min_size=1, max_size=5).map("".join)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(PATTERNS, min_size=1, max_size=4),
    st.lists(st.text("ab=1 -A\u00e9x", max_size=8), max_size=6),
)
@example([r"\D*(\d+)"], ["a", "b", "1"])
@example(["x*"], ["", "x", ""])
def test_scanning_chunks_finds_what_a_search_of_each_line_finds(
    patterns: list[str], lines: list[str]
) -> None:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = [re2.compile(pattern.encode(), options=options) for pattern in patterns]
    except re2.error:
        return
    want = [
        (index, match[1].decode() if match.re.groups and match[1] is not None else None)
        for line in lines
        for index, pattern in enumerate(compiled)
        for match in pattern.finditer(line.encode())
    ]
    text = "".join(line + "\n" for line in lines).encode()
    found = [(one.definition, one.text) for one in matcher(define(*patterns)).search(text)]
    assert found == want


@pytest.mark.parametrize(
    ("regex", "construct"),
    [
        (r"(?=a)b(c)", "look-ahead (?=...)"),
        (r"(?<!a)b(c)", "negative look-behind (?<!...)"),
        (r"(a)\1", r"back-reference \1"),
        (r"(a)++", "possessive quantifier ++"),
        (r"(?>a)(b)", "atomic group (?>...)"),
        (r"(a)\Z", r"\Z (write \z)"),
        (r"(a){2000}", "{2000}"),
    ],
)
def test_what_re2_does_not_take_is_refused_by_name(regex: str, construct: str) -> None:
    with pytest.raises(ValidationError) as raised:
        check(define(r"fine (\d)", regex))
    assert construct in raised.value.what and "'m1'" in raised.value.what
    assert "'m0'" not in raised.value.what
    assert "--regex python" in raised.value.do
    assert check(define(regex), Engine.PYTHON) == ()


def test_what_is_no_regular_expression_is_refused_under_both() -> None:
    for engine in Engine:
        with pytest.raises(ValidationError, match="'m0'") as raised:
            check(define(r"(a"), engine)
        assert "--regex python" not in raised.value.do


def test_a_pattern_that_explodes_stalls_no_job() -> None:
    line = b"a" * 30_000 + b"!\n"
    start = time.process_time()
    assert values(r"((a+)+)$", *[line] * 5) == []
    assert values(r"^(([a-z])+.)+[A-Z]([a-z])+$", *[line] * 5) == []
    assert time.process_time() - start < 10


def test_python_syntax_runs_under_a_time_limit_and_is_given_up() -> None:
    definitions = define(r"(?<=loss=)(\d+)", r"(x+x+)+y(?=z)")
    line = b"loss=4 " + b"x" * 5000 + b"\n"
    start = time.monotonic()
    points, (fine, slow) = scrape(definitions, *[line] * 20, engine=Engine.PYTHON)
    assert time.monotonic() - start < 60
    assert points == [("m0", 4.0)] * 20
    assert fine.gave_up is False and slow.gave_up is True
    assert "was given up" in slow.warnings[0]


def test_both_engines_agree_on_ordinary_patterns() -> None:
    text = "epoch 1: loss = -0.5\r\tacc=0.75 é\n[1,1]<stderr>:loss = 3\n".encode()
    definitions = define(r"loss = (-?[0-9.]+)", r"acc=(\S+)", r"#011acc=([0-9.]+)", r"^(.*)$")
    first, second = (scrape(definitions, text, engine=engine) for engine in Engine)
    assert first[0] == second[0]
    assert first[0] == [("m0", -0.5), ("m1", 0.75), ("m2", 0.75), ("m0", 3.0)]


def test_two_definitions_may_use_one_group_name() -> None:
    definitions = define(r"a=(?P<v>\d)", r"b=(?P<v>\d)")
    assert scrape(definitions, b"a=1 b=2\n")[0] == [("m0", 1.0), ("m1", 2.0)]


def test_forty_definitions_of_the_greedy_kind() -> None:
    definitions = [MetricDefinition(name=f"m{n}", regex=rf"m{n:02}.*=\D*(.*?)$") for n in range(40)]
    text = b"".join(b"no m%02d here\nm%02d and more = %d\n" % (n, n, n) for n in range(40))
    found = dict(scrape(definitions, text * 3)[0])
    assert found == {f"m{n}": float(n) for n in range(40)}
