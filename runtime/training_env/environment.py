"""The training environment of one host: every SM_* variable and the script's arguments. Pure.

The derivations are those of ``sagemaker_training.environment.Environment`` 5.1.4; a test compares the two over
generated inputs and lists the deliberate differences.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from hotfire.runtime.layout import ML_ROOT
from hotfire.runtime.training_env.formats import (
    command_line_arguments,
    decode_hyperparameters,
    environment_value,
)

HOMOGENEOUS_GROUP = "homogeneousCluster"
"""The group where resourceconfig.json names none (contract 2.4). Said again here: importing the job's classes
for it would cost every container its time."""

PREFIX = "sagemaker_"
RESERVED = frozenset(
    {
        "sagemaker_program",
        "sagemaker_submit_directory",
        "sagemaker_enable_cloudwatch_metrics",
        "sagemaker_region",
        "sagemaker_container_log_level",
        "sagemaker_job_name",
        "default_user_module_name",
        "_tuning_objective_metric",
        "sagemaker_s3_output",
    }
)
"""Hyperparameters for the toolkit itself; neither the script nor SM_FRAMEWORK_PARAMS gets them (contract 4.2)."""

_DISTRIBUTIONS = (
    "sagemaker_mpi_enabled",
    "sagemaker_parameter_server_enabled",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
    "sagemaker_torch_distributed_enabled",
)
_INFO = 20


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What the container finds: counts, and which of the launchers mpirun, smddprun, smddpmprun are on its PATH."""

    cpus: int
    gpus: int = 0
    neuron_cores: int = 0
    tools: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TrainingEnv:
    """One host's view of its job. Make it with :func:`derive`."""

    all_hyperparameters: Mapping[str, Any]
    """Decoded, the reserved ones included."""
    resource_config: Mapping[str, Any]
    input_data_config: Mapping[str, Any]
    environment: Mapping[str, str]
    devices: Devices
    base_dir: PurePosixPath = field(default=ML_ROOT)

    @cached_property
    def hyperparameters(self) -> dict[str, Any]:
        """Those of the user, which the script gets as arguments and as SM_HP_*."""
        return {
            name: value
            for name, value in self.all_hyperparameters.items()
            if name not in RESERVED and not name.startswith(PREFIX)
        }

    @cached_property
    def framework_parameters(self) -> dict[str, Any]:
        """Every ``sagemaker_*`` hyperparameter that is not reserved: the distribution and compiler settings."""
        return {
            name: value
            for name, value in self.all_hyperparameters.items()
            if name.startswith(PREFIX) and name not in RESERVED
        }

    # The job.

    @property
    def program(self) -> str | None:
        """The script, relative to the code directory; SAGEMAKER_PROGRAM wins over the hyperparameter."""
        program = self._program
        return None if program is None else str(program)

    @property
    def _program(self) -> Any:
        asked = self.environment.get("SAGEMAKER_PROGRAM")
        return asked or self.all_hyperparameters.get("sagemaker_program")

    @property
    def submit_directory(self) -> str | None:
        """Where the code comes from; None when the job does not say."""
        asked = self.all_hyperparameters.get(
            "sagemaker_submit_directory", self.environment.get("SAGEMAKER_SUBMIT_DIRECTORY")
        )
        return None if asked is None else str(asked)

    @property
    def job_name(self) -> str:
        named = self.all_hyperparameters.get("sagemaker_job_name")
        return str(named) if named is not None else self.environment.get("TRAINING_JOB_NAME", "")

    @property
    def region(self) -> str:
        asked = self.all_hyperparameters.get("sagemaker_region")
        if asked is not None:
            return str(asked)
        return self.environment.get("AWS_REGION") or self.environment.get("AWS_DEFAULT_REGION", "")

    @property
    def log_level(self) -> Any:
        """A number in every sane job; whatever the request holds otherwise, since scripts see it as it is."""
        asked = self.environment.get("SAGEMAKER_CONTAINER_LOG_LEVEL", "")
        default = int(asked) if asked.isdecimal() else _INFO
        return self.all_hyperparameters.get("sagemaker_container_log_level", default)

    # The cluster.

    @property
    def hosts(self) -> list[str]:
        """All hosts of the job, in the lexicographic order of resourceconfig.json (contract 2.4)."""
        return list(self.resource_config["hosts"])

    @property
    def current_host(self) -> str:
        return str(self.resource_config["current_host"])

    @property
    def current_instance_type(self) -> str:
        return str(self.resource_config.get("current_instance_type", "local"))

    @property
    def current_instance_group(self) -> str:
        return str(self.resource_config.get("current_group_name", HOMOGENEOUS_GROUP))

    @property
    def network_interface_name(self) -> str:
        return str(self.resource_config.get("network_interface_name", "eth0"))

    @cached_property
    def _groups(self) -> dict[str, Mapping[str, Any]]:
        listed: Sequence[Mapping[str, Any]] = self.resource_config.get("instance_groups", [])
        return {group["instance_group_name"]: group for group in listed}

    @property
    def current_instance_group_hosts(self) -> list[str]:
        group = self._groups.get(self.current_instance_group)
        return list(group["hosts"]) if group else []

    @property
    def distribution_instance_groups(self) -> Any:
        """Groups that a distribution runs on: those asked for, else the current one if any distribution is on."""
        asked_for_any = any(self.framework_parameters.get(name) for name in _DISTRIBUTIONS)
        return self.framework_parameters.get(
            "sagemaker_distribution_instance_groups",
            [self.current_instance_group] if asked_for_any else [],
        )

    @cached_property
    def distribution_hosts(self) -> list[str]:
        """Hosts of those groups; all hosts when resourceconfig.json names no groups."""
        if not self._groups:
            return self.hosts
        groups = self.distribution_instance_groups
        return [
            host for name in self._groups if name in groups for host in self._groups[name]["hosts"]
        ]

    @property
    def master_host(self) -> str:
        return (self.distribution_hosts or self.hosts)[0]

    @property
    def neuron_cores(self) -> int:
        """As counted, but 64 on trn2.48xlarge whatever neuron-ls says: its logical cores (contract 7)."""
        return 64 if "trn2.48xlarge" in self.current_instance_type else self.devices.neuron_cores

    # Directories.

    @property
    def code_dir(self) -> str:
        return self._at("code")

    @cached_property
    def channel_input_dirs(self) -> dict[str, str]:
        return {name: self._at("input", "data", name) for name in self.input_data_config}

    def _at(self, *parts: str) -> str:
        # Not through pathlib, which drops a channel called ".".
        return posixpath.join(self.base_dir, *parts)

    # What the script gets.

    def arguments(self) -> list[str]:
        """The command line after the script's name."""
        return command_line_arguments(self.hyperparameters)

    def variables(self) -> dict[str, str]:
        """Every SM_* variable. Names are upper-cased and otherwise kept: ``SM_HP_BATCH-SIZE`` (contract 1.2)."""
        values = dict(self._values())
        values |= {f"channel_{name}": path for name, path in self.channel_input_dirs.items()}
        values |= {f"hp_{name}": value for name, value in self.hyperparameters.items()}
        return {f"SM_{name.upper()}": environment_value(value) for name, value in values.items()}

    def _values(self) -> dict[str, Any]:
        seen = self._properties()
        inside_only = {
            "additional_framework_parameters",
            "channel_input_dirs",
            "distribution_hosts",
            "hyperparameters",
            "is_master",
            "is_modelparallel_enabled",
            "is_smddpmprun_installed",
            "is_smddprun_installed",
            "job_name",
            "master_hostname",
            "topology",
        }
        values = {name: value for name, value in seen.items() if name not in inside_only} | {
            "hps": self.hyperparameters,
            "framework_params": self.framework_parameters,
            "channels": sorted(self.channel_input_dirs),
            "training_env": seen,
            "user_args": self.arguments(),
        }
        # Only UltraServer jobs have one (contract 2.4).
        return values | ({"topology": seen["topology"]} if seen["topology"] else {})

    def _properties(self) -> dict[str, Any]:
        """The members of SM_TRAINING_ENV."""
        config = self.resource_config
        model_parallel = self.environment.get("SM_HP_MP_PARAMETERS")
        return {
            "additional_framework_parameters": self.framework_parameters,
            "channel_input_dirs": self.channel_input_dirs,
            "current_host": config["current_host"],
            "current_instance_group": config.get("current_group_name", HOMOGENEOUS_GROUP),
            "current_instance_group_hosts": self.current_instance_group_hosts,
            "current_instance_type": config.get("current_instance_type", "local"),
            "distribution_hosts": self.distribution_hosts,
            "distribution_instance_groups": self.distribution_instance_groups,
            "framework_module": self.environment.get("SAGEMAKER_TRAINING_MODULE"),
            "hosts": config["hosts"],
            "hyperparameters": self.hyperparameters,
            "input_config_dir": self._at("input", "config"),
            "input_data_config": self.input_data_config,
            "input_dir": self._at("input"),
            "instance_groups": list(self._groups),
            "instance_groups_dict": self._groups,
            "is_hetero": len(self._groups) > 1,
            "is_master": self.current_host == self.master_host,
            "is_modelparallel_enabled": model_parallel and model_parallel != "{}",
            "is_smddpmprun_installed": "smddpmprun" in self.devices.tools,
            "is_smddprun_installed": "smddprun" in self.devices.tools,
            "job_name": self.environment.get("TRAINING_JOB_NAME"),
            "log_level": self.log_level,
            "master_hostname": self.master_host,
            "model_dir": self._at("model"),
            "module_dir": self.submit_directory or self.code_dir,
            # "None" where there is no program: what the toolkit says, and nobody reads.
            "module_name": str(self.program).removesuffix(".py"),
            "network_interface_name": config.get("network_interface_name", "eth0"),
            "num_cpus": self.devices.cpus,
            "num_gpus": self.devices.gpus,
            "num_neurons": self.neuron_cores,
            "output_data_dir": self._at("output", "data"),
            "output_dir": self._at("output"),
            "output_intermediate_dir": self._at("output", "intermediate"),
            "resource_config": config,
            "topology": config.get("topology", []),
            "user_entry_point": self._program,
        }


def derive(
    *,
    hyperparameters: Mapping[str, Any],
    resource_config: Mapping[str, Any],
    devices: Devices,
    input_data_config: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    base_dir: PurePosixPath = ML_ROOT,
) -> TrainingEnv:
    """The environment that these configuration files give.

    Args:
        hyperparameters: hyperparameters.json: every value a string, as sent (contract 2.2).
        resource_config: resourceconfig.json; ``hosts`` and ``current_host`` are required (contract 2.4).
        devices: what the container finds.
        input_data_config: inputdataconfig.json (contract 2.3).
        environment: the container's own, before anything is added to it.
        base_dir: /opt/ml, or what SAGEMAKER_BASE_DIR says.
    """
    return TrainingEnv(
        all_hyperparameters=decode_hyperparameters(hyperparameters),
        resource_config=resource_config,
        input_data_config=input_data_config or {},
        environment=environment or {},
        devices=devices,
        base_dir=base_dir,
    )
