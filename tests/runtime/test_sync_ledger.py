"""The ledger against a model of a directory and a destination: whatever the order, both end up the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from hotfire.runtime.ledger import SETTLE_SECONDS, UNSURE_SECONDS, Ledger, Task
from hotfire.runtime.synced import Signature


def content(number: int) -> Signature:
    return Signature(number, number, number)


def test_a_closed_file_waits_until_it_has_settled() -> None:
    ledger = Ledger()
    ledger.closed("a", 10.0)
    assert ledger.next_due() == 10.0 + SETTLE_SECONDS
    assert ledger.take(10.0 + SETTLE_SECONDS / 2) is None
    assert ledger.take(10.0 + SETTLE_SECONDS) == Task("a", None, 0)
    assert ledger.take(99.0) is None, "a name in work is not given out twice"


def test_closing_again_and_again_does_not_put_off_the_upload() -> None:
    ledger = Ledger()
    for tenth in range(10):
        ledger.closed("a", tenth / 10)
    assert ledger.take(SETTLE_SECONDS) == Task("a", None, 0)


def test_a_file_whose_close_was_not_seen_carries_its_look() -> None:
    ledger = Ledger()
    ledger.appeared("a", content(1), 0.0)
    assert ledger.take(UNSURE_SECONDS - 0.01) is None
    task = ledger.take(UNSURE_SECONDS)
    assert task == Task("a", content(1), 0)
    ledger.again(task, content(2), UNSURE_SECONDS)
    assert ledger.take(2 * UNSURE_SECONDS) == Task("a", content(2), 0)


def test_a_close_makes_sure_what_was_not() -> None:
    ledger = Ledger()
    ledger.appeared("a", content(1), 0.0)
    ledger.closed("a", 0.1)
    assert ledger.take(0.1 + SETTLE_SECONDS) == Task("a", None, 0)


def test_a_directory_that_goes_takes_what_is_known_below_it() -> None:
    ledger = Ledger(known={"d/a": content(1), "d/e/b": content(2), "dd": content(3)}, settle=0)
    ledger.gone("d", 0.0)
    names = set()
    while task := ledger.take(0.0):
        names.add(task.name)
    assert names == {"d", "d/a", "d/e/b"}


def test_failures_are_tried_ever_later_and_a_success_ends_the_pause() -> None:
    ledger = Ledger(settle=0)
    ledger.closed("bad", 0.0)
    gaps = []
    now = 0.0
    for _ in range(10):
        task = ledger.take(now)
        assert task is not None and task.name == "bad"
        ledger.failed(task, now)
        due = ledger.next_due()
        assert due is not None
        gaps.append(due - now)
        now = due
    assert gaps == sorted(gaps) and gaps[0] < 1 and gaps[-1] == 30
    ledger.closed("good", now)
    task = ledger.take(now)
    assert task is not None
    ledger.failed(task, now)
    ledger.closed("good", now)
    assert ledger.take(now + 0.01) is None, "the destination is left alone for a while"
    ledger.worked()
    assert ledger.next_due() is not None


def test_in_a_hurry_nothing_waits_but_failures_for_at_most_a_second() -> None:
    ledger = Ledger()
    ledger.closed("a", 0.0)
    ledger.appeared("b", content(1), 0.0)
    ledger.be_quick()
    first, second = ledger.take(0.0), ledger.take(0.0)
    assert first == Task("a", None, 0) and second == Task("b", None, 0)
    for _ in range(10):
        assert first is not None
        ledger.failed(first, 0.0)
        first = ledger.take(1.0)
        assert first is not None


@dataclass
class Model:
    """A directory with its events, and a destination that may fail."""

    ledger: Ledger = field(default_factory=Ledger)
    files: dict[str, Signature] = field(default_factory=dict)
    there: dict[str, Signature] = field(default_factory=dict)
    foreign: dict[str, Signature] = field(default_factory=lambda: {"x": content(0)})
    busy: list[Task] = field(default_factory=list)
    now: float = 0.0
    writes: int = 0

    def write(self, name: str) -> None:
        self.writes += 1
        self.files[name] = content(self.writes)

    def take(self) -> None:
        if task := self.ledger.take(self.now):
            self.busy.append(task)

    def carry(self, works: bool) -> None:
        """What a worker does, with the last task taken."""
        if not self.busy:
            return
        task = self.busy.pop()
        found = self.files.get(task.name)
        if found is not None and self.ledger.known.get(task.name) == found:
            self.ledger.done(task, found)
        elif found is not None and task.look not in (None, found):
            self.ledger.again(task, found, self.now)
        elif not works:
            self.ledger.failed(task, self.now)
        else:
            self.ledger.worked()
            if found is None:
                if task.name in self.ledger.known:
                    del self.there[task.name]
            else:
                self.there[task.name] = found
            self.ledger.done(task, found)


STEPS = st.one_of(
    st.tuples(st.sampled_from(["close", "quiet", "delete"]), st.sampled_from("abcd")),
    st.tuples(st.sampled_from(["take", "works", "fails", "later"]), st.just("")),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_nothing_is_lost_and_nothing_foreign_is_deleted(steps: list[tuple[str, str]]) -> None:
    model = Model()
    for what, name in steps:
        match what:
            case "close":
                model.write(name)
                model.ledger.closed(name, model.now)
            case "quiet":  # written without an event, as through a memory map
                model.write(name)
            case "delete":
                if model.files.pop(name, None):
                    model.ledger.gone(name, model.now)
            case "take":
                model.take()
            case "later":
                model.now += 1
            case _:
                model.carry(what == "works")
    # The flush: a look at everything, then work until nothing is left.
    model.ledger.be_quick()
    for name, found in model.files.items():
        model.ledger.appeared(name, found, model.now)
    for name in model.ledger.known.keys() - model.files.keys():
        model.ledger.closed(name, model.now)
    rounds = 0
    while model.ledger.unfinished:
        model.now += 1
        model.take()
        model.carry(works=True)
        rounds += 1
        assert rounds < 1000
    assert model.there == model.files
    assert model.foreign == {"x": content(0)}
