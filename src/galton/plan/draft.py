"""A plan before its proof: batches, analysis and strategy, made for every batching that is to be compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from galton.accountants import Accountant, Setting, check_covered, default_accountant, find_accountant
from galton.accountants.statement import Standing
from galton.accounting import Options
from galton.batching import (
    PLANNED,
    BallsInBins,
    RedrawnBallsInBins,
    Scheme,
    scheme_from_json,
    smallest_padded_batch_size,
    truncation,
)
from galton.errors import GaltonError, InvalidArgument
from galton.guarantee import Adjacency, Guarantee
from galton.optimization.families import parse_family
from galton.plan.choose import Chosen, choose
from galton.plan.plan import Alternative
from galton.strategies import Strategy, identity
from galton.strategies.grammar import PLAN, parse_spec
from galton.workloads import Workload

MOST_TRUNCATION = 0.5
"""Largest share of delta that truncation may take."""
TRUNCATION_SHARE = 1e-3
"""Share of delta that it takes at the default padded batch size: less than a hundredth of a percent of the noise."""
FREE_TRUNCATION = 1e-6
"""Probability of any truncation in the run at the default padded batch size, where it takes nothing of delta."""
WORTH = 0.995
"""Redrawn bins are taken if their error is less than this much of that of one draw, which leaks less if batches do."""
MOST_COMPARED = 1 << 16
"""Rounds times bins up to which a plan that names no batching compares both, each with its own C: minutes."""
LEAST_COMPARED = 0.1
"""Epsilon from which on both are compared: below, the privacy loss is nearly Gaussian, and they hardly differ."""
_MANY_ROUNDS = 10**6
_ONE_DRAW, _REDRAWN = BallsInBins.kind, RedrawnBallsInBins.kind


@dataclass(frozen=True, eq=False)
class Request:
    """What a user asks for, batching aside; the arguments of `make_plan`."""

    guarantee: Guarantee
    examples: int
    batch_size: float
    bins: int
    epochs: int
    strategy: str
    accountant: str
    padded_batch_size: int | None
    micro_batch_size: int
    workload: Workload | None

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return self.bins * self.epochs


@dataclass(frozen=True, eq=False)
class Draft:
    """A plan without its proof.

    Attributes:
      scheme: how batches are drawn, for the chosen strategy.
      analysis: who accounts for them.
      padded_batch_size: size that every batch is padded to.
      setting: what the strategy was chosen for.
      spec: the strategy as it was requested, or the analysis's default.
      chosen: the strategy.
    """

    scheme: Scheme
    analysis: Accountant
    padded_batch_size: int
    setting: Setting
    spec: str
    chosen: Chosen

    @property
    def alternative(self) -> Alternative:
        """The draft's error: certified where the strategy was optimised for these batches, else a quick estimate."""
        strategy, setting = self.chosen.strategy, self.setting
        multiplier, standing = self.chosen.multiplier, Standing.CERTIFIED
        if multiplier is None:
            figure = self.analysis.estimate(strategy, setting.bins, self.analysis.room(setting.guarantee))
            multiplier, standing = figure.noise_multiplier, figure.statement.standing
        rmse = multiplier * strategy.sensitivity(setting.bins) * strategy.rmse(setting.workload)
        words = f"{self.spec}, {self.analysis.compared.batches}"
        return Alternative(f"{self.spec}-{self.analysis.name}", words, rmse, standing.value)


@dataclass(frozen=True, eq=False)
class Choice:
    """The draft to be proved.

    Attributes:
      draft: the one with the least error.
      others: those that it was compared with.
      words: how its batching was chosen; empty if it was given.
    """

    draft: Draft
    others: tuple[Alternative, ...] = ()
    words: str = ""


def choose_draft(request: Request, batching: str, options: Options) -> Choice:
    """Returns the draft for a batching, or, if none is given, that of bins drawn once or redrawn with the least error.

    Args:
      request: what is asked for.
      batching: as in `PLANNED`, or nothing.
      options: seed, workers and progress of the accountants.
    """
    if batching:
        return Choice(_draft(request, batching, options))
    redrawn_analysis = default_accountant(RedrawnBallsInBins(1, 1, 1))
    if request.accountant == redrawn_analysis.name:
        return Choice(_draft(request, _REDRAWN, options), (), f"{_REDRAWN}, which the accountant is for")
    reason = _why_only_one_draw(request)
    once = _draft(request, _ONE_DRAW, options)
    if reason:
        return Choice(once, (), f"{_ONE_DRAW}: {reason}")
    try:
        redrawn = _draft(request, _REDRAWN, options, once.chosen.strategy)
        errors = {_REDRAWN: redrawn.alternative, _ONE_DRAW: once.alternative}
    except GaltonError as error:
        return Choice(once, (), f"{_ONE_DRAW}: not compared with {_REDRAWN} ({error})")
    best = _REDRAWN if errors[_REDRAWN].rmse < WORTH * errors[_ONE_DRAW].rmse else _ONE_DRAW
    other = _ONE_DRAW if best == _REDRAWN else _REDRAWN
    own = "each with its own C, " if once.chosen.strategy.digest != redrawn.chosen.strategy.digest else ""
    figures = f"error {errors[best].rmse:.5g} against {errors[other].rmse:.5g} with {other}"
    words = f"{best}: {figures} ({own}{errors[best].standing})"
    return Choice(redrawn if best == _REDRAWN else once, (errors[other],), words)


