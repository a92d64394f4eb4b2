"""Runs scripts under the launcher in forks of one process that has imported torch_xla.

Importing torch and torch_xla takes several seconds of a core, and a corpus has many scripts. Reads
one JSON request a line: ``{"argv": [...], "environments": [{...}, ...], "log": PATH, "cwd": PATH}``,
starts one worker for each environment, and answers with the list of their exit codes.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
from typing import Any

import torch
import torch_xla
import torch_xla.distributed.parallel_loader
import torch_xla.runtime

from hotfire.runtime.xla import exec as launcher


def worker(request: dict[str, Any], environment: dict[str, str]) -> int:
    """The child's whole life, with the end that the interpreter would give it."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(environment)
    os.chdir(request["cwd"])
    code = 0
    try:
        launcher.main(request["argv"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        sys.last_value = error
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def main() -> None:
    assert torch.get_num_threads() == 1, "threads do not survive a fork"
    assert torch_xla._found_libtpu is False
    for line in sys.stdin:
        request = json.loads(line)
        children = []
        for environment in request["environments"]:
            child = os.fork()
            if child == 0:
                os._exit(worker(request, environment))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
