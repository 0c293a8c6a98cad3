"""Training in JAX with what a plan analysed: clipping, noise as an optax transformation, and a loop that resumes.

    step = clipped_sum(loss, plan.clip_norm)
    optimizer = optax.chain(private_updates(plan), optax.sgd(0.5, momentum=0.9))
    total = step(params, rows, batch.mask)                       # rows of plan.batches(), padded
    updates, state = optimizer.update(total, state, params)

or all of it, with a journal, checkpoints and the record of the run: `train`.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from galton.errors import MissingExtra

try:
    import optax
except ModuleNotFoundError:
    raise MissingExtra("galton.training.jax", "optax", "jax") from None
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from galton import files
from galton.batching import Batch, Users
from galton.errors import InvalidArgument, InvalidFile, count, positive
from galton.noise.layout import Tree
from galton.noise.sealed import SealedState, sealed_noise
from galton.plan import Plan, establish_trust, load_plan
from galton.training.run import ROUNDING, LostRounds, RoundsSkipped, TrainingRun
from galton.training.termination import Termination

Loss = Callable[[Tree, Tree], jax.Array]
"""loss(params, example): the loss of one example, which has no batch axis."""
ClippedSum = Callable[[Tree, Tree, Any], Tree]
"""total(params, batch, mask): the sum of clipped gradients over the batch."""


def clipped_sum(
    loss: Loss, clip_norm: float, micro_batch_size: int | None = None, constant_time: bool = False
) -> ClippedSum:
    """Returns a function that sums the gradients of a batch, that of each example clipped to l2 norm `clip_norm`.

    Formal guarantee: adding, removing or zeroing one example of the batch changes the sum by at most `clip_norm` in l2
    norm, summation in float32 aside. Padding, where the mask is False, contributes zero, and so does an example whose
    gradient is not finite.

    Args:
      loss: loss(params, example), for one example without a batch axis.
      clip_norm: the plan's.
      micro_batch_size: number of examples whose gradients are in memory at the same time; by default the whole batch.
      constant_time: compute micro-batches that are all padding too, so that the time tells nothing about the size of
        the batch.

    Returns:
      total(params, batch, mask): pure and of static shapes, so that it can be compiled.

    Example:
      >>> total = clipped_sum(lambda w, x: w * x, clip_norm=1.0)
      >>> rows, mask = jnp.array([0.5, 7.0, 9.0]), jnp.array([True, True, False])
      >>> f"{total(jnp.array(0.0), rows, mask):.3f}"  # 0.5, clipped to 1, padding
      '1.500'
    """
    positive("clip_norm", clip_norm)
    limit = clip_norm * (1 - ROUNDING)

    def clipped_gradient(params: Tree, example: Tree, present: jax.Array) -> Tree:
        gradient = jax.tree.map(_single, jax.grad(loss)(params, example))
        norm = jnp.sqrt(sum(jnp.square(part).sum() for part in jax.tree.leaves(gradient)))
        usable = present & jnp.isfinite(norm)
        factor = jnp.where(norm > limit, limit / norm, 1.0)
        return jax.tree.map(lambda part: jnp.where(usable, part * factor.astype(part.dtype), 0), gradient)

    def sum_at_once(params: Tree, batch: Tree, mask: jax.Array) -> Tree:
        gradients = jax.vmap(partial(clipped_gradient, params))(batch, mask)
        return jax.tree.map(lambda part: part.sum(axis=0), gradients)

    def total(params: Tree, batch: Tree, mask: Any) -> Tree:
        mask = jnp.asarray(mask)
        size = mask.shape[0]
        if micro_batch_size is None or count("micro_batch_size", micro_batch_size) >= size:
            return sum_at_once(params, batch, mask)

        parts = in_micro_batches((batch, mask), micro_batch_size)
        occupied = parts[1].any(axis=1)
        number = occupied.shape[0] if constant_time else jnp.max(jnp.where(occupied, jnp.arange(len(occupied)) + 1, 0))

        def add(turn: Any, sums: Tree) -> Tree:
            rows, present = jax.tree.map(lambda part: jax.lax.dynamic_index_in_dim(part, turn, keepdims=False), parts)
            return jax.tree.map(jnp.add, sums, sum_at_once(params, rows, present))

        nothing = jax.tree.map(lambda part: jnp.zeros_like(_single(part)), params)
        return jax.lax.fori_loop(0, number, add, nothing)

    return total


def user_loss(loss: Loss) -> Loss:
    """Returns the loss of a user: the sum over the user's examples, for `clipped_sum` to clip as a whole.

    Args:
      loss: loss(params, example), for one example without a batch axis.

    Returns:
      loss(params, (examples, mask)), for the examples of one user along a first axis and True where there is one.

    Example:
      >>> total = clipped_sum(user_loss(lambda w, x: w * x), clip_norm=1.0)
      >>> rows, mask = jnp.array([[0.25, 0.25], [7.0, 0.0]]), jnp.array([[True, True], [True, False]])
      >>> f"{total(jnp.array(0.0), (rows, mask), jnp.array([True, True])):.3f}"  # 0.5, and 7 clipped to 1
      '1.500'
    """

    def total(params: Tree, user: Tree) -> jax.Array:
        examples, present = user
        losses = jax.vmap(partial(loss, params))(examples)
        return jnp.where(present, losses, 0).sum()

    return total


def in_micro_batches(rows: Tree, micro_batch_size: int) -> Tree:
    """Cuts the rows of a tree of arrays into micro-batches.

    Args:
      rows: tree of arrays of shape (size, ...).
      micro_batch_size: rows of a micro-batch.

    Returns:
      A tree of arrays of shape (parts, micro_batch_size, ...), zero after the last row.
    """

    def cut(array: Any) -> jax.Array:
        array = jnp.asarray(array)
        parts = math.ceil(array.shape[0] / micro_batch_size)
        padded = jnp.pad(array, [(0, parts * micro_batch_size - array.shape[0])] + [(0, 0)] * (array.ndim - 1))
        return padded.reshape(parts, micro_batch_size, *padded.shape[1:])

    return jax.tree.map(cut, rows)


def _single(part: jax.Array) -> jax.Array:
    """Returns a gradient in float32 at least: summing in half precision errs by more than clipping allows for."""
    return part.astype(jnp.promote_types(part.dtype, jnp.float32))


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
    different gradients. (`train` sees to that with a journal.)

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
    """

    params: Tree
    optimizer_state: Tree
    record: dict[str, Any]


