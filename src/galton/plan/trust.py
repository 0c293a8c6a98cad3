"""May a run start from this plan? Only if it is pinned, signed, or was proved by this user's galton, if need be now."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from pathlib import Path

from galton import files
from galton.accounting import Options
from galton.errors import GaltonError, InvalidArgument
from galton.plan.folder import SIGNATURE, checksums, load_plan, save_signature
from galton.plan.marks import Mark, find_mark, one_at_a_time
from galton.plan.plan import Plan
from galton.plan.signature import Signature, is_signed_by, read_public_key, sign
from galton.plan.verify import verify_plan
from galton.progress import progress_bar
from galton.typechecking import typechecked


class PlanNotTrusted(GaltonError):
    """Raised where a plan is not the one that was pinned or signed, or its guarantee could not be proved.

    Example:
      >>> import numpy as np
      >>> from galton import Guarantee, TrainingRun, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> pinned, params = "sha256:" + 64 * "0", {"w": np.zeros(2, np.float32)}
      >>> try:
      ...     TrainingRun(plan, "run", params, examples=64, clip_norm=1.0, pinned=pinned)
      ... except PlanNotTrusted as error:
      ...     "is not the pinned one" in str(error)
      True
    """


class Basis(enum.Enum):
    """Why a plan is trusted."""

    PINNED = "pinned"
    """The caller gave its hash."""
    SIGNED = "signed"
    """It has a signature by a key that the caller trusts."""
    MADE = "made"
    """This user's galton made it, and proved or certified its guarantee."""
    VERIFIED = "verified"
    """This user's galton proved its guarantee again, earlier."""
    VERIFIED_AT_START = "verified at the start"
    """Its guarantee was proved again, just now."""


@dataclass(frozen=True)
class Trust:
    """Why a run may start from a plan.

    Attributes:
      basis: why; the first of what was asked for, or else of what is at hand.
      words: the same in words.
    """

    basis: Basis
    words: str

    def to_json(self) -> dict[str, str]:
        """Returns a JSON-ready dictionary."""
        return {"basis": self.basis.value, "words": self.words}


def establish_trust(
    plan: Plan, *, pinned: str | None = None, trusted_key: str | Path | bytes | None = None, resumed: bool = False
) -> Trust:
    """Returns why a run may start from a plan; raises `PlanNotTrusted` if it may not.

    In any case its parts have to fit together (`Plan.check`).

    What the caller asks for has to hold: a plan that is not the pinned one, or not signed by the trusted key, is
    refused. If nothing is asked for, a plan that this user's galton made or verified before is trusted by its mark
    (`plan/marks.py`), and any other is verified now, as `verify_plan` does, with progress on stderr.

    Formal guarantee: if nothing is asked for, a run that starts only if this returns has the plan's guarantee, whoever
    made the plan and whatever its certificate says: it rests on a verification by this user, whose failure probability
    the plan's delta covers (docs/plans.md). It does not rest on anything that whoever handed over the plan can choose.

    Args:
      plan: the plan.
      pinned: the hash that it must have, as in `Plan.digest`.
      trusted_key: public key, or its file (PEM), that must have signed it; see `sign_plan`.
      resumed: whether a run goes on that has begun, so that a mark by another version of galton is good enough.

    Returns:
      Why it is trusted.
    """
    plan.check()  # also of what the hash does not name, as it follows from the rest
    trust: Trust | None = None
    if trusted_key is not None:
        trust = Trust(Basis.SIGNED, check_signature(plan, trusted_key))
    if pinned is not None:
        _check_pinned(plan, pinned)
        trust = Trust(Basis.PINNED, f"its hash is the one that the caller asked for, {pinned}")
    trust = trust or _trust_by_mark(plan, resumed)
    if trust is None:
        with one_at_a_time(plan.digest):
            trust = _trust_by_mark(plan, resumed) or _verify_now(plan)
    return trust


def _check_pinned(plan: Plan, pinned: str) -> None:
    if not isinstance(pinned, str) or not re.fullmatch("sha256:[0-9a-f]{64}", pinned):
        remedy = "must be the whole hash of a plan, sha256: and 64 digits, as galton verify shows it"
        raise InvalidArgument("pinned", pinned, remedy)
    if plan.digest != pinned:
        raise PlanNotTrusted(f"plan {plan.digest}: is not the pinned one, {pinned}")


def check_signature(plan: Plan, trusted_key: str | Path | bytes) -> str:
    """Returns who signed a plan, in words; raises `PlanNotTrusted` unless it was signed by this key.

    Args:
      plan: the plan; its signature is the file plan.sig of its folder.
      trusted_key: public key, or its file (PEM).

    Returns:
      The key that signed it, in words.
    """
    key, signature = read_public_key(trusted_key), plan.signature
    if signature is None:
        raise PlanNotTrusted(f"plan {plan.digest}: is not signed; galton sign writes plan.sig to its folder")
    if not is_signed_by(signature, checksums(plan), key):
        raise PlanNotTrusted(
            f"plan {plan.digest}: its signature, which names {signature.signer}, is not one of this plan by the "
            "trusted key"
        )
    return f"signed by the key {signature.signer}"


@typechecked
def sign_plan(folder: str | Path, key: str | Path, output: str | Path | None = None) -> Signature:
    """Signs a plan that this user's galton has made or verified; one that it has not is verified first.

    Args:
      folder: of the plan.
      key: file of the private key (Ed25519, PEM), readable by its owner only; `new_key_pair` makes one.
      output: new file for the signature; default plan.sig in the folder, where runs look for it.

    Returns:
      The signature that was written.

    Example:
      >>> import tempfile
      >>> from galton import Guarantee, make_plan, new_key_pair, save_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     public = new_key_pair(f"{folder}/officer.pem")
      ...     signature = sign_plan(save_plan(plan, f"{folder}/plan"), f"{folder}/officer.pem")
      >>> signature.to_json()["format"]
      'galton-signature'
    """
    path = Path(folder, SIGNATURE) if output is None else Path(output)
    files.check_new(path)
    plan = load_plan(folder)
    signature = sign(checksums(plan), key)  # first, so that a bad key is noticed before the plan is verified
    establish_trust(plan)
    save_signature(signature, path)
    return signature


def _trust_by_mark(plan: Plan, any_version: bool) -> Trust | None:
    mark = find_mark(plan.digest, any_version)
    if mark is None:
        return None
    basis = {Mark.MADE: Basis.MADE, Mark.VERIFIED: Basis.VERIFIED}[mark]
    return Trust(basis, f"this user's galton {mark.value} it before")


def _verify_now(plan: Plan) -> Trust:
    with progress_bar() as progress:
        verification = verify_plan(plan, Options(progress=progress))
    if not verification.accepted:
        raise PlanNotTrusted(
            f"plan {plan.digest}: its guarantee could not be proved, so no run starts from it: {verification.words}"
        )
    return Trust(Basis.VERIFIED_AT_START, verification.words)
