"""A plan on disk: plan.json, strategy.json and SHA256SUMS, by which any changed byte is noticed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from galton import files
from galton.errors import GaltonError, InvalidFile
from galton.plan.plan import FORMAT, VERSION, Plan, plan_from_json
from galton.strategies import load_strategy, save_strategy

PLAN, STRATEGY, SUMS = "plan.json", "strategy.json", "SHA256SUMS"


def check_free(folder: str | Path) -> Path:
    """Returns the folder; raises `InvalidFile`, before any work begins, if no plan can be written there."""
    target = Path(folder)
    try:
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as error:
        raise InvalidFile(f"{target}: cannot be read ({error.strerror})") from None
    if taken:
        raise InvalidFile(f"{target}: is there already; a plan needs a folder that is new or empty")
    parent = next(place for place in target.absolute().parents if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InvalidFile(f"{target}: cannot be made: {parent} is no folder that can be written to")
    return target


def save_plan(plan: Plan, folder: str | Path) -> Path:
    """Writes a plan to a new folder, whole or not at all; `sha256sum -c SHA256SUMS` checks it without galton.

    Args:
      plan: the plan; it is checked first.
      folder: where to write it; must be new or empty.

    Returns:
      The folder.
    """
    target = check_free(folder)
    plan.check()
    with files.new_folder(target) as staging:
        files.write_text(staging / PLAN, plan.text)
        save_strategy(plan.strategy, staging / STRATEGY)
        files.write_text(staging / SUMS, _checksums(staging))
    return target


def load_plan(folder: str | Path) -> Plan:
    """Reads a plan that `save_plan` wrote; raises `InvalidFile` if a byte was changed or parts do not fit together.

    Args:
      folder: the folder of the plan.

    Returns:
      The plan. Its evidence was checked against its claim; `verify_plan` proves the claim again.
    """
    source = Path(folder)
    try:
        claimed = (source / SUMS).read_text()
        actual = _checksums(source)
        text = (source / PLAN).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InvalidFile(f"{source}: is not a plan ({reason}); galton plan makes one") from None
    if actual != claimed:
        changed = [
            name for name in (PLAN, STRATEGY) if _checksum_line(source, name) not in claimed.splitlines(keepends=True)
        ]
        raise InvalidFile(f"{source / (changed or [SUMS])[0]}: was changed after the plan was made; make it anew")
    body = files.read_json(source / PLAN)
    if body.get("format") != FORMAT or body.get("version") != VERSION:
        raise InvalidFile(f"{source / PLAN}: must be a {FORMAT} of version {VERSION}; this galton reads no other")
    strategy = load_strategy(source / STRATEGY)
    try:
        plan = plan_from_json(body, strategy)
        same = plan.text == text
    except (ArithmeticError, ValueError, GaltonError) as error:  # some numbers are too large for floating point
        raise InvalidFile(f"{source / PLAN}: does not hold together ({error})") from None
    if not same:
        raise InvalidFile(f"{source / PLAN}: does not hold together (not as galton writes it)")
    return plan


def _checksum_line(folder: Path, name: str) -> str:
    return f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"


def _checksums(folder: Path) -> str:
    return "".join(_checksum_line(folder, name) for name in (PLAN, STRATEGY))
