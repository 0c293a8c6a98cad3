"""Samplers: from a pair to bounded, unbiased values. `base.Sampler` is the interface that they share."""

from galton.sampling.base import Draw, Sampler, Slack
from galton.sampling.choice import SAMPLERS, Choice, choose_sampler
from galton.sampling.halfspace import HalfSpaceSampler
from galton.sampling.maximum import MaximumSampler
from galton.sampling.order_statistics import OrderStatisticsSampler
from galton.sampling.plain import PlainSampler
from galton.sampling.schedule import Pool, Progress, Threads, draws
from galton.sampling.tilted import TiltedSampler

__all__ = [
    "SAMPLERS",
    "Choice",
    "Draw",
    "HalfSpaceSampler",
    "MaximumSampler",
    "OrderStatisticsSampler",
    "PlainSampler",
    "Pool",
    "Progress",
    "Sampler",
    "Slack",
    "Threads",
    "TiltedSampler",
    "choose_sampler",
    "draws",
]
