"""What looks like a secret, and how it is printed instead. Standard library only, used on both sides of the wall."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

MASK = "******"


# Compiled at first use: most runs of the command print nothing that needs it.
@cache
def _secret_name() -> re.Pattern[str]:
    # Whole words of the name: `token` and HF_TOKEN are secrets; tokenizer_name and max_tokens are not.
    return re.compile(
        r"(?:^|[_\-.])(?:"
        r"pass(?:word|wd|phrase)?|(?<=[_\-.])pwd|secrets?|credentials?|token|authorization|"
        r"(?:api|access|secret|private|account|auth|encryption|signing|license)[_\-.]?key|"
        r"connection[_\-.]?string"
        r")(?:[_\-.](?:id|key|value|string|full_uri|relative_uri|\d+))*$",
        re.IGNORECASE,
    )


# Vocabulary entries of a tokenizer.
_NOT_SECRET = ("pad", "eos", "bos", "cls", "sep", "unk", "mask", "image", "special", "start", "end")
_CAMEL = r"(?<=[a-z0-9])(?=[A-Z])"
_URL_PASSWORD = r"([A-Za-z][A-Za-z0-9+.\-]*://)[^/\s:@]*(?::[^/\s@]*)?@"


def is_secret(name: str) -> bool:
    """Whether a variable or hyperparameter of that name usually holds a secret."""
    words = re.sub(_CAMEL, "_", name)
    vocabulary = words.lower().endswith(tuple(f"{word}_token" for word in _NOT_SECRET))
    return not vocabulary and _secret_name().search(words) is not None


def masked_text(text: str) -> str:
    """``text`` with the user and password of every URL in it masked."""
    return re.sub(_URL_PASSWORD, rf"\1{MASK}@", text) if "://" in text else text


def masked(name: str, value: str) -> str:
    """``value`` as it may be printed beside ``name``."""
    return MASK if value and is_secret(name) else masked_text(value)


def masked_mapping(values: Mapping[str, str]) -> dict[str, str]:
    """Variables or hyperparameters as they may be printed."""
    return {name: masked(name, value) for name, value in values.items()}
