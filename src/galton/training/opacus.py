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
names the run, whose noise stays in its folder. Where users are the unit, `make_private(users=...)`; groups of
parameters are clipped by `make_private(clipping=...)`. Distributed training and adaptive clipping are refused.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from galton.errors import MissingExtra

try:
    from opacus import PrivacyEngine
except ModuleNotFoundError:
    raise MissingExtra("galton.training.opacus", "opacus", "opacus") from None
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, get_optimizer_class
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset

from galton import files
from galton.batching import Users
from galton.errors import InvalidArgument, InvalidFile
from galton.plan import Plan, load_plan
from galton.plan.conventions import FLAT
from galton.training.clipping import Clipping
from galton.training.opacus_accountant import MECHANISM, PlanAccountant
from galton.training.opacus_batches import Delivery, PlanLoader
from galton.training.opacus_optimizer import (
    GHOST,
    MEAN,
    ONE_NORM,
    USERS,
    PlanDPOptimizer,
    PlanDPOptimizerFastGradientClipping,
    opacus_clip_norm,
    refuse_low_precision,
)
from galton.training.progress import progress_bar
from galton.training.record import check_record
from galton.training.rounds import PlanViolated, check_same
from galton.training.run import TrainingRun
from galton.training.streams import check_streaming
from galton.training.termination import Termination
from galton.training.torch import open_run
from galton.training.torch_batches import check_users, size_of
from galton.training.torch_optimizer import check_holds, errors_of_files, write_tensors

__all__ = ["PlanAccountant", "PlanDPOptimizer", "PlanDPOptimizerFastGradientClipping", "PlanPrivacyEngine"]

SCHEDULER = "galton_lr_scheduler"
"""Key of a learning rate scheduler's state in a checkpoint."""

DISTRIBUTED = (
    "must not be distributed: each rank of Opacus adds noise of its own, and a plan has one noise for the sum over all "
    "of them; galton.training.torch trains in several processes by train(distributed=True)"
)


