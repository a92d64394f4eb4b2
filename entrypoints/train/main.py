"""The life of one training container, top to bottom."""

from __future__ import annotations

import errno
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotfire.entrypoints.train import talk
from hotfire.entrypoints.train.children import Children
from hotfire.entrypoints.train.prepare import make_room, prepare
from hotfire.entrypoints.train.run import CannotExecute, run
from hotfire.entrypoints.train.signals import Signals, Stopped
from hotfire.entrypoints.train.talk import say
from hotfire.entrypoints.train.temporary import short_temporary
from hotfire.runtime.errors import HotfireError
from hotfire.runtime.layout import ML_ROOT, MlTree

USAGE = "usage: train (the word that SageMaker gives to an image's ENTRYPOINT)"


def main(argv: Sequence[str], signals: Signals, environment: Mapping[str, str]) -> int:
    """Run the job that /opt/ml describes; the exit code of the container."""
    if list(argv) != ["train"]:
        return _wrong_arguments(argv)
    tree = MlTree(Path(environment.get("SAGEMAKER_BASE_DIR") or ML_ROOT).absolute())
    children = Children(signals)
    children.adopt_orphans()
    try:
        with short_temporary(environment) as env:
            with signals.interruptible():
                make_room(tree)
                ready = prepare(tree, children, env)
            code, reason = run(ready, tree, children, env)
        return _fail(tree, reason, code) if code else 0
    except Stopped as stop:
        name = signal.Signals(stop.number).name
        return _fail(tree, f"stopped by {name} before the script started", 128 + stop.number)
    except CannotExecute as error:
        return _fail(tree, str(error), error.code)
    except HotfireError as error:
        return _fail(tree, str(error), 1)
    except OSError as error:
        return _fail(tree, _describe(error), 1)
    except Exception as error:  # noqa: BLE001 - the edge: whatever it was, the job failed
        import traceback

        traceback.print_exc()
        return _fail(tree, f"hotfire itself failed: {type(error).__name__}: {error}", 1)
    finally:
        if not children.kill_all():
            say("warning: some processes could not be killed")


def _wrong_arguments(argv: Sequence[str]) -> int:
    if argv:
        say(f"train: unexpected arguments: {talk.command_line(argv)}")
        say(
            "ContainerArguments take the place of the word train; begin them with ContainerEntrypoint"
        )
    else:
        say("train: the argument train is missing, which SageMaker gives: docker run IMAGE train")
    say(USAGE)
    return 2


def _describe(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        left = shutil.disk_usage("/").free // 2**20
        place = error.filename or "the disk"
        return f"No space left on device: {place} cannot be written ({left} MiB free on /)"
    return f"{type(error).__name__}: {error}"


def _fail(tree: MlTree, text: str, code: int) -> int:
    from hotfire.entrypoints.train import failure

    text = talk.hidden(text)
    failure.write(tree.failure, text)
    say(f"{text} (exit code {code})")
    return code
