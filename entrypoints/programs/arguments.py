"""Command lines as SageMaker writes them: ``--name value`` for every hyperparameter.

Booleans arrive as ``True`` and ``False``, whole numbers sometimes as ``3.0``, and the dashes in a
name are the user's: ``--learning-rate`` and ``--learning_rate`` are one argument.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def boolean(text: str) -> bool:
    """``True``, ``false``, ``1``, ``no`` ..."""
    if text.strip().lower() in _TRUE | _FALSE:
        return text.strip().lower() in _TRUE
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def whole(text: str) -> int:
    """An integer, also written ``3.0`` or ``1e3``."""
    try:
        number = float(text)
    except ValueError:
        number = 0.5
    if number != int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(number)


def natural(text: str) -> int:
    """A whole number from 0 up."""
    if whole(text) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative")
    return whole(text)


def positive(text: str) -> int:
    """A whole number from 1 up."""
    if whole(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is below 1")
    return whole(text)


def amount(text: str) -> float:
    """A finite number from 0 up."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return number


class Parser(argparse.ArgumentParser):
    """Refuses what it does not know by naming what comes near it (exit status 2)."""

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The values of `argv`; exits with a message for an unknown or malformed argument."""
        namespace, unknown = self.parse_known_args([_underscored(word) for word in argv])
        if unknown:
            self.error(
                "; ".join(self._refusal(w) for w in unknown if w.startswith("-")) or unknown[0]
            )
        return namespace

    def _refusal(self, word: str) -> str:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        near = difflib.get_close_matches(word.split("=")[0], known, n=2, cutoff=0.6)
        return f"unknown argument {word}" + (f" (near: {', '.join(near)})" if near else "")


def _underscored(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"
