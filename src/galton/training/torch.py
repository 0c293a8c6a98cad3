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

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from galton.errors import MissingExtra

try:
    import torch
except ModuleNotFoundError:
    raise MissingExtra("galton.training.torch", "torch", "torch") from None
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset
from torch.utils.dlpack import from_dlpack

from galton.batching import Users
from galton.errors import InvalidArgument, count, positive
from galton.plan import Plan, load_plan
from galton.training.run import ROUNDING, LostRounds, PlanViolated, RoundsSkipped, TrainingRun
from galton.training.termination import Termination
from galton.training.torch_batches import Accumulated, PaddedBatch, plan_loader, seeded
from galton.training.torch_clipping import add_clipped

__all__ = ["PaddedBatch", "PrivateOptimizer", "clipped_sum", "open_run", "plan_loader", "train", "user_loss"]

Forward = Callable[..., Any]
"""The model as a function of its inputs."""

Loss = Callable[[Forward, Any], Tensor]
"""loss(model, rows): the loss of one example, given as a batch of one; call the model that is passed, no other."""

STATE = "galton"
"""Key of the run in an optimiser's state_dict."""


def open_run(
    plan: Plan | str | Path,
    folder: str | Path,
    model: nn.Module,
    *,
    examples: int,
    clip_norm: float,
    form: str = "buffers",
    strict: bool = False,
    per_user: int | None = None,
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
      per_user: the most examples of a user in a round, for a plan whose unit is a user; must be the plan's.
      seed: of batches and noise, for tests and repeatable studies only; see `TrainingRun`.
      pinned: the plan's hash, if only that plan will do; see `TrainingRun`.
      trusted_key: public key, or its file, that must have signed the plan; see `TrainingRun`.

    Returns:
      The run.
    """
    shapes = {name: _placeholder(weight) for name, weight in trainable(model).items()}
    return TrainingRun(
        plan,
        folder,
        shapes,
        examples=examples,
        clip_norm=clip_norm,
        form=form,
        strict=strict,
        per_user=per_user,
        seed=seed,
        pinned=pinned,
        trusted_key=trusted_key,
    )


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that are trained, by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _placeholder(weight: Tensor) -> NDArray[Any]:
    dtype = np.float64 if weight.dtype == torch.float64 else np.float32
    return np.broadcast_to(np.zeros((), dtype), tuple(weight.shape))


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    mask: Tensor,
    clip_norm: float,
    micro_batch_size: int | None = None,
    constant_time: bool = False,
) -> dict[str, Tensor]:
    """Returns the sum of the gradients of a batch, that of each example clipped to l2 norm `clip_norm`.

    Models that mix examples or update buffers (batch normalisation) cannot be used.

    Formal guarantee: adding, removing or zeroing one example of the batch changes the sum by at most `clip_norm` in l2
    norm, summation in float32 aside, also under autocast: norms and sums are in float32 (`torch_clipping.py`). Padding,
    where the mask is False, contributes zero, and so does an example whose gradient is not finite.

    Args:
      model: the gradient is that of its trainable parameters.
      loss: loss(model, rows), for the rows of one example as a batch of one.
      inputs: tensors, in any nesting, with the examples as their first axis.
      mask: True where there is an example.
      clip_norm: the plan's.
      micro_batch_size: number of examples whose gradients are in memory at the same time; by default the whole batch.
      constant_time: compute padding too, so that the time tells nothing about the size of the batch.

    Returns:
      The sums by name of the parameter, in float32 at least.

    Example:
      >>> model = nn.Linear(2, 1, bias=False)
      >>> rows, mask = torch.tensor([[0.5, 0.0], [7.0, 0.0], [9.0, 9.0]]), torch.tensor([True, True, False])
      >>> total = clipped_sum(model, lambda model, rows: model(rows).sum(), rows, mask, clip_norm=1.0)
      >>> [f"{value:.3f}" for value in total["weight"][0]]  # 0.5, clipped to 1, padding
      ['1.500', '0.000']
    """
    limit = positive("clip_norm", clip_norm) * (1 - ROUNDING)
    weights = {name: weight.detach() for name, weight in trainable(model).items()}

    def example_loss(weights: dict[str, Tensor], example: Any) -> Tensor:
        rows = tree_map(lambda leaf: leaf.unsqueeze(0), example)
        return loss(lambda *args, **named: functional_call(model, weights, args, named), rows)

    gradients_of = vmap(grad(example_loss), in_dims=(None, 0), randomness="different")
    total = {name: torch.zeros_like(weight, dtype=_at_least_single(weight)) for name, weight in weights.items()}
    if not constant_time and not mask.all():
        inputs, mask = tree_map(lambda leaf: leaf[mask], inputs), mask[mask]
    if not mask.shape[0]:
        return total
    size = mask.shape[0] if micro_batch_size is None else count("micro_batch_size", micro_batch_size)
    for start in range(0, mask.shape[0], size):
        part = slice(start, start + size)
        gradients = gradients_of(weights, tree_map(lambda leaf, part=part: leaf[part], inputs))
        add_clipped(total, gradients, mask[part], limit)
    return total


def user_loss(loss: Loss) -> Loss:
    """Returns the loss of a user: the sum over the user's examples, for `clipped_sum` to clip as a whole.

    Args:
      loss: loss(model, rows), for the rows of one example as a batch of one.

    Returns:
      loss(model, (rows, mask)), for a batch of one user, whose examples are the second axis; the mask is True where
      there is one.

    Example:
      >>> model = nn.Linear(1, 1, bias=False)
      >>> rows, present = torch.tensor([[[0.25], [0.25]], [[7.0], [0.0]]]), torch.tensor([[True, True], [True, False]])
      >>> each = user_loss(lambda model, rows: model(rows).sum())
      >>> total = clipped_sum(model, each, (rows, present), torch.tensor([True, True]), clip_norm=1.0)
      >>> f"{total['weight'].item():.3f}"  # 0.5, and 7 clipped to 1
      '1.500'
    """

    def total(model: Forward, user: Any) -> Tensor:
        rows, present = user

        def single(example: Any) -> Tensor:
            return loss(model, tree_map(lambda leaf: leaf.unsqueeze(0), example))

        losses = vmap(single, randomness="different")(tree_map(lambda leaf: leaf[0], rows))
        return torch.where(present[0], losses, 0.0).sum()

    return total


def _at_least_single(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


class PrivateOptimizer(Optimizer):
    """Wraps any optimiser and feeds it private means: (sum of clipped gradients + noise) / expected batch size.

    `accumulate` takes the batches of `plan_loader` in their order, `step` ends the round. Anything else raises
    `PlanViolated`: a batch of another round or run, one that is cut in another way than the micro-batches before it, a
    step before the batch is complete or after the last planned round, a model whose trainable parameters have
    changed. A batch is recognised by its token: tensors that were exchanged on purpose under the same token go
    unnoticed.

    Args:
      optimizer: receives the private means; it must hold exactly the trainable parameters of the model.
      model: the model.
      run: source of batches and noise, see `open_run`.

    Attributes:
      run: as given.

    Formal guarantees:
      - Everything that is computed from the parameters after `step` has the guarantee of the plan.
      - `state_dict` names run and round and has no secrets: those stay in the run's folder. `load_state_dict` goes on
        from there, bit by bit if it is the last that was saved. On a run that has begun, an optimiser makes no step
        before a state has been loaded. A state_dict counts as saved with the next `step`; see `TrainingRun.restore`.
      - No noise is used for two gradients. A round that is computed again after `load_state_dict` gets its noise only
        if the sum of its clipped gradients is the same, bit by bit. If not, or if the state is older than the last that
        was saved, the rounds that have had their noise are skipped: `step` makes none, batches that a loader had read
        ahead are passed over, and a warning (`LostRounds`) and the record say so.
      - Each micro-batch has random numbers of its own (dropout), which are the same if it is computed again.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, run: TrainingRun) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.run, self._inner, self._model = run, optimizer, model
        self._weights = check_holds(optimizer, model)
        self._must_load = run.begun
        self._total: dict[str, Tensor] = {}
        self._skipped = range(0)
        self._passed_over = False
        self._accumulated = Accumulated(run)
        self._share_groups_and_state()

    def _share_groups_and_state(self) -> None:
        """Takes over groups and state of the inner optimiser, so that schedulers see and change the real ones."""
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def accumulate(
        self, loss: Loss, batch: PaddedBatch, micro_batch_size: int | None = None, constant_time: bool = False
    ) -> None:
        """Adds the clipped gradients of the next round's batch, or of its next micro-batch.

        Args:
          loss: loss(model, rows), for the rows of one example as a batch of one.
          batch: from `plan_loader` for the same run.
          micro_batch_size: number of examples whose gradients are in memory at the same time; see `clipped_sum`.
          constant_time: compute padding too; see `clipped_sum`.
        """
        self._check_loaded()
        check_unchanged(self._inner, self._model, self._weights)
        self._passed_over = batch.round in self._skipped
        if self._passed_over:
            return
        self._accumulated.check(batch)
        loss = loss if self.run.plan.per_user is None else user_loss(loss)
        device = next(iter(self._weights.values())).device
        inputs, mask = tree_map(lambda leaf: leaf.to(device), (batch.inputs, batch.mask))
        with seeded(self.run.round_seed(batch.round, batch.part), device):
            total = clipped_sum(
                self._model, loss, inputs, mask, self.run.plan.clip_norm, micro_batch_size, constant_time
            )
        self._accumulated.add()  # first, so that nothing is ever summed twice
        self._total = {name: part + self._total.get(name, 0) for name, part in total.items()}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Ends the round: adds the noise, divides by the expected batch size, and steps the inner optimiser.

        Args:
          closure: must be left out, for gradients are computed once per round.
        """
        self._check_loaded()
        if closure is not None:
            raise InvalidArgument("closure", "given", "must be left out: gradients are computed once a round")
        check_unchanged(self._inner, self._model, self._weights)
        if self._passed_over:
            return
        self._accumulated.check_complete()
        turn = self.run.round
        try:
            noise = self.run.noise(as_arrays(self._total))
        except RoundsSkipped as lost:
            warnings.warn(str(lost), LostRounds, stacklevel=2)
            self._skipped = range(turn, self.run.round)
            self.zero_grad()
            return
        for name, weight in self._weights.items():
            noisy = self._total[name] + from_dlpack(noise[name]).to(weight.device)
            weight.grad = (noisy / self.run.plan.expected_batch_size).to(weight.dtype)
        self._inner.step()
        self.zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients, also those of a round that is not complete.

        Args:
          set_to_none: as in PyTorch.
        """
        self._total = {}
        self._accumulated.forget()
        self._inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises `PlanViolated`: a run has noise for the parameters that it was opened with only.

        Args:
          param_group: refused.
        """
        if hasattr(self, "run"):
            raise PlanViolated("add_param_group: a run has noise for the parameters that it was opened with only")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of optimiser and run, in types that `torch.load(weights_only=True)` reads."""
        return self._inner.state_dict() | {STATE: self.run.state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state of this run; see `TrainingRun.restore` for what is refused.

        Args:
          state_dict: what `state_dict` returned.
        """
        restore_run(self.run, state_dict)
        self._inner.load_state_dict(without_run(state_dict))
        self._share_groups_and_state()
        self.zero_grad()
        self._must_load, self._skipped = False, range(0)

    def _check_loaded(self) -> None:
        if self._must_load:
            raise PlanViolated(f"{self.run.folder}: has a run that began before; load_state_dict has to come first")


def check_holds(optimizer: Optimizer, model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the model's trainable parameters; raises `InvalidArgument` if the optimiser holds others, or not all."""
    weights = trainable(model)
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad}
    if not weights or held != {id(weight) for weight in weights.values()}:
        raise InvalidArgument("optimizer", len(held), f"must hold the {len(weights)} trainable parameters of the model")
    return weights


