"""Opacus with a plan: the plan's batches in place of Poisson's, its correlated noise, and its certified epsilon.

A script changes in a few lines:

    engine = PlanPrivacyEngine("plan", "run")                    # was PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0
    )                                                            # no noise_multiplier: the plan has it
    ...                                                          # the loop stays, for the plan's epochs
    engine.get_epsilon(delta)
    engine.close()                                               # writes the record of the run

`BatchMemoryManager`, ghost clipping, `save_checkpoint` and `load_checkpoint` work as they do in Opacus; a checkpoint
names the run, whose noise stays in its folder. Distributed training, per-layer and adaptive clipping are refused.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from galton.errors import MissingExtra

try:
    from opacus import PrivacyEngine
except ModuleNotFoundError:
    raise MissingExtra("galton.training.opacus", "opacus", "opacus") from None
import torch
from opacus.accountants import IAccountant, register_accountant
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, get_optimizer_class
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.dlpack import from_dlpack

from galton import files
from galton.errors import InvalidArgument
from galton.plan import Plan, load_plan
from galton.training.clipping import Group
from galton.training.opacus_batches import Delivery, PlanLoader
from galton.training.record import check_record
from galton.training.rounds import PlanViolated, check_same
from galton.training.run import ROUNDING, LostRounds, RoundsSkipped, TrainingRun
from galton.training.torch import open_run
from galton.training.torch_clipping import add_clipped, is_full_precision
from galton.training.torch_optimizer import (
    STATE,
    as_arrays,
    check_holds,
    check_unchanged,
    restore_run,
    without_run,
    write_tensors,
)

MECHANISM = "galton"
"""The accountant's name in Opacus."""


class PlanAccountant(IAccountant):  # type: ignore[misc]
    """An Opacus accountant that reports what the plan certified and computes nothing; registered as `galton`.

    Formal guarantee: the rounds that have had noise so far, lost in a crash or not, are (epsilon, delta)-DP for the
    epsilon that `get_epsilon(delta)` returns: 0 before the first round, then the plan's epsilon for the whole run,
    however few rounds are done. A delta below the plan's is refused.
    """

    def __init__(self) -> None:
        self._run: TrainingRun | None = None
        self._counted = 0

    @property
    def run(self) -> TrainingRun:
        """The run that is accounted for."""
        if self._run is None:
            raise PlanViolated("accountant: has no plan yet; PlanPrivacyEngine.make_private gives it one")
        return self._run

    def bind(self, run: TrainingRun) -> None:
        """Accounts for this run from now on.

        Args:
          run: the run.
        """
        self._run, self._counted = run, run.round

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """Noise multiplier, sample rate and number of steps, in the form of Opacus."""
        if self._run is None or not len(self):
            return []
        return [(self.run.plan.noise_multiplier, 1 / self.run.plan.bins, len(self))]

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Raises `PlanViolated` unless the step was one of the plan's, with noise of its own; Opacus calls this.

        Args:
          noise_multiplier: must be the plan's.
          sample_rate: must be one over the plan's batches per epoch.
        """
        check_same("noise_multiplier", noise_multiplier, self.run.plan.noise_multiplier)
        check_same("sample_rate", sample_rate, 1 / self.run.plan.bins)
        if self.run.round == self._counted:
            raise PlanViolated(f"step: round {self._counted} had no noise of the plan, or comes after the last")
        self._counted = self.run.round

    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        """Returns the epsilon that is guaranteed so far: the plan's, or 0 before the first round.

        Args:
          delta: the plan's, or a larger one; a smaller one raises `PlanViolated`.
          args: ignored.
          kwargs: ignored.

        Returns:
          The epsilon.
        """
        if delta < self.run.plan.guarantee.delta:
            raise PlanViolated(
                f"delta = {delta}: the plan was certified for {self.run.plan.guarantee.delta}; "
                "make a plan for a smaller one"
            )
        return self.run.plan.guarantee.epsilon if len(self) else 0.0

    def __len__(self) -> int:
        return 0 if self._run is None else self.run.released

    @classmethod
    def mechanism(cls) -> str:
        """Returns the accountant's name in Opacus."""
        return MECHANISM

    def state_dict(self, destination: Any = None) -> Any:
        """Returns the state that Opacus saves, and the plan's hash.

        Args:
          destination: as in Opacus.

        Returns:
          The state.
        """
        state = super().state_dict(destination)
        state["plan"] = self.run.plan.digest
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Raises `PlanViolated` unless the state is of this plan; the steps come with the optimiser's state.

        Args:
          state_dict: what `state_dict` returned.
        """
        check_same("mechanism", state_dict.get("mechanism"), MECHANISM)
        check_same("plan", state_dict.get("plan"), self.run.plan.digest)


register_accountant(MECHANISM, PlanAccountant, force=True)


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

        Opacus takes norms in the precision of the gradients, and under autocast exceeds the clip norm by 1%.
        """
        gradients: dict[str, Any] = {}
        for name, weight in self._weights.items():
            _check_processed_flag(weight.grad_sample)
            gradients[name] = self._get_flat_grad_sample(weight)
            if weight.summed_grad is None:
                weight.summed_grad = torch.zeros_like(weight)
            _mark_as_processed(weight.grad_sample)
        first = next(iter(gradients.values()))
        everyone = torch.ones(len(first), dtype=torch.bool, device=first.device)
        total = {name: weight.summed_grad for name, weight in self._weights.items()}
        add_clipped(total, gradients, everyone, [Group(tuple(total), self.max_grad_norm)])
        self._summed += len(first)

    def add_noise(self) -> None:
        """Adds the noise of the next round to the summed gradients, or raises `PlanViolated` if they are of others."""
        if self._must_load:
            raise PlanViolated(f"{self.run.folder}: has a run that began before; load_state_dict has to come first")
        if self._delivery.round in self._skipped:
            raise RoundsSkipped(f"round {self._delivery.round}: was skipped")
        self._delivery.check(self.run.round)
        check_same("number of gradients in this step", self._summed, len(self.run.batch.examples))
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


