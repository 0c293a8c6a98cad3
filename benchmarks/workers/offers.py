"""What a package does not offer, and why: known without a process of its own. It imports none of them."""

from __future__ import annotations

from typing import Any

ONE_C = "independent noise only"
POISSON = ("DP-SGD, Poisson",)
MECHANISMS = {
    "opake": ("DP-SGD, Poisson", "DP-SGD, redrawn bins", "BandMF, cyclic Poisson", "BLT, bins"),
    "jax_privacy": ("DP-SGD, Poisson", "BandMF, cyclic Poisson"),
    "dp_accounting": POISSON,
    "pld_accounting": ("DP-SGD, Poisson", "DP-SGD, redrawn bins"),
    "opacus": POISSON,
}
"""Whose error can be told: those whose noise the package calibrates."""


def refusal(peer: str, cell: dict[str, Any]) -> str | None:
    """Returns why a package, which is not galton, does not offer a cell; None if it does."""
    task = cell["task"]
    if task == "check":
        return None
    if task == "error":
        return None if cell["mechanism"] in MECHANISMS[peer] else "not offered"
    if task == "noise":
        return _noise(peer, cell["strategy"])
    return _accounting(peer, task, cell["batches"], correlated=len(cell["coefficients"]) > 1)


def _noise(peer: str, strategy: str) -> str | None:
    if peer in ("dp_accounting", "pld_accounting"):
        return "accounting only"
    if peer == "opacus" and strategy != "identity":
        return ONE_C
    return "no banded inverse" if peer == "jax_privacy" and strategy.startswith("inverse") else None


def _accounting(peer: str, task: str, batches: str, *, correlated: bool) -> str | None:
    if batches == "Poisson":
        return None
    if peer in ("dp_accounting", "opacus"):
        return "no bins, no correlated noise"
    if peer == "pld_accounting":
        return ONE_C if correlated or batches == "min-separation" else None
    if batches == "redrawn bins" and (peer == "jax_privacy" or correlated):
        return "only one draw of bins" if peer == "jax_privacy" else ONE_C
    return "a sweep of verifications, each as dear as one" if (peer, task) == ("jax_privacy", "calibrate") else None
