"""Training in JAX with what a plan analysed: clipping, noise as an optax transformation, and a loop that resumes.

    step = clipped_sum(loss, plan.clip_norm)
    optimizer = optax.chain(private_updates(plan), optax.sgd(0.5, momentum=0.9))
    total = step(params, rows, batch.mask)                       # rows of plan.batches(), padded
    updates, state = optimizer.update(total, state, params)

or all of it, with a journal, checkpoints and the record of the run: `train`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from galton.errors import MissingExtra

try:
    import optax
except ModuleNotFoundError:
    raise MissingExtra("galton.training.jax", "optax", "jax") from None
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from galton.batching import Users
from galton.errors import InvalidArgument, count
from galton.noise.layout import Tree
from galton.noise.sealed import SealedState, sealed_noise
from galton.plan import Plan, establish_trust, load_plan
from galton.training.clipping import Clipping
from galton.training.diagnostics import Diagnostics, Receiver, keep_diagnostics
from galton.training.hooks import OnRound
from galton.training.jax_clipping import (
    ClippedSum,
    Loss,
    clipped_sum,
    in_micro_batches,
    parameter_names,
    user_loss,
    with_key,
)
from galton.training.jax_devices import automatic, number_of_parts, on_mesh, over_devices
from galton.training.jax_processes import agreed, at_hand, open_run
from galton.training.jax_rows import MappedFiles, Rows, Stream
from galton.training.jax_trees import load_tree, save_model, save_tree
from galton.training.lost import LostRounds, RoundsSkipped
from galton.training.progress import progress_bar
from galton.training.termination import Termination

__all__ = [
    "ClippedSum",
    "Loss",
    "MappedFiles",
    "Stream",
    "Trained",
    "clipped_sum",
    "in_micro_batches",
    "load_tree",
    "parameter_names",
    "private_updates",
    "save_model",
    "save_tree",
    "train",
    "user_loss",
]


def private_updates(
    plan: Plan | str | Path,
    key: jax.Array | None = None,
    form: str = "buffers",
    *,
    folder: str | Path | None = None,
    pinned: str | None = None,
    trusted_key: str | Path | bytes | None = None,
) -> optax.GradientTransformation:
    """Returns an optax transformation that turns sums of clipped gradients into private means.

    It adds the noise and divides by the expected batch size; put it first in an `optax.chain`. Its state is that of the
    noise, without the key and sealed (`noise/sealed.py`): save it with the optimiser's, and never use it for two
    different gradients, nor inside `pmap` or `vmap`, where copies of it have the same noise. (`train` sees to that with
    a journal.)

    Formal guarantee: the outputs of the planned rounds together have the plan's guarantee if the inputs are sums of
    gradients clipped to the plan's norm over the plan's batches. Later rounds give NaN, and so does a state that
    belongs to another secret.

    Args:
      plan: a plan, or the folder of one.
      key: of the noise, if it is yours to keep; by default from the operating system, a new one for each `init`.
      form: of the noise, `buffers` or `recompute`; see `CorrelatedNoise`.
      folder: where the secret is kept, so that another process can go on from a saved state; made if it is not there.
      pinned: the plan's hash, if only that plan will do; see `TrainingRun`.
      trusted_key: public key, or its file, that must have signed the plan; see `TrainingRun`.

    Returns:
      The transformation.

    Example:
      >>> import galton
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> optimizer = optax.chain(private_updates(plan), optax.sgd(0.1))
      >>> weights = jnp.zeros(2)
      >>> state = optimizer.init(weights)
      >>> batch, mask = jnp.ones((32, 2)), jnp.ones(32, bool)  # the first of the plan's batches
      >>> total = clipped_sum(lambda w, row: (row @ w - 1) ** 2, clip_norm=1.0)(weights, batch, mask)
      >>> updates, state = optimizer.update(total, state, weights)
      >>> weights = optax.apply_updates(weights, updates)
      >>> weights.shape
      (2,)
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    establish_trust(plan, pinned=pinned, trusted_key=trusted_key)
    noise = sealed_noise(plan.noise(form), folder, key)

    def init(params: Tree) -> SealedState:
        return noise.init(params)

    def update(total: Tree, state: Any, params: Tree | None = None) -> tuple[Tree, SealedState]:
        for part in jax.tree.leaves(total):
            if part.dtype.itemsize < 4:
                raise InvalidArgument("total", str(part.dtype), "must be summed in float32 at least")
        drawn, after = noise.next(state)
        return _private_mean(total, drawn, plan.expected_batch_size), after

    return optax.GradientTransformation(init, update)


