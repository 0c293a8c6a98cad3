"""What is trained: the setting of the paper's CIFAR-10 runs, the mechanisms, and their plans."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from galton.accounting import Options
from galton.errors import InvalidArgument, choice
from galton.gaussian import gaussian_epsilon
from galton.paper.cifar.clipping import MICRO_BATCH
from galton.plan import Plan, load_plan, make_plan, save_plan
from galton.sampling.schedule import Progress

BANDS = 100
"""Of a Toeplitz C. A full one would keep 2000 models in memory, and gain 0.1% in RMSE (docs/cifar.md)."""
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""The paper's."""


@dataclass(frozen=True)
class Setting:
    """20 epochs of batches of 500; all else is shared by every run.

    Attributes:
      batch_size: expected size of a batch.
      epochs: passes over the data.
      delta: of the guarantee.
      clip_norm: of the examples' gradients.
      momentum: of gradient descent.
      micro_batch: examples whose gradients are computed at one time.
    """

    batch_size: int = 500
    epochs: int = 20
    delta: float = 1e-5
    clip_norm: float = 1.0
    momentum: float = 0.95
    micro_batch: int = MICRO_BATCH


@dataclass(frozen=True)
class Method:
    """A mechanism with its batches. Where these have a fixed size, neighbours differ by an example zeroed out.

    Attributes:
      name: as on the command line.
      words: in legends.
      batching: of the plan.
      strategy: of the plan.
      noise_of: the method whose C and learning rate are taken instead.
      same_noise: take that method's noise too, whatever guarantee is left of it with these batches.
      cut: batches have as many places as they are expected to have examples, and the rest is left out.
    """

    name: str
    words: str
    batching: str
    strategy: str = ""
    noise_of: str = ""
    same_noise: bool = False
    cut: bool = False


METHODS = {
    method.name: method
    for method in (
        Method("bandmf-poisson", "BandMF, Poisson", "cyclic-poisson", "bandmf"),
        Method("bandmf-balls-in-bins", "BandMF, balls-in-bins", "balls-in-bins", "bandmf"),
        Method("blt", "BLT-4, balls-in-bins", "balls-in-bins", "blt:4"),
        Method("toeplitz", "Toeplitz, balls-in-bins", "balls-in-bins", "toeplitz:{bands}"),
        Method("scaled-blt", "scaled BLT-4, balls-in-bins", "balls-in-bins", "blt:4+scale"),
        Method("unamplified", "unamplified", "shuffle-once", "toeplitz:{bands}"),
    )
}
"""The mechanisms of the main experiment."""

PRACTICAL = {
    method.name: method
    for method in (
        Method("cut-balls-in-bins", "balls-in-bins, cut to size", "balls-in-bins", noise_of="blt", cut=True),
        Method("shuffling", "shuffling, same noise", "shuffle-once", noise_of="blt", same_noise=True),
        METHODS["unamplified"],
    )
}
"""The practical comparison: C and noise of optimised BLT-4, batches of exactly 500 places."""


def find_methods(text: str, known: dict[str, Method]) -> list[Method]:
    """Returns the methods that a list with commas names; all of them for `all`."""
    if text == "all":
        return list(known.values())
    return [known[choice("method", name, ("all", *known))] for name in text.split(",")]


def plan_for(
    method: Method, epsilon: float, examples: int, setting: Setting, folder: Path, progress: Progress | None = None
) -> Plan:
    """Returns the plan of a method at an epsilon: from the folder of plans, or made and left there.

    Args:
      method: what is planned.
      epsilon: of the guarantee; for `same_noise` of the guarantee whose noise it is.
      examples: size of the data set.
      setting: all the rest.
      folder: of plans; one folder each.
      progress: called as progress(what, done, total).
    """
    place = _place(method, epsilon, folder)
    wanted = _wanted(method, epsilon, examples, setting, folder, progress)
    if place.exists():
        plan = load_plan(place)
        _check_plan(plan, wanted, place)
        return plan
    fixed = method.cut or method.batching == "shuffle-once"  # sizes do not tell who is there
    options = Options(progress=progress, adjacency="zero-out" if fixed else "add-or-remove")
    plan = make_plan(**wanted, options=options)
    save_plan(plan, place)
    return plan


def _place(method: Method, epsilon: float, folder: Path) -> Path:
    return folder / f"{method.name}-epsilon{epsilon:g}"


def _wanted(
    method: Method, epsilon: float, examples: int, setting: Setting, folder: Path, progress: Progress | None
) -> dict[str, Any]:
    """Arguments of `make_plan`."""
    wanted: dict[str, Any] = {
        "examples": examples,
        "batch_size": setting.batch_size,
        "epochs": setting.epochs,
        "epsilon": epsilon,
        "delta": setting.delta,
        "strategy": method.strategy.format(bands=min(BANDS, examples // setting.batch_size * setting.epochs)),
        "batching": method.batching,
        "clip_norm": setting.clip_norm,
        "physical": setting.batch_size if method.cut else None,
        "micro_batch": setting.micro_batch,
    }
    if method.noise_of:
        other = METHODS[method.noise_of]
        source = plan_for(other, epsilon, examples, setting, folder, progress)
        wanted["strategy"] = str(_place(other, epsilon, folder) / "strategy.json")
        if method.same_noise:  # what the same noise guarantees when the batches are known
            wanted["epsilon"] = gaussian_epsilon(setting.delta, 1 / source.noise_multiplier)
    return wanted


def _check_plan(plan: Plan, wanted: dict[str, Any], place: Path) -> None:
    """Refuses a plan that is there but is not the one that is wanted."""
    found = {
        "examples": plan.examples,
        "epochs": plan.epochs,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "clip_norm": plan.clip_norm,
    }
    for name, value in found.items():
        if value != wanted[name]:
            raise InvalidArgument(name, wanted[name], f"the plan in {place} was made for {value}; take another folder")