class PlanPrivacyEngine(PrivacyEngine):  # type: ignore[misc]
    """Opacus's `PrivacyEngine` for a plan: its batches, its noise and its epsilon in an Opacus script.

    What a script states about privacy (`max_grad_norm`, `noise_multiplier`, `target_epsilon`, `target_delta`, `epochs`,
    the loader's batch size) must agree with the plan, and may be left out where the signature allows it. The random
    generators of Opacus, secure or not, are not used: noise and batches have keys of 128 and 256 bits from the
    operating system.

    Args:
      plan: a plan, or the folder of one.
      folder: of the run; created if it does not exist, resumed from if it does. It has secrets.
      form: of the noise: `buffers`, `recompute`, or `auto:2GB`; see `TrainingRun`.
      strict: never compute a round again: those that a crash lost are skipped.
      seed: of batches and noise, for tests and repeatable studies only; see `TrainingRun`.
      pinned: the plan's hash, if only that plan will do; see `TrainingRun`.
      trusted_key: public key, or its file, that must have signed the plan; see `TrainingRun`.

    Attributes:
      plan: the plan.
      OPTIMIZERS: the optimisers of Opacus that are supported, with their counterparts here.

    Formal guarantee: that of `PlanDPOptimizer`.
    """

    OPTIMIZERS: ClassVar[dict[type, type[PlanDPOptimizer]]] = {
        DPOptimizer: PlanDPOptimizer,
        DPOptimizerFastGradientClipping: PlanDPOptimizerFastGradientClipping,
    }

    def __init__(
        self,
        plan: Plan | str | Path,
        folder: str | Path,
        *,
        form: str = "buffers",
        strict: bool = False,
        seed: int | None = None,
        pinned: str | None = None,
        trusted_key: str | Path | bytes | None = None,
    ) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Secure RNG turned off")
            super().__init__(accountant=MECHANISM)
        self.plan = plan if isinstance(plan, Plan) else load_plan(plan)
        self._folder = Path(folder)
        self._options: dict[str, Any] = {
            "form": form,
            "strict": strict,
            "seed": seed,
            "pinned": pinned,
            "trusted_key": trusted_key,
        }
        self._model: nn.Module | None = None
        self._wrapped: Any = None
        self._delivery = Delivery()

    @property
    def run(self) -> TrainingRun:
        """The run that `make_private` opened."""
        run: TrainingRun = self.accountant.run
        return run

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        max_grad_norm: float | None = None,
        noise_multiplier: float | None = None,
        criterion: Any = None,
        loss_reduction: str = "mean",
        batch_first: bool = True,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        clipping: str = "flat",
        poisson_sampling: bool = True,
    ) -> Any:
        """Opens the run and binds model, optimiser and data loader to the plan; call it once.

        Args:
          module: the model, not wrapped yet.
          optimizer: any optimiser of exactly its trainable parameters.
          data_loader: for its data set, workers and `collate_fn`; its batches are replaced by the plan's.
          max_grad_norm: if given, must be the plan's clip norm.
          noise_multiplier: if given, must be the plan's.
          criterion: as in Opacus; for ghost clipping.
          loss_reduction: as in Opacus.
          batch_first: as in Opacus.
          grad_sample_mode: as in Opacus.
          wrap_model: as in Opacus.
          clipping: must be `flat`.
          poisson_sampling: must not be False; the batches are the plan's in any case.

        Returns:
          Module, optimiser, for ghost clipping also the criterion, and data loader.
        """
        if self._model is not None:
            raise PlanViolated("make_private: has been called already; a plan is for one run, of one model")
        plan = self.plan
        if max_grad_norm is not None:
            check_same("max_grad_norm", max_grad_norm, plan.clip_norm)
        if noise_multiplier is not None:
            check_same("noise_multiplier", noise_multiplier, plan.noise_multiplier)
        check_same("clipping", clipping, "flat")
        if any(weight.element_size() < 4 for weight in module.parameters() if weight.requires_grad):
            raise PlanViolated(
                "module: has weights in half precision, which Opacus sums in half precision; use float32"
            )
        if not poisson_sampling:
            raise PlanViolated("poisson_sampling = False: batches are the plan's, never the loader's own")
        examples = len(data_loader.dataset)  # type: ignore[arg-type]
        if data_loader.batch_size is not None:
            check_same("batches per epoch", round(examples / data_loader.batch_size), plan.bins)
        check_holds(optimizer, module)
        run = open_run(plan, self._folder, module, examples=examples, clip_norm=plan.clip_norm, **self._options)
        self._model = module
        self.accountant.bind(run)
        try:
            return super().make_private(
                module=module,
                optimizer=optimizer,
                data_loader=data_loader,
                noise_multiplier=plan.noise_multiplier,
                max_grad_norm=opacus_clip_norm(plan),
                criterion=criterion or nn.CrossEntropyLoss(reduction=loss_reduction),
                loss_reduction=loss_reduction,
                batch_first=batch_first,
                grad_sample_mode=grad_sample_mode,
                wrap_model=wrap_model,
            )
        except BaseException:
            run.close()
            self._model = None
            raise

    def make_private_with_epsilon(
        self, *, target_epsilon: float, target_delta: float, epochs: int, **options: Any
    ) -> Any:
        """Like `make_private`, with the target and the number of epochs compared with the plan's.

        Args:
          target_epsilon: must be the plan's epsilon.
          target_delta: must be the plan's delta.
          epochs: must be the plan's.
          options: of `make_private`.

        Returns:
          What `make_private` returns.
        """
        check_same("target_epsilon", target_epsilon, self.plan.guarantee.epsilon)
        check_same("target_delta", target_delta, self.plan.guarantee.delta)
        check_same("epochs", epochs, self.plan.epochs)
        return self.make_private(**options)

    def _prepare_model(self, module: nn.Module, **options: Any) -> Any:
        self._wrapped = super()._prepare_model(module, **options)
        if "ghost" in options["grad_sample_mode"] or options["loss_reduction"] == "mean":
            refuse_low_precision(module, GHOST if "ghost" in options["grad_sample_mode"] else MEAN)
        return self._wrapped

    def _prepare_optimizer(
        self,
        *,
        optimizer: Optimizer,
        loss_reduction: str,
        distributed: bool,
        clipping: str,
        grad_sample_mode: str,
        **_: Any,
    ) -> PlanDPOptimizer:
        kind = get_optimizer_class(clipping=clipping, distributed=distributed, grad_sample_mode=grad_sample_mode)
        if kind not in self.OPTIMIZERS or self._model is None:
            raise InvalidArgument(
                "module",
                kind.__name__,
                "must not be distributed: each rank of Opacus adds noise of its own, and a plan has one noise for the "
                "sum over all; galton.training.torch trains in several processes by train(distributed=True)",
            )
        private = self.OPTIMIZERS[kind](optimizer, self._model, self.run, self._delivery, self._wrapped, loss_reduction)
        private.rebind = lambda: self.accountant.bind(self.run)  # rounds are counted from there
        return private

    def _prepare_data_loader(self, data_loader: DataLoader[Any], *, batch_first: bool, **_: Any) -> DataLoader[Any]:
        loader = PlanLoader(self.run, data_loader, batch_first)
        self._delivery = loader.delivery
        return loader

    def save_checkpoint(self, *, path: Any, **options: Any) -> None:
        """Saves a checkpoint as Opacus does, but whole or not at all, and readable by its owner only.

        Args:
          path: file to write, or an open file.
          options: as in Opacus.
        """
        if not isinstance(path, str | os.PathLike):
            super().save_checkpoint(path=path, **options)
            return
        with files.replacing(Path(path), secret=True) as temporary, temporary.open("wb") as file:
            super().save_checkpoint(path=file, **options)

    def close(self) -> dict[str, Any]:
        """Closes the run, which can be resumed if it is not done; writes its record, and the model to `model.pt`.

        Returns:
          The record, as in record.json.
        """
        if self._model is not None and self.run.released:
            self.run.publish(partial(write_tensors, self._model.state_dict()), ".pt")
        self.run.close()
        return check_record(self.run.folder)