def _private_mean(total: Tree, noise: Tree, expected_batch_size: float) -> Tree:
    """(total + noise) / expected batch size, added in the precision of the noise."""
    return jax.tree.map(lambda part, x: ((part + x) / expected_batch_size).astype(part.dtype), total, noise)


@dataclass(frozen=True, eq=False)
class Trained:
    """What `train` returns.

    Attributes:
      params: the model.
      optimizer_state: the state of the optimiser.
      record: the record of the run, see `TrainingRun.record`.

    Example:
      >>> import tempfile
      >>> import galton
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     trained = train(
      ...         plan, folder, lambda w, x: (w - x) ** 2, jnp.zeros(()), jnp.ones(64), optax.sgd(0.1), rounds=3
      ...     )
      >>> trained.record["rounds_done"], trained.record["completed"]
      (3, False)
    """

    params: Tree
    optimizer_state: Tree
    record: dict[str, Any]


def train(
    plan: Plan | str | Path,
    folder: str | Path,
    loss: Loss | None,
    params: Tree,
    data: Tree | Stream,
    optimizer: optax.GradientTransformation,
    *,
    clipped: ClippedSum | None = None,
    clipping: Clipping | None = None,
    keyed: bool = False,
    users: Users | None = None,
    micro_batch_size: int | None = None,
    constant_time: bool = False,
    sharding: NamedSharding | None = None,
    shuffled: bool = False,
    reshuffled: bool = False,
    save_every: int = 100,
    rounds: int | None = None,
    watch: Callable[[int, Tree], None] | None = None,
    form: str = "buffers",
    on_round: OnRound | None = None,
    diagnostics: bool | Receiver = False,
    progress: bool = True,
    seed: int | None = None,
    pinned: str | None = None,
    trusted_key: str | Path | bytes | None = None,
) -> Trained:
    """Trains for the rounds of the plan, or resumes a run that was interrupted.

    A run that was killed and is started again by the same call goes on: rounds since the last checkpoint are computed
    again, with the same batches and the same noise, and on the same machine come out the same, bit by bit. If a round
    does not (other data, another learning rate, another machine, another number of devices), its noise is not given
    again, for two results with the same noise would show their difference without any: the rounds that were lost are
    skipped, a warning (`LostRounds`) and the record say so, and the run goes on with the next that has had no noise. On
    SIGTERM a run is saved after the round.

    The folder then has the model alone in `model.npz`, for others; `galton release` packs it with the record. All else
    in the folder stays there.

    Parameters may lie on several devices, and be cut over them: noise, its buffers and sums then lie as they do. With
    several processes (`jax.distributed`), all make the same call; the first writes the folder, the others read it.

    Formal guarantee: the model has the guarantee of the plan, and so have all models on the way (see `TrainingRun`), if
    `clipped`, where given, keeps to the plan's clip norm. Diagnostics have no guarantee.

    Args:
      plan: a plan, or the folder of one.
      folder: of the run, see `TrainingRun`.
      loss: loss(params, example), for one example without a batch axis; None with `clipped`. It may return (loss, aux),
        with a dictionary of numbers for `diagnostics`.
      params: the model at the start.
      data: a tree of arrays whose first axis is the examples. They may be memory-mapped, or `MappedFiles`:
        only the rows of a batch are read. For a plan of streaming batches it may be a `Stream`, which is read in order.
      optimizer: receives the private means of gradients.
      clipped: total(params, batch, mask), for models whose clipped gradients can be summed faster than by
        `clipped_sum`. No example may contribute more than the plan's clip norm: the guarantee rests on it.
      clipping: how gradients are clipped, of the kind that the plan says: `per_group(...)` or `normalized(...)` of
        `galton.training.clipping`, for parameters by `parameter_names`. By default as a whole. With `clipped` it says
        what that does.
      keyed: call loss(params, example, key), with a key of `jax.random` for dropout or augmentation. It depends on the
        run, the round and the example only, so that rounds that are computed again come out the same.
      users: which examples are whose (`galton.batching.group_by_user`), for a plan whose unit is a user. A batch is
        then one of users, and `clipped` gets (rows, mask of rows) for each instead of a row.
      micro_batch_size: rows that a device computes at the same time, see `clipped_sum`; not for `clipped`. By default a
        tenth of the expected batch size (of a device), so that on average less than 5% of the rows that are computed
        are padding.
      constant_time: compute all padding too; see `clipped_sum`.
      sharding: how the rows of a batch are cut over devices, such as `NamedSharding(mesh, PartitionSpec("data"))`;
        see `clipped_sum`. Parameters that are on a single device are copied to all of the mesh.
      shuffled: confirms that the data was shuffled by `shuffle_records`, in secret; needed for a streaming plan.
      reshuffled: confirms that it is shuffled so anew for every epoch; needed, instead, for a streaming plan whose bins
        are redrawn.
      save_every: number of rounds between checkpoints.
      rounds: stop once this many rounds are done in all; the same call without it goes on later.
      watch: called after every round as watch(rounds done, params).
      form: of the noise: `buffers`, `recompute`, or `auto:2GB`; see `TrainingRun`.
      on_round: called after every round as on_round(rounds done, params), to evaluate or to stop early: if it returns
        True the run is saved and ends. A run that ended so has the plan's guarantee; the same call goes on.
      diagnostics: True writes mean loss, norms and clipped fraction of every round to the run's folder; a function is
        called with them instead. They are NOT private: see `galton.training.diagnostics`.
      progress: show rounds, time left and the epsilon spent so far on stderr, if that is a terminal; see
        `galton.training.progress_bar`.
      seed: of batches and noise, for tests and repeatable studies only; see `TrainingRun`.
      pinned: the plan's hash, if only that plan will do; see `TrainingRun`.
      trusted_key: public key, or its file, that must have signed the plan; see `TrainingRun`.

    Returns:
      The model, the optimiser's state and the record of the run.

    Example:
      >>> import tempfile
      >>> import galton
      >>> import numpy as np
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> rows = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
      >>> data = rows, rows.sum(axis=1)
      >>> def loss(weights, example):
      ...     row, label = example
      ...     return (row @ weights - label) ** 2
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     trained = train(plan, folder, loss, jnp.zeros(2), data, optax.sgd(0.1))
      >>> trained.params.shape, trained.record["rounds_done"]
      ((2,), 4)
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    count("save_every", save_every)
    last = plan.rounds if rounds is None else count("rounds", rounds, at_most=plan.rounds)
    source = Rows(data, plan, users, keyed)
    for name, given in (("keyed", keyed), ("diagnostics", bool(diagnostics))):
        if clipped is not None and given:
            raise InvalidArgument(name, True, "needs a loss; with clipped=, do it there")
    sharding = None if sharding is None else automatic(sharding)
    params = params if sharding is None else on_mesh(params, sharding)
    state: tuple[Tree, Tree] = _settled((params, optimizer.init(params)), optimizer)
    state = state if sharding is None else on_mesh(state, sharding)
    measured = bool(diagnostics)
    summed = _sum_of(plan, loss, clipped, clipping, source, micro_batch_size, constant_time, measured, sharding)
    placed = None if sharding is None else jax.tree.map(lambda leaf: leaf.sharding, state)  # and stays
    total_of = jax.jit(summed, out_shardings=_where_sums_go(placed, measured))
    step = jax.jit(_step_of(optimizer, plan.expected_batch_size), out_shardings=placed)
    report = partial(_report, folder=Path(folder), receive=diagnostics)
    with open_run(
        plan,
        folder,
        params,
        examples=source.units,
        clip_norm=plan.clip_norm,
        per_user=None if users is None else users.per_user,
        form=form,
        shuffled=shuffled,
        reshuffled=reshuffled,
        clipping=clipping or Clipping(),
        seed=seed,
        pinned=pinned,
        trusted_key=trusted_key,
    ) as run:
        if run.checkpoint is not None:
            state = load_tree(run.checkpoint, state)

        def save() -> None:
            kept = at_hand(state)
            run.publish(partial(save_model, params=kept[0]), ".npz")
            run.save(partial(save_tree, tree=kept))

        first = jax.process_index() == 0
        with Termination() as termination, progress_bar(run, last, progress and first) as show:
            ended = False
            while run.round < last and not ended:
                turn, batch = run.round, run.batch
                total = total_of(state[0], *source.of(batch, run, sharding))
                if measured:
                    total, measures = total
                    report(turn, measures)
                try:
                    noise = run.noise(total)
                except RoundsSkipped as lost:
                    warnings.warn(str(lost), LostRounds, stacklevel=2)
                    save()
                    continue
                state = step(state, total, noise)
                if watch is not None:
                    watch(run.round, state[0])
                wished = on_round is not None and bool(on_round(run.round, state[0]))
                ended = agreed(wished or termination.requested)
                show()
                if run.round % save_every == 0 or run.round >= last or ended:
                    save()
            return Trained(*state, run.record())


def _sum_of(
    plan: Plan,
    loss: Loss | None,
    clipped: ClippedSum | None,
    clipping: Clipping | None,
    source: Rows,
    micro_batch_size: int | None,
    constant_time: bool,
    measured: bool,
    sharding: NamedSharding | None,
) -> ClippedSum:
    """The sum of clipped gradients that a run takes."""
    if clipped is not None:
        if loss is not None:
            raise InvalidArgument("clipped", clipped, "must be given if there is no loss, and only then")
        return clipped if sharding is None else over_devices(clipped, sharding)
    if loss is None:
        raise InvalidArgument("clipped", clipped, "must be given if there is no loss, and only then")
    each = with_key(loss) if source.keyed else loss
    each = each if source.users is None else user_loss(each)
    parts = 1 if sharding is None else number_of_parts(sharding)
    at_once = micro_batch_size or max(1, int(plan.expected_batch_size / parts / 10))
    return clipped_sum(
        each, plan.clip_norm, at_once, constant_time, measured=measured, sharding=sharding, clipping=clipping
    )


def _where_sums_go(placed: Any, measured: bool) -> Any:
    """Sums lie as the parameters do; figures about a round are on all devices."""
    if placed is None:
        return None
    return (placed[0], None) if measured else placed[0]


def _step_of(optimizer: optax.GradientTransformation, expected_batch_size: float) -> Any:
    """A step of the optimiser, by the sum and the noise of a round."""

    def step(state: tuple[Tree, Tree], total: Tree, noise: Tree) -> tuple[Tree, Tree]:
        params, inner = state
        updates, inner = optimizer.update(_private_mean(total, noise, expected_batch_size), inner, params)
        return optax.apply_updates(params, updates), inner

    return step


def _settled(state: tuple[Tree, Tree], optimizer: optax.GradientTransformation) -> tuple[Tree, Tree]:
    """Widens the state of an optimiser to what its first update would: moments of half-precision parameters, say.

    So a checkpoint has the types of the state that a run which is taken up again begins with.
    """

    def sum_of(leaf: Any) -> jax.ShapeDtypeStruct:
        dtype = jnp.promote_types(jnp.result_type(leaf), jnp.float32)
        return jax.ShapeDtypeStruct(jnp.shape(leaf), dtype)  # type: ignore[no-untyped-call]

    sums = jax.tree.map(sum_of, state[0])
    after = jax.eval_shape(_step_of(optimizer, 1.0), state, sums, sums)

    def widened(leaf: Any, later: Any) -> Any:
        differs = jnp.issubdtype(later.dtype, jnp.floating) and jnp.result_type(leaf) != later.dtype
        return jnp.asarray(leaf, later.dtype) if differs else leaf

    return state[0], jax.tree.map(widened, state[1], after[1])


def _report(turn: int, measures: dict[str, Any], folder: Path, receive: bool | Receiver) -> None:
    """Keeps the figures of a round in the folder, or gives them to whoever asked."""
    sums = {name: float(value) for name, value in measures.items()}
    seen = Diagnostics.of_sums(turn, int(sums.pop("examples")), sums)
    if callable(receive):
        receive(seen)
    elif jax.process_index() == 0:
        keep_diagnostics(folder, seen)
