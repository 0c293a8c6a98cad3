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

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate
from torch.utils.dlpack import from_dlpack

from galton.batching import Batch
from galton.errors import InvalidArgument, count, positive
from galton.plan import Plan, load_plan
from galton.training.run import ROUNDING, PlanViolated, TrainingRun, check_same

Forward = Callable[..., Any]
"""The model as a function of its inputs."""

Loss = Callable[[Forward, Any], Tensor]
"""loss(model, rows): a number, for rows of one example as a batch of one; to be computed with the model it is given."""

STATE = "galton"
"""Where an optimiser's state_dict has the run."""


class PaddedBatch(NamedTuple):
    """A batch, or a micro-batch of it, as tensors of fixed shapes.

    Attributes:
      inputs: what the data set gives, collated; rows that are padding are zero.
      mask: True where there is an example.
      round: of the run.
      part: which micro-batch of the round this is, of `parts`.
      parts: micro-batches of a round.
    """

    inputs: Any
    mask: Tensor
    round: int
    part: int = 0
    parts: int = 1

    @property
    def last(self) -> bool:
        """Whether the round is complete with this one."""
        return self.part == self.parts - 1


def open_run(
    plan: Plan | str | Path,
    folder: str | Path,
    model: nn.Module,
    *,
    examples: int,
    clip_norm: float,
    form: str = "buffers",
    strict: bool = False,
    seed: int | None = None,
) -> TrainingRun:
    """Opens a run for the trainable parameters of a model; see `TrainingRun` for the arguments."""
    shapes = {name: _shape(weight) for name, weight in trainable(model).items()}
    return TrainingRun(
        plan, folder, shapes, examples=examples, clip_norm=clip_norm, form=form, strict=strict, seed=seed
    )


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that are trained, by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _shape(weight: Tensor) -> NDArray[Any]:
    dtype = np.float64 if weight.dtype == torch.float64 else np.float32
    return np.broadcast_to(np.zeros((), dtype), tuple(weight.shape))


def plan_loader(
    run: TrainingRun, data: Dataset[Any], micro_batch: int | None = None, **options: Any
) -> DataLoader[PaddedBatch]:
    """Returns a loader whose every pass gives the batches from the coming round to the end of its epoch.

    A pass after the last planned round is refused. Batches have fixed shapes: so many rows as the physical batch size,
    those that are padding zero and masked.

    Args:
      run: the run; the loader reads ahead of it, and follows where it goes on.
      data: has as many examples as the plan, all of the same shapes.
      micro_batch: size of micro-batches; must divide the physical batch size. None gives whole batches.
      options: of the `DataLoader`: workers, pinned memory, `collate_fn`. Workers are started by `forkserver` unless
        `multiprocessing_context` says otherwise, for a process with JAX in it should not be forked.
    """
    check_same("examples", len(data), run.plan.examples)  # type: ignore[arg-type]
    padded = _Padded(data, options.pop("collate_fn", default_collate))
    if micro_batch is not None and run.plan.physical % count("micro_batch", micro_batch):
        raise InvalidArgument("micro_batch", micro_batch, f"must divide the physical size, {run.plan.physical}")
    options["multiprocessing_context"] = worker_context(
        options.get("num_workers", 0), options.get("multiprocessing_context")
    )
    places: Any = _Places(run, micro_batch)  # what it yields goes to the data set, not to the type checker's lists
    return DataLoader(padded, batch_sampler=places, collate_fn=_as_it_is, **options)


def worker_context(workers: int, wanted: Any = None) -> Any:
    """Returns how a loader starts its workers: as the user wants, else without forking JAX."""
    return wanted if wanted is not None or not workers else "forkserver"


