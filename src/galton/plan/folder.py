"""A plan on disk: plan.json, strategy.json and SHA256SUMS, by which any changed byte is noticed; and plan.sig."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from galton import files
from galton.errors import GaltonError, InvalidFile
from galton.plan.plan import Plan, plan_from_json
from galton.plan.signature import Signature, read_signature
from galton.plan.versions import FORMAT, VERSIONS
from galton.strategies import load_strategy
from galton.strategies.codec import strategy_text
from galton.typechecking import typechecked

PLAN, STRATEGY, SUMS, SIGNATURE = "plan.json", "strategy.json", "SHA256SUMS", "plan.sig"


def check_free(folder: str | Path) -> Path:
    """Returns the folder; raises `InvalidFile`, before any work begins, if no plan can be written there."""
    target = Path(folder)
    try:
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as error:
        raise InvalidFile(f"{target}: cannot be written ({error.strerror})") from None
    if taken:
        raise InvalidFile(f"{target}: is there already; a plan needs a folder that is new or empty")
    files.check_target(target)
    return target


@typechecked
def save_plan(plan: Plan, folder: str | Path) -> Path:
    """Writes a plan to a new folder, whole or not at all; `sha256sum -c SHA256SUMS` checks it without galton.

    Args:
      plan: the plan; it is checked first.
      folder: where to write it; must be new or empty.

    Returns:
      The folder.

    Example:
      >>> import tempfile
      >>> from galton import Guarantee, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     sorted(path.name for path in save_plan(plan, f"{folder}/plan").iterdir())
      ['SHA256SUMS', 'plan.json', 'strategy.json']
    """
    target = check_free(folder)
    plan.check()
    with files.new_folder(target) as staging:
        for name, content in _contents(plan).items():
            files.write_bytes(staging / name, content)
        files.write_text(staging / SUMS, checksums(plan))
        if plan.signature is not None:
            save_signature(plan.signature, staging / SIGNATURE)
    return target


def save_signature(signature: Signature, path: Path) -> None:
    """Writes a signature to a new file; an existing one, perhaps of somebody else, is not overwritten."""
    files.write_new(path, files.pretty(signature.to_json()).encode())


@typechecked
def load_plan(folder: str | Path) -> Plan:
    """Reads a plan that `save_plan` wrote; raises `InvalidFile` if a byte was changed or parts do not fit together.

    Args:
      folder: the folder of the plan.

    Returns:
      The plan. Its evidence was checked against its claim; `verify_plan` proves the claim again. Its signature, if the
      folder has one, was not checked: `check_signature` does that.

    Example:
      >>> import tempfile
      >>> from galton import Guarantee, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     load_plan(save_plan(plan, f"{folder}/plan")).digest == plan.digest
      True
    """
    source = Path(folder)
    try:
        claimed = (source / SUMS).read_bytes()
        contents = {name: (source / name).read_bytes() for name in (PLAN, STRATEGY)}
    except OSError as error:
        raise InvalidFile(f"{source}: is not a plan ({error.strerror}); galton plan makes one") from None
    lines = _checksum_lines(contents)
    if "".join(lines.values()).encode() != claimed:
        known = claimed.splitlines(keepends=True)
        changed = [name for name, line in lines.items() if line.encode() not in known]
        raise InvalidFile(f"{source / (changed or [SUMS])[0]}: was changed after the plan was made; make it anew")
    body = files.read_json(source / PLAN)
    if body.get("format") != FORMAT or body.get("version") not in VERSIONS:
        versions = " or ".join(map(str, VERSIONS))
        raise InvalidFile(f"{source / PLAN}: must be a {FORMAT} of version {versions}; this galton reads no other")
    strategy = load_strategy(source / STRATEGY)
    try:
        plan = replace(plan_from_json(body, strategy), signature=read_signature(source / SIGNATURE))
        different = [name for name, content in _contents(plan).items() if content != contents[name]]
    except (ArithmeticError, ValueError, GaltonError) as error:  # some numbers are too large for floating point
        raise InvalidFile(f"{source / PLAN}: does not hold together ({error})") from None
    if different:  # so what was parsed, or read a moment later, is what was hashed
        raise InvalidFile(f"{source / different[0]}: does not hold together (not as galton writes it)")
    return plan


def checksums(plan: Plan) -> str:
    """Returns SHA256SUMS of a plan: it stands for every byte of the plan, and is what a signature signs."""
    return "".join(_checksum_lines(_contents(plan)).values())


def _contents(plan: Plan) -> dict[str, bytes]:
    """What is hashed of a plan: its files by name."""
    return {PLAN: plan.text.encode(), STRATEGY: strategy_text(plan.strategy).encode()}


def _checksum_lines(contents: dict[str, bytes]) -> dict[str, str]:
    return {name: f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items()}
