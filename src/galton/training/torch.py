"""Training in PyTorch with what a plan analysed: padded batches, per-example clipping, and an optimiser with the noise.

    run = open_run("plan", "run", model, examples=len(data), clip_norm=1.0)
    optimizer = PrivateOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model, run)
    while not run.done:
        for batch in plan_loader(run, data):                     # one epoch
            optimizer.accumulate(loss, batch)
            optimizer.step()

or all of it, with checkpoints: `train`. The noise is that of `galton.noise`, handed over in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from galton.errors import MissingExtra

try:
    import torch
except ModuleNotFoundError:
    raise MissingExtra("galton.training.torch", "torch", "torch") from None
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from galton.batching import Users
from galton.errors import count
from galton.noise.layout import Piece
from galton.plan import Plan, load_plan
from galton.training.clipping import Clipping
from galton.training.diagnostics import Diagnostics, Receiver, keep_diagnostics
from galton.training.hooks import OnRound
from galton.training.progress import progress_bar
from galton.training.run import TrainingRun
from galton.training.termination import Termination
from galton.training.torch_batches import PaddedBatch, plan_loader, size_of
from galton.training.torch_clipping import Forward, Loss, clipped_sum, trainable, user_loss
from galton.training.torch_ghost import ghost_clipped_sum
from galton.training.torch_optimizer import AnyRun, ClippedSum, PrivateOptimizer, without_run, write_tensors
from galton.training.torch_processes import FIRST, SharedRun, check_plain
from galton.training.torch_sharded import (
    ShardedRun,
    Shards,
    check_shards,
    check_whole,
    cut_states,
    gathered,
    is_sharded,
    load_model,
    noise_dtype,
    reshard,
)

__all__ = [
    "Forward",
    "Loss",
    "PaddedBatch",
    "PrivateOptimizer",
    "RoundState",
    "SharedRun",
    "clipped_sum",
    "ghost_clipped_sum",
    "open_run",
    "plan_loader",
    "share_run",
    "train",
    "user_loss",
]


def open_run(
    plan: Plan | str | Path,
    folder: str | Path,
    model: nn.Module,
    *,
    examples: int,
    clip_norm: float,
    form: str = "buffers",
    strict: bool = False,
    shuffled: bool = False,
    reshuffled: bool = False,
    per_user: int | None = None,
    clipping: Clipping | None = None,
    seed: int | None = None,
    pinned: str | None = None,
    trusted_key: str | Path | bytes | None = None,
) -> TrainingRun:
    """Opens a training run for the trainable parameters of a model.

    Args:
      plan: a plan, or the folder of one.
      folder: of the run; created if it does not exist, resumed from if it does. It has secrets.
      model: the model; only the shapes of its trainable parameters are used.
      examples: number of examples in the data set, or of users where they are the unit; must be the plan's.
      clip_norm: l2 norm that gradients are clipped to; must be the plan's.
      form: of the noise: `buffers`, `recompute`, or `auto:2GB`; see `TrainingRun`.
      strict: never compute a round again: those that a crash lost are skipped.
      shuffled: confirms that the data was shuffled in secret; see `TrainingRun`.
      reshuffled: confirms that it is shuffled so anew for every epoch; see `TrainingRun`.
      per_user: the most examples of a user in a round, for a plan whose unit is a user; must be the plan's.
      clipping: how gradients are clipped, of the kind that the plan says; see `galton.training.clipping`.
      seed: of batches and noise, for tests and repeatable studies only; see `TrainingRun`.
      pinned: the plan's hash, if only that plan will do; see `TrainingRun`.
      trusted_key: public key, or its file, that must have signed the plan; see `TrainingRun`.

    Returns:
      The run.

    Example:
      >>> import tempfile
      >>> import galton
      >>> import torch
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> model = torch.nn.Linear(2, 1)
      >>> with (
      ...     tempfile.TemporaryDirectory() as folder,
      ...     open_run(plan, folder, model, examples=64, clip_norm=1.0) as run,
      ... ):
      ...     optimizer = PrivateOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, run)
      ...     print(f"{run.round} rounds of {plan.rounds} done")
      0 rounds of 4 done
    """
    check_plain(model)
    check_whole(model)
    return _begin(
        plan,
        folder,
        model,
        examples=examples,
        clip_norm=clip_norm,
        form=form,
        strict=strict,
        shuffled=shuffled,
        reshuffled=reshuffled,
        per_user=per_user,
        clipping=clipping,
        seed=seed,
        pinned=pinned,
        trusted_key=trusted_key,
    )


def _begin(
    plan: Plan | str | Path, folder: str | Path, model: nn.Module, *, clipping: Clipping | None = None, **options: Any
) -> TrainingRun:
    return TrainingRun(plan, folder, _shapes(model), clipping=clipping or Clipping(), **options)


def share_run(plan: Plan | str | Path, folder: str | Path, model: nn.Module, **options: Any) -> SharedRun:
    """Opens a training run that all processes of `torch.distributed` share; all must make this call.

    Each process computes its part of every batch (`plan_loader`); `PrivateOptimizer` sums over all of them.

    Args:
      plan: a plan, or the folder of one.
      folder: of the run; only rank 0 uses it. It has secrets.
      model: the model, with the same parameters on all ranks; those of rank 0 count.
      options: of `open_run`.

    Returns:
      The run.

    Example:
      >>> import tempfile
      >>> import galton
      >>> from torch import distributed, nn
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     # torchrun says how many processes there are, and which is this one
      ...     distributed.init_process_group("gloo", f"file://{folder}/processes", rank=0, world_size=1)
      ...     with share_run(plan, f"{folder}/run", nn.Linear(2, 1), examples=64, clip_norm=1.0) as run:
      ...         print(f"rank {run.rank} of {run.processes}")
      ...     distributed.destroy_process_group()
      rank 0 of 1
    """
    check_whole(model)
    return _share(plan, folder, model, **options)


def _share(plan: Plan | str | Path, folder: str | Path, model: nn.Module, **options: Any) -> SharedRun:
    """Opens a run for a model that every process has, or of which each has a part."""
    check_plain(model)
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    sharded = is_sharded(model)
    if sharded:
        check_shards(model)
    begin = partial(_begin, plan, folder, model, **options)
    about = [(name, part.shape, str(part.dtype)) for name, part in _shapes(model).items()]
    if not sharded:
        return SharedRun(begin, plan, folder, about)
    return ShardedRun(begin, plan, folder, about, dict(trainable(model)))


def _shapes(model: nn.Module) -> dict[str, Any]:
    return {name: _placeholder(weight) for name, weight in trainable(model).items()}


def _placeholder(weight: Tensor) -> NDArray[Any] | Piece:
    if isinstance(weight.data, DTensor):
        return Shards.of(weight.data).piece(weight.data.device_mesh.get_local_rank(), noise_dtype(weight))
    return np.broadcast_to(np.zeros((), noise_dtype(weight)), tuple(weight.shape))


class RoundState(NamedTuple):
    """What `on_round` gets to see after a round.

    Attributes:
      model: the model; to evaluate it is free of charge on public data only, and changing it is not covered.
      optimizer: the optimiser.
      diagnostics: of the round, not private; None unless `train` was asked for them.

    Example:
      >>> import tempfile
      >>> import galton
      >>> import torch
      >>> from torch.utils.data import TensorDataset
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> rows = torch.randn(64, 2)
      >>> data, model = TensorDataset(rows, rows.sum(1, keepdim=True)), nn.Linear(2, 1)
      >>> def loss(model, batch):
      ...     rows, labels = batch
      ...     return nn.functional.mse_loss(model(rows), labels)
      >>> def on_round(done, state):
      ...     return state.optimizer.param_groups[0]["lr"] > 0 and done == 3  # True: save and end here
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      ...     train(plan, folder, loss, model, data, optimizer, on_round=on_round)["rounds_done"]
      3
    """

    model: nn.Module
    optimizer: Optimizer
    diagnostics: Diagnostics | None


def train(
    plan: Plan | str | Path,
    folder: str | Path,
    loss: Loss | None,
    model: nn.Module,
    data: Dataset[Any],
    optimizer: Optimizer,
    *,
    scheduler: LRScheduler | None = None,
    users: Users | None = None,
    clipped: ClippedSum | None = None,
    clipping: Clipping | None = None,
    ghost: bool = False,
    micro_batch_size: int | None = None,
    constant_time: bool = False,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    workers: int = 0,
    shuffled: bool = False,
    reshuffled: bool = False,
    save_every: int = 100,
    rounds: int | None = None,
    watch: Callable[[int], None] | None = None,
    form: str = "buffers",
    on_round: OnRound | None = None,
    diagnostics: bool | Receiver = False,
    progress: bool = False,
    seed: int | None = None,
    pinned: str | None = None,
    trusted_key: str | Path | bytes | None = None,
    distributed: bool = False,
) -> dict[str, Any]:
    """Trains a model for the rounds of the plan, or resumes a run that was interrupted.

    A run that was killed and is started again by the same call goes on: rounds since the last checkpoint are computed
    again, dropout included, and on the same machine come out the same, bit by bit. If a round does not (other data,
    another learning rate, another machine, hardware that adds in another order each time), the rounds that were lost
    are skipped; see `PrivateOptimizer`. On SIGTERM a run is saved after the round.

    The folder then has the model alone in `model.pt` (a state_dict), for others; `galton release` packs it with the
    record. All else in the folder stays there.

    Formal guarantee: the model has the guarantee of the plan, and so have all models on the way (see
    `PrivateOptimizer`), if `clipped`, where given, keeps to the plan's clip norm. `diagnostics` are not private.

    Args:
      plan: a plan, or the folder of one.
      folder: of the run, see `TrainingRun`.
      loss: loss(model, rows), for the rows of one example as a batch of one; for `ghost` the losses of all rows, one
        for each. It may return a pair of the loss and a dictionary of further numbers, for `diagnostics`. None with
        `clipped`.
      model: the model, changed in place.
      data: a data set with as many examples as the plan; see `plan_loader`.
      optimizer: receives the private means of gradients.
      scheduler: of the optimiser's learning rate; stepped after every round, skipped ones included, and saved.
      users: which examples are whose (`galton.batching.group_by_user`), for a plan whose unit is a user. A batch is
        then one of users, and the gradients of a user's examples are clipped as a whole.
      clipped: your own sum of clipped gradients, for layers that `clipped_sum` cannot differentiate by example; see
        `PrivateOptimizer.accumulate`.
      clipping: how gradients are clipped, of the kind that the plan says: `per_group(...)` or `normalized(...)` of
        `galton.training.clipping`. By default as a whole.
      ghost: clip without gradients of single examples in memory; see `ghost_clipped_sum`.
      micro_batch_size: number of examples whose gradients are in memory at the same time; see `clipped_sum`.
      constant_time: compute padding too; see `clipped_sum`.
      collate_fn: makes tensors of a list of items, with one row for each; where items are not tensors (texts, say).
      workers: number of processes that load data.
      shuffled: confirms that the data was shuffled by `shuffle_records`, in secret; needed for a streaming plan.
      reshuffled: confirms that it is shuffled so anew for every epoch; needed, instead, for a streaming plan whose bins
        are redrawn.
      save_every: number of rounds between checkpoints.
      rounds: stop once this many rounds are done in all; the same call without it goes on later.
      watch: called after every round as watch(rounds done).
      form: of the noise: `buffers`, `recompute`, or `auto:2GB`; see `TrainingRun`.
      on_round: called after every round as on_round(rounds done, `RoundState`), for evaluation and early stopping: if
        it returns True, the run is saved and ends; the same call goes on later. With several processes, on each.
      diagnostics: True writes mean loss, gradient norms and the share of clipped ones of each round to the folder, in
        the file `NOT-PRIVATE-diagnostics.jsonl`; a function is called with them instead. They are NOT private.
      progress: show rounds, time left and the epsilon spent so far on stderr, if that is a terminal; see
        `galton.training.progress_bar`.
      seed: of batches and noise, for tests and repeatable studies only; see `TrainingRun`.
      pinned: the plan's hash, if only that plan will do; see `TrainingRun`.
      trusted_key: public key, or its file, that must have signed the plan; see `TrainingRun`.
      distributed: train with all processes of `torch.distributed`, which must all make this call with the same
        arguments and data; each computes its part of every batch. Only rank 0 uses the folder. Start all of them again
        after one was killed. The model may be sharded (`fully_shard`, FSDP2).

    Returns:
      The record of the run, see `TrainingRun.record`.

    Example:
      >>> import tempfile
      >>> import galton
      >>> import torch
      >>> from torch.utils.data import TensorDataset
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> rows = torch.randn(64, 2)
      >>> data, model = TensorDataset(rows, rows.sum(1, keepdim=True)), nn.Linear(2, 1)
      >>> def loss(model, batch):
      ...     rows, labels = batch
      ...     return nn.functional.mse_loss(model(rows), labels)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     record = train(plan, folder, loss, model, data, torch.optim.SGD(model.parameters(), lr=0.1))
      >>> record["rounds_done"], record["completed"]
      (4, True)
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    count("save_every", save_every)
    last = plan.rounds if rounds is None else count("rounds", rounds, at_most=plan.rounds)
    size = size_of(data, plan.examples)
    opening: Callable[..., AnyRun] = _share if distributed else open_run
    with opening(
        plan,
        folder,
        model,
        examples=size if users is None else users.number,
        clip_norm=plan.clip_norm,
        per_user=None if users is None else users.per_user,
        form=form,
        shuffled=shuffled,
        reshuffled=reshuffled,
        clipping=clipping,
        seed=seed,
        pinned=pinned,
        trusted_key=trusted_key,
    ) as run:
        checkpoint = Checkpoint(model, optimizer, scheduler)
        resumed = checkpoint.load(run)
        private = PrivateOptimizer(optimizer, model, run, diagnose=bool(diagnostics))
        private._must_load &= not resumed
        options: dict[str, Any] = {} if collate_fn is None else {"collate_fn": collate_fn}
        loader = plan_loader(run, data, users=users, num_workers=workers, **options)

        def after_round() -> bool:
            """Tells all who want to know of a round; returns whether the run ends."""
            if watch is not None:
                watch(run.round)
            seen = private.diagnostics
            if seen is not None and callable(diagnostics):
                diagnostics(seen)
            elif seen is not None and first:
                keep_diagnostics(run.folder, seen)
            return on_round is not None and bool(on_round(run.round, RoundState(model, optimizer, seen)))

        first = not isinstance(run, SharedRun) or run.rank == FIRST
        checkpoint.follow(run.round)
        with Termination() as termination, progress_bar(run, last, progress and first) as bar:
            ends = any(run.gathered(termination.requested))
            while run.round < last and not ends:
                for batch in loader:
                    turn = run.round
                    private.accumulate(loss, batch, micro_batch_size, constant_time, ghost=ghost, clipped=clipped)
                    private.step()
                    checkpoint.follow(run.round)
                    stepped = run.round == turn + 1 and turn not in private._skipped
                    wish = stepped and after_round()
                    ends = any(run.gathered(wish or termination.requested))
                    bar()
                    if run.round % save_every == 0 or run.round >= last or ends or not stepped:
                        checkpoint.save(run)
                    if run.round >= last or ends:
                        break
            return run.record()


