"""A budget file: what has been spent on one data set, added to whole or not at all, and never beyond the guarantee."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from galton import files
from galton.accountants.losses import Aim
from galton.accounting import Options
from galton.accounting.certificate import FAILURE_SHARE
from galton.accounting.options import derived_seed
from galton.budget.account import Account, Entry, read_account
from galton.budget.composed import Composed, all_events, common_adjacency, composed_at
from galton.budget.runs import CertifiedEvent
from galton.budget.sources import Source, as_event
from galton.errors import GaltonError, InvalidFile
from galton.guarantee import Guarantee, as_guarantee
from galton.provenance import now
from galton.typechecking import typechecked


class Overspent(GaltonError, ValueError):
    """A release that the budget has no room for; nothing was spent.

    Example:
      >>> from tempfile import TemporaryDirectory
      >>> with TemporaryDirectory() as folder:
      ...     budget = Budget(Path(folder) / "budget.json")
      ...     account = budget.create(epsilon=1.0, delta=1e-5)
      ...     try:
      ...         budget.spend(["gaussian:sigma=2"])
      ...     except Overspent as error:
      ...         print(str(error).partition("; ")[2])
      nothing was spent
    """


@typechecked
@dataclass(frozen=True)
class Budget:
    """A file that holds a guarantee for one data set and all releases about it so far.

    Losses are kept, not guarantees: what is left is what an exact composition leaves. A run is sampled once, when it is
    written down.

    Formal guarantee: all releases in the file together meet its guarantee, if what they cost (kind, noise, count) was
    not chosen in view of what earlier ones told: their questions may depend on it, their noise may not. Write a release
    down before it is made: what is not in the file is not counted. The file is replaced whole or not at all; one that
    is damaged is refused and left as it is. Whoever can write it can forge it: the hash is against accidents only.

    Args:
      path: the JSON file.

    Example:
      >>> from tempfile import TemporaryDirectory
      >>> with TemporaryDirectory() as folder:
      ...     budget = Budget(Path(folder) / "budget.json")
      ...     account = budget.create(epsilon=1.0, delta=1e-5)
      ...     composed = budget.spend(["gaussian:sigma=8"], label="mean age")
      >>> f"{composed.epsilon:.2f} of {account.guarantee.epsilon:g}"
      '0.43 of 1'
    """

    path: Path

    def create(self, epsilon: float | Guarantee, delta: float | None = None) -> Account:
        """Begins a new file.

        Args:
          epsilon: the guarantee; or its epsilon, with `delta`, under add-or-remove adjacency.
          delta: of the guarantee, unless the first argument is all of it.

        Returns:
          The account, with nothing spent; a file that is there already is refused.
        """
        account = Account(as_guarantee(epsilon, delta))
        files.write_new(self.path, files.pretty(account.to_json()).encode())
        return account

    def read(self) -> Account:
        """Returns the content of the file.

        Returns:
          The account; a damaged file is refused.
        """
        if not self.path.exists():
            raise InvalidFile(f"{self.path}: there is no such budget; give epsilon and delta to begin it")
        return read_account(str(self.path), files.read_json(self.path))

    def composed(self) -> Composed:
        """Returns the guarantee of all releases so far, at the delta of the budget; epsilon 0 if there are none."""
        return _composed(self.read())

    def spend(self, events: Sequence[Source], label: str = "", options: Options | None = None) -> Composed:
        """Writes releases down, if the budget has room for all of them.

        Args:
          events: as in `compose`.
          label: what they are, in words.
          options: how to sample.

        Returns:
          The guarantee of all releases so far, these included. Where the budget has no room, `Overspent` is raised and
          nothing is spent, but for the failure probability of the analysis, which is written down.
        """
        guarantee = self.read().guarantee
        options = options or Options()
        parts = all_events(events)
        common_adjacency(parts, guarantee.adjacency)
        seed = options.fresh_seed()
        failure = FAILURE_SHARE * guarantee.delta / len(parts)
        settled = []
        for index, event in enumerate(parts):
            part_options = replace(options, seed=derived_seed(seed, f"event {index}"))
            settled.append(event.settled(Aim(guarantee.directions, guarantee.delta, failure, part_options)))
        # A run is named as its plan, not as the sums that it is made of.
        named = zip(parts, settled, strict=True)
        new = tuple(Entry(label or part.words, now(), event) for part, event in named)
        for entry in new:
            entry.to_json()  # refuses what cannot be written, before anything is
        with self._locked():
            account = self.read()
            if account.guarantee != guarantee:
                raise InvalidFile(f"{self.path}: was replaced by another budget meanwhile; nothing was spent")
            common_adjacency([*account.events, *settled], guarantee.adjacency)
            composed = _composed(replace(account, spent=(*account.spent, *new)))
            if composed.epsilon <= guarantee.epsilon:
                self._write(replace(account, spent=(*account.spent, *new)))
                return composed
            sampled = math.fsum(event.known.failure for event in settled if isinstance(event, CertifiedEvent))
            if sampled:
                self._write(replace(account, refused_failure=min(1.0, account.refused_failure + sampled)))
        what = label or ", ".join(map(_as_typed, events))
        raise Overspent(
            f"{self.path}: has no room for {what}: all together would have epsilon {composed.epsilon:.4g} at delta "
            f"{guarantee.delta:g}, and the budget is {guarantee}; nothing was spent"
        )

    def _write(self, account: Account) -> None:
        files.write_text(self.path, files.pretty(account.to_json()))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        target = self.path.resolve()  # all links to a file share its lock
        if target.exists() and target.stat().st_nlink > 1:
            raise InvalidFile(
                f"{self.path}: has another name (a hard link), which would keep the old content; remove it"
            )
        try:
            lock = files.wait_for_lock(target.with_name(target.name + ".lock"))
        except OSError as error:
            raise InvalidFile(f"{self.path}: cannot be locked ({error.strerror})") from None
        with lock:
            yield


def _as_typed(source: Source) -> str:
    """A release as the caller named it: by its text or folder, or else by what it is."""
    if isinstance(source, str | Path):
        return str(source)
    return ", ".join(event.words for event in as_event(source))


def _composed(account: Account) -> Composed:
    guarantee = account.guarantee
    return composed_at(
        account.events, guarantee.adjacency, guarantee.delta, FAILURE_SHARE * guarantee.delta, Options(seed=0)
    )
