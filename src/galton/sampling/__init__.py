"""Samplers: from a pair to bounded, unbiased values. See `base.Sampler` for the one shape they share."""

from galton.sampling.base import Draw, Sampler, Slack
from galton.sampling.plain import PlainSampler
from galton.sampling.schedule import Progress, draws

__all__ = ["Draw", "PlainSampler", "Progress", "Sampler", "Slack", "draws"]
