"""Confidence bounds on the mean of bounded samples; a bound's name says in which direction it errs."""

from galton.bounds.exponents import BOUNDS, Bernstein, Bound, ChernoffKL, OneSided

__all__ = ["BOUNDS", "Bernstein", "Bound", "ChernoffKL", "OneSided"]
