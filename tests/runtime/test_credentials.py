"""Credentials for hosts, as every AWS SDK fetches them."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from hotfire.runtime import credentials


def test_botocore_gets_the_callers_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.credentials import ContainerProvider

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    role = "arn:aws:iam::000000000000:role/hotfire"
    with credentials.CredentialServer(role) as server:
        found = ContainerProvider({"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url}).load()
        assert found is not None
        frozen = found.get_frozen_credentials()
        assert (frozen.access_key, frozen.secret_key, frozen.token) == (
            "AKIDEXAMPLE",
            "secret",
            "token",
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.url + "x", timeout=5)
        refused.value.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(server.url, timeout=5)


def test_at_hand_looks_at_names_and_files_alone(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert not credentials.at_hand(home)
    assert credentials.at_hand({**home, "AWS_ACCESS_KEY_ID": "x"})
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[default]\n")
    assert credentials.at_hand(home)
