"""What a training script sees, derived from one host's configuration files. Pure and standard library only.

Both sides of the container wall use it: ``train`` to start the script, the platform to check a request and to print
what a dry run promises::

    env = derive(hyperparameters=..., resource_config=..., devices=..., environment=...)
    env.variables()      # every SM_* variable
    env.arguments()      # the command line after the script's name
    decide(env, environment)   # torchrun or one process, how many workers, which compiler, and why
"""

from __future__ import annotations

from hotfire.runtime.training_env.environment import Devices, TrainingEnv, derive
from hotfire.runtime.training_env.formats import (
    command_line_arguments,
    decode_hyperparameters,
    environment_value,
)
from hotfire.runtime.training_env.launch import (
    BUILT_IN_PROGRAM,
    MASTER_PORT,
    Compiler,
    Launch,
    Launcher,
    decide,
    refuse_unsupported,
)

__all__ = [
    "BUILT_IN_PROGRAM",
    "MASTER_PORT",
    "Compiler",
    "Devices",
    "Launch",
    "Launcher",
    "TrainingEnv",
    "command_line_arguments",
    "decide",
    "decode_hyperparameters",
    "derive",
    "environment_value",
    "refuse_unsupported",
]
