"""From exit codes and failure files to the status and the FailureReason."""

from __future__ import annotations

import pytest

from hotfire.runtime.outcome import REASON_LIMIT, HostExit, StopCause, decide
from hotfire.runtime.status import SecondaryStatus as S


def ended(
    host: str, code: int, order: int = 0, *, told: bool = False, failure: str = ""
) -> HostExit:
    return HostExit(host=host, exit_code=code, order=order, told=told, failure=failure)


def test_all_hosts_at_zero_is_completed() -> None:
    made = decide([ended("algo-2", 0), ended("algo-1", 0, 1)], None)
    assert (made.status, made.failure_reason, made.warnings) == (S.COMPLETED, "", ())


def test_the_first_host_to_fail_gives_the_reason() -> None:
    made = decide(
        [
            ended("algo-3", 0, 0),
            ended("algo-2", 42, 1, failure="rank 1: ValueError: no"),
            ended("algo-1", 143, 2, told=True, failure="rank 0: terminated"),
        ],
        None,
    )
    assert made.status is S.FAILED
    assert made.failure_reason == "AlgorithmError: rank 1: ValueError: no, exit code: 42"


def test_without_a_failure_file_the_service_form_stays() -> None:
    assert decide([ended("algo-1", 3)], None).failure_reason == "AlgorithmError: , exit code: 3"


def test_a_kill_names_memory_as_the_usual_cause() -> None:
    assert "memory" in decide([ended("algo-1", 137)], None).failure_reason


def test_a_long_failure_is_cut_and_keeps_its_exit_code() -> None:
    reason = decide([ended("algo-1", 9, failure="x" * 5000)], None).failure_reason
    assert len(reason) == REASON_LIMIT
    assert reason.endswith(", exit code: 9")


@pytest.mark.parametrize("cause", list(StopCause))
@pytest.mark.parametrize("code", [0, 1, 143, 137])
def test_a_stop_ends_as_asked_whatever_the_exit_code(cause: StopCause, code: int) -> None:
    assert decide([ended("algo-1", code, told=True)], cause).status is cause.value


def test_a_host_that_failed_before_the_stop_has_failed() -> None:
    made = decide([ended("algo-1", 1), ended("algo-2", 143, 1, told=True)], StopCause.REQUEST)
    assert made.status is S.FAILED


def test_a_failure_file_with_exit_zero_is_warned_about() -> None:
    made = decide([ended("algo-1", 0, failure="odd")], None)
    assert made.status is S.COMPLETED
    assert "algo-1" in made.warnings[0]
