"""C under amplification, for any differentiable objective; and the classical optimum without."""

from galton.optimization.amplified import Optimized, optimize
from galton.optimization.families import parse_family
from galton.optimization.spec import resolve_strategy
from galton.optimization.unamplified import min_separation_sensitivity, unamplified_optimum

__all__ = [
    "Optimized",
    "min_separation_sensitivity",
    "optimize",
    "parse_family",
    "resolve_strategy",
    "unamplified_optimum",
]
