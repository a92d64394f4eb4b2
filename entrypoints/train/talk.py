"""What ``train`` says itself: to standard error, a line each, without secrets."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from hotfire.runtime.masking import MASK, masked, masked_text

# Access key ids and tokens that can be told from their shape wherever they stand.
_TOKENS = re.compile(
    r"\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}|hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,})\b"
)
_ASSIGNED = re.compile(
    r"(?i)\b(aws_secret_access_key|aws_session_token|secret_?access_?key|session_?token|password)"
    r"(['\"]?\s*[=:]\s*['\"]?)[^\s'\",;]+"
)


def say(text: str) -> None:
    """One line to standard error. Nobody may be reading: that is no reason to fail."""
    line = f"hotfire: {hidden(' '.join(text.split()))}\n".encode(errors="backslashreplace")
    try:
        os.write(2, line)
    except OSError:
        return


def hidden(text: str) -> str:
    """``text`` without what can be recognised as a secret in it."""
    text = _ASSIGNED.sub(rf"\1\2{MASK}", masked_text(text))
    return _TOKENS.sub(MASK, text)


def command_line(argv: Sequence[str]) -> str:
    """``argv`` as a shell would take it, values of secret-looking options masked."""
    shown: list[str] = []
    name = ""
    for word in argv:
        option, equals, value = word.partition("=")
        if equals and option.startswith("-"):
            shown.append(f"{option}={hidden(masked(option.lstrip('-'), value))}")
        else:
            shown.append(hidden(masked(name, word)))
        name = word.lstrip("-") if word.startswith("-") else ""
    return shlex.join(shown)
