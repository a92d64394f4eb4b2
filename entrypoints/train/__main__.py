"""Handlers first: as PID 1 a signal without a handler is lost, and importing the rest takes time."""

from __future__ import annotations

import os
import sys


def start() -> int:
    from hotfire.entrypoints.train.signals import install

    signals = install()
    from hotfire.entrypoints.train.main import main

    return main(sys.argv[1:], signals, dict(os.environ))


if __name__ == "__main__":
    # What it says is written at once; taking the interpreter down would keep the host for milliseconds.
    os._exit(start())
