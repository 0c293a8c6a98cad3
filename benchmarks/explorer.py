"""Computes the results that the page of `galton explore` comes with: minutes, and what is done is kept on Ctrl-C."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from galton import files
from galton.explorer.results import SHIPPED, Axes, compute_results
from galton.progress import progress_bar

AXES = Axes(deltas=(1e-7, 1e-5), bins=(16, 32, 64), epochs=(1, 4, 16), epsilons=(0.5, 1.0, 2.0, 4.0, 8.0))
EXAMPLES = 50_000
TARGET = Path(__file__).parents[1] / "src" / "galton" / "explorer" / SHIPPED


def main() -> None:
    """Computes and writes them."""
    with progress_bar() as progress:
        results = compute_results(AXES, EXAMPLES, progress=progress)
    files.write_text(TARGET, files.canonical(results.to_json()) + "\n")
    print(f"{TARGET}: {AXES.points} points, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
