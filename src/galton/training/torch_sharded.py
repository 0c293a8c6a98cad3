"""One run in several processes that each have a part of every parameter (FSDP2, `fully_shard`).

Parameters are gathered while the clipped gradients of a batch are computed, and given back: then every process has the
whole model and its whole sum. One reduce-scatter gives each process its part of the sum over all; it makes the noise of
that part itself, without a word to the others, with buffers that it alone has, and its optimiser has the state of that
part. Rank 0 has the folder and the journal, as in `torch_processes.py`. For a checkpoint, model and optimiser are
gathered on all processes, and the buffers of the noise on rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.dlpack import from_dlpack

from galton.errors import InvalidArgument
from galton.noise.checkpoint import load_state
from galton.noise.hashing import content_hash
from galton.noise.layout import Piece, layout_of
from galton.noise.stream import NoiseState
from galton.plan import Plan
from galton.training.lost import RoundsSkipped
from galton.training.rounds import PlanViolated
from galton.training.run import TrainingRun
from galton.training.torch_clipping import trainable
from galton.training.torch_processes import FIRST, SharedRun


def is_sharded(model: nn.Module) -> bool:
    """Whether processes have parts of the model's parameters only."""
    return any(isinstance(weight.data, DTensor) for weight in model.parameters())


def check_whole(model: nn.Module) -> None:
    """Raises `InvalidArgument` for a model of which processes have parts only.

    Args:
      model: the model.
    """
    if is_sharded(model):
        raise InvalidArgument(
            "model",
            type(model).__name__,
            "must have whole parameters here; a model of fully_shard (FSDP2) is trained by train(distributed=True), "
            "not in a loop of your own: its noise is in parts too, which only that saves",
        )


def check_shards(model: nn.Module) -> None:
    """Raises `InvalidArgument` for a model that is cut in another way than `fully_shard` does by default.

    Args:
      model: the model.
    """
    for name, weight in trainable(model).items():
        values = weight.data
        right = (
            isinstance(values, DTensor)
            and values.device_mesh.mesh.tolist() == list(range(dist.get_world_size()))
            and type(values.placements[0]) is Shard
            and tuple(values.to_local().shape) == Shards.of(values).local(values.device_mesh.get_local_rank())
        )
        if not right:
            raise InvalidArgument(
                "model",
                name,
                "must be cut along one axis over all processes in their order, as all other trainable parameters: call "
                "fully_shard on the model itself, with a mesh of one axis",
            )
    for name, part in model.named_modules():
        if isinstance(part, FSDPModule) and not any(map(_is_fsdp, cast(nn.Module, part)._forward_pre_hooks.values())):
            raise InvalidArgument("model", name or "itself", "must be sharded alone: fully_shard of a list is refused")


