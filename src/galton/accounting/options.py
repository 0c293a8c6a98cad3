"""How the accountant samples: one value that every function of the accountant takes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from galton import files
from galton.bounds import BOUNDS
from galton.errors import InvalidArgument, choice, count, positive, probability
from galton.sampling.base import NARROW_SEED, SEED_LIMIT, check_seed
from galton.sampling.choice import SAMPLERS
from galton.sampling.schedule import Pool, Progress, Threads
from galton.typechecking import typechecked

SEQUENCE = "sequence"
AUTO = "auto"
DEFAULT_SAMPLES = 1 << 22


@typechecked
@dataclass(frozen=True)
class Options:
    """How the accountant samples; the claim itself is not part of it.

    Attributes:
      sampler: auto, plain or tilted; also maximum or order-statistics, for C = I only.
      bound: `sequence`, a confidence sequence, with which sampling stops once the interval is narrow enough; or a
        fixed-sample bound (kl, one-sided or bernstein), which takes exactly `samples`.
      samples: samples per direction: the most for a sequence, the exact number for a fixed-sample bound. None: about
        4 million, fewer for samplers whose samples cost more.
      rel_width: width of the interval, relative to the estimate, at which a sequence stops.
      confidence: probability that all reported limits hold at once.
      seed: seed of all random numbers, below 2^128. None: 128 bits from the operating system.
      workers: number of threads, or a pool of workers elsewhere (`galton.cluster.connect`).
      progress: called as progress(what, done, total).

    Example:
      >>> Options(samples=1000, seed=1).budget()
      1000
    """

    sampler: str = AUTO
    bound: str = SEQUENCE
    samples: int | None = None
    rel_width: float = 0.02
    confidence: float = 0.999
    seed: int | None = None
    workers: int | Pool = 2
    progress: Progress | None = None

    def __post_init__(self) -> None:
        choice("sampler", self.sampler, SAMPLERS)
        choice("bound", self.bound, (SEQUENCE, *BOUNDS))
        if self.samples is not None:
            count("samples", self.samples)
        positive("rel_width", self.rel_width)
        probability("confidence", self.confidence)
        if self.seed is not None:
            check_seed(self.seed)
        if not isinstance(self.workers, Pool):
            count("workers", self.workers, at_most=1024)

    @property
    def pool(self) -> Pool:
        """Where samples are computed."""
        return self.workers if isinstance(self.workers, Pool) else Threads(self.workers)

    def tell(self, what: str, done: int, total: int) -> None:
        """Calls `progress`, if there is one.

        Args:
          what: what is under way.
          done: how much of it is done.
          total: how much there is to do.
        """
        if self.progress is not None:
            self.progress(what, done, total)

    def budget(self, order: int = 0) -> int:
        """Returns the samples per direction.

        Args:
          order: order of the sampler. The default number is smaller for high orders, whose samples cost more.
        """
        return DEFAULT_SAMPLES // (1 + order // 10) if self.samples is None else self.samples

    def fresh_seed(self) -> int:
        """Returns `seed`, or a new seed from the operating system if it is None."""
        return secrets.randbelow(SEED_LIMIT) if self.seed is None else self.seed


def check_tau(tau: float) -> float:
    """Refuses a tau that leaves no room to prove a claim, or more than anybody wants."""
    if not 1.001 <= positive("tau", tau) <= 1000:
        raise InvalidArgument("tau", tau, "must lie between 1.001 and 1000, so that there is room to prove the claim")
    return float(tau)


def derived_seed(seed: int, purpose: str) -> int:
    """Returns a seed for one purpose, so that nothing is checked on the samples that it was fitted on.

    It is as wide as the seed that it comes from: 128 bits, or 53 for a seed below 2^53.
    """
    return int(files.digest([seed, purpose])[-32:], 16) % (NARROW_SEED if seed < NARROW_SEED else SEED_LIMIT)
