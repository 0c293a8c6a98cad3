"""The paper's own method: fresh plain samples in every iteration, bisection for sigma, gradient descent.

It is kept for comparison with `search`. Unlike the paper's description it uses the Gram reduction, with which a sample
costs O(bins^2) rather than O(rounds * bins). The length of the steps falls linearly to zero.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from galton.accounting.options import derived_seed
from galton.errors import FloatArray
from galton.optimization.problem import Problem
from galton.optimization.search import History, Interrupted, Target, design

STEP = 0.5
_HALVINGS = 12


def gradient_descent(
    problem: Problem, start: FloatArray, target: Target, iterations: int, history: History, step: float = STEP
) -> FloatArray:
    """Returns the average of the parameters over the last tenth of `iterations` steps, since gradients are noisy."""
    parameters, kept = start, [start]
    log_sigma = math.nan
    try:
        for index in range(iterations):
            statistic, participation = problem.statistic(parameters), problem.participation
            if index == 0:
                quick = replace(target, estimator=participation.estimators[0])
                log_sigma = design(problem, parameters, quick, "paper", 1 << 10)(statistic).log_sigma
            seed = derived_seed(target.seed, f"paper {index}")
            noise_level = participation.level(
                statistic, log_sigma, target.guarantee, target.estimator, target.samples, seed
            )
            level = noise_level.bisect(statistic, log_sigma, _HALVINGS)
            log_sigma = level.log_sigma
            value, gradient = problem.value_and_gradient(parameters, lambda statistic: level)  # noqa: B023
            history.add(problem.family.name, value)
            length = float(np.linalg.norm(gradient))
            if length > 0:
                parameters = parameters - step * (1 - index / iterations) * gradient / length
            if index >= iterations - max(1, iterations // 10):
                kept.append(parameters)
    except KeyboardInterrupt:
        raise Interrupted(parameters) from None
    return np.mean(kept[1:] or kept, axis=0)
