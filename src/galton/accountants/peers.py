"""Packages of others that baselines use when they are installed; imported on first use only."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from galton.errors import GaltonError


class MissingPackage(GaltonError, ImportError):
    """A baseline needs a package that is not installed."""


def _load(module: str, package: str, what: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module(module)
    except ImportError as error:
        reason = str(error).splitlines()[0]
        raise MissingPackage(f"{what} needs the package {package}: pip install {package} ({reason})") from None


def random_allocation() -> Any:
    """Returns PLD_accounting."""
    return _load("PLD_accounting", "PLD_accounting", "exact accounting of random allocation")


def version_of(package: str) -> str:
    """Returns the version of an installed package, or "none"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