def train(
    plan: Plan | str | Path,
    folder: str | Path,
    loss: Loss | None,
    params: Tree,
    data: Tree,
    optimizer: optax.GradientTransformation,
    *,
    clipped: ClippedSum | None = None,
    users: Users | None = None,
    micro_batch_size: int | None = None,
    constant_time: bool = False,
    save_every: int = 100,
    rounds: int | None = None,
    watch: Callable[[int, Tree], None] | None = None,
    form: str = "buffers",
    seed: int | None = None,
    pinned: str | None = None,
    trusted_key: str | Path | bytes | None = None,
) -> Trained:
    """Trains for the rounds of the plan, or resumes a run that was interrupted.

    A run that was killed and is started again by the same call goes on: rounds since the last checkpoint are computed
    again, with the same batches and the same noise, and on the same machine come out the same, bit by bit. If a round
    does not (other data, another learning rate, another machine), its noise is not given again, for two results with
    the same noise would show their difference without any: the rounds that were lost are skipped, a warning
    (`LostRounds`) and the record say so, and the run goes on with the next that has had no noise. On SIGTERM a run is
    saved after the round.

    The folder then has the model alone in `model.npz`, for others; `galton release` packs it with the record. All else
    in the folder stays there.

    Formal guarantee: the model has the guarantee of the plan, and so have all models on the way (see `TrainingRun`), if
    `clipped`, where given, keeps to the plan's clip norm.

    Args:
      plan: a plan, or the folder of one.
      folder: of the run, see `TrainingRun`.
      loss: loss(params, example), for one example without a batch axis; None with `clipped`.
      params: the model at the start.
      data: a tree of arrays whose first axis is the examples.
      optimizer: receives the private means of gradients.
      clipped: total(params, batch, mask), for models whose clipped gradients can be summed faster than by
        `clipped_sum`. No example may contribute more than the plan's clip norm: the guarantee rests on it.
      users: which examples are whose (`galton.batching.group_by_user`), for a plan whose unit is a user. A batch is
        then one of users, and `clipped` gets (rows, mask of rows) for each instead of a row.
      micro_batch_size: see `clipped_sum`; not for `clipped`. By default a tenth of the expected batch size, so that on
        average less than 5% of the rows that are computed are padding.
      constant_time: compute all padding too; see `clipped_sum`.
      save_every: number of rounds between checkpoints.
      rounds: stop once this many rounds are done in all; the same call without it goes on later.
      watch: called after every round as watch(rounds done, params).
      form: of the noise: `buffers`, `recompute`, or `auto:2GB`; see `TrainingRun`.
      seed: of batches and noise, for tests and repeatable studies only; see `TrainingRun`.
      pinned: the plan's hash, if only that plan will do; see `TrainingRun`.
      trusted_key: public key, or its file, that must have signed the plan; see `TrainingRun`.

    Returns:
      The model, the optimiser's state and the record of the run.
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    count("save_every", save_every)
    last = plan.rounds if rounds is None else count("rounds", rounds, at_most=plan.rounds)
    rows = jax.tree.map(np.asarray, data)
    state: tuple[Tree, Tree] = (params, optimizer.init(params))
    if (loss is None) == (clipped is None):
        raise InvalidArgument("clipped", clipped, "must be given if there is no loss, and only then")
    at_once = micro_batch_size or max(1, int(plan.expected_batch_size / 10))
    if loss is not None:
        each = loss if users is None else user_loss(loss)
        clipped = clipped_sum(each, plan.clip_norm, at_once, constant_time)
    total_of = jax.jit(cast(ClippedSum, clipped))

    @jax.jit
    def step(state: tuple[Tree, Tree], total: Tree, noise: Tree) -> tuple[Tree, Tree]:
        params, inner = state
        updates, inner = optimizer.update(_private_mean(total, noise, plan.expected_batch_size), inner, params)
        return optax.apply_updates(params, updates), inner

    size = _examples(rows)
    if users is not None and users.examples != size:
        raise InvalidArgument("users", users.examples, f"must say to whom each example belongs, and there are {size}")
    with TrainingRun(
        plan,
        folder,
        params,
        examples=size if users is None else users.number,
        clip_norm=plan.clip_norm,
        per_user=None if users is None else users.per_user,
        form=form,
        seed=seed,
        pinned=pinned,
        trusted_key=trusted_key,
    ) as run:
        if run.checkpoint is not None:
            state = load_tree(run.checkpoint, state)

        def save() -> None:
            run.publish(partial(save_model, params=state[0]), ".npz")
            run.save(partial(save_tree, tree=state))

        with Termination() as termination:
            while run.round < last and not termination.requested:
                batch = run.batch
                total = total_of(state[0], _rows_of(batch, plan.bins, rows, users), jnp.asarray(batch.mask))
                try:
                    noise = run.noise(total)
                except RoundsSkipped as lost:
                    warnings.warn(str(lost), LostRounds, stacklevel=2)
                    save()
                    continue
                state = step(state, total, noise)
                if watch is not None:
                    watch(run.round, state[0])
                if run.round % save_every == 0 or run.round >= last or termination.requested:
                    save()
            return Trained(*state, run.record())


def _rows_of(batch: Batch, bins: int, rows: Tree, users: Users | None) -> Tree:
    """The rows of a batch of examples; of one of users, the rows of each with their mask."""
    if users is None:
        return jax.tree.map(batch.take, rows)
    taken = jax.tree.map(lambda part: users.take(batch, bins, part)[0], rows)
    mask = np.zeros((batch.padded_batch_size, users.per_user), bool)
    mask[batch.mask] = users.rows(batch.examples, batch.round // bins)[1]
    return taken, mask


def _examples(data: Tree) -> int:
    sizes = {part.shape[0] if part.ndim else 0 for part in jax.tree.leaves(data)}
    if len(sizes) != 1:
        raise InvalidArgument("data", sorted(sizes), "all arrays must have the examples as their first axis")
    return int(sizes.pop())


def save_model(path: Path, params: Tree) -> None:
    """Writes a model alone, for others: every array under its path in the tree, half precision as float32.

    Args:
      path: file to write, a NumPy .npz.
      params: the model.
    """
    named = jax.tree_util.tree_flatten_with_path(params)[0]
    names = [jax.tree_util.keystr(where, simple=True, separator="/") or "params" for where, _ in named]
    if len(set(names)) < len(names):
        names = [jax.tree_util.keystr(where) for where, _ in named]
    arrays = dict(zip(names, (leaf for _, leaf in named), strict=True))
    with files.replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **{name: _portable(leaf) for name, leaf in arrays.items()})  # type: ignore[arg-type]


def _portable(leaf: Any) -> NDArray[Any]:
    array = np.asarray(leaf)
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def save_tree(path: Path, tree: Tree) -> None:
    """Writes the arrays of a tree to a file, whole or not at all.

    Args:
      path: file to write.
      tree: arrays of any type that JAX has, and random keys.
    """
    leaves = jax.tree.leaves(tree)
    kinds = json.dumps([_kind(leaf) for leaf in leaves]).encode()
    arrays = [np.atleast_1d(np.asarray(jnp.asarray(_plain(leaf)))) for leaf in leaves]
    raw = [array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}") for array in arrays]
    with files.replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, *raw, kinds=np.frombuffer(kinds, np.uint8))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _kind(leaf: Any) -> list[Any]:
    """Shape and type of an array, or of a random key, by which a saved tree is compared."""
    if _is_key(leaf):
        return [list(leaf.shape), f"key {jax.random.key_impl(leaf)}"]
    return [list(jnp.shape(leaf)), str(jnp.result_type(leaf))]


def load_tree(path: Path, like: Tree) -> Tree:
    """Reads what `save_tree` wrote; raises `InvalidFile` if shapes or types differ from those of `like`.

    Args:
      path: file to read.
      like: a tree of the same structure, shapes and types.

    Returns:
      The tree.
    """
    leaves, structure = jax.tree.flatten(like)
    try:
        with np.load(path) as saved:
            arrays = [saved[f"arr_{index}"] for index in range(len(saved.files) - ("kinds" in saved.files))]
            if "kinds" in saved.files:
                kinds = json.loads(saved["kinds"].tobytes())
            else:  # as galton 0.1 wrote it
                kinds = [[list(array.shape), str(array.dtype)] for array in arrays]
    except (OSError, ValueError, KeyError):
        raise InvalidFile(f"{path}: cannot be read, or was damaged") from None
    if len(arrays) != len(leaves) or kinds != [_kind(leaf) for leaf in leaves]:
        raise InvalidFile(f"{path}: holds another model or optimiser than this one")
    return jax.tree.unflatten(structure, [_restored(*pair) for pair in zip(arrays, leaves, strict=True)])


def _restored(array: NDArray[Any], like: Any) -> jax.Array:
    plain = _plain(like)
    values = jnp.asarray(array.view(jnp.result_type(plain)).reshape(jnp.shape(plain)))
    return jax.random.wrap_key_data(values, impl=jax.random.key_impl(like)) if _is_key(like) else values
