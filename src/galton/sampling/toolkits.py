"""How each kind of dominating pair is sampled: one toolkit a kind. A new kind of pair gets a line in `TOOLKITS`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from galton.errors import FloatArray, InvalidArgument
from galton.gaussian import unamplified_multiplier
from galton.guarantee import Direction, Guarantee
from galton.many_bins import ManyBinsPair, sample_work
from galton.pair import DominatingPair, Pair
from galton.redrawn import RedrawnPair
from galton.sampling.arced import ArcSampler
from galton.sampling.arcs import best_arcs
from galton.sampling.base import Sampler
from galton.sampling.chained import ChainedSampler, best_chain
from galton.sampling.factor import factor_of
from galton.sampling.frozen import BLOCK, Estimate, FrozenHalfSpace, FrozenMixture
from galton.sampling.halfspace import HalfSpaceSampler, noise_first_bound
from galton.sampling.levelled import LevelledSampler
from galton.sampling.levels import best_levels
from galton.sampling.many_bins import ManyBinsModel, ManyHalfSpaceSampler, ManyPlainSampler, ManyTiltedSampler
from galton.sampling.many_bins_frozen import FrozenDepthsOfMany, FrozenMany, many_blocks
from galton.sampling.maximum import MaximumSampler
from galton.sampling.order_statistics import OrderStatisticsSampler
from galton.sampling.orthogonal import (
    Orthogonal,
    OrthogonalEpochs,
    find_orthogonal,
    orthogonal_epochs,
    orthogonal_modes,
    spaced_modes,
)
from galton.sampling.pattern_samplers import (
    PatternHalfSpaceSampler,
    PatternModel,
    PatternPlainSampler,
    PatternTiltedSampler,
)
from galton.sampling.plain import PlainSampler
from galton.sampling.redrawn import (
    RedrawnHalfSpaceSampler,
    RedrawnModel,
    RedrawnPlainSampler,
    RedrawnTiltedSampler,
)
from galton.sampling.redrawn_frozen import FrozenDepths, FrozenPatterns, block_size
from galton.sampling.separated import SeparatedModel
from galton.sampling.separated_frozen import FrozenRenewals
from galton.sampling.spaced import SpacedSampler, best_spaced
from galton.sampling.strata import FINE_STRATA
from galton.sampling.tilted import TiltedSampler, best_tilt, resolvable
from galton.separated import SeparatedPair

_CHAIN_COST = math.log(8)
"""By how much the range must be smaller for little memory to be worth a program that takes seconds to compile, and
samples that take two to four times as long.
"""
_FEW_MODES = 24
"""With so few modes the range of the tilt is close enough to delta: no other is looked for, which takes a second."""
_SPACED_COST = math.log(5)
"""The same for spaced modes against the half-space."""
_FROZEN_PATTERNS = 1 << 12
"""Frozen samples of a mixture over patterns."""


def _log_range(sampler: Sampler, epsilon: float) -> float:
    return math.log(max(sampler.value_range(epsilon), 1e-300))


FrozenEstimator = Callable[[float, float], Estimate]
"""Called as estimator(noise multiplier, epsilon)."""


class Toolkit(ABC):
    """All that the accountant needs to know of one kind of pair."""

    @abstractmethod
    def plain(self, pair: Any, direction: Direction) -> Sampler:
        """Returns the sampler with values in [0, 1]."""

    @abstractmethod
    def sharp(self, pair: Any, direction: Direction, epsilon: float) -> Sampler:
        """Returns the sampler whose range is close to delta at this epsilon."""

    def tilting(self, pair: Any, direction: Direction, epsilon: float) -> Sampler:
        """Returns the sampler with the least range at this epsilon among those that have `tilts`; not noise-first."""
        return self.sharp(pair, direction, epsilon)

    def resolvable(self, pair: Any, direction: Direction) -> bool:
        """Returns whether float64 can tell the modes apart that the sharp sampler draws."""
        return True

    def special(self, name: str, pair: Any, direction: Direction, epsilon: float) -> Sampler:
        """Returns a sampler that is used on request only."""
        raise InvalidArgument("sampler", name, "must be auto, plain or tilted for these batches")

    @abstractmethod
    def unamplified_mu(self, pair: Any) -> float:
        """Returns the mean shift of the Gaussian mechanism without amplification, rounded up."""

    @abstractmethod
    def ceiling(self, pair: Any, direction: Direction, epsilon: float) -> float:
        """Returns a deterministic upper bound on delta that knows of amplification."""

    def computable(self, pair: Any, direction: Direction) -> bool:
        """Returns whether `bracket` has bounds, as it has for independent noise."""
        return False

    def bracket(self, pair: Any, direction: Direction, epsilon: float) -> tuple[float, float] | None:
        """Returns bounds on delta that are close to each other and need no sample; None if there are none."""
        return None

    def usual_multiplier(self, pair: Any, guarantee: Guarantee) -> float | None:
        """Returns about the noise multiplier that meets a guarantee; None if nothing is known but its bounds."""
        return None

    @abstractmethod
    def work(self, pair: Any) -> int:
        """Returns about how many multiplications a sample takes."""

    @abstractmethod
    def blocks(self, pair: Any) -> int:
        """Returns how many blocks of frozen samples are affordable."""

    @abstractmethod
    def frozen(self, pair: Any, direction: Direction, epsilon: float, blocks: int, seed: int) -> FrozenEstimator:
        """Returns the quick estimator, designed at the pair's noise multiplier and `epsilon`."""


