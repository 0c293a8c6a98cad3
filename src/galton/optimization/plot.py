"""A plot of the course of an optimisation and of its result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from galton.plots import pyplot, save
from galton.strategies import Scaled

if TYPE_CHECKING:
    from galton.optimization.amplified import Optimized


def plot_optimization(optimized: Optimized, path: str | Path) -> None:
    """Draws the objective by iteration, the coefficients and, for a scaled family, the weights; writes to `path`."""
    plt = pyplot()
    scaled = isinstance(optimized.strategy, Scaled)
    figure, axes = plt.subplots(1, 3 if scaled else 2, figsize=(12 if scaled else 8.5, 3.4), layout="constrained")
    stages = list(dict.fromkeys(str(row["stage"]) for row in optimized.history))
    for stage, style in zip(stages, ("-", "--", "-.", ":") * len(stages), strict=False):
        rows = [row for row in optimized.history if row["stage"] == stage]
        axes[0].plot(
            [float(row["iteration"]) for row in rows],
            [float(row["objective"]) for row in rows],
            style,
            color="black",
            label=f"{stage}, training value",
        )
    axes[0].axhline(optimized.objective, color="0.5", linewidth=1, label="result, fresh samples")
    title = f"{optimized.family}, epsilon {optimized.guarantee.epsilon:g}"
    axes[0].set(xlabel="iteration", ylabel="error", title=title)
    axes[0].legend(fontsize=8)
    first = optimized.strategy.columns(0, 1)[:, 0]
    axes[1].plot(np.arange(1, first.size + 1), first / first[0], color="black")
    axes[1].set(xscale="log", yscale="log", xlabel="rounds since", ylabel="first column of C", title="coefficients")
    axes[1].set_ylim(bottom=max(1e-6, float((first / first[0]).min()) / 2))
    if isinstance(optimized.strategy, Scaled):
        axes[2].plot(optimized.strategy.weights / optimized.strategy.weights.mean(), color="black", linewidth=0.8)
        axes[2].set(xlabel="round", ylabel="weight / mean", title="weights")
    save(figure, Path(path))
