"""All accountants, the one to be preferred first. A new one gets a line here."""

from __future__ import annotations

from galton.accountants.allocation import Allocation
from galton.accountants.balls_in_bins import BallsInBins
from galton.accountants.base import Accountant
from galton.accountants.mmcc import Mmcc
from galton.accountants.poisson import CyclicPoisson, Poisson
from galton.accountants.redrawn import RedrawnBins
from galton.accountants.separation import MinSeparation
from galton.accountants.unamplified import Unamplified
from galton.batching import Scheme
from galton.errors import InvalidArgument, choice

_ALL: tuple[Accountant, ...] = (
    *(BallsInBins(), RedrawnBins(), MinSeparation()),
    *(Poisson(), CyclicPoisson(), Mmcc(), Allocation(), Unamplified()),
)
ACCOUNTANTS: dict[str, Accountant] = {accountant.name: accountant for accountant in _ALL}
"""All accountants by name, the one to be preferred first.

Example:
  >>> from galton import ACCOUNTANTS, Guarantee, identity
  >>> figure = ACCOUNTANTS["unamplified"].calibrate(identity(8), 4, Guarantee(epsilon=2.0, delta=1e-5))
  >>> round(figure.noise_multiplier, 2)
  1.99
"""


def find_accountant(name: str) -> Accountant:
    """Returns the accountant of this name.

    Args:
      name: one of the keys of `ACCOUNTANTS`.

    Returns:
      The accountant; another name is refused, and the error lists all.
    """
    return ACCOUNTANTS[choice("accountant", name, tuple(ACCOUNTANTS))]


def covering(scheme: Scheme) -> tuple[Accountant, ...]:
    """Returns the accountants whose guarantee holds for batches of a scheme, the one to be preferred first.

    Args:
      scheme: how batches are drawn.

    Returns:
      Accountants; none if no analysis holds.
    """
    return tuple(accountant for accountant in _ALL if accountant.covers(scheme.law))


def check_covered(accountant: Accountant, scheme: Scheme) -> None:
    """Refuses an accountant whose analysis does not hold for batches of a scheme.

    Args:
      accountant: the analysis.
      scheme: how batches are drawn.
    """
    if not accountant.covers(scheme.law):
        raise not_covered(accountant.name, scheme)


def default_accountant(scheme: Scheme) -> Accountant:
    """Returns the accountant that covers a scheme best.

    Args:
      scheme: how batches are drawn.

    Returns:
      The first of those that cover it.
    """
    fitting = covering(scheme)
    if not fitting:
        raise InvalidArgument("batching", scheme.kind, "is not covered by any accountant of galton; take balls-in-bins")
    return fitting[0]


def not_covered(name: str, scheme: Scheme) -> InvalidArgument:
    """Returns the error that an accountant does not cover a scheme."""
    right = ", ".join(accountant.name for accountant in covering(scheme)) or "none that galton has"
    return InvalidArgument("accountant", name, f"does not cover {scheme.name} batches; covered by: {right}")
