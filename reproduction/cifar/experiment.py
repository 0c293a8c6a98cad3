"""What is trained: the setting of the paper's CIFAR-10 runs, the mechanisms, and their plans."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from galton.accounting import Options
from galton.batching import PLANNED
from galton.errors import InvalidArgument, choice
from galton.files import Json
from galton.gaussian import gaussian_epsilon
from galton.guarantee import Adjacency, Guarantee
from galton.plan import Plan, load_plan, make_plan, save_plan
from galton.sampling.schedule import Progress

BANDS = 100
"""Of a Toeplitz C. A full one would keep 2000 models in memory, and gain next to nothing in RMSE (cifar.md)."""
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""The paper's."""
COOLDOWN = 0.25
"""The paper's, too: the learning rate falls from round 500 of 2000 on."""


@dataclass(frozen=True)
class Setting:
    """20 epochs of batches of 500; all else is shared by every run.

    Attributes:
      batch_size: expected size of a batch.
      epochs: passes over the data.
      delta: of the guarantee.
      clip_norm: of the examples' gradients.
      momentum: of gradient descent.
      micro_batch_size: what the places of a batch are a multiple of.
      cooldown: share of the rounds after which the learning rate falls.
    """

    batch_size: int = 500
    epochs: int = 20
    delta: float = 1e-5
    clip_norm: float = 1.0
    momentum: float = 0.95
    micro_batch_size: int = 20
    cooldown: float = COOLDOWN

    def to_json(self) -> Json:
        """Returns the setting as finished trials have it: the first ones knew one cooldown, and places by this name."""
        known = asdict(self)
        known["micro_batch"] = known.pop("micro_batch_size")
        if self.cooldown == COOLDOWN:
            del known["cooldown"]
        return known


@dataclass(frozen=True)
class Method:
    """A mechanism with its batches.

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

    @property
    def adjacency(self) -> Adjacency:
        """Of the guarantee: where the size of batches is fixed, an example that goes leaves its place."""
        return Adjacency.ZERO_OUT if self.cut or self.batching == "shuffle-once" else Adjacency.ADD_OR_REMOVE

    @property
    def rate_of(self) -> str:
        """The method whose learning rate is taken; its own name if it is chosen for itself."""
        return ALL[self.noise_of].rate_of if self.noise_of else self.name


METHODS = {
    method.name: method
    for method in (
        Method("bandmf-poisson", "BandMF, Poisson", "cyclic-poisson", "bandmf"),
        Method("bandmf-balls-in-bins", "BandMF, balls-in-bins", "balls-in-bins", "bandmf"),
        Method("blt", "BLT-4, balls-in-bins", "balls-in-bins", "blt:4"),
        Method("toeplitz", "Toeplitz, balls-in-bins", "balls-in-bins", "toeplitz:{bands}"),
        Method("scaled-blt", "scaled BLT-4, balls-in-bins", "balls-in-bins", "blt:4+scale"),
        Method("redrawn", "scaled BLT-4, redrawn bins", "balls-in-bins-redrawn", "blt:4+scale"),
        Method("dpsgd-poisson", "DP-SGD, Poisson", "poisson", "identity"),
        Method("unamplified", "unamplified", "shuffle-once", "toeplitz:{bands}"),
    )
}
"""The mechanisms of the main experiment."""

PRACTICAL = {
    method.name: method
    for method in (
        Method("cut-balls-in-bins", "balls-in-bins, cut to size", "balls-in-bins", noise_of="blt", cut=True),
        Method(
            "shuffling",
            "shuffling, same noise (larger epsilon)",
            "shuffle-once",
            noise_of="cut-balls-in-bins",
            same_noise=True,
        ),
        METHODS["unamplified"],
    )
}
"""The practical comparison: C of optimised BLT-4, noise of balls-in-bins cut to batches of exactly 500 places."""
ALL = METHODS | PRACTICAL


def find_methods(text: str, known: dict[str, Method]) -> list[Method]:
    """Returns the methods that a list with commas names; all of them for `all`."""
    names = list(known) if text == "all" else [choice("method", name, tuple(known)) for name in text.split(",")]
    return [known[name] for name in dict.fromkeys(names)]


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
    source = plan_for(ALL[method.noise_of], epsilon, examples, setting, folder, progress) if method.noise_of else None
    arguments = _wanted(method, epsilon, examples, setting, source)
    if place.exists():
        plan = load_plan(place)
        _check_plan(plan, method, arguments, source, place)
        return plan
    if source is not None:
        arguments["strategy"] = str(_place(ALL[method.noise_of], epsilon, folder) / "strategy.json")
    plan = make_plan(**arguments, options=Options(progress=progress))
    save_plan(plan, place)
    return plan


def plain(value: float) -> str:
    """Returns a number for the name of a file: all its digits, no more.

    >>> plain(8.0), plain(0.1)
    ('8', '0.1')
    """
    return repr(float(value)).removesuffix(".0")


def _place(method: Method, epsilon: float, folder: Path) -> Path:
    return folder / f"{method.name}-epsilon{plain(epsilon)}"


def _wanted(method: Method, epsilon: float, examples: int, setting: Setting, source: Plan | None) -> dict[str, Any]:
    """Arguments of `make_plan`."""
    if source is not None and method.same_noise:  # what the same noise guarantees when the batches are known
        epsilon = gaussian_epsilon(setting.delta, 1 / source.noise_multiplier)
    return {
        "examples": examples,
        "batch_size": setting.batch_size,
        "epochs": setting.epochs,
        "epsilon": Guarantee(epsilon, setting.delta, method.adjacency),
        "strategy": method.strategy.format(bands=min(BANDS, examples // setting.batch_size * setting.epochs)),
        "batching": method.batching,
        "clip_norm": setting.clip_norm,
        "padded_batch_size": setting.batch_size if method.cut else None,
        "micro_batch_size": setting.micro_batch_size,
    }


def _check_plan(plan: Plan, method: Method, arguments: dict[str, Any], source: Plan | None, place: Path) -> None:
    """Refuses a plan that is there but is not the one that is wanted."""
    pairs: dict[str, tuple[Any, Any]] = {
        name: (getattr(plan, name), arguments[name]) for name in ("examples", "epochs", "clip_norm")
    }
    guarantee, claim = plan.guarantee.to_json(), arguments["epsilon"].to_json()
    pairs |= {name: (guarantee[name], claim[name]) for name in claim}
    bins = round(arguments["examples"] / arguments["batch_size"])
    pairs["batch_size"] = (plan.examples / plan.bins, plan.examples / bins)
    alike = PLANNED[method.batching](plan.examples, plan.bins, plan.rounds, plan.strategy)
    pairs["batching"] = (plan.scheme.kind, alike.kind)
    if arguments["padded_batch_size"] is not None:
        pairs["padded_batch_size"] = (plan.padded_batch_size, arguments["padded_batch_size"])
    if source is None:
        pairs["strategy"] = (plan.spec, arguments["strategy"])
    else:
        pairs["strategy"] = (plan.strategy.digest, source.strategy.digest)
    for name, (actual, needed) in pairs.items():
        if actual != needed:
            raise InvalidArgument(name, needed, f"the plan in {place} was made for {actual}; take another --output")