class _Places(Sampler[tuple[Batch, int, int]]):
    """The coming batches of a run, cut into micro-batches."""

    def __init__(self, run: TrainingRun, micro_batch: int | None) -> None:
        self._run, self._size = run, micro_batch or run.plan.physical

    def __iter__(self) -> Iterator[tuple[Batch, int, int]]:
        for batch in self._run.epoch():
            parts = batch.micro_batches(self._size)
            for number, part in enumerate(parts):
                yield part, number, len(parts)

    def __len__(self) -> int:
        return self._run.plan.bins * (self._run.plan.physical // self._size)


class _Padded(Dataset[Any]):
    """Collates and pads in the worker."""

    def __init__(self, data: Dataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        self._data, self._collate = data, collate

    def __getitem__(self, index: int) -> Any:
        return self._data[index]

    def __getitems__(self, place: tuple[Batch, int, int]) -> PaddedBatch:
        batch, part, parts = place
        members = batch.examples.tolist()
        rows = self._collate([self._data[index] for index in members or [0]])  # an empty batch takes shapes only

        def pad(leaf: Tensor) -> Tensor:
            fixed = leaf.new_zeros((batch.physical, *leaf.shape[1:]))
            fixed[: len(members)] = leaf[: len(members)]
            return fixed

        return PaddedBatch(tree_map(pad, rows), torch.from_numpy(batch.mask.copy()), batch.round, part, parts)


def _as_it_is(batch: Any) -> Any:
    return batch


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    mask: Tensor,
    clip_norm: float,
    micro_batch: int | None = None,
) -> dict[str, Tensor]:
    """Returns the sum over a batch of gradients clipped to l2 norm `clip_norm`, by name of the parameter.

    Args:
      model: whose trainable parameters the gradient is for.
      loss: of one example.
      inputs: tensors, in any nesting, with the examples as their first axis.
      mask: True where there is an example.
      clip_norm: the plan's.
      micro_batch: examples whose gradients are held at one time; None takes all at once.

    Formal guarantee: adding, removing or zeroing one example of the batch changes the result by at most `clip_norm` in
    l2 norm, summation in float32 aside. Places where the mask is False contribute zero, and so does an example
    whose gradient is not finite. Models that mix examples, or update buffers (batch normalisation), cannot be used.
    """
    limit = positive("clip_norm", clip_norm) * (1 - ROUNDING)
    weights = {name: weight.detach() for name, weight in trainable(model).items()}

    def one(weights: dict[str, Tensor], example: Any) -> Tensor:
        rows = tree_map(lambda leaf: leaf.unsqueeze(0), example)
        return loss(lambda *args, **named: functional_call(model, weights, args, named), rows)

    gradients = vmap(grad(one), in_dims=(None, 0), randomness="different")
    total = {name: torch.zeros_like(weight, dtype=_at_least_single(weight)) for name, weight in weights.items()}
    size = mask.shape[0] if micro_batch is None else count("micro_batch", micro_batch)
    for start in range(0, mask.shape[0], size):
        part = slice(start, start + size)
        each = gradients(weights, tree_map(lambda leaf, part=part: leaf[part], inputs))
        _add_clipped(total, each, mask[part], limit)
    return total


def _at_least_single(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _add_clipped(total: dict[str, Tensor], each: dict[str, Tensor], mask: Tensor, limit: float) -> None:
    rows = {name: each[name].to(sums.dtype).reshape(mask.shape[0], sums.numel()) for name, sums in total.items()}
    norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in rows.values()]).norm(dim=0)
    usable = mask & norms.isfinite()
    factors = torch.where(usable, limit / norms.clamp(min=limit), 0.0)
    if not norms.isfinite().all():  # zero times what is not finite is not zero
        rows = {name: part.masked_fill(~usable[:, None], 0.0) for name, part in rows.items()}
    for name, sums in total.items():
        sums += (factors.to(sums.dtype) @ rows[name]).reshape(sums.shape)


class PrivateOptimizer(Optimizer):
    """Any optimiser, fed with private means of gradients: (sum of clipped gradients + noise) / nominal size.

    Args:
      optimizer: what gets the private means; it must hold the trainable parameters of the model, all of them.
      model: the model.
      run: what batches and noise come from, see `open_run`.

    `accumulate` takes the batches of `plan_loader` in their order, `step` ends the round. Anything else is refused:
    another batch, a step without a batch or before its last micro-batch, a step after the last planned round.

    Formal guarantees:
      - All that is computed from the parameters after `step` has the guarantee of the plan.
      - `state_dict` has the state of the noise and of the batches (secrets, so keep it like one); `load_state_dict`
        goes on from there bit by bit. An optimiser on a run that has begun makes no step before it has been loaded.
        A state_dict that was taken counts as saved with the next `step`, and older ones are refused from then on, so
        that no noise is given to two gradients: see `TrainingRun.state`.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, run: TrainingRun) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.run, self._inner, self._model = run, optimizer, model
        self._weights = check_holds(optimizer, model)
        self._behind = run.begun
        self._total: dict[str, Tensor] = {}
        self._parts = 0
        self._share()

    def _share(self) -> None:
        """Groups and state are those of the inner optimiser, so that schedulers see and change the real ones."""
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def accumulate(self, loss: Loss, batch: PaddedBatch, micro_batch: int | None = None) -> None:
        """Adds the clipped gradients of the coming round's batch, or of its next micro-batch; see `clipped_sum`."""
        self._check_loaded()
        check_same("round of the batch", batch.round, self.run.round)
        check_same("micro-batch", batch.part, self._parts)
        device = next(iter(self._weights.values())).device
        inputs, mask = tree_map(lambda leaf: leaf.to(device), (batch.inputs, batch.mask))
        total = clipped_sum(self._model, loss, inputs, mask, self.run.plan.clip_norm, micro_batch)
        self._total = {name: part + self._total.get(name, 0) for name, part in total.items()}
        self._parts = -1 if batch.last else self._parts + 1

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Ends the round: adds the noise, divides, and has the inner optimiser make its step."""
        self._check_loaded()
        if closure is not None:
            raise InvalidArgument("closure", "given", "must be left out: gradients are computed once a round")
        if self._parts != -1:
            raise PlanViolated(f"step: the batch of round {self.run.round} has not been accumulated, or not all of it")
        noise = self.run.noise()
        for name, weight in self._weights.items():
            noisy = self._total[name] + from_dlpack(noise[name]).to(weight.device)
            weight.grad = (noisy / self.run.plan.nominal_size).to(weight.dtype)
        self._inner.step()
        self.zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients, those of a round that is not complete too."""
        self._total, self._parts = {}, 0
        self._inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the run is open: the noise is for the parameters that it was opened with."""
        if hasattr(self, "run"):
            raise PlanViolated("add_param_group: a run has noise for the parameters that it was opened with only")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimiser's state and the run's, in types that `torch.load(weights_only=True)` reads."""
        return self._inner.state_dict() | {STATE: run_state(self.run)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what `state_dict` returned; see `TrainingRun.restore` for what is refused."""
        restore_run(self.run, state_dict)
        self._inner.load_state_dict({name: value for name, value in state_dict.items() if name != STATE})
        self._share()
        self.zero_grad()
        self._behind = False

    def _check_loaded(self) -> None:
        if self._behind:
            raise PlanViolated(f"{self.run.folder}: has a run that began before; load_state_dict has to come first")


def check_holds(optimizer: Optimizer, model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the trainable parameters of the model; refuses an optimiser that holds others, or not all."""
    weights = trainable(model)
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad}
    if not weights or held != {id(weight) for weight in weights.values()}:
        raise InvalidArgument("optimizer", len(held), f"must hold the {len(weights)} trainable parameters of the model")
    return weights