class Shards(NamedTuple):
    """How a parameter is cut over processes: into chunks of the same length along one axis, the last ones shorter."""

    shape: tuple[int, ...]
    axis: int
    processes: int

    @classmethod
    def of(cls, weight: DTensor) -> Shards:
        placement = cast(Shard, weight.placements[0])
        return cls(tuple(weight.shape), placement.dim % weight.ndim, weight.device_mesh.size())

    def range(self, rank: int) -> tuple[int, int]:
        """First index of a process's part, and its length."""
        length = self.shape[self.axis]
        chunk = -(-length // self.processes)
        first = min(rank * chunk, length)
        return first, min(chunk, length - first)

    def local(self, rank: int) -> tuple[int, ...]:
        """Shape of a process's part."""
        return tuple(self.range(rank)[1] if axis == self.axis else size for axis, size in enumerate(self.shape))

    def piece(self, rank: int, dtype: Any) -> Piece:
        """A process's part, as noise is made for it."""
        begin = tuple(self.range(rank)[0] if axis == self.axis else 0 for axis in range(len(self.shape)))
        return Piece(self.shape, dtype, begin, self.local(rank))


def _is_fsdp(hook: Any) -> bool:
    return type(getattr(hook, "__self__", None)).__name__ == "FSDPState"


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Inside a block, all processes have all parameters, as plain tensors, and FSDP's own hooks do not run.

    Gradients are then those of an ordinary model, for `torch.func` too. All processes must enter it.

    Args:
      model: of `fully_shard`; any other is left as it is.
    """
    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    given = {name: weight.dtype for name, weight in model.named_parameters()} if parts else {}
    with ExitStack() as stack:
        for part in parts:
            stack.callback(part.reshard)
            part.unshard()
            for hooks in (part._forward_pre_hooks, part._forward_hooks):
                stack.callback(_restore, hooks, list(hooks.items()))
                kept = [(number, hook) for number, hook in hooks.items() if not _is_fsdp(hook)]
                _restore(hooks, kept)
        for name, dtype in given.items():
            if model.get_parameter(name).dtype != dtype:
                raise InvalidArgument("mp_policy", name, "must be left out of fully_shard; use torch.autocast instead")
        yield


def _restore(hooks: Any, entries: list[tuple[int, Any]]) -> None:
    hooks.clear()
    hooks.update(entries)


def reshard(model: nn.Module) -> None:
    """Gives back parameters that a forward pass, an evaluation say, has gathered.

    Args:
      model: any model.
    """
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def like(weight: Tensor, values: Tensor) -> Tensor:
    """Returns a process's part of a gradient as the gradient of its parameter.

    Args:
      weight: the parameter.
      values: the whole gradient, or the process's part where the parameter is cut.

    Returns:
      The gradient.
    """
    if not isinstance(weight.data, DTensor):
        return values
    data = weight.data
    return DTensor.from_local(
        values, data.device_mesh, data.placements, run_check=False, shape=data.shape, stride=data.stride()
    )


def gathered(tree: Any) -> Any:
    """Returns a tree with whole tensors in place of parts; all processes must call it.

    Args:
      tree: such as a state_dict.

    Returns:
      The tree.
    """
    return tree_map(lambda leaf: leaf.full_tensor() if isinstance(leaf, DTensor) else leaf, tree)


def load_model(model: nn.Module, saved: dict[str, Tensor]) -> None:
    """Takes over a state_dict of whole tensors.

    Args:
      model: sharded or not; changed in place.
      saved: the state_dict.
    """
    reshard(model)
    current = model.state_dict()
    model.load_state_dict({name: _cut_like(current.get(name), values) for name, values in saved.items()})


def cut_states(optimizer: Optimizer) -> None:
    """Cuts the states of an optimiser, which were loaded whole, as its parameters are.

    Args:
      optimizer: changed in place.
    """
    for weight, states in optimizer.state.items():
        for name, values in states.items():
            if isinstance(values, Tensor) and values.shape == weight.shape:
                states[name] = _cut_like(weight.data, values)


def _cut_like(weight: Tensor | None, values: Tensor) -> Tensor:
    if not isinstance(weight, DTensor) or isinstance(values, DTensor):
        return values
    return distribute_tensor(values, weight.device_mesh, weight.placements, src_data_rank=None)


class ShardedRun(SharedRun):
    """A training run of processes that each have a part of every parameter; `train` makes it.

    Args:
      begin: opens the run for the parts of rank 0; called there only.
      plan: the run's plan.
      folder: of the run; only rank 0 reads and writes it.
      about: what must be the same on all ranks.
      weights: the trainable parameters, by name.

    Formal guarantees:
      - Those of `SharedRun`. The noise of a part is made by the process that has it, after rank 0 has written the round
        to the journal, and is that which one process would have made, bit by bit on the same platform.
      - A process that has the keys of the noise can compute the noise of all parts: ranks trust each other.
    """

    def __init__(
        self,
        begin: Callable[[], TrainingRun],
        plan: Plan,
        folder: str | Path,
        about: Any,
        weights: dict[str, Any],
    ) -> None:
        self._state: NoiseState | None = None
        self._shards = {name: Shards.of(weight.data) for name, weight in weights.items()}
        super().__init__(begin, plan, folder, about)
        try:
            self._open_parts(weights)
            self._follow()
        except BaseException:
            self.close()
            raise

    def _pieces(self, rank: int, kinds: dict[str, Any]) -> dict[str, Piece]:
        return {name: shards.piece(rank, kinds[name]) for name, shards in self._shards.items()}

    def _open_parts(self, weights: dict[str, Any]) -> None:
        """Sends every rank the keys, and the buffers of its own part as they were saved."""
        self._kinds = {name: noise_dtype(weight) for name, weight in weights.items()}
        parts: list[Any] = [None] * self.processes

        def read() -> tuple[str, int]:
            state, noise = self.own.noise_state, self.own._noise
            if noise.origin:
                shapes = {
                    name: jax.ShapeDtypeStruct(s.shape, self._kinds[name])  # type: ignore[no-untyped-call]
                    for name, s in self._shards.items()
                }
                with jax.default_device(jax.local_devices(backend="cpu")[0]):
                    saved = load_state(self.folder / "noise.npz", noise.noise, shapes)
                    wholes = [np.asarray(buffer) for buffer in saved.buffers]
                    for rank in range(self.processes):
                        layout = layout_of(self._pieces(rank, self._kinds))
                        parts[rank] = [np.asarray(part) for part in layout.placed(wholes)]
            secrets = [np.asarray(state.keys), np.asarray(state.since)]
            parts[:] = [(*secrets, part) for part in parts]
            return noise.noise.form, noise.origin

        form, origin = self.on_first(read)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, parts if self.rank == FIRST else None, src=FIRST)
        keys, since, buffers = mine[0]
        self._key = jnp.asarray(keys[0])
        if self.rank != FIRST:
            self._noise = self.plan.noise(form)
            state = self._noise.init(self._pieces(self.rank, self._kinds), self._key)
            self._state = replace(
                state,
                keys=jnp.asarray(keys),
                since=jnp.asarray(since),
                round=jnp.asarray(origin, jnp.int32),
                buffers=state.buffers if buffers is None else [jnp.asarray(part) for part in buffers],
            )

    def _follow(self) -> None:
        """Learns from rank 0 how far the run is, and moves this rank's part of the noise there."""
        super()._follow()
        if self._state is not None:
            if not self._noise.memory:
                self._state = replace(self._state, round=jnp.asarray(self.round, jnp.int32))
            while int(self._state.round) < self.round:
                _, self._state = self._noise.step(self._state)

    def noisy(self, total: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sums over all ranks, adds the noise of the next round, and moves on; see `SharedRun.noisy`.

        Args:
          total: this rank's sum of clipped gradients, by name of the parameter, whole.

        Returns:
          This rank's part of the noisy sum.
        """
        sums = self._scattered(total)
        digest = content_hash({name: part.cpu().numpy() for name, part in sums.items()}, self._key)
        digests = np.frombuffer(b"".join(self.gathered(digest)), np.uint8)
        drawn: list[Any] = []

        def ask() -> str:
            try:
                drawn.append(self.own.noise(digests))
            except RoundsSkipped as lost:
                return str(lost)
            return ""

        skipped = self.on_first(ask)
        if not skipped and self._state is not None:
            noise, self._state = self._noise.step(self._state)
            drawn.append(noise)
        self._follow()
        if skipped:
            raise RoundsSkipped(skipped)
        return {
            name: part.add_(from_dlpack(drawn[0][name]).to(part.device)) if part.numel() else part
            for name, part in sums.items()
        }

    def _scattered(self, total: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns this rank's part of the sum over all ranks: one reduce-scatter for each precision."""
        sums: dict[str, Tensor] = {}
        for kind in sorted({part.dtype for part in total.values()}, key=str):
            names = [name for name, part in total.items() if part.dtype == kind]
            parts = [
                torch.cat([self._part(total[name], name, rank).reshape(-1) for name in names])
                for rank in range(self.processes)
            ]
            longest = max(part.numel() for part in parts)
            sent = parts[0].new_zeros(self.processes, longest)
            for rank, part in enumerate(parts):
                sent[rank, : part.numel()] = part
            received = sent.new_empty(longest)
            dist.reduce_scatter(received, list(sent))
            start = 0
            for name in names:
                shape = self._shards[name].local(self.rank)
                size = int(np.prod(shape))
                sums[name] = received[start : start + size].view(shape)
                start += size
        return {name: sums[name] for name in total}

    def _part(self, values: Tensor, name: str, rank: int) -> Tensor:
        shards = self._shards[name]
        return values.narrow(shards.axis, *shards.range(rank))

    def save(self, write: Callable[[Path], object] | None = None) -> None:
        """Saves the run on rank 0, which the others send their buffers; see `TrainingRun.save`.

        Args:
          write: write(path) writes model and optimiser; called on rank 0 only.
        """
        state = self.own.noise_state if self._state is None else self._state
        parts: list[Any] | None = [None] * self.processes if self.rank == FIRST else None
        dist.gather_object([np.asarray(buffer) for buffer in state.buffers], parts, dst=FIRST)

        def save() -> None:
            wholes = [
                np.empty((len(x), size), d) for x, (size, d) in zip(state.buffers, state.layout.groups, strict=True)
            ]
            for rank, part in enumerate(parts or []):
                layout_of(self._pieces(rank, self._kinds)).put(wholes, part)
            self.own.save(write, wholes)

        self.on_first(save)
        self._follow()

    def state(self) -> dict[str, Any]:
        """Raises `PlanViolated`: the noise of a sharded run is saved by `save` only, in one piece with the model."""
        raise PlanViolated("state_dict: a run of sharded parameters is saved by train alone, buffers of noise included")

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `PlanViolated`, as `state` does.

        Args:
          state: refused.
        """
        raise PlanViolated("load_state_dict: a run of sharded parameters is taken up by train alone")


def noise_dtype(weight: Tensor) -> Any:
    """Returns the precision of a parameter's noise: float32, or float64 where the parameter has it."""
    return np.float64 if weight.dtype == torch.float64 else np.float32
