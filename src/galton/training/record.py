"""The record of a run: what ran, for everybody to read, signed with the key of its folder; and releases of models."""

from __future__ import annotations

import hashlib
import hmac
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from galton import files
from galton.errors import InvalidFile
from galton.noise.run import read_keys
from galton.plan import Plan
from galton.plan.leak import leaked
from galton.typechecking import typechecked

RECORD = "record.json"
FORMAT = "galton-record"
VERSION = 2


def begin_record(plan: Plan, body: dict[str, Any]) -> dict[str, Any]:
    """Returns what a record says of the plan and of the run's identity; `body` is the content of run.json."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "run": body["id"],
        "plan": plan.digest,
        "guarantee": plan.guarantee.to_json(),
        **({} if plan.tuning is None else {"tuning": {**plan.tuning.to_json(), "statement": plan.search}}),
        "forks": body["forks"],
        "together": together(plan, len(body["forks"]) + 1),
        "stopped": body["stopped"],
        "model": body["model"],
        "seed_chosen_by_user": body["seed_chosen_by_user"],
        "started": body["started"],
    }


def together(plan: Plan, runs: int) -> str | None:
    """In words, the guarantee of a run and of those it was forked or copied from; None if there are none."""
    if runs == 1:
        return None
    return (
        f"This run alone is {plan.guarantee}. If the runs that it was forked, copied or moved from went on too, what "
        f"all {runs} release together is {leaked(plan, runs).claim(plan.guarantee)}."
    )


def sign_record(folder: Path, secret: bytes, body: dict[str, Any]) -> dict[str, Any]:
    """Signs a record with the key of the run, writes it to the folder, and returns it."""
    signed = body | {"signature": _signature(secret, body)}
    files.write_text(folder / RECORD, files.pretty(signed))
    return signed


@typechecked
def check_record(folder: str | Path) -> dict[str, Any]:
    """Reads the record of a run and checks its signature; raises `InvalidFile` if it was changed.

    Args:
      folder: of the run; it has the key that the record was signed with.

    Returns:
      The record without its signature.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> from galton import Guarantee, TrainingRun, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with TrainingRun(plan, folder, {"w": np.zeros(2, np.float32)}, examples=64, clip_norm=1.0):
      ...         pass
      ...     record = check_record(folder)
      >>> record["rounds_planned"], record["rounds_done"]
      (4, 0)
    """
    path = Path(folder) / RECORD
    body = files.read_json(path)
    signature = body.pop("signature", None)
    secret = np.asarray(read_keys(Path(folder))[0][1], "<u4").tobytes()
    if body.get("format") != FORMAT or signature != _signature(secret, body):
        raise InvalidFile(f"{path}: is not the record of this run, or was changed")
    return body


def _signature(secret: bytes, body: dict[str, Any]) -> str:
    content = files.canonical(body).encode()
    return "hmac-sha256:" + hmac.new(b"galton record" + secret, content, hashlib.sha256).hexdigest()


@typechecked
def release_run(folder: str | Path, output: str | Path) -> dict[str, Any]:
    """Writes the model of a run and its signed record, and nothing else, to a zip file that may be published.

    Args:
      folder: of the run.
      output: file to write.

    Returns:
      The record.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> from galton import Guarantee, TrainingRun, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> weights = np.zeros(2, np.float32)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with TrainingRun(plan, f"{folder}/run", {"w": weights}, examples=64, clip_norm=1.0) as run:
      ...         run.publish(lambda path: path.write_bytes(weights.tobytes()), suffix=".bin")
      ...     record = release_run(f"{folder}/run", f"{folder}/release.zip")
      >>> record["model"]["file"], record["rounds_done"]
      ('model.bin', 0)
    """
    source, target = Path(folder), Path(output)
    record = check_record(source)
    if not record.get("model"):
        raise InvalidFile(f"{source}: has no model for others yet; train saves one, and so does TrainingRun.publish")
    model = source / Path(str(record["model"]["file"])).name
    try:
        content = model.read_bytes()
    except OSError as error:
        raise InvalidFile(f"{model}: cannot be read ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != record["model"]["sha256"]:
        raise InvalidFile(f"{model}: is not the model that the record names")
    with files.replacing(target) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(model.name, content)
        archive.writestr(RECORD, (source / RECORD).read_bytes())
    return record
