"""Versions of plan.json: what each calls things. Files are read, and kept, as they were written."""

from __future__ import annotations

from typing import Any

from galton.fields import Fields

FORMAT = "galton-plan"
VERSION = 3
FIRST_VERSION, SECOND_VERSION = 1, 2
"""Of plans that were made before; read, and kept as they were written. The first, of galton 0.1, has other names in
`if_batches_leak` and other words; both have other names for the strategy and the error (`as_before`)."""
VERSIONS = (FIRST_VERSION, SECOND_VERSION, VERSION)
LEAK_FIELDS = dict.fromkeys(VERSIONS, ("epsilon_at_delta", "delta_at_epsilon")) | {FIRST_VERSION: ("epsilon", "delta")}
"""Names of what is left if batches leak, by version: its epsilon at delta, and its delta at epsilon."""

_OF_STRATEGY = {"spec": "strategy", "kind": "strategy_kind", "hash": "strategy_hash"}
_OF_ERROR = ("workload", "rmse", "alternatives")


def as_before(body: dict[str, Any]) -> dict[str, Any]:
    """A plan as versions before 3 had it: `strategy` and `error` are objects, a certificate's `strategy` is a hash."""
    older = {}
    for name, value in body.items():
        if name == "strategy":
            older[name] = {old: body[new] for old, new in _OF_STRATEGY.items()}
        elif name == "workload":
            older["error"] = {part: body[part] for part in _OF_ERROR}
        elif name == "evidence" and "certificate" in value:
            renamed = {{"strategy_hash": "strategy"}.get(part, part): it for part, it in value["certificate"].items()}
            older[name] = value | {"certificate": renamed}
        elif name not in (*_OF_STRATEGY.values(), *_OF_ERROR):
            older[name] = value
    return older


def as_now(body: Fields, value: dict[str, Any]) -> dict[str, Any]:
    """The reverse of `as_before`, but for certificates, which are read by either name."""
    strategy, error = body.mapping("strategy"), body.mapping("error")
    names = {new: strategy[old] for old, new in _OF_STRATEGY.items() if old in strategy}
    return value | names | {part: error[part] for part in _OF_ERROR if part in error}
