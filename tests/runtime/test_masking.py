"""What is masked, and what is not."""

from __future__ import annotations

import pytest

from hotfire.runtime.masking import MASK, is_secret, masked, masked_mapping, masked_text

SECRETS = [
    "TOKEN",
    "HF_TOKEN",
    "hub_token",
    "hubToken",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SESSION_TOKEN",
    "WANDB_API_KEY",
    "apiKey",
    "password",
    "DB_PASSWORD",
    "db.password",
    "passwd",
    "DB_PWD",
    "secret",
    "client_secret",
    "secrets",
    "credentials",
    "private_key",
    "token_1",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "connection-string",
]
PLAIN = [
    "tokenizer_name",
    "max_tokens",
    "token_type",
    "pad_token",
    "eos_token",
    "PWD",
    "OLDPWD",
    "keyboard",
    "key",
    "monkey",
    "num_keys",
    "PATH",
    "learning_rate",
    "secretary",
    "model_name",
    "pass_rate",
    "passes",
    "compass",
    "AWS_REGION",
    "accesskeyboard",
    "tokens",
]


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_known_by_name(name: str) -> None:
    assert is_secret(name)
    assert masked(name, "x") == MASK


@pytest.mark.parametrize("name", PLAIN)
def test_ordinary_names_are_not(name: str) -> None:
    assert not is_secret(name)
    assert masked(name, "x") == "x"


def test_passwords_in_urls() -> None:
    text = "see https://me:pw@host/x?a=b, git+ssh://git@github.com/o/r.git@v1 and s3://bucket/a@b"
    assert masked_text(text) == (
        f"see https://{MASK}@host/x?a=b, git+ssh://{MASK}@github.com/o/r.git@v1 and s3://bucket/a@b"
    )
    assert masked_mapping({"INDEX": "https://u:p@pypi"}) == {"INDEX": f"https://{MASK}@pypi"}


def test_an_empty_value_hides_nothing() -> None:
    assert masked("TOKEN", "") == ""
