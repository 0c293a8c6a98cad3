"""C optimised under amplification, for any differentiable objective; and the classical optimum without."""

from galton.optimization.amplified import Optimized, optimize
from galton.optimization.families import parse_family
from galton.optimization.spec import resolve_strategy
from galton.optimization.unamplified import unamplified_optimum

__all__ = ["Optimized", "optimize", "parse_family", "resolve_strategy", "unamplified_optimum"]
