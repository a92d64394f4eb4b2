"""``train``: the first program of a training container, and of every host of the process backend.

``python -m hotfire.entrypoints.train train`` reads /opt/ml/input/config, fetches and installs the user's code, starts
the workers with the environment that SageMaker's scripts expect, passes signals on, and ends with the truth: the exit
code of the first worker that failed, and /opt/ml/output/failure. It runs as PID 1 and below an init alike.

What it reads from the environment beside SageMaker's own variables, all of it optional:

=============================  =====================================================================================
SAGEMAKER_BASE_DIR             a directory in the place of /opt/ml
HOTFIRE_HOSTS                  JSON, host name to address, in the place of DNS; says also that the Python is the
                               user's own, so that requirements go into an overlay
HOTFIRE_MASTER_PORT            the job's port (MASTER_PORT, else 7777, without it)
HOTFIRE_PROCESSES_PER_HOST     workers on each host, through torchrun
HOTFIRE_DEVICE                 ``cpu`` where the devices found are emulated
HOTFIRE_COMPILER               ``xla``, ``inductor`` or ``none``, whatever the job and its devices suggest
HOTFIRE_COMPILER_DEBUG         ``1``: the compiler's metrics, graphs and IR go to /opt/ml/output/data/compiler
HOTFIRE_COMPILE_CACHE          directory where compiled programs are kept (HOTFIRE_CACHE/compile, else beside the
                               job's checkpoints)
HOTFIRE_MEASURE_STEPS          optimizer steps after which each worker writes its times and ends (``hotfire bench``)
HOTFIRE_MEMORY_LIMIT           bytes of resident memory at which a measured worker ends with 137
HOTFIRE_GRACE                  seconds from SIGTERM to the platform's SIGKILL (120)
HOTFIRE_CACHE                  where overlays are kept
=============================  =====================================================================================

The standard library is enough for it; boto3 is imported only when code comes from S3. What it says itself goes to
standard error, a line each, beginning with ``hotfire:``.
"""