def run_state(run: TrainingRun) -> dict[str, Any]:
    """Returns `TrainingRun.state` in types that `torch.load(weights_only=True)` reads."""
    state = run.state()
    return state | {"noise": torch.frombuffer(bytearray(state["noise"]), dtype=torch.uint8)}


def restore_run(run: TrainingRun, state_dict: dict[str, Any]) -> None:
    """Has the run go on from the state in an optimiser's state_dict."""
    state = state_dict.get(STATE)
    if not isinstance(state, dict) or not isinstance(state.get("noise"), Tensor):
        raise PlanViolated("state_dict: has no run in it; it was not saved by an optimiser with a plan")
    run.restore(state | {"noise": state["noise"].cpu().numpy().tobytes()})


def train(
    plan: Plan | str | Path,
    folder: str | Path,
    loss: Loss,
    model: nn.Module,
    data: Dataset[Any],
    optimizer: Optimizer,
    *,
    micro_batch: int | None = None,
    workers: int = 0,
    save_every: int = 100,
    rounds: int | None = None,
    watch: Callable[[int], None] | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Trains the model for the rounds of the plan, or goes on with a run that was broken off; returns its record.

    A run that was killed and is started again by the same call ends with the same model, bit by bit on the same machine
    for a model without randomness of its own (dropout).

    Args:
      plan: a plan, or the folder of one.
      folder: of the run, see `TrainingRun`.
      loss: of one example.
      model: changed in place.
      data: a data set with as many examples as the plan.
      optimizer: gets private means of gradients.
      micro_batch: see `clipped_sum`.
      workers: processes that load data.
      save_every: rounds between checkpoints.
      rounds: stop once so many rounds are done; the run can be continued later.
      watch: called as watch(rounds done).
      seed: see `TrainingRun`; for tests and repeatable studies only.
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    count("save_every", save_every)
    last = plan.rounds if rounds is None else count("rounds", rounds, at_most=plan.rounds)
    size = len(data)  # type: ignore[arg-type]
    with open_run(plan, folder, model, examples=size, clip_norm=plan.clip_norm, seed=seed) as run:
        private = PrivateOptimizer(optimizer, model, run)
        loader = plan_loader(run, data, num_workers=workers)

        def write(path: Path) -> None:
            path.touch(mode=0o600)
            torch.save({"model": model.state_dict(), "optimizer": private.state_dict()}, path)

        if run.model is not None:
            saved = torch.load(run.model, weights_only=True)
            model.load_state_dict(saved["model"])
            private.load_state_dict(saved["optimizer"])
        while run.round < last:
            for batch in loader:
                private.accumulate(loss, batch, micro_batch)
                private.step()
                if watch is not None:
                    watch(run.round)
                if run.round % save_every == 0 or run.round == last:
                    run.save(write)
                if run.round == last:
                    break
        return run.record()
