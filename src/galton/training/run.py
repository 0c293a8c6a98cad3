"""One private training run: the batches and the noise of a plan, bound to a folder from which it can be resumed.

Training code asks in turn for the batch of the next round and for its noise, and can get nothing but what was
analysed. Frameworks have thin adapters around this (`training/jax.py`, `training/torch.py`, `training/opacus.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from galton import files
from galton.batching import Batch, Batches
from galton.errors import GaltonError, InvalidArgument, InvalidFile
from galton.fields import Fields
from galton.noise import CorrelatedNoise, NoiseRun, key_from_seed
from galton.noise.checkpoint import read_state, write_state
from galton.noise.journal import open_exclusively
from galton.noise.layout import Tree, layout_of
from galton.plan import Plan, Trust, establish_trust, load_plan
from galton.provenance import now, versions
from galton.typechecking import typechecked

FORMAT = "galton-run"
RECORD_FORMAT = "galton-record"
VERSION = 1

ROUNDING = 2.0**-16
"""Gradients are clipped to a norm smaller by this share, which exceeds the rounding error of norms in float32."""


class PlanViolated(GaltonError):
    """Raised when training departs from the plan; train as it says, or make another plan."""


def check_same(name: str, value: Any, planned: Any) -> None:
    """Raises `PlanViolated` unless a value is the plan's.

    Args:
      name: of the value, for the error.
      value: what the run has.
      planned: what the plan says.
    """
    if value != planned:
        raise PlanViolated(f"{name} = {value}: the plan was made for {planned}; train with that, or make another plan")


@typechecked
class TrainingRun:
    """One training run of a plan: gives its batches and its noise, round by round, and resumes from its folder.

    Args:
      plan: a plan, or the folder of one.
      folder: of this run; created if it does not exist, resumed from if it does. It has secrets (the seed of the
        batches, the key of the noise) and is readable by its owner only.
      params: the model's parameters, a JAX tree of arrays, for their shapes.
      examples: number of examples in the data set; must be the plan's.
      clip_norm: l2 norm that gradients are clipped to; must be the plan's.
      form: of the noise, `buffers` or `recompute`; see `CorrelatedNoise`.
      strict: allow no replay of rounds after a crash; see `Journal`.
      shuffled: confirms that the data was shuffled by `shuffle_records`, in secret; needed for a streaming plan.
      reshuffled: confirms that it is shuffled so anew for every epoch; needed, instead, for a streaming plan whose bins
        are redrawn.
      seed: of batches and noise, for tests and repeatable studies only: whoever can guess it can undo the protection.
      pinned: the plan's hash (`Plan.digest`), if only that plan will do.
      trusted_key: public key, or its file (PEM), that must have signed the plan, if only a signed one will do.

    Attributes:
      plan: the plan.
      trust: why the run may start from it. A plan that is neither pinned, nor signed, nor made or verified before by
        this user is verified when the run is opened, and refused (`PlanNotTrusted`) if that fails; see
        `establish_trust`.
      folder: the folder.

    Formal guarantees:
      - Batches and noise are those of the plan. A run that releases only what it computed from noisy sums, with
        gradients clipped, summed and divided as the plan says (`plan.CONVENTION`), has the plan's guarantee, as sure as
        the plan is for the reason in `trust`. So has a run that stops early.
      - Each round gets its noise once, in order, for its own batch; after a crash again, for the same batch only and,
        where the sum is passed to `noise`, for the same sum only (`noise/journal.py`).

    Example:
        with TrainingRun("plan", "run", params, examples=len(data), clip_norm=1.0) as run:
            while not run.done:
                batch = run.batch
                total = clipped_sum(params, batch.take(data), batch.mask)
                noisy = (total + run.noise(total)) / run.plan.expected_batch_size
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        folder: str | Path,
        params: Tree,
        *,
        examples: int,
        clip_norm: float,
        form: str = "buffers",
        strict: bool = False,
        shuffled: bool = False,
        reshuffled: bool = False,
        seed: int | None = None,
        pinned: str | None = None,
        trusted_key: str | Path | bytes | None = None,
    ) -> None:
        self.plan = plan if isinstance(plan, Plan) else load_plan(plan)
        if self.plan.scheme.reshuffled_data:
            if not reshuffled:
                raise PlanViolated(
                    "plan: its batches are slices of data that is shuffled anew for every epoch, in secret; read that "
                    "by galton.batching.stream_epochs and say reshuffled=True, or plan balls-in-bins-redrawn for data "
                    "at hand"
                )
        elif self.plan.scheme.shuffled_data and not shuffled:
            raise PlanViolated(
                "plan: its batches are slices of data that was shuffled once, in secret; read that by "
                "galton.batching.stream and say shuffled=True, or plan balls-in-bins for data at hand"
            )
        check_same("examples", examples, self.plan.examples)
        check_same("clip_norm", clip_norm, self.plan.clip_norm)
        layout_of(params)  # refuses what is no tree of arrays
        self.folder = Path(folder)
        self.trust: Trust = establish_trust(
            self.plan, pinned=pinned, trusted_key=trusted_key, resumed=self._run_file.exists()
        )
        try:
            files.make_folder(self.folder, mode=0o700)
        except OSError as error:
            raise InvalidFile(f"{self.folder}: cannot be made ({error.strerror})") from None
        resumed = self._run_file.exists()
        old = any((self.folder / name).exists() for name in ("noise.npz", "noise.journal"))
        if old and not resumed:
            raise InvalidFile(f"{self._run_file}: is missing; without it a run cannot go on with its own batches")
        self._shapes = jax.eval_shape(lambda tree: tree, params)  # holds on to no array
        self._strict, self._state_taken = strict, False
        self._lock = open_exclusively(self.folder / "run.lock")
        try:
            self._open_or_begin(resumed, seed)
            key = None if seed is None or old else key_from_seed(seed)
            self._noise = self._open_noise(self.plan.noise(form), key)
        except BaseException:
            self._lock.close()
            raise

    def _open_noise(self, noise: CorrelatedNoise, key: jax.Array | None = None) -> NoiseRun:
        """Opens the noise; its journal is bound to the plan and to the seed of the batches."""
        belongs = f"{self.plan.digest} {files.digest(self._body['batches'])}"
        return NoiseRun(self.folder, noise, self._shapes, belongs, key, self._strict)

    @property
    def _run_file(self) -> Path:
        return self.folder / "run.json"

    def _open_or_begin(self, resumed: bool, seed: int | None) -> None:
        if resumed:
            body = files.read_json(self._run_file)
            if body.get("format") != FORMAT or body.get("version") != VERSION:
                raise InvalidFile(f"{self._run_file}: must be a {FORMAT} of version {VERSION}")
            try:
                known = Fields("run", body)
                plan, state, resumptions = known.text("plan"), known.inner("batches"), known.count("resumptions")
                size, _, _ = state.count("physical", 1), known.truth("seed_chosen_by_user"), known.text("started")
            except InvalidArgument as error:
                raise InvalidFile(f"{self._run_file}: does not hold together ({error}); begin a new run") from None
            check_same("plan", plan, self.plan.digest)
            check_same("padded_batch_size", size, self.plan.padded_batch_size)
            self._body = body | {"resumptions": resumptions + 1}
        else:
            batches = self.plan.batches(seed)
            self._body = {
                "format": FORMAT,
                "version": VERSION,
                "plan": self.plan.digest,
                "batches": batches.state(),
                "seed_chosen_by_user": seed is not None,
                "started": now(),
                "resumptions": 0,
            }
        self._batches = Batches.resume(self.plan.scheme, self._body["batches"])
        files.write_text(self._run_file, files.pretty(self._body), secret=True)

    @property
    def round(self) -> int:
        """The next round, counted from 0."""
        return self._noise.round

    @property
    def rounds(self) -> int:
        """Number of rounds that were planned."""
        return self.plan.rounds

    @property
    def done(self) -> bool:
        """Whether all rounds have had their noise."""
        return self.round >= self.rounds

    @property
    def begun(self) -> bool:
        """Whether rounds were saved, so that training has to go on from the model that was saved with them."""
        return max(self.round, self._noise.journal.saved) > 0

    @property
    def released(self) -> int:
        """Number of rounds that have had their noise, saved or not."""
        return self._noise.journal.released

    @property
    def resumptions(self) -> int:
        """How often the run was resumed."""
        return int(self._body["resumptions"])

    @property
    def batch(self) -> Batch:
        """The batch of the next round."""
        self._check_not_done()
        return self._batches.at(self.round)

    def epoch(self) -> Iterator[Batch]:
        """Yields the batches from the next round to the end of its epoch, for loaders that read ahead.

        The run itself moves on with `noise` only. It does no harm to stop early: another call begins with the round
        that is next by then.

        Yields:
          The batches in order.
        """
        self._check_not_done()
        start, size = self.round, self.plan.bins
        for turn in range(start, min(self.rounds, (start // size + 1) * size)):
            yield self._batches.at(turn)

    def token(self, batch: Batch) -> str:
        """Returns a keyed hash of a batch or micro-batch, by which an optimiser recognises what a loader delivered.

        Args:
          batch: a batch or micro-batch of this run.

        Returns:
          64 hexadecimal digits.
        """
        content = f"{self.plan.digest} {batch.round} ".encode() + batch.indices.tobytes()
        return hmac.new(self._secret, content, hashlib.sha256).hexdigest()

    @property
    def _secret(self) -> bytes:
        return b"galton batch" + np.asarray(self._noise.state.key, "<u4").tobytes()

    def noise(self, total: Tree | None = None) -> Tree:
        """Returns the noise for the sum of the next round's clipped gradients, and moves on to the round after it.

        The last round also writes the record of the run.

        Args:
          total: the sum that the noise will be added to. It is hashed: a round that is computed again after a crash
            gets its noise only if the sum is the same, bit by bit. Without it only the batch is compared.

        Returns:
          The noise, a tree of arrays like the parameters.
        """
        batch = self.batch
        self._count_state_as_saved()
        noise = self._noise.next(batch.examples, total)
        if self.done:
            self.record()
        return noise

    def save(self, write: Callable[[Path], object] | None = None) -> None:
        """Saves the run before the next round; earlier rounds cannot be computed again afterwards.

        Args:
          write: write(path) writes the model (and its optimiser) to a file. It is called before the noise is saved, so
            that after a crash in between the model and the noise of the last checkpoint still belong together.
        """
        if write is not None:
            with files.replacing(self._model_file(self.round), secret=True) as temporary:
                write(temporary)
        self._noise.save()
        self._state_taken = False
        for old in self.folder.glob("model-*"):
            if write is not None and old != self._model_file(self.round):
                old.unlink()
        self.record()

    def state(self) -> dict[str, Any]:
        """Returns the state of the run before the next round, for training code with checkpoints of its own.

        Write it to disk at once: as soon as training goes on or the run is closed it counts as saved, and older states
        are refused from then on.

        Returns:
          The plan's hash, the batches (with their seed) and the noise (key, round, buffers), as plain values. They are
          secrets.
        """
        noise = io.BytesIO()
        write_state(noise, self._noise.noise, self._noise.state)
        self._state_taken = True
        return {"plan": self.plan.digest, "batches": dict(self._body["batches"]), "noise": noise.getvalue()}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state of this run; it counts as saved.

        Raises `PlanViolated` for a state of another plan or run, and `NoiseReused` for one older than the last that was
        saved: the rounds after it have had their noise.

        Args:
          state: what `state` returned, in this folder.
        """
        if not isinstance(state, dict) or not {"plan", "batches", "noise"} <= set(state):
            raise PlanViolated("state: has no run in it; was it saved without the plan's noise?")
        check_same("plan", state["plan"], self.plan.digest)
        if state["batches"] != self._body["batches"]:
            raise PlanViolated(f"state: belongs to other batches than the run in {self.folder}")
        restored = read_state(state["noise"], "state", self._noise.noise, self._shapes)
        if not np.array_equal(restored.key, self._noise.state.key):
            raise PlanViolated(f"state: has another noise key than the run in {self.folder}")
        with files.replacing(self.folder / "noise.npz", secret=True) as temporary:
            temporary.write_bytes(state["noise"])
            self._count_state_as_saved()
            self._noise.journal.checkpoint(int(restored.round))
        noise = self._noise.noise
        self._noise.close()
        self._noise = self._open_noise(noise)

    def _count_state_as_saved(self) -> None:
        """Records in the journal that a state which `state` returned before the next round counts as saved."""
        if self._state_taken:
            self._noise.journal.checkpoint(self.round)
            self._state_taken = False

    @property
    def model(self) -> Path | None:
        """The model file that `save` wrote before the next round; None before the first save."""
        path = self._model_file(self.round)
        if path.exists():
            return path
        if self.round:
            raise InvalidFile(f"{path}: is missing; the run cannot go on without the model of its round")
        return None

    def record(self) -> dict[str, Any]:
        """Writes the record of what ran to record.json, and returns it.

        It is signed with the key of the run, so that the owner of the folder can tell that it was written there.
        Nothing in it depends on the data or on which examples were in which batch.

        Returns:
          The record with its signature.
        """
        body: dict[str, Any] = {
            "format": RECORD_FORMAT,
            "version": VERSION,
            "plan": self.plan.digest,
            "trust": self.trust.to_json(),
            "guarantee": self.plan.guarantee.to_json(),
            "rounds_planned": self.rounds,
            "rounds_done": self.round,
            "rounds_released": self.released,
            "completed": self.done,
            "resumptions": self.resumptions,
            "rounds_replayed": self._noise.journal.replays,
            "seed_chosen_by_user": self._body["seed_chosen_by_user"],
            "noise_form": self._noise.noise.form,
            "started": self._body["started"],
            "written": now(),
            "versions": versions(),
        }
        signed = body | {"signature": _signature(np.asarray(self._noise.state.key), body)}
        files.write_text(self.folder / "record.json", files.pretty(signed))
        return signed

    def close(self) -> None:
        """Writes the record and unlocks the folder."""
        try:
            self._count_state_as_saved()
            self.record()
        finally:
            self._noise.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state_taken &= error is None  # after an error, the state may not have been written
        self.close()

    def _check_not_done(self) -> None:
        if self.done:
            raise PlanViolated(f"round = {self.round}: the plan has {self.rounds} rounds, and all are done")

    def _model_file(self, turn: int) -> Path:
        return self.folder / f"model-{turn}"


@typechecked
def check_record(folder: str | Path) -> dict[str, Any]:
    """Reads the record of a run and checks its signature; raises `InvalidFile` if it was changed.

    Args:
      folder: of the run; it has the key that the record was signed with.

    Returns:
      The record without its signature.
    """
    path = Path(folder) / "record.json"
    body = files.read_json(path)
    signature = body.pop("signature", None)
    try:
        with np.load(Path(folder) / "noise.npz") as saved:
            key = saved["key"]
    except (OSError, ValueError, KeyError):
        raise InvalidFile(f"{folder}: has no noise state to check the record against") from None
    if body.get("format") != RECORD_FORMAT or signature != _signature(key, body):
        raise InvalidFile(f"{path}: is not the record of this run, or was changed")
    return body


def _signature(key: Any, body: dict[str, Any]) -> str:
    secret = b"galton record" + np.asarray(key, "<u4").tobytes()
    return "hmac-sha256:" + hmac.new(secret, files.canonical(body).encode(), hashlib.sha256).hexdigest()
