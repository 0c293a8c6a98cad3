"""Confidence bounds on the mean of bounded samples."""

from galton.bounds.exponents import BOUNDS, Bernstein, Bound, ChernoffKL, OneSided
from galton.bounds.fixed import FixedSample
from galton.bounds.sequences import BettingTest, EmpiricalBernstein

__all__ = ["BOUNDS", "Bernstein", "BettingTest", "Bound", "ChernoffKL", "EmpiricalBernstein", "FixedSample", "OneSided"]
