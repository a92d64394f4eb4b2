"""Which point to try next: a function of the strategy, the seed and what has been tried, so that nothing else is kept.

Random and Grid need nothing but Python. Bayesian is Optuna's tree-structured Parzen estimator (the service's own method
is Gaussian processes); it takes jobs that still run into account, so that parallel ones do not try the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from hotfire.runtime.endpoint.tuning.ranges import Choice, Point, Ranges, combinations
from hotfire.runtime.errors import UnsupportedError, ValidationError

STARTUP = 5
"""Bayesian search begins with as many random points."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A point and its objective; None while the job runs."""

    point: Point
    value: float | None


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """``kind``: Random, Grid or Bayesian."""

    kind: str
    ranges: Ranges
    seed: int
    minimise: bool

    def __post_init__(self) -> None:
        if self.kind == "Grid" and not all(isinstance(one, Choice) for one in self.ranges):
            raise ValidationError(
                "Strategy Grid searches categorical hyperparameters alone.",
                do="Give CategoricalParameterRanges, or another Strategy.",
            )
        if self.kind == "Bayesian" and find_spec("optuna") is None:
            raise UnsupportedError(
                "Strategy Bayesian needs Optuna, which is not installed.",
                do="pip install 'hotfire[endpoint]', or take Strategy Random.",
            )

    @property
    def points(self) -> int | None:
        """How many there are; None where there is no end to them."""
        return combinations(self._choices) if self.kind == "Grid" else None

    @property
    def _choices(self) -> list[Choice]:
        return [one for one in self.ranges if isinstance(one, Choice)]

    def suggest(self, number: int, tried: Sequence[Tried]) -> Point:
        """The point of job ``number``, counted from 0; the same question has the same answer."""
        if self.kind == "Grid":
            return self._of_grid(number)
        chance = random.Random(f"{self.seed}/{number}")
        if self.kind == "Bayesian" and sum(one.value is not None for one in tried) >= STARTUP:
            return self._bayesian(chance.getrandbits(32), tried)
        return {
            one.name: chance.choice(one.values) if isinstance(one, Choice) else chance.random()
            for one in self.ranges
        }

    def _of_grid(self, number: int) -> Point:
        """The last hyperparameter changes fastest."""
        point: dict[str, float | str] = {}
        for one in reversed(self._choices):
            number, index = divmod(number, len(one.values))
            point[one.name] = one.values[index]
        return point

    def _bayesian(self, seed: int, tried: Sequence[Tried]) -> Point:
        import warnings

        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        space: dict[str, Any] = {
            one.name: optuna.distributions.CategoricalDistribution(one.values)
            if isinstance(one, Choice)
            else optuna.distributions.FloatDistribution(0.0, 1.0)
            for one in self.ranges
        }
        with warnings.catch_warnings():
            # constant_liar and multivariate are called experimental.
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=STARTUP, multivariate=True, constant_liar=True
            )
            study = optuna.create_study(
                sampler=sampler, direction="minimize" if self.minimise else "maximize"
            )
            for one in tried:
                state = optuna.trial.TrialState
                trial = optuna.trial.create_trial(
                    params=dict(one.point),
                    distributions=space,
                    value=one.value,
                    state=state.RUNNING if one.value is None else state.COMPLETE,
                )
                study.add_trial(trial)
            return dict(study.ask(space).params)
