"""Opacus's optimisers with the noise of a plan, for gradients of examples or of users, from hooks or ghost clipping."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.dlpack import from_dlpack

from galton.batching import Users
from galton.plan import Plan
from galton.training.clipping import ROUNDING
from galton.training.lost import LostRounds, RoundsSkipped
from galton.training.opacus_batches import Delivery, rows_of
from galton.training.rounds import PlanViolated, check_same
from galton.training.run import TrainingRun
from galton.training.torch_clipping import add_clipped, at_least_single, is_full_precision
from galton.training.torch_optimizer import STATE, as_arrays, check_holds, check_unchanged, restore_run, without_run


class UserSums:
    """Adds up the gradients of each user's examples, which arrive one user after the other, in parts of any size.

    Formal guarantee: `add` returns every user's sum once, with the part that has the last of the user's examples, and
    as a sum of the gradients of that user's examples alone, in float32 at least and in the order of the rows.
    """

    def __init__(self) -> None:
        self._begun: dict[str, Tensor] = {}

    def forget(self) -> None:
        """Forgets a user of whom not all examples have arrived."""
        self._begun = {}

    def add(self, gradients: dict[str, Tensor], owners: NDArray[Any], ends: bool) -> dict[str, Tensor]:
        """Returns the sums of the users who are complete with this part.

        Args:
          gradients: by name, one row for each example of the part.
          owners: the user of each row, as a number that never falls.
          ends: whether the last user's examples end with this part; else they go on in the next.

        Returns:
          By name, one row for each user.
        """
        if not len(owners):
            return gradients
        users, first, sizes = np.unique(owners, return_index=True, return_counts=True)
        sums: dict[str, Tensor] = {}
        for name, rows in gradients.items():
            total = rows.new_zeros((len(users), *rows.shape[1:]), dtype=at_least_single(rows))
            if name in self._begun:
                total[0] = self._begun[name]
            for place in range(sizes.max()):  # row by row of each user: in the same order on any device
                there = np.flatnonzero(sizes > place)
                total[there] += rows[first[there] + place]
            sums[name] = total
        complete = len(users) - (not ends)
        self._begun = {} if ends else {name: total[-1] for name, total in sums.items()}
        return {name: total[:complete] for name, total in sums.items()}


class PlanDPOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus's optimiser with the noise of a plan, one round per real (not virtual) step; the engine makes it.

    Args:
      optimizer: receives the private gradients.
      model: the model before Opacus wrapped it.
      run: source of batches and noise.
      delivery: of the loader whose batches are stepped.
      wrapped: the model as wrapped by Opacus.
      loss_reduction: of the script's loss. `mean` divides noisy sums by the plan's expected batch size; `sum`
        leaves them as they are.
      users: which examples are whose, if the unit of the plan is a user.

    Attributes:
      run: as given.
      rebind: called after a state was loaded and after rounds were skipped.

    Formal guarantees:
      - Everything that is computed from the parameters after `step` has the guarantee of the plan, if Opacus clips as
        it states and the gradients are those of what the loader delivered. A step is refused unless the plan's loader
        delivered the batch of the next round and none after it (see `Delivery` for the limits of this check), and
        exactly as many gradients as it has examples were summed, clipped to the plan's norm (less a share of 2^-16 for
        rounding), of the parameters that were trainable at the start. It goes unnoticed if a script feeds the model
        with other tensors than the loader's, but as many of them.
      - Where users are the unit, the gradients of each user's examples are summed, over the parts of a batch too, and
        then clipped as a whole. Whose they are is told by their order: it goes unnoticed if a script, or its
        `collate_fn`, puts the rows of a batch into another.
      - `state_dict` has no secrets. A round that is computed again after `load_state_dict` gets its noise only for the
        same sum of gradients; else the rounds that were lost are skipped. See `training.torch.PrivateOptimizer`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        run: TrainingRun,
        delivery: Delivery,
        wrapped: Any,
        loss_reduction: str = "mean",
        users: Users | None = None,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=run.plan.noise_multiplier,
            max_grad_norm=opacus_clip_norm(run.plan),
            expected_batch_size=run.plan.expected_batch_size,
            loss_reduction=loss_reduction,
        )
        self.run, self._model, self._delivery, self._wrapped = run, model, delivery, wrapped
        self._weights: dict[str, Any] = dict(check_holds(optimizer, model))
        self._must_load = run.begun
        self._users, self._user_sums = users, UserSums()
        self._summed, self._pass = 0, delivery.passes
        self._skipped = range(0)
        self.rebind: Callable[[], None] = lambda: None

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Notes that a part of a batch is on its way; `BatchMemoryManager` calls this.

        Args:
          do_skip: whether other parts of the same batch follow.
        """
        self._delivery.open_part(do_skip)

    def _check_skip_next_step(self, pop_next: bool = True) -> bool:
        return self._delivery.next_part(pop_next)

    def pre_step(self, closure: Any = None) -> Any:
        """Clips, sums and adds noise as Opacus does, after checking clipping and parameters against the plan.

        Args:
          closure: as in Opacus.

        Returns:
          Whether the step is a real one, as in Opacus.
        """
        self._check_clipping()
        check_unchanged(self.original_optimizer, self._model, self._weights)
        if self._pass != self._delivery.passes:  # a pass begins with the first part of a round
            self._pass, self._summed = self._delivery.passes, 0
            self._user_sums.forget()
            for weight in self._weights.values():
                weight.summed_grad = None
        try:
            return super().pre_step(closure)
        except RoundsSkipped as lost:
            if self._delivery.round not in self._skipped:  # else a loader had read ahead
                self._skipped = range(self._delivery.round or 0, self.run.round)
                warnings.warn(str(lost), LostRounds, stacklevel=3)
                self.rebind()
            self._delivery.round = None
            self._is_last_step_skipped = False
            self.zero_grad()
            return False

    def _check_clipping(self) -> None:
        check_same("noise_multiplier", self.noise_multiplier, self.run.plan.noise_multiplier)
        check_same("max_grad_norm", self.max_grad_norm, opacus_clip_norm(self.run.plan))

    def clip_and_accumulate(self) -> None:
        """Clips and sums in float32, whatever precision the gradients have, and counts them.

        Opacus takes norms in the precision of the gradients, and under autocast exceeds the clip norm by 1%. Where
        users are the unit, the gradients of a user's examples are summed first.
        """
        gradients: dict[str, Any] = {}
        for name, weight in self._weights.items():
            _check_processed_flag(weight.grad_sample)
            gradients[name] = self._get_flat_grad_sample(weight)
            if weight.summed_grad is None:
                weight.summed_grad = torch.zeros_like(weight)
            _mark_as_processed(weight.grad_sample)
        arrived = len(next(iter(gradients.values())))
        gradients = gradients if self._users is None else self._summed_by_user(gradients, arrived)
        first = next(iter(gradients.values()))
        everyone = torch.ones(len(first), dtype=torch.bool, device=first.device)
        total = {name: weight.summed_grad for name, weight in self._weights.items()}
        groups = self.run.clipping.groups(self.run.plan.clip_norm, total)
        add_clipped(total, gradients, everyone, groups, self.run.clipping.gamma)
        self._summed += arrived

    def _summed_by_user(self, gradients: dict[str, Tensor], arrived: int) -> dict[str, Tensor]:
        """The sums of users that are complete; none for a batch that gets no noise, as it is not that of the round."""
        if self._delivery.stepped != self.run.round:
            return {name: rows[:0] for name, rows in gradients.items()}
        owners = self._owners
        end = self._summed + arrived
        check_same("number of gradients in this step", end, min(end, len(owners)))
        ends = end == len(owners) or not arrived or owners[end] != owners[end - 1]
        return self._user_sums.add(gradients, owners[self._summed : end], ends)

    @property
    def _owners(self) -> NDArray[Any]:
        """To whom the examples of the next round's batch belong, in the order in which they are loaded."""
        return rows_of(self.run.batch, self._users, self.run.plan.bins)[1]

    def add_noise(self) -> None:
        """Adds the noise of the next round to the summed gradients, or raises `PlanViolated` if they are of others."""
        if self._must_load:
            raise PlanViolated(f"{self.run.folder}: has a run that began before; load_state_dict has to come first")
        if self._delivery.round in self._skipped:
            raise RoundsSkipped(f"round {self._delivery.round}: was skipped")
        self._delivery.check(self.run.round)
        check_same("number of gradients in this step", self._summed, len(self._owners))
        for weight in self._weights.values():
            _check_processed_flag(weight.summed_grad)
        noise = self.run.noise(as_arrays({name: weight.summed_grad for name, weight in self._weights.items()}))
        self._delivery.round = None
        for name, weight in self._weights.items():
            noisy = weight.summed_grad + from_dlpack(noise[name]).to(weight.device)
            weight.grad = noisy.to(weight.dtype).view_as(weight)
            _mark_as_processed(weight.summed_grad)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Forgets gradients, but after a virtual step keeps the sums.

        Args:
          set_to_none: as in PyTorch.
        """
        super().zero_grad(set_to_none)
        if not self._is_last_step_skipped:
            self._summed = 0
            self._user_sums.forget()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of optimiser and run, in types that `torch.load(weights_only=True)` reads."""
        return super().state_dict() | {STATE: self.run.state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state of this run; see `TrainingRun.restore` for what is refused.

        Args:
          state_dict: what `state_dict` returned.
        """
        restore_run(self.run, state_dict)
        super().load_state_dict(without_run(state_dict))
        self._delivery.forget()
        self._is_last_step_skipped = False
        self.zero_grad()
        self._must_load, self._skipped = False, range(0)
        self.rebind()


class PlanDPOptimizerFastGradientClipping(PlanDPOptimizer, DPOptimizerFastGradientClipping):  # type: ignore[misc]
    """`PlanDPOptimizer` for ghost clipping, where gradients arrive clipped and summed.

    They are summed inside the backward pass, in the precision of the forward pass: less than float32 is refused.
    """

    def _check_clipping(self) -> None:
        super()._check_clipping()
        check_same("max_grad_norm of the module", self._wrapped.max_grad_norm, opacus_clip_norm(self.run.plan))

    def accumulate(self) -> None:
        """Sums as Opacus does, and counts the gradients."""
        super().accumulate()
        self._summed += len(next(iter(self._weights.values()))._norm_sample)

    def clip_and_accumulate(self) -> None:
        """Does nothing: gradients are clipped in the backward pass."""


def refuse_low_precision(module: nn.Module, reason: str) -> None:
    """Makes a model raise `PlanViolated` where it is computed in less than float32.

    Args:
      module: the model.
      reason: why that would exceed the clip norm, and what to do instead.
    """

    def check(part: nn.Module, *_: Any) -> None:
        if not is_full_precision(next(part.parameters(recurse=False)).device):
            raise PlanViolated(
                f"autocast: {reason}, or float32 throughout (no autocast, "
                "torch.set_float32_matmul_precision('highest'))"
            )

    for part in module.modules():
        if any(weight.requires_grad for weight in part.parameters(recurse=False)):
            part.register_forward_pre_hook(check)
            part.register_full_backward_pre_hook(check)


USERS = (
    "Opacus's ghost clipping takes the norms of single examples, never that of a user's sum; take "
    "grad_sample_mode='hooks', or galton.training.torch.train(ghost=True, users=...)"
)
ONE_NORM = (
    "Opacus's ghost clipping takes one norm over all parameters, and one factor; take grad_sample_mode='hooks', or "
    "galton.training.torch.train(ghost=True, clipping=...)"
)
GHOST = "ghost clipping sums gradients in the precision of the forward pass; take grad_sample_mode='hooks'"
MEAN = (
    "the mean of a loss divides by the size of the batch before gradients are rounded, so that one example changes "
    "those of all others; take loss_reduction='sum'"
)


def opacus_clip_norm(plan: Plan) -> float:
    """Returns the norm that Opacus clips to: the plan's, with room for rounding.

    Args:
      plan: the plan.

    Returns:
      A norm that is smaller than the plan's by as much as rounding may add.
    """
    return plan.clip_norm * (1 - ROUNDING)
