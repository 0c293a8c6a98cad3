"""The content of a budget file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from galton import files
from galton.budget.events import Event, KnownEvent
from galton.budget.runs import event_from_json
from galton.errors import InvalidArgument, InvalidFile
from galton.fields import Fields
from galton.guarantee import Guarantee

FORMAT = "galton-budget"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Entry:
    """One release that was written down.

    Attributes:
      label: what it was, in the user's words.
      created: when it was written down, in UTC.
      event: the release, with all that samples had to tell of it.
    """

    label: str
    created: str
    event: Event

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {"label": self.label, "created": self.created, "event": self.event.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Entry:
        """Rebuilds it from `to_json`.

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The entry.
        """
        body = Fields("spent", value, cls)
        return cls(body.text("label"), body.text("created"), event_from_json(body.mapping("event")))


@dataclass(frozen=True, eq=False)
class Account:
    """The content of a budget file.

    Attributes:
      guarantee: what all releases together must not exceed.
      spent: the releases so far.
      refused_failure: failure probabilities of analyses after which a release was refused; they count.
    """

    guarantee: Guarantee
    spent: tuple[Entry, ...] = ()
    refused_failure: float = 0.0

    @property
    def events(self) -> tuple[Event, ...]:
        """The releases so far, and one that stands for the failures of analyses after which one was refused."""
        refused = (KnownEvent(0.0, self.refused_failure),) if self.refused_failure else ()
        return (*(entry.event for entry in self.spent), *refused)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of the file, with a hash of the rest by which damage is seen."""
        body = {
            "format": FORMAT,
            "version": VERSION,
            "guarantee": self.guarantee.to_json(),
            "refused_failure": self.refused_failure,
            "spent": [entry.to_json() for entry in self.spent],
        }
        return body | {"content_hash": files.digest(body)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Account:
        """Rebuilds it from `to_json`; damage is refused.

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The account.
        """
        body = Fields("budget", value)
        if (body.text("format"), body.count("version")) != (FORMAT, VERSION):
            raise InvalidArgument("budget.format", body.text("format"), f"must be {FORMAT}, version {VERSION}")
        rest = {name: part for name, part in value.items() if name != "content_hash"}
        if files.digest(rest) != body.text("content_hash"):
            raise InvalidArgument(
                "budget.content_hash", body.text("content_hash"), "is not that of the content: it was changed"
            )
        guarantee = Guarantee.from_json(body.mapping("guarantee"))
        spent = tuple(Entry.from_json(entry) for entry in body.sequence("spent"))
        for entry in spent:
            entry.event.check_adjacency(guarantee.adjacency)
        return cls(guarantee, spent, body.real("refused_failure", 0.0, 1.0))


def read_account(path: str, value: dict[str, Any]) -> Account:
    """Returns the account in a file; a damaged one is refused.

    Args:
      path: of the file, for errors.
      value: its content.

    Returns:
      The account.
    """
    try:
        return Account.from_json(value)
    except InvalidArgument as error:
        raise InvalidFile(f"{path}: is damaged, or not a budget ({error})") from None
