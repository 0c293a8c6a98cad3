"""A comparison as a picture that can be read in grey: markers and line styles, not colours, tell mechanisms apart."""

from __future__ import annotations

from pathlib import Path

from galton.accountants import Standing
from galton.comparison.table import Comparison
from galton.plots import pyplot, save
from galton.typechecking import typechecked

_MARKERS = "osD^v<>pPX*hd8H1234+x"
_LINES = ("-", "--", "-.", ":")
_GREYS = ("0.0", "0.25", "0.4", "0.55")


@typechecked
def plot_comparison(comparison: Comparison, path: str | Path) -> Path:
    """Draws errors relative to the baseline (absolute, if that is missing) against epsilon, and writes a file.

    Lower bounds have hollow markers and say in the legend that they are no guarantee. The file's ending is its format.

    Args:
      comparison: what `compare` returned.
      path: file to write, ending in .png, .pdf or .svg.

    Returns:
      The path.

    Example:
      >>> from tempfile import TemporaryDirectory
      >>> from galton import compare
      >>> comparison = compare(8, 2, (1.0, 2.0), 1e-3, ("dpsgd-unamplified",), baseline="dpsgd-unamplified")
      >>> with TemporaryDirectory() as folder:
      ...     plot_comparison(comparison, f"{folder}/errors.png").stat().st_size > 1000
      True
    """
    plt = pyplot()
    relative = comparison.baseline in comparison.mechanisms
    figure, axis = plt.subplots(figsize=(9.5, 5.5), layout="constrained")
    for index, name in enumerate(comparison.mechanisms):
        rows = [row for row in comparison.rows if row.mechanism == name]
        values = [comparison.relative(row) if relative else row.rmse for row in rows]
        bound = rows[0].statement.standing is Standing.LOWER_BOUND
        axis.plot(
            [row.epsilon for row in rows],
            values,
            marker=_MARKERS[index % len(_MARKERS)],
            linestyle=":" if bound else _LINES[index % len(_LINES)],
            color=_GREYS[index // len(_LINES) % len(_GREYS)],
            markerfacecolor="none" if bound else None,
            label=name + (" (lower bound, NOT a guarantee)" if bound else ""),
        )
    axis.set(xscale="log", yscale="log", xlabel="epsilon")
    axis.set_ylabel(f"error relative to {comparison.baseline}" if relative else "root-mean-square error")
    axis.set_title(
        f"{comparison.workload}, {comparison.epochs} epochs of {comparison.bins} batches, delta = {comparison.delta:g}"
    )
    axis.set_xticks(comparison.epsilons, [f"{epsilon:g}" for epsilon in comparison.epsilons])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    target = Path(path)
    save(figure, target)
    return target