class Checkpoint:
    """Model, optimiser and scheduler of a run, as `train` saves and loads them.

    Args:
      model: the model.
      optimizer: the optimiser.
      scheduler: of its learning rate, if there is one.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
        self._model, self._optimizer, self._scheduler = model, optimizer, scheduler

    def load(self, run: AnyRun) -> bool:
        """Takes over what was saved last; returns whether there was anything.

        Args:
          run: the run.

        Returns:
          Whether the run goes on from there.
        """
        saved = run.load(partial(torch.load, weights_only=True))
        if saved is None:
            return False
        load_model(self._model, saved["model"])
        self._optimizer.load_state_dict(without_run(saved["optimizer"]))
        cut_states(self._optimizer)
        if self._scheduler is not None and "scheduler" in saved:
            self._scheduler.load_state_dict(saved["scheduler"])
        return True

    def save(self, run: AnyRun) -> None:
        """Saves all of it, and the model alone for others.

        Args:
          run: the run.
        """
        reshard(self._model)
        model = gathered(self._model.state_dict())
        run.publish(partial(write_tensors, model), ".pt")
        parts = {"model": model, "optimizer": gathered(self._optimizer.state_dict())}
        if self._scheduler is not None:
            parts["scheduler"] = self._scheduler.state_dict()
        run.save(partial(write_tensors, parts))

    def follow(self, turn: int) -> None:
        """Takes the scheduler to a round.

        Args:
          turn: the round.
        """
        if self._scheduler is not None:
            for _ in range(turn - self._scheduler.last_epoch):
                self._scheduler.step()