def _why_only_one_draw(request: Request) -> str:
    """Why redrawn bins are not compared with, in words; empty if they are."""
    if request.accountant:
        return f"accountant {request.accountant} is for bins drawn once"
    if request.epochs == 1 or request.bins == 1:
        return "with one epoch, or one batch per epoch, there is nothing to redraw"
    if request.guarantee.epsilon < LEAST_COMPARED:
        return f"not compared with {_REDRAWN}, which hardly differs at so small an epsilon"
    if request.rounds * request.bins > MOST_COMPARED:
        return f"not compared with {_REDRAWN}, which takes long for so many rounds, and may have less error"
    return ""


def _draft(request: Request, batching: str, options: Options, start: Strategy | None = None) -> Draft:
    """Makes the draft for one batching; what can be checked before the long work is. `start`: see `choose`."""
    guarantee, bins, rounds = request.guarantee, request.bins, request.rounds
    make_scheme = PLANNED[batching]
    # Batch sizes, coverage and adjacency are checked before the work begins, on the scheme for independent noise. Only
    # the cycle of cyclic Poisson and the rests of min-separation depend on the strategy; their batch sizes are those of
    # Poisson.
    uncorrelated = make_scheme(request.examples, bins, rounds, identity(rounds))
    analysis = find_accountant(request.accountant) if request.accountant else default_accountant(uncorrelated)
    check_covered(analysis, uncorrelated)
    uncorrelated.check_adjacency(guarantee.adjacency)
    analysis.check_adjacency(guarantee.adjacency)
    padded_batch_size = request.padded_batch_size
    if padded_batch_size is None:
        padded_batch_size = _generous_padded_batch_size(uncorrelated, guarantee, request.micro_batch_size)
    truncation_delta = truncation(uncorrelated, padded_batch_size).delta(guarantee.epsilon, guarantee.adjacency)
    if truncation_delta > MOST_TRUNCATION * guarantee.delta:
        enough = _generous_padded_batch_size(uncorrelated, guarantee, request.micro_batch_size)
        cost = f"truncation would cost {truncation_delta:.3g} of delta"
        free = " or ".join(member.value for member in Adjacency if member.equal_sizes)
        remedy = f"{cost}; take {enough}, or adjacency {free}, where it is free"
        raise InvalidArgument("padded_batch_size", padded_batch_size, remedy)
    claim = guarantee.with_delta(guarantee.delta - truncation_delta)
    setting = Setting(bins, request.epochs, claim, request.workload)
    spec = request.strategy or _default_strategy(analysis, bins, rounds)
    with naming_batch_size(request.batch_size):
        chosen = choose(spec, analysis, setting, options, start)
    try:
        scheme = make_scheme(request.examples, bins, rounds, chosen.strategy)
    except InvalidArgument:  # only C differs from `uncorrelated`
        bands = chosen.strategy.bands
        remedy = (
            f"has {bands} bands, too many for {batching} batches with {bins} batches per epoch; take at most {bins}"
        )
        raise InvalidArgument("strategy", spec, remedy) from None
    analysis.check(chosen.strategy, scheme, bins)
    chosen.strategy.rmse(request.workload)  # refuses a C that is nearly singular, before the work begins
    return Draft(scheme, analysis, padded_batch_size, setting, spec, chosen)


def shortened(draft: Draft, rounds: int) -> Draft:
    """Returns the draft for the first rounds of its run alone, so that the last epoch is partial (docs/math.md, 15.1).

    C is the leading block of the C that was chosen for whole epochs; its noise is calibrated anew.

    Args:
      draft: for whole epochs.
      rounds: how many of its rounds.
    """
    if rounds == draft.scheme.rounds:
        return draft
    strategy, bins = draft.chosen.strategy.prefix(rounds), draft.setting.bins
    scheme = scheme_from_json(draft.scheme.to_json() | {"rounds": rounds})
    draft.analysis.check(strategy, scheme, bins)
    return replace(draft, scheme=scheme, chosen=Chosen(strategy, None, ()))


@contextmanager
def naming_batch_size(batch_size: float) -> Iterator[None]:
    """Errors about the number of bins, which the caller did not give, are about the batch size."""
    try:
        yield
    except InvalidArgument as error:
        if error.argument != "bins":
            raise
        reason = error.remedy.partition(":")[0]
        remedy = f"makes {error.value} batches per epoch, a number that {reason}; take another batch size"
        raise InvalidArgument("batch_size", batch_size, remedy) from None


def _default_strategy(accountant: Accountant, bins: int, rounds: int) -> str:
    """The strategy of a plan that names none: the accountant's, with fewer buffers for a run of fewer rounds.

    A run with so many epochs that the weights of all rounds cannot be searched for in memory gets none.
    """
    usual = parse_spec(accountant.default_strategy, _MANY_ROUNDS, PLAN)
    if usual.number is None or usual.notation.number is None:
        return accountant.default_strategy
    spec = replace(usual, number=min(usual.number, usual.notation.number.largest(rounds)))
    try:
        parse_family(str(spec), rounds).check_memory(bins)
    except InvalidArgument:
        spec = replace(spec, scaled=False)
    return str(spec)


def _generous_padded_batch_size(scheme: Scheme, guarantee: Guarantee, multiple: int) -> int:
    """Returns the smallest padded batch size at which truncation takes at most a thousandth of delta.

    Where truncation is free it only loses examples, and its probability decides. A neighbouring data set may have one
    more example: with a single bin, one more place than examples is needed.
    """

    def cost(size: int) -> float:
        return truncation(scheme, size).delta(guarantee.epsilon, guarantee.adjacency)

    if guarantee.adjacency.equal_sizes or scheme.inclusion is None:
        return smallest_padded_batch_size(scheme, FREE_TRUNCATION, multiple)
    low, high = 0, 1
    while cost(high * multiple) > TRUNCATION_SHARE * guarantee.delta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if cost(middle * multiple) <= TRUNCATION_SHARE * guarantee.delta:
            high = middle
        else:
            low = middle
    return high * multiple
