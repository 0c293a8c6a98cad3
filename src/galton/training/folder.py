"""What identifies a run in its folder, `run.json`, and forks: copies of a run that go on by themselves."""

from __future__ import annotations

import secrets
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

from galton import files
from galton.errors import InvalidArgument, InvalidFile
from galton.fields import Fields
from galton.noise.journal import open_exclusively
from galton.provenance import now
from galton.typechecking import typechecked

RUN, LOCK = "run.json", "run.lock"
FORMAT = "galton-run"
VERSION = 2
FIRST_VERSION = 1
"""Written by galton 0.1, without a name for the run; such a run goes on, and gets one."""
FORKED = 0
"""The place of a fork that was never opened: no folder's inode."""
_COPIED = ("noise.npz", "noise.keys", "noise.journal", "checkpoint-*", "model-*")

Body = dict[str, Any]
"""The content of run.json. It is a secret: it has the seed of the batches."""


def begin_body(plan: str, batches: dict[str, Any], seed_chosen_by_user: bool) -> Body:
    """Returns the content of run.json for a new run."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "plan": plan,
        "batches": batches,
        "seed_chosen_by_user": seed_chosen_by_user,
        "started": now(),
        "resumptions": 0,
    } | _identity()


def _identity() -> Body:
    """What version 2 added: a public name, those it was forked from, where the folder is, and on what it last ran."""
    identity: Body = {"id": secrets.token_hex(16), "ancestors": [], "forks": []}
    return identity | {"place": None, "environment": None, "model": None, "stopped": None, "begun": False}


def renamed(body: Body) -> Body:
    """Returns a new name for a run that was copied, and the old one among its ancestors."""
    return {"id": secrets.token_hex(16), "ancestors": [*body["ancestors"], body["id"]]}


def write_body(folder: Path, body: Body) -> None:
    """Writes run.json, readable by its owner only."""
    files.write_text(folder / RUN, files.pretty(body), secret=True)


def read_body(folder: Path) -> Body:
    """Reads run.json; raises `InvalidFile` for what galton did not write."""
    path = folder / RUN
    body = files.read_json(path)
    if body.get("format") != FORMAT or body.get("version") not in (FIRST_VERSION, VERSION):
        raise InvalidFile(f"{path}: must be a {FORMAT} of version {FIRST_VERSION} or {VERSION}")
    if body["version"] == FIRST_VERSION:
        body |= {"version": VERSION} | _identity()
    try:
        known = Fields("run", body)
        known.inner("batches").count("physical", 1)
        known.count("resumptions")
        known.truth("seed_chosen_by_user")
        if body.setdefault("stopped", None) is not None:
            known.mapping("stopped")
        body.setdefault("begun", False)
        known.truth("begun")
        for name in ("plan", "started", "id"):
            known.text(name)
        for name in ("ancestors", "forks"):
            known.sequence(name)
        for name in ("place", "environment", "model"):
            if name not in body:
                raise InvalidArgument("run", sorted(body), f"must have the field {name}")
    except InvalidArgument as error:
        raise InvalidFile(f"{path}: does not hold together ({error}); begin a new run") from None
    return body


@typechecked
def fork_run(folder: str | Path, new: str | Path) -> Path:
    """Copies a run to a new folder in which it goes on by itself, with noise of its own.

    The copy has the saved model, the batches and the noise of all rounds that have had it; rounds after those get
    normals that are independent of the original's.

    Formal guarantee: each of the two runs alone has the plan's guarantee. If both go on, what both release together is
    less private: the record of the fork says by how much, for known batches (docs/math.md, section 12).

    Args:
      folder: of the run; no process may have it open.
      new: folder to be made.

    Returns:
      The new folder.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> from galton import Guarantee, TrainingRun, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with TrainingRun(plan, f"{folder}/run", {"w": np.zeros(2, np.float32)}, examples=64, clip_norm=1.0):
      ...         pass
      ...     fork_run(f"{folder}/run", f"{folder}/fork").name
      'fork'
    """
    source, target = Path(folder), Path(new)
    if target.exists():
        raise InvalidFile(f"{target}: is there already; a fork needs a new folder")
    body = read_body(source)
    if body["stopped"] is not None:
        raise InvalidFile(f"{source}: was stopped for good; its record says that no round follows")
    with closing(open_exclusively(source / LOCK)):
        if not (source / "noise.journal").exists():
            raise InvalidFile(f"{source}: has not begun; there is nothing to fork")
        with files.new_folder(target) as temporary:
            temporary.chmod(0o700)
            for path in (path for pattern in _COPIED for path in source.glob(pattern)):
                shutil.copyfile(path, temporary / path.name)
                (temporary / path.name).chmod(0o600)
            write_body(temporary, body | renamed(body) | {"place": FORKED, "model": None})
    return target
