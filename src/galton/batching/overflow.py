r"""What truncation to a padded batch size does, and what it costs in privacy (docs/math.md, on truncation).

Let the batch sizes of a scheme be binomial, p the padded batch size, x the example that two neighbouring data sets
differ in. Fix what all others do. Where x joins a batch with fewer than p others, nothing is left out because of x, and
the analysis without truncation holds word by word (the truncation of the others is the same with and without x).
Where x joins a batch of at least p others, x may push another example y out: the two runs then differ by x - y, of norm
up to 2, which the analysis does not cover. That is the whole damage; it happens with probability at most

    displacement = meetings * Pr[Binomial(examples, inclusion) >= p],

where `meetings` is the expected number of different batches x is in: 1 for balls-in-bins, however many epochs.

Formal guarantees, for a run that is (epsilon, delta)-DP without truncation, if the kept members are chosen by the
batch's members and independent randomness only:
  - removing: (epsilon, delta + displacement)-DP; adding: (epsilon, delta + e^epsilon * displacement)-DP;
  - replace-one and zero-out adjacency: (epsilon, delta)-DP. Sizes are the same on both sides, so the same places are
    kept, and x only ever contributes less than it may.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from galton.batching.base import Scheme
from galton.errors import InvalidArgument, count, probability
from galton.fields import Fields
from galton.guarantee import Adjacency
from galton.typechecking import typechecked

ROUNDING = 1 + 1e-9
"""Upper bounds are raised by this factor, far above the error of the incomplete beta function."""


@typechecked
@dataclass(frozen=True)
class Truncation:
    """How often batches are truncated to a padded batch size, and what that costs in privacy.

    Attributes:
      padded_batch_size: size that every batch is padded or truncated to.
      per_batch: probability that a given batch is truncated; exact.
      probability: upper bound on the probability that any batch of the run is truncated.
      probability_lower: lower bound on the same probability.
      expected: expected number of examples left out, summed over all rounds; exact.
      displacement: bound on the probability that a given example pushes another one out of a batch; see `delta`.

    Example:
      >>> from galton import BallsInBins
      >>> prediction = truncation(BallsInBins(examples=50_000, bins=100, rounds=2000), 640)
      >>> prediction.delta(epsilon=1.0) < 1e-8, prediction.delta(1.0, Adjacency.REPLACE)
      (True, 0.0)
    """

    padded_batch_size: int
    per_batch: float
    probability: float
    probability_lower: float
    expected: float
    displacement: float

    def delta(self, epsilon: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE) -> float:
        """Returns how much truncation adds to delta at this epsilon.

        Formal guarantee: a run that is (epsilon, delta)-DP without truncation is (epsilon, delta + this)-DP with it, if
        the examples kept are chosen by the batch's members and independent randomness only (docs/math.md, section 9).

        Args:
          epsilon: where on the privacy curve.
          adjacency: of the guarantee.

        Returns:
          The additional delta; 0 under replace-one and zero-out adjacency.
        """
        return Adjacency(adjacency).truncation_delta(self.displacement, epsilon)

    def to_json(self) -> dict[str, float]:
        """Returns a JSON-ready dictionary."""
        own = asdict(self)
        return {"physical": own.pop("padded_batch_size"), **own}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Truncation:
        """Rebuilds the prediction that `to_json` wrote.

        Args:
          value: what `to_json` returned.

        Returns:
          The prediction.
        """
        body = Fields("truncation", value, cls, {"padded_batch_size": ("physical",)})
        return cls(
            padded_batch_size=body.count("physical", 1),
            per_batch=body.real("per_batch", 0.0, 1.0),
            probability=body.real("probability", 0.0, 1.0),
            probability_lower=body.real("probability_lower", 0.0, 1.0),
            expected=body.real("expected", 0.0),
            displacement=body.real("displacement", 0.0, 1.0),
        )


@typechecked
def truncation(scheme: Scheme, padded_batch_size: int) -> Truncation:
    """Predicts how often batches of a scheme are truncated to `padded_batch_size` examples.

    Formal guarantee: `probability` and `displacement` of the result are upper bounds (docs/math.md, section 9).

    Args:
      scheme: how batches are drawn.
      padded_batch_size: size that every batch is padded or truncated to. Batches of fixed size must fit.

    Returns:
      The probabilities of truncation and what it costs.

    Example:
      >>> from galton import BallsInBins
      >>> prediction = truncation(BallsInBins(examples=50_000, bins=100, rounds=2000), 640)
      >>> f"{prediction.per_batch:.3g} {prediction.probability:.3g} {prediction.delta(epsilon=1.0):.3g}"
      '6.85e-10 6.85e-08 2.4e-09'
    """
    count("padded_batch_size", padded_batch_size)
    if scheme.inclusion is None:
        if padded_batch_size < scheme.largest:
            remedy = f"must be at least {scheme.largest}, the size of every batch"
            raise InvalidArgument("padded_batch_size", padded_batch_size, remedy)
        return Truncation(padded_batch_size, 0.0, 0.0, 0.0, 0.0, 0.0)
    size, chance = scheme.examples, scheme.inclusion
    overflow = tail_probability(padded_batch_size, size, chance)
    displacement = min(1.0, scheme.meetings * tail_probability(padded_batch_size - 1, size, chance) * ROUNDING)
    return Truncation(
        padded_batch_size,
        overflow,
        min(1.0, scheme.distinct * overflow * ROUNDING),
        _any_overflow_at_least(overflow, scheme),
        scheme.rounds * _expected_excess(padded_batch_size, size, chance),
        displacement,
    )


@typechecked
def truncation_probability(scheme: Scheme, padded_batch_size: int) -> float:
    """Returns an upper bound on the probability that any batch of the run is truncated.

    Args:
      scheme: how batches are drawn.
      padded_batch_size: size that every batch is padded or truncated to.

    Returns:
      The `probability` of `truncation`.

    Example:
      >>> from galton import BallsInBins
      >>> f"{truncation_probability(BallsInBins(examples=50_000, bins=100, rounds=2000), 640):.3g}"
      '6.85e-08'
    """
    return truncation(scheme, padded_batch_size).probability


@typechecked
def smallest_padded_batch_size(scheme: Scheme, max_truncation_probability: float, multiple: int = 1) -> int:
    """Returns the smallest padded batch size at which truncation is as improbable as asked for.

    Args:
      scheme: how batches are drawn.
      max_truncation_probability: bound on the probability that any batch of the run is truncated.
      multiple: the size must be a multiple of this, for example of the micro-batch size.

    Returns:
      The padded batch size; `truncation_probability` there is at most `max_truncation_probability`.

    Example:
      >>> from galton import BallsInBins
      >>> smallest_padded_batch_size(BallsInBins(examples=50_000, bins=100, rounds=2000), 1e-10, multiple=8)
      664
    """
    probability("max_truncation_probability", max_truncation_probability)
    count("multiple", multiple)
    low, high = 0, -(-scheme.largest // multiple)
    if scheme.inclusion is not None:
        while high - low > 1:
            middle = (low + high) // 2
            if truncation_probability(scheme, middle * multiple) <= max_truncation_probability:
                high = middle
            else:
                low = middle
    return high * multiple


def tail_probability(size: int, trials: int, chance: float) -> float:
    """Returns Pr[Binomial(trials, chance) > size], with a small relative error even far out in the tail."""
    from scipy.special import betainc

    if size < 0:
        return 1.0
    return 0.0 if size >= trials else float(betainc(size + 1, trials - size, chance))


def _expected_excess(size: int, trials: int, chance: float) -> float:
    """Returns E (N - size)_+: sums of positive terms, so that small results stay precise.

    Above the mean that is the sum of Pr[N > k] over k >= size; below, the mean less size plus that of Pr[N <= k] over
    k < size. Both are summed from size on, outwards, and are over after a few standard deviations.
    """
    from scipy.special import betainc

    mean, step = trials * chance, max(64, int(4 * math.sqrt(trials * chance)))
    above = size >= mean
    total = 0.0
    for start in range(size, trials, step) if above else range(size, 0, -step):
        if above:
            ks = np.arange(start, min(start + step, trials), dtype=np.float64)
            part = float(betainc(ks + 1, trials - ks, chance).sum())
        else:
            ks = np.arange(max(start - step, 0), start, dtype=np.float64)
            part = float(betainc(trials - ks, ks + 1, 1 - chance).sum())
        total += part
        if part <= 1e-14 * total:
            break
    return total if above else mean - size + total


def _any_overflow_at_least(overflow: float, scheme: Scheme) -> float:
    """Returns a lower bound on the probability that any batch overflows, if a given one does so with `overflow`.

    Independent batches, and the negatively associated ones of a multinomial, overflow at least as often as
    1 - (1 - overflow)^batches. Of other schemes only a single batch is counted.
    """
    batches = scheme.distinct if scheme.independent_batches else 1
    return -math.expm1(batches * math.log1p(-overflow)) / ROUNDING if overflow < 1 else 1.0
