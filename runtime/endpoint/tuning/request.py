"""CreateHyperParameterTuningJob's request, understood: what is asked for, and what is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hotfire.runtime.endpoint.tuning import ranges
from hotfire.runtime.endpoint.tuning.strategies import Strategy
from hotfire.runtime.errors import UnsupportedError, ValidationError

OBJECTIVE = "_tuning_objective_metric"
"""The hyperparameter that training jobs of a tuning job have (contract 4.2)."""
_COPIED = (
    "RoleArn",
    "InputDataConfig",
    "VpcConfig",
    "OutputDataConfig",
    "StoppingCondition",
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption",
    "EnableManagedSpotTraining",
    "CheckpointConfig",
    "RetryStrategy",
    "Environment",
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One tuning job's request."""

    name: str
    definition: Mapping[str, Any]
    tags: tuple[Mapping[str, str], ...]
    strategy: Strategy
    metric: str
    limit: int
    """How many training jobs."""
    parallel: int
    max_runtime: float | None
    """Seconds, of the tuning job."""
    early_stopping: bool
    target: float | None
    not_improving: int | None

    def arn(self, region: str) -> str:
        """The tuning job's."""
        return self._arn(region, "hyper-parameter-tuning-job", self.name)

    def with_arn(self, summary: Mapping[str, Any], region: str) -> dict[str, Any]:
        """The summary of a training job with its ARN."""
        arn = self._arn(region, "training-job", summary["TrainingJobName"])
        return {**summary, "TrainingJobArn": arn}

    def _arn(self, region: str, kind: str, name: str) -> str:
        account = self.definition["RoleArn"].split(":")[4]
        return f"arn:aws:sagemaker:{region}:{account}:{kind}/{name.lower()}"

    def training_job(self, name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """CreateTrainingJob's request for one combination."""
        found: dict[str, Any] = {
            "TrainingJobName": name,
            "HyperParameters": {**static(self.definition, self.metric), **parameters},
            "AlgorithmSpecification": dict(self.definition["AlgorithmSpecification"]),
            "ResourceConfig": resources(self.definition),
        }
        found |= {key: self.definition[key] for key in _COPIED if key in self.definition}
        if self.tags:
            found["Tags"] = list(self.tags)
        found = copy.deepcopy(found)
        if "CheckpointConfig" in found:
            # Of one prefix for all, each job would be given the checkpoints of the others.
            place = found["CheckpointConfig"]
            place["S3Uri"] = f"{place['S3Uri'].rstrip('/')}/{name}"
        return found


def static(definition: Mapping[str, Any], metric: str) -> dict[str, str]:
    """StaticHyperParameters as DescribeHyperParameterTuningJob tells them."""
    return {**definition.get("StaticHyperParameters", {}), OBJECTIVE: metric}


def definition_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one definition of training jobs."""
    several = raw.get("TrainingJobDefinitions")
    found: Mapping[str, Any] = several[0] if several else raw["TrainingJobDefinition"]
    return found


def parse(raw: Mapping[str, Any], seed: int) -> Asked:
    """A request whose shape has been checked.

    Args:
        seed: where the request gives none.

    Raises:
        UnsupportedError: it asks for what is not carried out.
        ValidationError: it contradicts itself, or lacks something.
    """
    if refused := list(_unsupported(raw)):
        raise UnsupportedError(
            f"Not available at this endpoint: {'; '.join(refused)}.",
            do="Use Strategy Random, Grid or Bayesian over one TrainingJobDefinition.",
        )
    if ("TrainingJobDefinition" in raw) == ("TrainingJobDefinitions" in raw):
        raise ValidationError(
            "Exactly one of TrainingJobDefinition and TrainingJobDefinitions is needed."
        )
    config, definition = raw["HyperParameterTuningJobConfig"], definition_of(raw)
    objective = config.get("HyperParameterTuningJobObjective") or definition.get("TuningObjective")
    space = config.get("ParameterRanges") or definition.get("HyperParameterRanges")
    if not objective or not space:
        raise ValidationError("HyperParameterTuningJobObjective and ParameterRanges are needed.")
    if not _has_metric(definition, objective["MetricName"]):
        raise ValidationError(
            f"The objective metric {objective['MetricName']} is not in MetricDefinitions."
        )
    strategy = Strategy(
        kind=config["Strategy"],
        ranges=ranges.parse(space, definition.get("StaticHyperParameters", {})),
        seed=config.get("RandomSeed", seed),
        minimise=objective["Type"] == "Minimize",
    )
    limits, criteria = config["ResourceLimits"], config.get("TuningJobCompletionCriteria", {})
    return Asked(
        name=raw["HyperParameterTuningJobName"],
        definition=definition,
        tags=tuple(raw.get("Tags", ())),
        strategy=strategy,
        metric=objective["MetricName"],
        limit=_limit(limits, strategy),
        parallel=limits["MaxParallelTrainingJobs"],
        max_runtime=limits.get("MaxRuntimeInSeconds"),
        early_stopping=config.get("TrainingJobEarlyStoppingType") == "Auto",
        target=criteria.get("TargetObjectiveMetricValue"),
        not_improving=criteria.get("BestObjectiveNotImproving", {}).get(
            "MaxNumberOfTrainingJobsNotImproving"
        ),
    )


def _has_metric(definition: Mapping[str, Any], metric: str) -> bool:
    known = definition["AlgorithmSpecification"].get("MetricDefinitions", ())
    return any(one["Name"] == metric for one in known)


def _limit(limits: Mapping[str, Any], strategy: Strategy) -> int:
    """How many training jobs: of a grid all its points."""
    asked = limits.get("MaxNumberOfTrainingJobs")
    if strategy.points is not None:
        if asked not in (None, strategy.points):
            raise ValidationError(
                f"MaxNumberOfTrainingJobs is {asked}, and the grid has {strategy.points} combinations.",
                do="Leave it out for Strategy Grid.",
            )
        return strategy.points
    if asked is None:
        raise ValidationError(f"Strategy {strategy.kind} needs MaxNumberOfTrainingJobs.")
    if limits["MaxParallelTrainingJobs"] > asked:
        raise ValidationError("MaxParallelTrainingJobs is above MaxNumberOfTrainingJobs.")
    return int(asked)


def resources(definition: Mapping[str, Any]) -> dict[str, Any]:
    """ResourceConfig; of several instance types the one that comes first."""
    flexible = definition.get("HyperParameterTuningResourceConfig")
    if flexible is None:
        return dict(definition.get("ResourceConfig", {}))
    first = flexible.get("InstanceConfigs", [flexible])[0]
    names = ("InstanceType", "InstanceCount", "VolumeSizeInGB", "VolumeKmsKeyId")
    return {name: {**flexible, **first}[name] for name in names if name in {**flexible, **first}}


def _unsupported(raw: Mapping[str, Any]) -> Iterator[str]:
    config = raw["HyperParameterTuningJobConfig"]
    if "WarmStartConfig" in raw:
        yield "WarmStartConfig (warm start)"
    if "Autotune" in raw:
        yield "Autotune"
    if len(raw.get("TrainingJobDefinitions", ())) > 1:
        yield "more than one of TrainingJobDefinitions"
    if config["Strategy"] == "Hyperband":
        yield "Strategy Hyperband"
    elif "HyperbandStrategyConfig" in config.get("StrategyConfig", {}):
        yield "StrategyConfig.HyperbandStrategyConfig, which is for Strategy Hyperband"
    spaces = [config.get("ParameterRanges"), *_inner(raw, "HyperParameterRanges")]
    if any((one or {}).get("AutoParameters") for one in spaces):
        yield "ParameterRanges.AutoParameters"
    criteria = config.get("TuningJobCompletionCriteria", {})
    if criteria.get("ConvergenceDetected", {}).get("CompleteOnConvergence") == "Enabled":
        yield "TuningJobCompletionCriteria.ConvergenceDetected"


def _inner(raw: Mapping[str, Any], member: str) -> Iterator[Any]:
    for one in (raw.get("TrainingJobDefinition"), *raw.get("TrainingJobDefinitions", ())):
        if one:
            yield one.get(member)