class BinsToolkit(Toolkit):
    """For bins that are drawn once: all depends on the Gram matrix."""

    def plain(self, pair: Pair, direction: Direction) -> Sampler:
        return PlainSampler(pair, direction)

    def sharp(self, pair: Pair, direction: Direction, epsilon: float) -> Sampler:
        gram = factor_of(pair).gram
        if direction is Direction.NOISE_FIRST:
            half_space, spaced = HalfSpaceSampler(pair, epsilon), best_spaced(gram, epsilon)
            if spaced is None or spaced.log_range(epsilon) + _SPACED_COST > _log_range(half_space, epsilon):
                return half_space
            return SpacedSampler(pair, spaced, epsilon)
        tilted = TiltedSampler(pair, direction, epsilon)
        if direction is Direction.REPLACE or pair.modes <= _FEW_MODES:
            return tilted
        return self._of_few_bands(pair, gram, tilted, epsilon) or tilted

    def tilting(self, pair: Pair, direction: Direction, epsilon: float) -> Sampler:
        sharp = self.sharp(pair, direction, epsilon)
        if sharp.tilts:
            return sharp
        tilted = TiltedSampler(pair, direction, epsilon)
        chain = best_chain(factor_of(pair).gram, epsilon, tilted.order)
        least = tilted.tilt.log_range(epsilon) - _CHAIN_COST
        return tilted if chain is None or chain.log_range(epsilon) > least else ChainedSampler(pair, chain)

    def _of_few_bands(self, pair: Pair, gram: FloatArray, tilted: TiltedSampler, epsilon: float) -> Sampler | None:
        """The sampler for little memory with the smallest range, if that is worth its program."""
        least = tilted.tilt.log_range(epsilon) - _CHAIN_COST
        chain, levels = best_chain(gram, epsilon, tilted.order), best_levels(gram, epsilon)
        chained = math.inf if chain is None else chain.log_range(epsilon)
        levelled = math.inf if levels is None else levels.log_range(epsilon)
        arcs = best_arcs(gram, epsilon, min(least, chained, levelled))
        if arcs is not None:
            return ArcSampler(pair, arcs, epsilon)
        if levels is not None and levelled < min(least, chained):
            return LevelledSampler(pair, levels, epsilon)
        return None if chain is None or chained > least else ChainedSampler(pair, chain)

    def resolvable(self, pair: Pair, direction: Direction) -> bool:
        return direction is Direction.NOISE_FIRST or resolvable(factor_of(pair).gram)

    def special(self, name: str, pair: Pair, direction: Direction, epsilon: float) -> Sampler:
        return ORTHOGONAL[name](pair, direction, epsilon)

    def unamplified_mu(self, pair: Pair) -> float:
        return math.sqrt(float(factor_of(pair).gram.diagonal().max()))

    def ceiling(self, pair: Pair, direction: Direction, epsilon: float) -> float:
        modes = self._independent(pair, direction)
        if modes is not None:
            return modes.delta_upper(direction, epsilon)
        gram = factor_of(pair).gram
        if direction is Direction.REPLACE:
            return math.exp(min(0.0, best_tilt(gram, direction, epsilon, FINE_STRATA).log_range(epsilon)))
        spaced = spaced_modes(pair.gram)
        apart = 1.0 if spaced is None else spaced.delta_upper(direction, epsilon)
        if direction is Direction.NOISE_FIRST:
            return min(apart, noise_first_bound(gram, epsilon))
        return min(apart, math.exp(min(0.0, best_tilt(gram, direction, epsilon, FINE_STRATA).log_range(epsilon))))

    def computable(self, pair: Pair, direction: Direction) -> bool:
        return self._independent(pair, direction) is not None

    def bracket(self, pair: Pair, direction: Direction, epsilon: float) -> tuple[float, float] | None:
        modes = self._independent(pair, direction)
        return None if modes is None else modes.delta_bracket(direction, epsilon)

    def _independent(self, pair: Pair, direction: Direction) -> Orthogonal | None:
        """The modes if their likelihoods are independent, so that delta can be computed."""
        return None if direction is Direction.REPLACE or pair.modes == 1 else find_orthogonal(pair)

    def work(self, pair: Pair) -> int:
        return pair.modes**2

    def blocks(self, pair: Pair) -> int:
        """Fewer where every sample costs modes^2 more."""
        return max(1, min(8, (1 << 30) // (pair.modes * pair.modes * BLOCK)))

    def frozen(self, pair: Pair, direction: Direction, epsilon: float, blocks: int, seed: int) -> FrozenEstimator:
        if self._independent(pair, direction) is not None:
            return lambda multiplier, at: Estimate(self.ceiling(pair.at(multiplier), direction, at), 0.0)
        if direction is Direction.NOISE_FIRST:
            return FrozenHalfSpace(pair, epsilon, blocks, seed)
        return FrozenMixture(pair, direction, epsilon, blocks, seed)


class ManyBinsToolkit(Toolkit):
    """For bins that are drawn once, without their Gram matrix."""

    def plain(self, pair: ManyBinsPair, direction: Direction) -> Sampler:
        return ManyPlainSampler(pair, direction)

    def sharp(self, pair: ManyBinsPair, direction: Direction, epsilon: float) -> Sampler:
        if direction is Direction.NOISE_FIRST:
            return ManyHalfSpaceSampler(pair, epsilon)
        return ManyTiltedSampler(pair, direction, epsilon)

    def resolvable(self, pair: ManyBinsPair, direction: Direction) -> bool:
        return direction is Direction.NOISE_FIRST or ManyBinsModel(pair).most_order() > 0

    def unamplified_mu(self, pair: ManyBinsPair) -> float:
        return pair.mu_upper

    def ceiling(self, pair: ManyBinsPair, direction: Direction, epsilon: float) -> float:
        modes = self._independent(pair, direction)
        if modes is not None:
            return modes.delta_upper(direction, epsilon)
        return ManyBinsModel(pair).ceiling(direction, epsilon)

    def computable(self, pair: ManyBinsPair, direction: Direction) -> bool:
        return self._independent(pair, direction) is not None

    def bracket(self, pair: ManyBinsPair, direction: Direction, epsilon: float) -> tuple[float, float] | None:
        modes = self._independent(pair, direction)
        return None if modes is None else modes.delta_bracket(direction, epsilon)

    def _independent(self, pair: ManyBinsPair, direction: Direction) -> Orthogonal | None:
        """The modes if their likelihoods are independent, so that delta can be computed."""
        return None if direction is Direction.REPLACE or pair.bins == 1 else orthogonal_modes(pair)

    def work(self, pair: ManyBinsPair) -> int:
        return sample_work(pair.bins, pair.rounds)

    def blocks(self, pair: ManyBinsPair) -> int:
        return many_blocks(pair)

    def frozen(
        self, pair: ManyBinsPair, direction: Direction, epsilon: float, blocks: int, seed: int
    ) -> FrozenEstimator:
        if self._independent(pair, direction) is not None:
            return lambda multiplier, at: Estimate(self.ceiling(pair.at(multiplier), direction, at), 0.0)
        if direction is Direction.NOISE_FIRST:
            return FrozenDepthsOfMany(pair, blocks, seed)
        return FrozenMany(pair, direction, epsilon, blocks, seed)


def _mean_multiplier(model: PatternModel, guarantee: Guarantee) -> float:
    """The noise multiplier of the average mode alone: that of many epochs, and off by a tenth for few.

    Args:
      model: at noise multiplier 1.
      guarantee: to be met.
    """
    return unamplified_multiplier(guarantee) * float(np.linalg.norm(model.mean_mode))


class RedrawnToolkit(Toolkit):
    """For bins that are redrawn in every epoch."""

    def plain(self, pair: RedrawnPair, direction: Direction) -> Sampler:
        return RedrawnPlainSampler(pair, direction)

    def sharp(self, pair: RedrawnPair, direction: Direction, epsilon: float) -> Sampler:
        if direction is Direction.NOISE_FIRST:
            return RedrawnHalfSpaceSampler(pair, epsilon)
        return RedrawnTiltedSampler(pair, direction, epsilon)

    def unamplified_mu(self, pair: RedrawnPair) -> float:
        return pair.mu_upper

    def ceiling(self, pair: RedrawnPair, direction: Direction, epsilon: float) -> float:
        epochs = self._independent(pair, direction)
        composed = 1.0 if epochs is None else epochs.delta_upper(direction, epsilon)
        if epochs is not None and epochs.resolved(epsilon):
            return composed
        return min(composed, RedrawnModel(pair).ceiling(direction, epsilon))

    def computable(self, pair: RedrawnPair, direction: Direction) -> bool:
        return self._independent(pair, direction) is not None

    def bracket(self, pair: RedrawnPair, direction: Direction, epsilon: float) -> tuple[float, float] | None:
        epochs = self._independent(pair, direction)
        return None if epochs is None else epochs.delta_bracket(direction, epsilon)

    def _independent(self, pair: RedrawnPair, direction: Direction) -> OrthogonalEpochs | None:
        """The modes if epochs are independent and likelihoods too, so that delta can be computed."""
        return None if direction is Direction.REPLACE else orthogonal_epochs(pair)

    def work(self, pair: RedrawnPair) -> int:
        return 2 * pair.rounds * pair.bins

    def usual_multiplier(self, pair: RedrawnPair, guarantee: Guarantee) -> float | None:
        return _mean_multiplier(RedrawnModel(pair.at(1.0)), guarantee)

    def blocks(self, pair: RedrawnPair) -> int:
        return max(1, _FROZEN_PATTERNS // block_size(pair.epochs * pair.bins))

    def frozen(
        self, pair: RedrawnPair, direction: Direction, epsilon: float, blocks: int, seed: int
    ) -> FrozenEstimator:
        epochs = self._independent(pair, direction)
        if epochs is not None and epochs.resolved(epsilon):
            return lambda multiplier, at: Estimate(self.ceiling(pair.at(multiplier), direction, at), 0.0)
        if direction is Direction.NOISE_FIRST:
            return FrozenDepths(lambda at: RedrawnModel(pair.at(at)), pair.noise_multiplier, epsilon, blocks, seed)
        return FrozenPatterns(pair, direction, epsilon, blocks, seed)


class SeparatedToolkit(Toolkit):
    """For min-separation batches."""

    def plain(self, pair: SeparatedPair, direction: Direction) -> Sampler:
        return PatternPlainSampler(SeparatedModel(pair), direction)

    def sharp(self, pair: SeparatedPair, direction: Direction, epsilon: float) -> Sampler:
        if direction is Direction.NOISE_FIRST:
            return PatternHalfSpaceSampler(SeparatedModel(pair), epsilon)
        return PatternTiltedSampler(SeparatedModel(pair), direction, epsilon)

    def unamplified_mu(self, pair: SeparatedPair) -> float:
        return pair.mu_upper

    def ceiling(self, pair: SeparatedPair, direction: Direction, epsilon: float) -> float:
        return SeparatedModel(pair).ceiling(direction, epsilon)

    def work(self, pair: SeparatedPair) -> int:
        return 4 * pair.rounds * pair.separation

    def usual_multiplier(self, pair: SeparatedPair, guarantee: Guarantee) -> float | None:
        return _mean_multiplier(SeparatedModel(pair.at(1.0)), guarantee)

    def blocks(self, pair: SeparatedPair) -> int:
        return max(1, _FROZEN_PATTERNS // block_size(pair.blocks * pair.separation))

    def frozen(
        self, pair: SeparatedPair, direction: Direction, epsilon: float, blocks: int, seed: int
    ) -> FrozenEstimator:
        if direction is Direction.NOISE_FIRST:
            return FrozenDepths(lambda at: SeparatedModel(pair.at(at)), pair.noise_multiplier, epsilon, blocks, seed)
        return FrozenRenewals(pair, direction, epsilon, blocks, seed)


ORTHOGONAL = {sampler.name: sampler for sampler in (MaximumSampler, OrderStatisticsSampler)}
"""Samplers for orthogonal modes (C = I) only; used on request only."""

TOOLKITS: dict[type[DominatingPair], Toolkit] = {
    Pair: BinsToolkit(),
    ManyBinsPair: ManyBinsToolkit(),
    RedrawnPair: RedrawnToolkit(),
    SeparatedPair: SeparatedToolkit(),
}


def toolkit_for(pair: DominatingPair) -> Toolkit:
    """Returns the toolkit for this kind of pair."""
    return TOOLKITS[type(pair)]


def frozen_estimator(
    pair: DominatingPair, direction: Direction, epsilon: float, blocks: int, seed: int
) -> FrozenEstimator:
    """Returns the quick estimator of this direction, designed at the pair's noise multiplier and `epsilon`."""
    return toolkit_for(pair).frozen(pair, direction, epsilon, blocks, seed)


def blocks_for(pair: DominatingPair) -> int:
    """Returns how many blocks of frozen samples are affordable."""
    return toolkit_for(pair).blocks(pair)