def _clipping(name: str) -> Clipping:
    """Clipping by its name in Opacus, of which there is one here: others need norms."""
    if name != FLAT:
        remedy = "must be flat, or per_group(...) or normalized(...) of galton.training.clipping, as the plan says"
        raise InvalidArgument("clipping", name, remedy)
    return Clipping()


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

    Example:
      >>> import tempfile
      >>> import galton
      >>> import torch
      >>> from torch.utils.data import DataLoader, TensorDataset
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> data, model = TensorDataset(torch.randn(64, 2), torch.randn(64, 1)), torch.nn.Linear(2, 1)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     engine = PlanPrivacyEngine(plan, folder)
      ...     model, optimizer, loader = engine.make_private(
      ...         module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, 32)
      ...     )
      ...     for _ in range(plan.epochs):
      ...         for rows, labels in loader:
      ...             optimizer.zero_grad()
      ...             torch.nn.functional.mse_loss(model(rows), labels, reduction="mean").backward()
      ...             optimizer.step()
      ...     record = engine.close()
      >>> record["rounds_done"], engine.get_epsilon(delta=1e-3)
      (4, 4.0)
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
        self._users: Users | None = None
        self._wrapped: Any = None
        self._delivery = Delivery()
        self._termination = Termination()

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
        clipping: str | Clipping = FLAT,
        poisson_sampling: bool = True,
        users: Users | None = None,
        shuffled: bool = False,
        reshuffled: bool = False,
    ) -> Any:
        """Opens the run and binds model, optimiser and data loader to the plan; call it once.

        Args:
          module: the model, not wrapped yet.
          optimizer: any optimiser of exactly its trainable parameters.
          data_loader: for its data set, workers and `collate_fn`; its batches are replaced by the plan's. For a plan of
            streaming batches the data set may be an `IterableDataset`, see `galton.training.torch.plan_loader`.
          max_grad_norm: if given, must be the plan's clip norm.
          noise_multiplier: if given, must be the plan's.
          criterion: as in Opacus; for ghost clipping.
          loss_reduction: as in Opacus.
          batch_first: as in Opacus.
          grad_sample_mode: as in Opacus.
          wrap_model: as in Opacus.
          clipping: how gradients are clipped, of the kind that the plan says: `flat`, or `per_group(...)` or
            `normalized(...)` of `galton.training.clipping`, which ghost clipping does not have.
          poisson_sampling: must not be False; the batches are the plan's in any case.
          users: which examples are whose (`galton.batching.group_by_user`), for a plan whose unit is a user. A batch
            then has examples of as many users as the plan says, one user after the other, and the gradients of a user's
            examples are clipped as a whole; not with ghost clipping. The loader's `collate_fn` must keep the order of
            examples.
          shuffled: confirms that the data was shuffled by `shuffle_records`, in secret; needed for a streaming plan.
          reshuffled: confirms that it is shuffled so anew for every epoch; needed, instead, for a streaming plan whose
            bins are redrawn.

        Returns:
          Module, optimiser, for ghost clipping also the criterion, and data loader.
        """
        if isinstance(module, DistributedDataParallel | DifferentiallyPrivateDistributedDataParallel):
            raise InvalidArgument("module", type(module).__name__, DISTRIBUTED)
        if self._model is not None:
            raise PlanViolated("make_private: has been called already; a plan is for one run, of one model")
        plan = self.plan
        if max_grad_norm is not None:
            check_same("max_grad_norm", max_grad_norm, plan.clip_norm)
        if noise_multiplier is not None:
            check_same("noise_multiplier", noise_multiplier, plan.noise_multiplier)
        kind = clipping if isinstance(clipping, Clipping) else _clipping(clipping)
        if kind.kind != FLAT and "ghost" in grad_sample_mode:
            raise PlanViolated(f"grad_sample_mode = {grad_sample_mode}: {ONE_NORM}")
        if any(weight.element_size() < 4 for weight in module.parameters() if weight.requires_grad):
            raise PlanViolated(
                "module: has weights in half precision, which Opacus sums in half precision; use float32"
            )
        if not poisson_sampling:
            raise PlanViolated("poisson_sampling = False: batches are the plan's, never the loader's own")
        examples = size_of(data_loader.dataset, plan.examples)
        if isinstance(data_loader.dataset, IterableDataset):
            check_streaming(plan, type(data_loader.dataset).__name__, users)
        if users is not None:
            check_users(users, examples)
            if "ghost" in grad_sample_mode:
                raise PlanViolated(f"grad_sample_mode = {grad_sample_mode}: {USERS}")
        elif data_loader.batch_size is not None:
            check_same("batches per epoch", round(examples / data_loader.batch_size), plan.bins)
        check_holds(optimizer, module)
        run = open_run(
            plan,
            self._folder,
            module,
            examples=examples if users is None else users.number,
            per_user=None if users is None else users.per_user,
            clip_norm=plan.clip_norm,
            clipping=kind,
            shuffled=shuffled,
            reshuffled=reshuffled,
            **self._options,
        )
        self._model, self._users = module, users
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
            raise InvalidArgument("module", kind.__name__, DISTRIBUTED)
        private = self.OPTIMIZERS[kind](
            optimizer, self._model, self.run, self._delivery, self._wrapped, loss_reduction, self._users
        )
        private.rebind = lambda: self.accountant.bind(self.run)  # rounds are counted from there
        return private

    def _prepare_data_loader(self, data_loader: DataLoader[Any], *, batch_first: bool, **_: Any) -> DataLoader[Any]:
        loader = PlanLoader(self.run, data_loader, batch_first, self._users)
        self._delivery = loader.delivery
        return loader

    def save_checkpoint(self, *, path: Any, lr_scheduler: LRScheduler | None = None, **options: Any) -> None:
        """Saves a checkpoint as Opacus does, but whole or not at all, and readable by its owner only.

        Args:
          path: file to write, or an open file.
          lr_scheduler: of the optimiser's learning rate, saved with it.
          options: as in Opacus.
        """
        if lr_scheduler is not None:
            more = options.get("checkpoint_dict") or {}
            options["checkpoint_dict"] = more | {SCHEDULER: lr_scheduler.state_dict()}
        if not isinstance(path, str | os.PathLike):
            super().save_checkpoint(path=path, **options)
            return
        with files.replacing(Path(path), secret=True) as temporary, errors_of_files(), temporary.open("wb") as file:
            super().save_checkpoint(path=file, **options)

    def load_checkpoint(self, *, path: Any, lr_scheduler: LRScheduler | None = None, **options: Any) -> dict[str, Any]:
        """Loads a checkpoint as Opacus does.

        Args:
          path: file to read, or an open file.
          lr_scheduler: goes on from where it was, if it was saved.
          options: as in Opacus.

        Returns:
          What the file holds.
        """
        content: dict[str, Any] = super().load_checkpoint(path=path, **options)
        if lr_scheduler is not None:
            if SCHEDULER not in content:
                raise InvalidFile(f"{path}: has no learning rate scheduler in it; it was saved without lr_scheduler=")
            lr_scheduler.load_state_dict(content[SCHEDULER])
        return content

    def save_on_termination(self, *, path: Any, **options: Any) -> None:
        """Holds SIGTERM back until a round is over, then saves a checkpoint, closes the run and passes the signal on.

        A round is over when the loader is asked for the next batch, the last of an epoch when a new pass begins: what a
        script does after a step (a scheduler's, say) is done by then. With `BatchMemoryManager` that is only so at the
        end of an epoch. Call it after `make_private`, in the main thread.

        Args:
          path: of the checkpoint.
          options: of `save_checkpoint`: the module, the optimiser, a scheduler.
        """
        if self._model is None:
            raise PlanViolated("save_on_termination: has to come after make_private")
        self._termination.__enter__()

        def between_rounds() -> None:
            if self._termination.requested:
                self.save_checkpoint(path=path, **options)
                self.close()

        self._delivery.between_rounds = between_rounds

    @contextmanager
    def progress(self, shown: bool = True) -> Iterator[None]:
        """Shows rounds, time left and the epsilon spent so far on stderr, if that is a terminal, while its block runs.

        Put the training loop in the block, after `make_private`. See `galton.training.progress_bar`.

        Args:
          shown: whether to show anything.

        Yields:
          Nothing: the bar follows the optimiser's steps.
        """
        with progress_bar(self.run, shown=shown) as show:
            self.accountant.after_round = show
            try:
                yield
            finally:
                self.accountant.after_round = lambda: None

    def close(self) -> dict[str, Any]:
        """Closes the run, which can be resumed if it is not done; writes its record, and the model to `model.pt`.

        Returns:
          The record, as in record.json.
        """
        try:
            if self._model is not None and self.run.released:
                self.run.publish(partial(write_tensors, self._model.state_dict()), ".pt")
        finally:
            self.run.close()
        record = check_record(self.run.folder)
        self._termination.__exit__(None, None, None)  # a signal that came takes effect here
        return record
