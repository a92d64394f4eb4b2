"""What passes from the caller's environment to a host."""

from __future__ import annotations

import pytest

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.hostenv import taken_over


def test_nothing_passes_that_was_not_named() -> None:
    base, passed = taken_over(
        {
            "PATH": "/bin",
            "HOME": "/me",
            "AWS_SECRET_ACCESS_KEY": "s",
            "PYTHONPATH": "/x",
            "TZ": "UTC",
        }
    )
    assert base == {"PATH": "/bin", "TZ": "UTC", "LANG": "C.UTF-8"}
    assert passed == {}


def test_proxies_indexes_and_endpoints_pass_by_name() -> None:
    environ = {"https_proxy": "http://u:p@proxy", "PIP_INDEX_URL": "x", "AWS_ENDPOINT_URL_S3": "y"}
    base, passed = taken_over(environ)
    assert passed == environ
    assert base["PATH"]


def test_asked_names_pass_by_value_and_must_exist() -> None:
    _, passed = taken_over({"WANDB_API_KEY": "k"}, ["WANDB_API_KEY"])
    assert passed == {"WANDB_API_KEY": "k"}
    with pytest.raises(ValidationError, match="--env MISSING"):
        taken_over({}, ["MISSING"])
