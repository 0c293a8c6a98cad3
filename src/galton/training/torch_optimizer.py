"""An optimiser whose gradients are those of the plan's batches, clipped, with the plan's noise, and no others."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.dlpack import from_dlpack

from galton.errors import InvalidArgument
from galton.training.diagnostics import Diagnostics
from galton.training.lost import LostRounds, RoundsSkipped
from galton.training.rounds import PlanViolated
from galton.training.run import TrainingRun
from galton.training.torch_batches import Accumulated, PaddedBatch, seeded
from galton.training.torch_clipping import Loss, Observed, at_least_single, clipped_sum, trainable, user_loss
from galton.training.torch_ghost import ghost_clipped_sum
from galton.training.torch_processes import SharedRun, check_plain, same_start
from galton.training.torch_sharded import like, reshard, whole

AnyRun = TrainingRun | SharedRun
"""A run of this process alone, or one that several share."""

ClippedSum = Callable[[nn.Module, Any, Tensor], dict[str, Tensor]]
"""clipped(model, inputs, mask): the sum of clipped gradients over a batch, by name of the parameter."""

STATE = "galton"
"""Key of the run in an optimiser's state_dict."""


class Seen:
    """Adds up what was seen of the examples of a round."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Starts over."""
        self._examples = 0
        self._sums: Counter[str] = Counter()

    def add(self, observed: Observed) -> None:
        """Adds some examples.

        Args:
          observed: what was seen of them.
        """
        self._examples += len(observed.losses)
        parts = {"loss": observed.losses, "norm": observed.norms, "clipped": observed.clipped}
        self._sums.update({name: float(part.double().sum()) for name, part in (parts | observed.aux).items()})

    def together(self, turn: int, gathered: Callable[[Any], list[Any]]) -> Diagnostics:
        """Returns the figures of a round, over all processes.

        Args:
          turn: the round.
          gathered: returns what all processes pass to it.

        Returns:
          The figures.
        """
        parts = gathered((self._examples, dict(self._sums)))
        sums: Counter[str] = Counter()
        for _, part in parts:
            sums.update(part)
        return Diagnostics.of_sums(turn, sum(number for number, _ in parts), sums)


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
      run: source of batches and noise, see `open_run` and `share_run`.
      diagnose: look at losses and norms of each round, which are NOT private; see `galton.training.diagnostics`.

    Attributes:
      run: as given.
      diagnostics: what was seen of the last round, not private; None unless asked for.

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

    Example:
      >>> import tempfile
      >>> import galton
      >>> import torch
      >>> from torch.utils.data import TensorDataset
      >>> from galton.training.torch import open_run, plan_loader
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> rows = torch.randn(64, 2)
      >>> data, model = TensorDataset(rows, rows.sum(1, keepdim=True)), nn.Linear(2, 1)
      >>> def loss(model, batch):
      ...     rows, labels = batch
      ...     return nn.functional.mse_loss(model(rows), labels)
      >>> with (
      ...     tempfile.TemporaryDirectory() as folder,
      ...     open_run(plan, folder, model, examples=64, clip_norm=1.0) as run,
      ... ):
      ...     optimizer = PrivateOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, run)
      ...     while not run.done:
      ...         for batch in plan_loader(run, data):  # one epoch
      ...             optimizer.accumulate(loss, batch)
      ...             optimizer.step()
      ...     print(f"{run.round} rounds done")
      4 rounds done
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, run: AnyRun, diagnose: bool = False) -> None:
        check_plain(model)
        reshard(model)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.run, self._inner, self._model = run, optimizer, model
        self._weights = check_holds(optimizer, model)
        if isinstance(run, SharedRun):
            same_start(model)
        self._must_load = run.begun
        self._total: dict[str, Tensor] = {}
        self._skipped = range(0)
        self._passed_over = False
        self._accumulated = Accumulated(run)
        self._seen = Seen()
        self._observe = self._seen.add if diagnose else None
        self.diagnostics: Diagnostics | None = None
        self._share_groups_and_state()

    def _share_groups_and_state(self) -> None:
        """Takes over groups and state of the inner optimiser, so that schedulers see and change the real ones."""
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def accumulate(
        self,
        loss: Loss | None,
        batch: PaddedBatch,
        micro_batch_size: int | None = None,
        constant_time: bool = False,
        *,
        ghost: bool = False,
        clipped: ClippedSum | None = None,
    ) -> None:
        """Adds the clipped gradients of the next round's batch, or of its next micro-batch.

        Args:
          loss: loss(model, rows), for the rows of one example as a batch of one; for `ghost` the losses of all rows.
            None with `clipped`.
          batch: from `plan_loader` for the same run.
          micro_batch_size: number of examples whose gradients are in memory at the same time; see `clipped_sum`.
          constant_time: compute padding too; see `clipped_sum`.
          ghost: clip without gradients of single examples in memory; see `ghost_clipped_sum`.
          clipped: your own sum of clipped gradients, called as clipped(model, inputs, mask); it returns tensors by name
            of the parameter. No example (or user) may contribute more than the plan's clip norm: the guarantee rests
            on it.
        """
        self._check_loaded()
        reshard(self._model)
        check_unchanged(self._inner, self._model, self._weights)
        self._passed_over = batch.round in self._skipped
        if self._passed_over:
            return
        self._accumulated.check(batch)
        device = next(iter(self._weights.values())).device
        inputs, mask = tree_map(lambda leaf: leaf.to(device), (batch.inputs, batch.mask))
        with whole(self._model), seeded(self.run.round_seed(batch.round, batch.part), device):
            if clipped is None:
                total = self._sum(loss, ghost)(inputs, mask, micro_batch_size, constant_time)
            else:
                self._check_alone(loss, ghost)
                total = self._check_sums(clipped(self._model, inputs, mask))
        self._accumulated.add()  # first, so that nothing is ever summed twice
        for name, part in total.items():
            self._total[name] = self._total[name].add_(part) if name in self._total else part

    def _sum(self, loss: Loss | None, ghost: bool) -> Callable[..., dict[str, Tensor]]:
        """Returns the function that sums clipped gradients."""
        if loss is None:
            raise InvalidArgument("loss", None, "must be given, unless clipped is")
        plan = self.run.plan
        more: dict[str, Any] = {"clipping": self.run.clipping, "observe": self._observe}
        if ghost:
            more["span"] = plan.per_user or 1
        elif plan.per_user is not None:
            loss = user_loss(loss)
        summing: Callable[..., dict[str, Tensor]] = ghost_clipped_sum if ghost else clipped_sum

        def total(inputs: Any, mask: Tensor, size: int | None, constant_time: bool) -> dict[str, Tensor]:
            return summing(self._model, loss, inputs, mask, plan.clip_norm, size, constant_time, **more)

        return total

    def _check_alone(self, loss: Loss | None, ghost: bool) -> None:
        if loss is not None or ghost or self._observe is not None:
            raise InvalidArgument("clipped", "given", "must come without loss, ghost and diagnostics")

    def _check_sums(self, total: dict[str, Tensor]) -> dict[str, Tensor]:
        shapes = {name: tuple(weight.shape) for name, weight in self._weights.items()}
        if {name: tuple(part.shape) for name, part in total.items()} != shapes:
            raise InvalidArgument("clipped", sorted(total), f"must return sums for the parameters {sorted(shapes)}")
        return {name: part.detach().to(at_least_single(part), copy=True) for name, part in total.items()}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Ends the round: adds the noise, divides by the expected batch size, and steps the inner optimiser.

        Args:
          closure: must be left out, for gradients are computed once per round.
        """
        self._check_loaded()
        if closure is not None:
            raise InvalidArgument("closure", "given", "must be left out: gradients are computed once a round")
        reshard(self._model)
        check_unchanged(self._inner, self._model, self._weights)
        if self._passed_over:
            return
        self._accumulated.check_complete()
        turn = self.run.round
        if self._observe is not None:
            self.diagnostics = self._seen.together(turn, self.run.gathered)
        try:
            noisy = noisy_sum(self.run, self._total)
        except RoundsSkipped as lost:
            warnings.warn(str(lost), LostRounds, stacklevel=2)
            self._skipped = range(turn, self.run.round)
            self.zero_grad()
            return
        torch._foreach_div_(list(noisy.values()), self.run.plan.expected_batch_size)
        for name, weight in self._weights.items():
            weight.grad = like(weight, noisy[name].to(weight.dtype))
        self._inner.step()
        self.zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients, also those of a round that is not complete.

        Args:
          set_to_none: as in PyTorch.
        """
        self._total = {}
        self._seen.forget()
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


def noisy_sum(run: AnyRun, total: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adds the noise of the run's next round to this process's sums, after those of all others; moves the run on.

    Args:
      run: the run.
      total: sums of clipped gradients, by name of the parameter; they may be changed in place.

    Returns:
      The noisy sums.
    """
    if isinstance(run, SharedRun):
        return run.noisy(total)
    noise = run.noise(as_arrays(total))
    torch._foreach_add_(
        list(total.values()), [from_dlpack(noise[name]).to(part.device) for name, part in total.items()]
    )
    return total


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
    return {name: part.detach().to(at_least_single(part)).cpu().numpy() for name, part in total.items()}


def restore_run(run: AnyRun, state_dict: dict[str, Any]) -> None:
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
    """Writes what `torch.load(weights_only=True)` reads."""
    with errors_of_files(), temporary.open("wb") as file:
        torch.save(content, file)


@contextmanager
def errors_of_files() -> Iterator[None]:
    """Raises an error of the file system, as of a full disk, as such, where PyTorch hides it in one of its own."""
    try:
        yield
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        raise (cause or error) from None
