"""The experiments as a whole: which trials are missing, in what order they are run, and what is written about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from galton.closure import code_digest
from galton.errors import InvalidFile
from galton.files import Json
from galton.plan import Plan
from galton.sampling.schedule import Progress
from reproduction.cifar.data import Cifar
from reproduction.cifar.experiment import ALL, COOLDOWN, METHODS, PRACTICAL, Method, Setting, plan_for
from reproduction.cifar.models import find_network
from reproduction.cifar.table import best_rate, difference_table, differences_of, draw, rows_of, table
from reproduction.cifar.trials import Place, Trial, run_trial, setup_of
from reproduction.provenance import origin
from reproduction.result import Result
from reproduction.writing import write_json, write_pictures, write_result


@dataclass(frozen=True)
class Study:
    """A set of methods that are compared.

    Attributes:
      name: as on the command line.
      title: one line.
      methods: by name.
      base: the one that the others are compared with, trial by trial.
    """

    name: str
    title: str
    methods: Mapping[str, Method]
    base: str


STUDIES = {
    study.name: study
    for study in (
        Study("cifar", "CIFAR-10, 20 epochs of 100 batches of 500, delta 1e-5", METHODS, "redrawn"),
        Study(
            "cifar-practical",
            "CIFAR-10, batches of 500 places: balls-in-bins, shuffling, unamplified",
            PRACTICAL,
            "cut-balls-in-bins",
        ),
    )
}


TAME = 16.0
"""From this epsilon on learning rates stay the same."""


@dataclass(frozen=True)
class Wish:
    """What is to be run.

    Attributes:
      model: name of the network.
      methods: to be compared.
      epsilons: of the guarantees.
      trials: runs of each, at the best learning rate.
      rates: learning rates to choose from; by default `default_rates`.
    """

    model: str
    methods: Sequence[Method]
    epsilons: Sequence[float]
    trials: int
    rates: Sequence[float] | None = None


def default_rates(epsilon: float) -> tuple[float, ...]:
    """Returns the learning rates to choose from, the likeliest first: the same for every method."""
    centre = min(epsilon, TAME) / 32  # the noise falls about as epsilon grows; a rate has a limit without any noise too
    return (centre, centre * 2, centre / 2)


@dataclass
class Runner:
    """Runs what is missing. Everything is kept: a runner that is stopped and made again goes on.

    Attributes:
      data: the data set.
      place: of plans, trials and runs.
      setting: of the runs.
      progress: called as progress(what, done, total).
    """

    data: Cifar
    place: Place
    setting: Setting = field(default_factory=Setting)
    progress: Progress | None = None
    _plans: dict[tuple[Method, float], Plan] = field(default_factory=dict)

    def run(self, wish: Wish) -> None:
        """Runs all rates of all cells once, the likeliest rates first; then the other trials at the best of them.

        A method that takes the rate of another has that one run for it, unless there is one rate only.
        """
        tuned = dict.fromkeys(ALL[method.rate_of] for method in wish.methods)
        grids = {epsilon: wish.rates or default_rates(epsilon) for epsilon in wish.epsilons}
        for turn in zip(*grids.values(), strict=True):
            for epsilon, rate in zip(grids, turn, strict=True):
                for method in tuned if len(grids[epsilon]) > 1 else ():
                    self._trial(wish.model, method, epsilon, rate, 1)
        for number in range(1, wish.trials + 1):
            for epsilon in wish.epsilons:
                for method in wish.methods:
                    rate = self._best(wish.model, ALL[method.rate_of], epsilon, grids[epsilon])
                    self._trial(wish.model, method, epsilon, rate, number)

    def _best(self, model: str, method: Method, epsilon: float, rates: Sequence[float]) -> float:
        if len(rates) == 1:
            return rates[0]
        return best_rate([self._trial(model, method, epsilon, rate, 1) for rate in rates])

    def _trial(self, model: str, method: Method, epsilon: float, rate: float, number: int) -> Json:
        """Returns a trial that was finished before, or is finished now."""
        network, trial = find_network(model), Trial(model, method.name, float(epsilon), float(rate), number)
        plan = self._plan(method, epsilon)
        finished = self.place.find(trial, network, setup_of(network, plan, self.setting))
        return finished or run_trial(trial, network, method, plan, self.data, self.setting, self.place, self.progress)

    def _plan(self, method: Method, epsilon: float) -> Plan:
        if (method, epsilon) not in self._plans:
            where = self.place.plans
            plan = plan_for(method, epsilon, len(self.data.train), self.setting, where, self.progress)
            self._plans[method, epsilon] = plan
        return self._plans[method, epsilon]


def write_table(study: Study, place: Place, output: Path) -> tuple[Result, list[Path]]:
    """Writes table, text, pictures and paired differences of all finished trials of a study, and their provenance."""
    trials = list(place.all())
    rows = rows_of(trials, study.methods)
    if not rows:
        raise InvalidFile(f"{place.results}: has no finished trial of {study.name}; nothing is written")
    title = study.title + _schedule(trials)
    result = table(study.name, title, rows)
    paths = [*write_result(result, output), *write_pictures(study.name, draw(rows), output)]
    apart = differences_of(trials, study.methods, study.base)
    if apart:
        apart_title = f"{title}: differences of paired trials"
        paths += write_result(difference_table(f"{study.name}-differences", apart_title, apart), output)
    about = origin(study.name, code_digest(__name__), paths) | {
        "trials": sum(trial["method"] in study.methods for trial in trials)
    }
    return result, [*paths, write_json(output / f"{study.name}.json", about)]


def _schedule(trials: Sequence[Json]) -> str:
    """What the title says about a cooldown that is not the paper's."""
    starts = sorted({trial["setup"]["setting"].get("cooldown", COOLDOWN) for trial in trials})
    if starts == [COOLDOWN]:
        return ""
    return f", learning rate falling after {' and '.join(f'{start:.0%}' for start in starts)} of the rounds"