def check_unchanged(optimizer: Optimizer, model: nn.Module, weights: dict[str, nn.Parameter]) -> None:
    """Raises `PlanViolated` if other parameters than these are trainable, or have gradients in the optimiser."""
    current = trainable(model)
    if current.keys() != weights.keys() or any(current[name] is not weight for name, weight in weights.items()):
        differ = ", ".join(sorted(current.keys() ^ weights.keys())) or "some were replaced"
        raise PlanViolated(f"model: other parameters are trainable than when the run was opened ({differ})")
    known = {id(weight) for weight in weights.values()}
    held = [weight for group in optimizer.param_groups for weight in group["params"] if id(weight) not in known]
    if any(weight.grad is not None for weight in held):
        raise PlanViolated("optimizer: holds a parameter that the plan has no noise for, and that has a gradient")


def as_arrays(total: dict[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Returns sums of gradients, in float32 at least, as `TrainingRun.noise` takes them."""
    return {name: part.detach().to(_at_least_single(part)).cpu().numpy() for name, part in total.items()}


def restore_run(run: TrainingRun, state_dict: dict[str, Any]) -> None:
    """Restores the run from the state in an optimiser's state_dict."""
    state = state_dict.get(STATE)
    if not isinstance(state, dict):
        raise PlanViolated("state_dict: has no run in it; it was not saved by an optimiser with a plan")
    if isinstance(state.get("noise"), Tensor):  # as galton 0.1 wrote it
        state = state | {"noise": state["noise"].cpu().numpy().tobytes()}
    run.restore(state)


def without_run(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns the inner optimiser's part of a state_dict."""
    return {name: value for name, value in state_dict.items() if name != STATE}


def write_tensors(content: Any, temporary: Path) -> None:
    """Writes what `torch.load(weights_only=True)` reads; an error of the file system, as of a full disk, stays one."""
    try:
        with temporary.open("wb") as file:
            torch.save(content, file)
    except RuntimeError as error:  # in which PyTorch hides it
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        raise (cause or error) from None


def train(
    plan: Plan | str | Path,
    folder: str | Path,
    loss: Loss,
    model: nn.Module,
    data: Dataset[Any],
    optimizer: Optimizer,
    *,
    scheduler: LRScheduler | None = None,
    users: Users | None = None,
    micro_batch_size: int | None = None,
    constant_time: bool = False,
    workers: int = 0,
    save_every: int = 100,
    rounds: int | None = None,
    watch: Callable[[int], None] | None = None,
    form: str = "buffers",
    seed: int | None = None,
    pinned: str | None = None,
    trusted_key: str | Path | bytes | None = None,
) -> dict[str, Any]:
    """Trains a model for the rounds of the plan, or resumes a run that was interrupted.

    A run that was killed and is started again by the same call goes on: rounds since the last checkpoint are computed
    again, dropout included, and on the same machine come out the same, bit by bit. If a round does not (other data,
    another learning rate, another machine, hardware that adds in another order each time), the rounds that were lost
    are skipped; see `PrivateOptimizer`. On SIGTERM a run is saved after the round.

    The folder then has the model alone in `model.pt` (a state_dict), for others; `galton release` packs it with the
    record. All else in the folder stays there.

    Formal guarantee: the model has the guarantee of the plan, and so have all models on the way (see
    `PrivateOptimizer`).

    Args:
      plan: a plan, or the folder of one.
      folder: of the run, see `TrainingRun`.
      loss: loss(model, rows), for the rows of one example as a batch of one.
      model: the model, changed in place.
      data: a data set with as many examples as the plan.
      optimizer: receives the private means of gradients.
      scheduler: of the optimiser's learning rate; stepped after every round, skipped ones included, and saved.
      users: which examples are whose (`galton.batching.group_by_user`), for a plan whose unit is a user. A batch is
        then one of users, and the gradients of a user's examples are clipped as a whole.
      micro_batch_size: number of examples whose gradients are in memory at the same time; see `clipped_sum`.
      constant_time: compute padding too; see `clipped_sum`.
      workers: number of processes that load data.
      save_every: number of rounds between checkpoints.
      rounds: stop once this many rounds are done in all; the same call without it goes on later.
      watch: called after every round as watch(rounds done).
      form: of the noise: `buffers`, `recompute`, or `auto:2GB`; see `TrainingRun`.
      seed: of batches and noise, for tests and repeatable studies only; see `TrainingRun`.
      pinned: the plan's hash, if only that plan will do; see `TrainingRun`.
      trusted_key: public key, or its file, that must have signed the plan; see `TrainingRun`.

    Returns:
      The record of the run, see `TrainingRun.record`.
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    count("save_every", save_every)
    last = plan.rounds if rounds is None else count("rounds", rounds, at_most=plan.rounds)
    size = len(data)  # type: ignore[arg-type]
    with open_run(
        plan,
        folder,
        model,
        examples=size if users is None else users.number,
        clip_norm=plan.clip_norm,
        per_user=None if users is None else users.per_user,
        form=form,
        seed=seed,
        pinned=pinned,
        trusted_key=trusted_key,
    ) as run:
        begun = run.checkpoint is not None
        if run.checkpoint is not None:
            saved = torch.load(run.checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(without_run(saved["optimizer"]))
            if scheduler is not None and "scheduler" in saved:
                scheduler.load_state_dict(saved["scheduler"])
        private = PrivateOptimizer(optimizer, model, run)
        private._must_load &= not begun
        loader = plan_loader(run, data, users=users, num_workers=workers)

        def save() -> None:
            run.publish(partial(write_tensors, model.state_dict()), ".pt")
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            if scheduler is not None:
                parts["scheduler"] = scheduler.state_dict()
            run.save(partial(write_tensors, parts))

        def follow() -> None:
            """Takes the scheduler to the run's round."""
            if scheduler is not None:
                for _ in range(run.round - scheduler.last_epoch):
                    scheduler.step()

        follow()
        with Termination() as termination:
            while run.round < last and not termination.requested:
                for batch in loader:
                    turn = run.round
                    private.accumulate(loss, batch, micro_batch_size, constant_time)
                    private.step()
                    follow()
                    stepped = run.round == turn + 1 and turn not in private._skipped
                    if stepped and watch is not None:
                        watch(run.round)
                    if run.round % save_every == 0 or run.round >= last or termination.requested or not stepped:
                        save()
                    if run.round >= last or termination.requested:
                        break
            return run.record()
