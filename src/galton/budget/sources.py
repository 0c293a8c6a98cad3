"""How callers name releases: plans, pairs, text, files, and events of dp-accounting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from galton import files
from galton.budget.account import FORMAT, read_account
from galton.budget.events import Event, GaussianEvent, KnownEvent, LaplaceEvent
from galton.budget.runs import BoundEvent, PairEvent, RunEvent
from galton.budget.tuning import TunedEvent
from galton.errors import InvalidArgument
from galton.fields import Fields
from galton.pair import DominatingPair
from galton.plan import Plan, load_plan

Source = Event | Plan | DominatingPair | str | Mapping[str, Any] | Any
"""What `as_event` takes."""


def as_event(source: Source) -> list[Event]:
    """Returns the events that a caller named: a plan, a pair, an event, its name, or an event of dp-accounting.

    Args:
      source: a `Plan` or its folder; a dominating pair; an `Event`; text such as gaussian:sigma=4,count=10; the name of
        a JSON file with an event of dp-accounting, or such an event.

    Returns:
      Events; an event of dp-accounting may be made of several.
    """
    if isinstance(source, Event):
        return [source]
    if isinstance(source, Plan):
        return [_plan_event(source)]
    if isinstance(source, DominatingPair):
        return [PairEvent(source)]
    if hasattr(source, "to_named_tuple"):
        return from_dp_event(event_mapping(source.to_named_tuple()))
    if isinstance(source, str | Path):
        return _named(str(source))
    remedy = "must be a plan or its folder, a pair, gaussian:sigma=..., laplace:scale=..., dp:epsilon=... or a DpEvent"
    raise InvalidArgument("events", source, remedy)


def _plan_event(plan: Plan) -> Event:
    """A run, or the best of several where the plan is for a search."""
    adjacency = plan.guarantee.adjacency
    run = RunEvent(
        name=f"plan {plan.digest.removeprefix('sha256:')[:12]}, {plan.rounds} rounds, by itself {plan.guarantee}",
        adjacency=adjacency,
        accountant=plan.accountant,
        run=plan.run,
        unit=plan.unit,
        displacement=0.0 if adjacency.equal_sizes else plan.truncation.displacement,
    )
    return run if plan.tuning is None else TunedEvent(run, plan.tuning)


_REAL, _WHOLE = "a number", "a whole number"
_GRAMMAR: dict[str, tuple[Callable[..., Event], dict[str, str]]] = {
    GaussianEvent.kind: (GaussianEvent, {"sigma": _REAL, "count": _WHOLE, "probability": _REAL}),
    LaplaceEvent.kind: (LaplaceEvent, {"scale": _REAL, "count": _WHOLE}),
    KnownEvent.kind: (KnownEvent, {"epsilon": _REAL, "delta": _REAL, "count": _WHOLE}),
}
NAMES = "a plan's folder, gaussian:sigma=S, laplace:scale=S, dp:epsilon=E,delta=D (with ,count=N), or FILE.json"
"""How events are named on the command line."""


def _named(text: str) -> list[Event]:
    kind, colon, rest = text.partition(":")
    if colon and kind in _GRAMMAR:
        return [_parsed(text, kind, rest)]
    if files.is_folder(Path(text)):
        return as_event(load_plan(text))
    if text.endswith(".json"):
        value = files.read_json(Path(text))
        if value.get("format") != FORMAT:
            return from_dp_event(value)
        account = read_account(text, value)
        return [BoundEvent(event, account.guarantee.adjacency) for event in account.events]
    raise InvalidArgument("events", text, f"must be {NAMES}")


def _parsed(text: str, kind: str, rest: str) -> Event:
    make, allowed = _GRAMMAR[kind]
    values: dict[str, float | int] = {}
    for part in rest.split(","):
        name, equals, number = part.partition("=")
        if not equals or name not in allowed or name in values:
            names = ", ".join(allowed)
            raise InvalidArgument("events", text, f"must give {names} as NAME=NUMBER, separated by commas, each once")
        try:
            values[name] = int(number) if allowed[name] is _WHOLE else float(number)
        except ValueError:
            raise InvalidArgument("events", text, f"must have {allowed[name]} for {name}") from None
    first = next(iter(allowed))
    if first not in values:
        raise InvalidArgument("events", text, f"must give {first}")
    try:
        return make(**values)
    except InvalidArgument as error:
        raise InvalidArgument("events", text, f"{error.argument} {error.remedy}") from None


def event_mapping(value: Any) -> Any:
    """Returns the named tuples of dp-accounting's events as dictionaries, lists as lists."""
    if hasattr(value, "_asdict"):
        return {name: event_mapping(part) for name, part in value._asdict().items()}
    return [event_mapping(part) for part in value] if isinstance(value, list | tuple) else value


def from_dp_event(value: Mapping[str, Any], times: int = 1) -> list[Event]:
    """Returns the events that an event of dp-accounting stands for.

    Args:
      value: a dictionary with class_name and the fields of that class, as `DpEvent.to_named_tuple` has them; a
        `PlanDpEvent` has the plan itself.
      times: how often.

    Returns:
      Events; what galton does not know is refused.
    """
    body = Fields("event", value)
    name = body.text("class_name")
    if name == "NoOpDpEvent":
        return []
    if name == "GaussianDpEvent":
        return [GaussianEvent(body.real("noise_multiplier"), times)]
    if name == "LaplaceDpEvent":
        return [LaplaceEvent(body.real("noise_multiplier"), times)]
    if name == "PoissonSampledDpEvent":
        inner = body.inner("event")
        if inner.text("class_name") != "GaussianDpEvent":
            raise InvalidArgument("event.class_name", inner.text("class_name"), "must be GaussianDpEvent in a sample")
        return [GaussianEvent(inner.real("noise_multiplier"), times, body.real("sampling_probability", 0.0, 1.0))]
    if name == "SelfComposedDpEvent":
        return from_dp_event(body.mapping("event"), times * body.count("count", 1))
    if name == "ComposedDpEvent":
        return [event for part in body.sequence("events") for event in from_dp_event(part, times)]
    if name == "PlanDpEvent" and isinstance(value.get("plan"), Plan):
        return [_plan_event(value["plan"])] * times
    known = "NoOp, Gaussian, Laplace, PoissonSampled, SelfComposed and Composed events"
    raise InvalidArgument("event.class_name", name, f"is not known to galton, which reads {known}")
