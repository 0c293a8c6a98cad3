"""One private training run: the batches and the noise of a plan, bound to a folder from which it can be resumed.

Training code asks in turn for the batch of the next round and for its noise, and can get nothing but what was
analysed. Frameworks have thin adapters around this (`training/jax.py`, `training/torch.py`, `training/opacus.py`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import jax

from galton import files
from galton.batching import Batches
from galton.errors import InvalidFile
from galton.noise import NoiseRun, NoiseState, key_from_seed
from galton.noise.checkpoint import read_state
from galton.noise.choice import chosen_form
from galton.noise.journal import open_exclusively
from galton.noise.layout import Tree, layout_of, shapes_of
from galton.plan import Plan, Trust, establish_trust, load_plan
from galton.provenance import environment, now, versions
from galton.training.checkpoints import find_checkpoint, keep_checkpoint, publish_model, write_checkpoint
from galton.training.clipping import Clipping
from galton.training.fit import check_fits
from galton.training.folder import FORKED, LOCK, RUN, begin_body, read_body, renamed, write_body
from galton.training.lost import LostRounds, RoundsSkipped
from galton.training.record import RECORD, begin_record, sign_record
from galton.training.rounds import PlanViolated, Rounds, check_same
from galton.typechecking import typechecked

Result = TypeVar("Result")
_FLAT = Clipping()


@typechecked
class TrainingRun(Rounds):
    """One training run of a plan: gives its batches and its noise, round by round, and resumes from its folder.

    Args:
      plan: a plan, or the folder of one.
      folder: of this run; created if it does not exist, resumed from if it does. It has secrets (the seed of the
        batches, the key of the noise) and is readable by its owner only.
      params: the model's parameters, a JAX tree of arrays, for their shapes.
      examples: number of examples in the data set; must be the plan's.
      clip_norm: l2 norm that gradients are clipped to; must be the plan's.
      form: of the noise, `buffers` or `recompute`, see `CorrelatedNoise`; or `auto:2GB`, which takes buffers if they
        fit into so much memory, else recomputes.
      strict: never compute a round again: those that a crash lost are skipped.
      shuffled: confirms that the data was shuffled by `shuffle_records`, in secret; needed for a streaming plan.
      reshuffled: confirms that it is shuffled so anew for every epoch; needed, instead, for a streaming plan whose bins
        are redrawn.
      per_user: the most examples of a user in a round, for a plan whose unit is a user; must be the plan's. `examples`
        is then the number of users, and so are the indices of batches: `galton.batching.Users` gives their examples.
      clipping: how gradients are clipped, of the kind that the plan says; the record repeats it.
      seed: of batches and noise, for tests and repeatable studies only: whoever can guess it can undo the protection.
      pinned: the plan's hash (`Plan.digest`), if only that plan will do.
      trusted_key: public key, or its file (PEM), that must have signed the plan, if only a signed one will do.

    Attributes:
      plan: the plan.
      trust: why the run may start from it. A plan that is neither pinned, nor signed, nor made or verified before by
        this user is verified when the run is opened, and refused (`PlanNotTrusted`) if that fails; see
        `establish_trust`.
      folder: the folder.
      clipping: as given.

    Formal guarantees:
      - Batches and noise are those of the plan. A run that releases only what it computed from noisy sums, with
        gradients clipped, summed and divided as the plan says (`plan.conventions`), has the plan's guarantee, as sure
        as the plan is for the reason in `trust`. So has a run that stops early, and one that skipped rounds.
      - Each round gets its noise once, in order, for its own batch. After a crash it gets it again for the same sum
        only, bit by bit (`noise/journal.py`); else the rounds that were lost are skipped (docs/math.md, section 12).
        Also skipped are rounds lost on another machine or with other libraries, and rounds whose sum is not passed to
        `noise`.
      - Nothing that leaves the folder by `state` or `publish` is secret. A copy of the folder draws noise of its own in
        all rounds that had none when it was made, and its record says that it is a copy.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> from galton import Guarantee, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> weights, gradients = np.zeros(2, np.float32), np.full((64, 2), 0.5, np.float32)  # of norm 0.71, at most 1
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with TrainingRun(plan, folder, weights, examples=64, clip_norm=1.0) as run:
      ...         while not run.done:
      ...             total = run.batch.take(gradients).sum(axis=0)
      ...             weights -= (total + run.noise(total)) / plan.expected_batch_size
      ...         run.round, run.record()["completed"]
      (4, True)
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
        per_user: int | None = None,
        clipping: Clipping = _FLAT,
        seed: int | None = None,
        pinned: str | None = None,
        trusted_key: str | Path | bytes | None = None,
    ) -> None:
        self.plan = plan if isinstance(plan, Plan) else load_plan(plan)
        check_fits(
            self.plan,
            examples=examples,
            clip_norm=clip_norm,
            clipping=clipping,
            per_user=per_user,
            shuffled=shuffled,
            reshuffled=reshuffled,
        )
        self.clipping = clipping
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
        self._shapes = shapes_of(params)
        self._strict, self._state_taken = strict, False
        self._lock = open_exclusively(self.folder / LOCK)
        try:
            place = os.fstat(self._lock.fileno()).st_ino
            same_machine, is_copy = self._open_or_begin(resumed, seed, place)
            if not old and (self._body["begun"] or (self.folder / RECORD).exists()):
                raise InvalidFile(
                    f"{self.folder / 'noise.journal'}: is missing; without it rounds that have had their noise would "
                    "have other noise once more. Copy a run folder as a whole"
                )
            key = None if seed is None or old else key_from_seed(seed, self.plan.digest)
            belongs = f"{self.plan.digest} {files.digest(self._body['batches'])}"
            renew = is_copy or not self._body["seed_chosen_by_user"]
            noise = self.plan.noise(chosen_form(form, self.plan.strategy, self._shapes))
            self._noise = NoiseRun(self.folder, noise, self._shapes, belongs, key, strict, renew)
        except BaseException:
            self._lock.close()
            raise
        try:
            if is_copy:
                self._note_copy()
            self._body["begun"] = True
            write_body(self.folder, self._body)
            keep_checkpoint(self.folder, self._noise.origin)  # a kill may have come before `save` did
            if is_copy and not self._forked:
                self._warn(
                    f"{self.folder}: was copied or moved since it was last used; rounds from {self.released} on have "
                    "noise of their own, and if the other copy goes on too, both together are less private than the "
                    "plan says"
                )
            self._skip_what_cannot_be_replayed(same_machine)
        except BaseException:
            self._noise.close()
            self._lock.close()
            raise

    @property
    def _run_file(self) -> Path:
        return self.folder / RUN

    def _open_or_begin(self, resumed: bool, seed: int | None, place: int) -> tuple[bool, bool]:
        """Sets what run.json holds; returns whether the machine is that of the last start, and the folder a copy."""
        machine = environment() + " " + " ".join(sorted({device.device_kind for device in jax.devices()}))
        same_machine, is_copy = True, False
        if resumed:
            self._body = read_body(self.folder)
            check_same("plan", self._body["plan"], self.plan.digest)
            check_same("padded_batch_size", self._body["batches"]["physical"], self.plan.padded_batch_size)
            same_machine = self._body["environment"] in (None, machine)
            is_copy = self._body["place"] not in (None, place)
            self._forked = self._body["place"] == FORKED
            self._body |= {"resumptions": self._body["resumptions"] + 1}
        else:
            self._body = begin_body(self.plan.digest, self.plan.batches(seed).state(), seed is not None)
        self._body |= {"place": place, "environment": machine}
        self._batches = Batches.resume(self.plan.scheme, self._body["batches"])
        if not resumed:
            write_body(self.folder, self._body)
        return same_machine, is_copy

    def _note_copy(self) -> None:
        """The folder is a fork, or was copied or moved without being made one: from here on it is a run of its own."""
        how = "galton fork" if self._forked else "copied or moved"
        self._body["forks"] = [*self._body["forks"], {"round": self.released, "how": how}]
        if not self._forked:
            self._body |= renamed(self._body)

    def _skip_what_cannot_be_replayed(self, same_machine: bool) -> None:
        """Decides by what does not depend on the data: another machine hardly ever gives the same bits."""
        if self.round < self.released:
            if self._strict or self.round < self._noise.journal.saved:
                self._skip("are not computed again")
            elif not same_machine:
                self._skip("were computed on another machine or with other libraries")

    def _skip(self, why: str, first: int | None = None) -> None:
        first = self.round if first is None else first
        self._noise.skip(first)
        self._warn(
            f"{self.folder}: rounds {first} to {self.round - 1} have had their noise and {why}; they are skipped"
        )

    def _warn(self, words: str) -> None:
        warnings.warn(words, LostRounds, stacklevel=4)

    @property
    def round(self) -> int:
        """The next round, counted from 0."""
        return self._noise.round

    @property
    def stopped(self) -> bool:
        """Whether the run was ended for good (`stop_run`)."""
        return self._body["stopped"] is not None

    @property
    def _secret(self) -> bytes:
        return self._noise.secret

    @property
    def begun(self) -> bool:
        """Whether rounds were saved, so that training has to go on from the model that was saved with them."""
        return max(self._noise.origin, self._noise.journal.saved) > 0

    @property
    def released(self) -> int:
        """Number of rounds that have had their noise, saved or not."""
        return self._noise.journal.released

    @property
    def resumptions(self) -> int:
        """How often the run was resumed."""
        return int(self._body["resumptions"])

    def noise(self, total: Tree | None = None) -> Tree:
        """Returns the noise for the sum of the next round's clipped gradients, and moves on to the round after it.

        The last round also writes the record of the run. Raises `RoundsSkipped` for a round that was computed before
        and does not come out the same.

        Args:
          total: the sum that the noise will be added to. It is hashed: a round that is computed again after a crash
            gets its noise only if the sum is the same, bit by bit. Without it no round is computed again.

        Returns:
          The noise, a tree of arrays like the parameters.
        """
        batch = self.batch
        self._count_state_as_saved()
        if self.round < self.released:
            objection = self._noise.objection(batch.examples, total)
            if objection:
                turn = self.round
                self._noise.skip()
                raise RoundsSkipped(
                    f"{self.folder}: round {turn} has had its noise {objection}; it is not given again, and the run "
                    f"has gone on to round {self.round}: take the next batch"
                )
        noise = self._noise.next(batch.examples, total)
        if self.done:
            self.record()
        return noise

    @property
    def noise_state(self) -> NoiseState:
        """The noise state before the next round; it has the secret keys."""
        return self._noise.state

    def save(self, write: Callable[[Path], object] | None = None, buffers: list[Any] | None = None) -> None:
        """Saves the run before the next round; earlier rounds cannot be computed again afterwards.

        Args:
          write: write(path) writes the model and its optimiser to a file that stays in the folder. It is called before
            the noise is saved, so that after a crash in between the model and the noise of the last checkpoint still
            belong together.
          buffers: see `NoiseRun.save`.
        """
        turn = self.round
        if write is not None:
            write_checkpoint(self.folder, turn, write)
        self._noise.save(buffers)
        self._state_taken = False
        if write is not None:
            keep_checkpoint(self.folder, turn)
        self.record()

    def publish(self, write: Callable[[Path], object], suffix: str) -> None:
        """Writes the model alone, for others: to the file `model` with this suffix, which `galton release` packs.

        Args:
          write: write(path) writes the model, and nothing that was not computed from noisy sums.
          suffix: of the file, as in `.npz`.
        """
        self._body["model"] = publish_model(self.folder, write, suffix) | {"round": self.round}
        write_body(self.folder, self._body)

    def state(self) -> dict[str, Any]:
        """Returns the state of the run before the next round, for training code with checkpoints of its own.

        Write it to disk at once: as soon as training goes on or the run is closed it counts as saved.

        Returns:
          The plan's hash, the name of the run and the round. Nothing in it is secret: seeds, keys and noise stay in
          the folder.
        """
        self._state_taken = True
        return {"plan": self.plan.digest, "run": self._body["id"], "round": self.round}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state of this run, or of the run that this folder was forked from.

        Rounds after it can be computed again if it is the last that was saved, or a later one. Else, and with `strict`,
        they are skipped. Raises `PlanViolated` for a state of another plan or run.

        Args:
          state: what `state` returned.
        """
        if not isinstance(state, dict) or "plan" not in state or not {"round", "noise"} & set(state):
            raise PlanViolated("state: has no run in it; was it saved without the plan's noise?")
        check_same("plan", state["plan"], self.plan.digest)
        turn, own = self._round_of(state)
        if not 0 <= turn <= self.released:
            raise PlanViolated(f"state: is from round {turn}, which the run in {self.folder} has not reached")
        self._count_state_as_saved()
        if (turn == self.released or (own and not self._strict)) and self._noise.back_to(turn):
            return
        self._skip("are not in the state that was loaded", turn)

    def _round_of(self, state: dict[str, Any]) -> tuple[int, bool]:
        """Returns the round of a state, and whether it is of this very folder; refuses states of other runs."""
        if "round" in state:
            turn, name = state["round"], state.get("run")
            if not isinstance(turn, int) or name not in (self._body["id"], *self._body["ancestors"]):
                raise PlanViolated(f"state: belongs to another run than the one in {self.folder}")
            return turn, name == self._body["id"]
        if state.get("batches") != self._body["batches"]:  # as galton 0.1 wrote it, with its secrets
            raise PlanViolated(f"state: belongs to other batches than the run in {self.folder}")
        old = read_state(state["noise"], "state", self._noise.noise, self._shapes)
        return int(old.round), not self._body["ancestors"]

    def _count_state_as_saved(self) -> None:
        """Saves the noise of a state which `state` returned before the next round."""
        if self._state_taken:
            self._noise.save()
            self._state_taken = False

    @property
    def checkpoint(self) -> Path | None:
        """The file that `save` wrote last, from which training goes on; None before the first save."""
        return find_checkpoint(self.folder, self._noise.origin)

    def load(self, read: Callable[[Path], Result]) -> Result | None:
        """Returns the content of the last checkpoint; None before the first.

        Args:
          read: read(path) reads what the `write` of `save` wrote.

        Returns:
          What was saved.
        """
        return None if self.checkpoint is None else read(self.checkpoint)

    def gathered(self, value: Result) -> list[Result]:
        """Returns the values of all processes of the run: here there is one.

        Args:
          value: of this process.

        Returns:
          All of them.
        """
        return [value]

    def record(self) -> dict[str, Any]:
        """Writes the record of what ran to record.json, and returns it.

        It is signed with the key of the run, so that the owner of the folder can tell that it was written there.
        Nothing in it depends on the data or on which examples were in which batch.

        Returns:
          The record with its signature.
        """
        journal = self._noise.journal
        return sign_record(
            self.folder,
            self._noise.secret,
            begin_record(self.plan, self._body)
            | {
                "trust": self.trust.to_json(),
                "clipping": self.clipping.to_json(),
                "rounds_planned": self.rounds,
                "rounds_done": self.round,
                "rounds_released": self.released,
                "completed": self.round >= self.rounds,
                "resumptions": self.resumptions,
                "rounds_replayed": journal.replays,
                "rounds_skipped": [[first, after - 1] for first, after in journal.skips],
                "noise_form": self._noise.noise.form,
                "written": now(),
                "versions": versions(),
            },
        )

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
