"""Every strategy against the plain dense definition of C (docs/math.md, sections 1 and 7), its stream and its files."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from galton import files
from galton.errors import FloatArray, InvalidArgument, InvalidFile
from galton.strategies import (
    BandedInverse,
    Blt,
    ColumnBanded,
    Dense,
    Scaled,
    Strategy,
    Toeplitz,
    Tree,
    column_banded,
    identity,
    load_strategy,
    parse_strategy,
    save_strategy,
    square_root,
    strategy_from_json,
)
from galton.strategies.sensitivity import redrawn_sensitivity
from galton.workloads import MatrixWorkload, Workload, cooldown, momentum, prefix_sums

TOLERANCE = 1e-10
SIZES = [(24, 8), (21, 8), (7, 7), (5, 1), (50, 16)]
"""(rounds, bins): whole epochs, a partial last epoch, one epoch, one bin, three epochs and a bit."""

DECAY, SCALE = [0.95, 0.7, 0.2], [0.1, 0.15, 0.2]


# C, entry by entry, without any code of galton.


def lower_toeplitz(column: FloatArray) -> FloatArray:
    lag = np.subtract.outer(np.arange(column.size), np.arange(column.size))
    return np.where(lag >= 0, column[lag], 0.0)


def root_column(n: int) -> FloatArray:
    """binom(2k, k) / 4^k in exact integers."""
    from math import comb

    return np.array([comb(2 * k, k) / 4**k for k in range(n)])


def random_column(n: int, bands: int, seed: int) -> FloatArray:
    """A positive first entry and a tail that keeps C^-1 bounded."""
    tail = np.random.default_rng(seed).uniform(size=bands - 1)
    column = np.zeros(n)
    column[0] = 1.3
    column[1:bands] = tail / max(tail.sum(), 1.0)
    return column


def blt_column(n: int, decay: list[float], scale: list[float]) -> FloatArray:
    return np.array([1.0] + [sum(w * d ** (t - 1) for w, d in zip(scale, decay, strict=True)) for t in range(1, n)])


def weights(n: int) -> FloatArray:
    return np.random.default_rng(n).uniform(0.5, 2.0, n)


def band_coefficients(n: int) -> FloatArray:
    """Three bands, the entries below the last row of C zero."""
    bands = min(3, n)
    values = np.random.default_rng(n + 1).uniform(0.1, 0.5, (bands, n))
    values[0] += 1.0
    values[np.add.outer(np.arange(bands), np.arange(n)) >= n] = 0.0
    return values


def dense_entries(n: int) -> FloatArray:
    entries = np.tril(np.random.default_rng(n + 2).uniform(size=(n, n)), -1)
    return np.asarray(entries / max(1.0, entries.sum(axis=1).max()) + np.diag(weights(n)))


def from_bands(coefficients: FloatArray) -> FloatArray:
    bands, n = coefficients.shape
    matrix = np.zeros((n, n))
    for k in range(bands):
        for t in range(n - k):
            matrix[t + k, t] = coefficients[k, t]
    return matrix


def unit_columns(matrix: FloatArray) -> FloatArray:
    return np.asarray(matrix / np.sqrt((matrix**2).sum(axis=0)))


def tree_nodes(n: int) -> list[tuple[int, int]]:
    """(first round, height) of every complete dyadic interval, by its last round, then by size."""
    nodes = [(k << h, h) for h in range(n.bit_length()) for k in range(n >> h)]
    return sorted(nodes, key=lambda node: (node[0] + (1 << node[1]), node[1]))


def tree_matrix(n: int) -> FloatArray:
    return np.array([[float(first <= t < first + (1 << h)) for t in range(n)] for first, h in tree_nodes(n)])


Build = Callable[[int], tuple[Strategy, FloatArray]]


def full_random(n: int) -> tuple[Strategy, FloatArray]:
    column = random_column(n, n, 3)
    return Toeplitz(n, column), lower_toeplitz(column)


def banded_random(n: int) -> tuple[Strategy, FloatArray]:
    column = random_column(n, min(n, 4), 4)
    return Toeplitz(n, column[: min(n, 4)]), lower_toeplitz(column)


def banded_root(n: int) -> tuple[Strategy, FloatArray]:
    kept = min(n, 5)
    return square_root(n, kept), lower_toeplitz(np.where(np.arange(n) < kept, root_column(n), 0.0))


def blt(n: int) -> tuple[Strategy, FloatArray]:
    used = min(n, 3)
    column = blt_column(n, DECAY[:used], SCALE[:used])
    return Blt(n, DECAY[:used], SCALE[:used]), lower_toeplitz(column)


def banded_inverse(n: int) -> tuple[Strategy, FloatArray]:
    column = np.zeros(n)
    column[: min(n, 3)] = [1.25, -0.75, -0.25][: min(n, 3)]
    return BandedInverse(n, column[: min(n, 3)]), np.asarray(np.linalg.inv(lower_toeplitz(column)), float)


def scaled(inner: Build) -> Build:
    def build(n: int) -> tuple[Strategy, FloatArray]:
        strategy, matrix = inner(n)
        return Scaled(strategy, weights(n)), matrix * weights(n)

    return build


def cut_root(n: int) -> tuple[Strategy, FloatArray]:
    kept = min(n, 4)
    matrix = lower_toeplitz(np.where(np.arange(n) < kept, root_column(n), 0.0))
    return column_banded(square_root(n), kept), unit_columns(matrix)


KINDS: dict[str, Build] = {
    "identity": lambda n: (identity(n), np.eye(n)),
    "sqrt": lambda n: (square_root(n), lower_toeplitz(root_column(n))),
    "sqrt:5": banded_root,
    "toeplitz": full_random,
    "banded toeplitz": banded_random,
    "blt": blt,
    "banded inverse": banded_inverse,
    "scaled toeplitz": scaled(full_random),
    "scaled blt": scaled(blt),
    "banded": lambda n: (ColumnBanded(band_coefficients(n)), from_bands(band_coefficients(n))),
    "scaled banded": scaled(lambda n: (ColumnBanded(band_coefficients(n)), from_bands(band_coefficients(n)))),
    "column_banded": cut_root,
    "dense": lambda n: (Dense(dense_entries(n)), dense_entries(n)),
    "tree": lambda n: (Tree(n), tree_matrix(n)),
    "full tree": lambda n: (Tree(n, "full"), tree_matrix(n)),
}
STREAMING = [kind for kind in KINDS if kind != "full tree"]
kinds = pytest.mark.parametrize("kind", KINDS)


def close(actual: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=TOLERANCE, atol=TOLERANCE)


def plain_modes(matrix: FloatArray, bins: int) -> FloatArray:
    n = matrix.shape[1]
    return np.stack([sum(np.abs(matrix[:, r]) for r in range(i, n, bins)) for i in range(bins)], axis=1)


# C itself and what the accountant reads from it.


@pytest.mark.parametrize(("n", "bins"), SIZES)
@kinds
def test_modes_and_norms_follow_from_the_dense_matrix(kind: str, n: int, bins: int) -> None:
    strategy, matrix = KINDS[kind](n)
    modes = plain_modes(matrix, bins)
    assert (strategy.rounds, strategy.rows) == matrix.shape[::-1]
    assert not strategy.has_negative
    close(strategy.matrix(), matrix)
    for start, stop in [(0, 1), (n // 2, n // 2 + 1), (1, n), (n - 1, n), (n // 3, n - n // 3)]:
        close(strategy.columns(start, stop), matrix[:, start:stop])
    close(strategy.modes(bins), modes)
    close(strategy.gram(bins), modes.T @ modes)
    close(strategy.sensitivity(bins), max(np.linalg.norm(m) for m in modes.T))
    close(strategy.column_norm(), max(np.linalg.norm(c) for c in matrix.T))


@kinds
def test_blocks_of_columns_join_without_a_seam(kind: str) -> None:
    """300 rounds and 280 bins are more than one block of 256 columns in modes, column norms, errors and FFTs."""
    n, bins = 300, 280
    strategy, matrix = KINDS[kind](n)
    close(strategy.modes(bins), plain_modes(matrix, bins))
    close(strategy.column_norm(), np.sqrt((matrix**2).sum(axis=0)).max())
    close(strategy.row_errors(), np.linalg.norm(np.cumsum(strategy.inverse(), axis=0), axis=1))


@kinds
@pytest.mark.parametrize(("bins", "remedy"), [(0, "at least 1"), (8, "at most"), (2.0, "whole"), (True, "whole")])
def test_bins_out_of_range_are_refused(kind: str, bins: Any, remedy: str) -> None:
    strategy, _ = KINDS[kind](7)
    for use in (strategy.modes, strategy.gram, strategy.sensitivity):
        with pytest.raises(InvalidArgument, match=f"^bins = .*{remedy}"):
            use(bins)


def test_bands_are_counted() -> None:
    assert identity(5).bands == 1
    assert square_root(9, 4).bands == 4
    assert Dense(square_root(9, 4).matrix()).bands == 4
    assert Scaled(square_root(9, 3), np.ones(9)).bands == 3
    assert Blt(9, [0.5], [0.3]).bands == 9


def test_strategies_in_toeplitz_form_need_no_matrix_for_bands() -> None:
    assert Toeplitz(100_000, [1.0, 0.5]).bands == 2


def worst_of_all_patterns(strategy: Strategy, bins: int) -> float:
    """Largest norm of |C| s over all s with one round in every epoch, which may lie beyond the end in the last."""
    matrix = np.abs(strategy.matrix())
    rounds = matrix.shape[1]
    norms = []
    for places in itertools.product(range(bins), repeat=-(-rounds // bins)):
        taken = [epoch * bins + place for epoch, place in enumerate(places) if epoch * bins + place < rounds]
        norms.append(float(np.linalg.norm(matrix[:, taken].sum(axis=1))))
    return max(norms)


def random_bands(bands: int, rounds: int, seed: int, least: float = 0.0) -> ColumnBanded:
    random = np.random.default_rng(seed)
    entries = random.uniform(least, 1, (bands, rounds))
    entries[0] = np.abs(entries[0]) + 0.01
    inside = np.arange(bands)[:, None] + np.arange(rounds) < rounds
    return ColumnBanded(entries * inside, allow_negative=least < 0)


@pytest.mark.parametrize(("bins", "rounds"), [(1, 5), (2, 10), (3, 12), (3, 14), (4, 16), (5, 11), (6, 6)])
@pytest.mark.parametrize("bands", ["one", "half", "bins", "bins + 1"])
def test_redrawn_sensitivity_is_that_of_the_worst_pattern(bins: int, rounds: int, bands: str) -> None:
    """Columns of neighbouring epochs overlap with more than one band; every column has coefficients of its own."""
    size = min(rounds, {"one": 1, "half": -(-bins // 2), "bins": bins, "bins + 1": bins + 1}[bands])
    for seed in range(5):
        strategy = random_bands(size, rounds, seed, least=-0.5 if seed % 2 else 0.0)
        worst = worst_of_all_patterns(strategy, bins)
        assert worst <= redrawn_sensitivity(strategy, bins) <= worst * (1 + 1e-12)
        assert worst >= strategy.sensitivity(bins) * (1 - 1e-12)
        dense = Dense(strategy.matrix(), allow_negative=True)
        assert redrawn_sensitivity(dense, bins) == pytest.approx(worst, rel=1e-12)


LONG: dict[str, Strategy] = {
    "square root": square_root(12),
    "blt": Blt(14, DECAY, SCALE),
    "scaled blt": Scaled(Blt(12, DECAY, SCALE), np.linspace(1, 2, 12)),
    "rising": Toeplitz(11, np.linspace(0.1, 1, 11)),
    "random": Dense(np.tril(np.random.default_rng(3).uniform(0.1, 1, (12, 12)))),
    "bins + 2 bands": random_bands(6, 14, 7),
    "tree": Tree(12),
    "tree, partial": Tree(14),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("bins", [2, 3, 4])
def test_redrawn_sensitivity_of_long_memory_is_an_upper_bound(name: str, bins: int) -> None:
    strategy = LONG[name]
    worst, bound = worst_of_all_patterns(strategy, bins), redrawn_sensitivity(strategy, bins)
    assert worst <= bound < 2 * worst
    assert bound < 1.15 * worst or name not in ("square root", "blt", "scaled blt", "rising")


def test_redrawn_sensitivity_of_a_memory_that_dies_within_an_epoch_is_exact() -> None:
    """A BLT against its first bins + 1 bands: 0.3^9 is nothing."""
    short, cut = Blt(27, [0.3], [0.4]), Toeplitz(27, Blt(27, [0.3], [0.4]).series[:10])
    assert redrawn_sensitivity(short, 9) == pytest.approx(redrawn_sensitivity(cut, 9), rel=1e-4)
    assert redrawn_sensitivity(short, 9) > redrawn_sensitivity(cut, 9)
    assert redrawn_sensitivity(identity(16), 4) == pytest.approx(2, rel=1e-12)
    with pytest.raises(InvalidArgument, match="bins"):
        redrawn_sensitivity(short, 28)


# The inverse and the error.


@pytest.mark.parametrize("n", [1, 5, 7, 21, 24, 50])
@kinds
def test_inverse_undoes_c_and_is_a_causal_matrix(kind: str, n: int) -> None:
    strategy, matrix = KINDS[kind](n)
    inverse = strategy.inverse()
    assert inverse.shape == matrix.shape[::-1]
    close(inverse @ matrix, np.eye(n))
    rows = strategy.rows
    for start, stop in [(0, 1), (rows // 2, rows), (rows - 1, rows)]:
        close(strategy.inverse_columns(start, stop), inverse[:, start:stop])
    if kind != "full tree":
        completed = [first + (1 << h) - 1 for first, h in tree_nodes(n)] if kind == "tree" else list(range(n))
        for row, last in enumerate(completed):
            close(inverse[:last, row], 0.0)


def training_matrix(n: int, beta: float, rates: FloatArray) -> FloatArray:
    """A[t, s] = sum_{s <= u <= t} rate_u beta^(u-s)."""
    return np.array([[sum(rates[u] * beta ** (u - s) for u in range(s, t + 1)) for s in range(n)] for t in range(n)])


def workloads(n: int) -> list[tuple[Workload | None, FloatArray]]:
    ones = np.ones(n)
    entries = np.tril(np.random.default_rng(5).normal(size=(n, n)))
    return [
        (None, training_matrix(n, 0.0, ones)),
        (prefix_sums(n), training_matrix(n, 0.0, ones)),
        (momentum(n, 0.9), training_matrix(n, 0.9, ones)),
        (momentum(n, 0.9, cooldown(n)), training_matrix(n, 0.9, cooldown(n))),
        (MatrixWorkload(entries), entries),
    ]


@pytest.mark.parametrize("n", [5, 7, 21, 24])
@kinds
def test_errors_are_row_norms_of_a_times_c_inverse(kind: str, n: int) -> None:
    strategy, matrix = KINDS[kind](n)
    decoder = np.linalg.inv(matrix) if matrix.shape == (n, n) else strategy.inverse()
    for workload, dense in workloads(n):
        errors = np.sqrt(((dense @ decoder) ** 2).sum(axis=1))
        close(strategy.row_errors(workload), errors)
        close(strategy.rmse(workload), np.linalg.norm(dense @ decoder) / np.sqrt(n))
        close(strategy.max_error(workload), errors.max())


@kinds
def test_workload_of_another_size_is_refused(kind: str) -> None:
    strategy, _ = KINDS[kind](7)
    for use in (strategy.row_errors, strategy.rmse, strategy.max_error):
        with pytest.raises(InvalidArgument, match=r"^workload = 8.* 7"):
            use(prefix_sums(8))


@pytest.mark.parametrize("n", [1, 2, 33, 200])
def test_square_root_squared_is_the_prefix_sum_matrix(n: int) -> None:
    root = square_root(n).matrix()
    close(root @ root, np.tril(np.ones((n, n))))


def test_column_normalized_keeps_the_shape_of_every_column() -> None:
    banded = ColumnBanded(band_coefficients(12))
    close(banded.column_normalized().matrix(), unit_columns(banded.matrix()))
    assert banded.bands == banded.column_normalized().bands == 3


# BLT and tree: closed forms.


@pytest.mark.parametrize(
    ("decay", "scale", "negative"),
    [
        ([0.5], [0.25], False),
        (DECAY, SCALE, False),
        ([0.999, 0.99, 0.9, 0.5], [1e-3, 1e-2, 0.1, 0.3], False),
        ([0.9, 0.4], [-0.1, 0.3], True),
        ([0.9, 0.0], [-0.3, 0.1], True),
    ],
)
def test_inverse_blt_is_the_inverse_and_inverts_back(decay: list[float], scale: list[float], negative: bool) -> None:
    n = 40
    strategy = Blt(n, decay, scale, allow_negative=negative)
    inverse = strategy.inverse_blt()
    assert inverse.buffers == strategy.buffers == len(decay)
    close(inverse.matrix() @ lower_toeplitz(blt_column(n, decay, scale)), np.eye(n))
    again = inverse.inverse_blt()
    order = np.argsort(again.decay)
    close(again.decay[order], np.sort(decay))
    close(again.scale[order], np.array(scale)[np.argsort(decay)])


def test_blt_whose_inverse_has_complex_decays_still_has_an_inverse() -> None:
    strategy = Blt(12, [0.5, 0.6], [-1.0, 1.0], allow_negative=True)
    close(strategy.inverse() @ strategy.matrix(), np.eye(12))


def refined(height: int) -> float:
    """Variance of a node of 2^h leaves combined with its subtree: 2^h / (2^(h+1) - 1) (Honaker 2015)."""
    return float(2**height / (2 ** (height + 1) - 1))


@pytest.mark.parametrize("n", [1, 2, 7, 8, 21, 64, 100])
def test_honaker_variance_is_the_sum_over_binary_digits(n: int) -> None:
    expected = [sum(refined(h) for h in range(8) if (t + 1) >> h & 1) for t in range(n)]
    close(Tree(n).row_errors() ** 2, expected)


@pytest.mark.parametrize("n", [2, 7, 8, 21, 64])
def test_full_decoder_is_the_least_squares_one_and_beats_honaker(n: int) -> None:
    matrix, full = tree_matrix(n), Tree(n, "full")
    close(full.inverse(), np.linalg.solve(matrix.T @ matrix, matrix.T))
    for workload, _ in workloads(n):
        gain = Tree(n).row_errors(workload) - full.row_errors(workload)
        assert gain.min() > -TOLERANCE
        assert gain.max() > 1e-3


def test_tree_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InvalidArgument, match=r"^decoder = 'full'.*honaker"):
        Tree(8, "full").stream()
    with pytest.raises(InvalidArgument, match=r"^decoder = 'other'.*honaker, full"):
        Tree(8, "other")
    with pytest.raises(InvalidArgument, match=r"^inner = 'tree'"):
        Scaled(Tree(4), np.ones(4))
    with pytest.raises(InvalidArgument, match=r"^strategy = 'tree'"):
        column_banded(Tree(4), 2)


# Streams.


def unit_noise(strategy: Strategy, draws: int) -> FloatArray:
    """z of shape (rounds, draws, rows): coordinate r is 1 where row r of C gets its noise; entries unused are huge."""
    if not isinstance(strategy, Tree):
        return np.eye(strategy.rounds)[:, None, :]
    noise = np.full((strategy.rounds, draws, strategy.rows), 1e6)
    for row, (first, height) in enumerate(tree_nodes(strategy.rounds)):
        noise[first + (1 << height) - 1, height] = np.arange(strategy.rows) == row
    return noise


@pytest.mark.parametrize("n", [1, 24])
@pytest.mark.parametrize("kind", STREAMING)
def test_stream_of_unit_vectors_is_the_inverse(kind: str, n: int) -> None:
    strategy, _ = KINDS[kind](n)
    stream = strategy.stream()
    assert stream.rounds == n
    with jax.enable_x64(True):
        noise = jnp.asarray(unit_noise(strategy, stream.draws), jnp.float64)
        start = stream.init((strategy.rows,), jnp.float64)
        assert start.buffers.shape == (stream.memory, strategy.rows)
        end, scanned = jax.jit(lambda s, z: jax.lax.scan(lambda c, x: stream.next(x, c)[::-1], s, z))(start, noise)
        close(scanned, strategy.inverse())
        assert int(end.round) == n


@pytest.mark.parametrize("kind", ["sqrt:5", "scaled blt", "tree"])
def test_stream_runs_step_by_step_without_jit(kind: str) -> None:
    strategy, _ = KINDS[kind](7)
    stream = strategy.stream()
    with jax.enable_x64(True):
        state, steps = stream.init((strategy.rows,), jnp.float64), []
        for fresh in unit_noise(strategy, stream.draws):
            x, state = stream.next(jnp.asarray(fresh), state)
            steps.append(x)
        close(jnp.stack(steps), strategy.inverse())


@pytest.mark.parametrize(
    ("kind", "memory"), [("identity", 0), ("sqrt:5", 4), ("sqrt", 23), ("blt", 3), ("scaled blt", 3), ("banded", 2)]
)
def test_stream_keeps_no_more_buffers_than_it_needs(kind: str, memory: int) -> None:
    assert KINDS[kind](24)[0].stream().memory == memory


@pytest.mark.parametrize("shape", [(), (2, 3)])
@pytest.mark.parametrize("kind", ["identity", "sqrt:5", "scaled blt", "dense", "tree"])
def test_stream_treats_every_coordinate_alike(kind: str, shape: tuple[int, ...]) -> None:
    """Any shape, in float32: the same numbers as a flat vector."""
    stream = KINDS[kind](9)[0].stream()
    noise = np.random.default_rng(1).normal(size=(9, stream.draws, *shape)).astype(np.float32)

    def run(values: NDArray[np.float32], size: tuple[int, ...]) -> NDArray[np.float32]:
        _, out = jax.lax.scan(lambda c, z: stream.next(z, c)[::-1], stream.init(size), jnp.asarray(values))
        assert out.dtype == jnp.float32
        return np.asarray(out)

    flat = run(noise.reshape(9, stream.draws, -1), (int(np.prod(shape)),))
    np.testing.assert_allclose(run(noise, shape), flat.reshape(9, *shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind) if kind == "tree" else kind for kind in ("identity", "sqrt:5", "scaled blt", "dense", "tree")],
)
@pytest.mark.parametrize(("dtype", "x64"), [(jnp.bfloat16, False), (jnp.float32, True)])
def test_stream_keeps_the_dtype_of_its_noise(kind: str, dtype: Any, x64: bool) -> None:
    stream = KINDS[kind](4)[0].stream()
    with jax.enable_x64(x64):
        x, state = stream.next(jnp.ones((stream.draws, 2), dtype), stream.init((2,), dtype))
        x, state = stream.next(jnp.ones((stream.draws, 2), dtype), state)
        assert x.dtype == state.buffers.dtype == dtype


# JSON and files.


@kinds
def test_json_round_trip_is_exact_to_the_bit(kind: str, tmp_path: Path) -> None:
    strategy, _ = KINDS[kind](21)
    text = json.dumps(strategy.to_json())
    path = tmp_path / "strategy.json"
    save_strategy(strategy, path)
    for copy in (strategy_from_json(json.loads(text)), load_strategy(path), load_strategy(str(path))):
        assert type(copy) is type(strategy)
        assert copy.digest == strategy.digest
        assert json.dumps(copy.to_json()) == text
        assert copy.matrix().tobytes() == strategy.matrix().tobytes()
        assert copy.inverse().tobytes() == strategy.inverse().tobytes()
    assert json.loads(path.read_text())["hash"] == strategy.digest


@settings(max_examples=50)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6))
def test_any_float_survives_json(tail: list[float]) -> None:
    strategy = Toeplitz(8, [5e-324, *tail], allow_negative=True)
    copy = strategy_from_json(json.loads(files.canonical(strategy.to_json())))
    assert isinstance(copy, Toeplitz)
    assert copy.coefficients.tobytes() == strategy.coefficients.tobytes()
    assert copy.digest == strategy.digest


def test_hash_is_that_of_the_documented_text() -> None:
    text = '{"allow_negative":false,"coefficients":[1.0,0.5],"kind":"toeplitz","rounds":4}'
    assert square_root(4, 2).digest == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_hash_differs_whenever_the_content_does() -> None:
    strategies = [build(7)[0] for build in KINDS.values()]
    strategies += [identity(8), Toeplitz(7, [1.0], allow_negative=True), Toeplitz(7, [np.nextafter(1.0, 2.0)])]
    assert len({strategy.digest for strategy in strategies}) == len(strategies)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of the numbers in a JSON value."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, inner in items for leaf in leaves(inner, (*path, key))]
    return [path] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


@kinds
def test_file_changed_in_any_number_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    save_strategy(KINDS[kind](5)[0], path)
    original = path.read_text()
    for *parents, key in leaves(json.loads(original)):
        body = json.loads(original)
        place = body
        for parent in parents:
            place = place[parent]
        place[key] += 1
        path.write_text(json.dumps(body))
        with pytest.raises(InvalidFile, match=r"hash|version"):
            load_strategy(path)


def write_with_hash(path: Path, body: dict[str, Any]) -> None:
    """A file whose hash is right and whose content may not be."""
    head = {"format": "galton-strategy", "version": 1, "hash": files.digest(body)}
    path.write_text(json.dumps({**head, **body}))


GOOD: dict[str, dict[str, Any]] = {kind: build(5)[0].to_json() for kind, build in KINDS.items()}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("identity", {"kind": "unknown"}),
        ("identity", {"kind": ["toeplitz"]}),
        ("identity", {"rounds": 0}),
        ("identity", {"rounds": 5.0}),
        ("identity", {"rounds": None}),
        ("identity", {"allow_negative": 0}),
        ("identity", {"coefficients": None}),
        ("identity", {"coefficients": [1.0, -0.5]}),
        ("identity", {"coefficients": [1.0] * 6}),
        ("identity", {"coefficients": {"a": 1}}),
        ("identity", {"surplus": 1}),
        ("blt", {"decay": [0.5]}),
        ("blt", {"decay": [1.0, 0.7, 0.2]}),
        ("scaled blt", {"rounds": 6}),
        ("scaled blt", {"allow_negative": True}),
        ("scaled blt", {"inner": 3}),
        ("scaled blt", {"inner": {}}),
        ("scaled blt", {"weights": [1.0, 1.0, 1.0, 1.0, 0.0]}),
        ("banded", {"rounds": 6}),
        ("banded", {"coefficients": [[1.0, 1.0], [1.0]]}),
        ("dense", {"rows": [[1.0]]}),
        ("dense", {"rows": 5}),
        ("dense", {"rows": [[1.0], [1.0, 1.0], [1.0], [], [1.0]]}),
        ("tree", {"decoder": "other"}),
        ("tree", {"decoder": None}),
        ("tree", {"allow_negative": True}),
    ],
)
def test_content_that_is_no_strategy_is_refused_in_spite_of_its_hash(
    kind: str, change: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "strategy.json"
    write_with_hash(path, GOOD[kind])
    assert load_strategy(path).to_json() == GOOD[kind]
    write_with_hash(path, {**GOOD[kind], **change})
    with pytest.raises(InvalidFile, match=r"strategy\.json"):
        load_strategy(path)
    with pytest.raises(InvalidArgument):
        strategy_from_json({**GOOD[kind], **change})


@pytest.mark.parametrize("key", list(GOOD["scaled blt"]))
def test_missing_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument):
        strategy_from_json({k: v for k, v in GOOD["scaled blt"].items() if k != key})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "JSON object, not a list"),
        ("{}", "not a strategy file"),
        ('{"format":"galton-strategy"}', "version None"),
        ('{"format":"galton-strategy","version":2}', "version 2"),
        ('{"format":"galton-strategy","version":1}', "hash"),
        ('{"format":"galton-strategy","version":1,"rounds":NaN}', "NaN"),
        pytest.param('{"format":"galton-strategy","version":1,"rounds":1e999}', "JSON"),
    ],
)
def test_file_that_is_no_strategy_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    path.write_text(text)
    with pytest.raises(InvalidFile, match=f"strategy.json: .*{message}") as caught:
        load_strategy(path)
    assert "\n" not in str(caught.value)


def test_missing_file_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"none\.json: cannot be read \(No such file"):
        load_strategy(tmp_path / "none.json")


# Values: what is accepted, what is refused, what stays as it was.


@pytest.mark.parametrize(
    ("build", "matrix"),
    [
        (lambda a: Toeplitz(5, [1.0, -0.5, 0.25], a), lower_toeplitz(np.array([1.0, -0.5, 0.25, 0.0, 0.0]))),
        (lambda a: Blt(5, [0.5, 0.25], [-0.4, 0.3], a), lower_toeplitz(blt_column(5, [0.5, 0.25], [-0.4, 0.3]))),
        (lambda a: Blt(5, [-0.5], [0.3], a), lower_toeplitz(blt_column(5, [-0.5], [0.3]))),
        (
            lambda a: ColumnBanded([[1.0, 1.0, 1.0], [0.5, -0.5, 0.0]], a),
            np.array([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, -0.5, 1.0]]),
        ),
        (lambda a: Dense([[1.0, 0.0], [-0.5, 1.0]], a), np.array([[1.0, 0.0], [-0.5, 1.0]])),
        (
            lambda a: Scaled(Toeplitz(3, [1.0, -0.5], a), [1.0, 2.0, 3.0]),
            from_bands(np.array([[1, 2, 3.0], [-0.5, -1, 0]])),
        ),
    ],
)
def test_negative_entries_need_consent_and_are_analysed_as_absolute_values(
    build: Callable[[bool], Strategy], matrix: FloatArray
) -> None:
    with pytest.raises(InvalidArgument, match=r"must (not be negative; allow_negative|lie strictly between 0 and 1)"):
        build(False)
    strategy = build(True)
    modes = plain_modes(matrix, 2)
    assert strategy.has_negative
    assert strategy.allow_negative
    close(strategy.matrix(), matrix)
    close(strategy.inverse(), np.linalg.inv(matrix))
    close(strategy.modes(2), modes)
    close(strategy.gram(2), modes.T @ modes)
    close(strategy.sensitivity(2), np.linalg.norm(modes, axis=0).max())
    close(strategy.column_norm(), np.linalg.norm(matrix, axis=0).max())
    assert strategy_from_json(strategy.to_json()).digest == strategy.digest


def test_consent_alone_is_not_a_negative_entry() -> None:
    assert not Toeplitz(3, [1.0, 0.5], allow_negative=True).has_negative


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda: Toeplitz(0, [1.0]), "rounds"),
        (lambda: Toeplitz(3.0, [1.0]), "rounds"),  # type: ignore[arg-type]
        (lambda: Toeplitz(3, []), "coefficients"),
        (lambda: Toeplitz(3, [[1.0]]), "coefficients"),
        (lambda: Toeplitz(3, [1.0] * 4), "coefficients"),
        (lambda: Toeplitz(3, [0.0, 1.0]), r"coefficients\[0\]"),
        (lambda: Toeplitz(3, [-1.0], allow_negative=True), r"coefficients\[0\]"),
        (lambda: Toeplitz(3, [1.0, np.nan]), r"coefficients\[1\]"),
        (lambda: Toeplitz(3, [1.0, np.inf]), r"coefficients\[1\]"),
        (lambda: Toeplitz(3, ["one"]), "coefficients"),
        (lambda: square_root(3, 4), "bands"),
        (lambda: square_root(3, 0), "bands"),
        (lambda: identity(-1), "rounds"),
        (lambda: BandedInverse(3, [1.0, 0.5]), r"C\[1\]"),
        (lambda: BandedInverse(3, [0.0, -0.5]), r"coefficients\[0\]"),
        (lambda: BandedInverse(3, [1.0, -0.5, -0.1, -0.1]), "coefficients"),
        (lambda: BandedInverse(2000, [1.0, -5.0]), "coefficients"),
        (lambda: Blt(3, [0.5, 0.5], [1.0, 1.0]), "decay"),
        (lambda: Blt(3, [0.5], [1.0, 1.0]), "scale"),
        (lambda: Blt(3, [0.0], [1.0]), "decay"),
        (lambda: Blt(3, [1.0], [1.0]), "decay"),
        (lambda: Blt(3, [0.5], [0.0]), "scale"),
        (lambda: Blt(1, [0.5, 0.6], [1.0, 1.0]), "decay"),
        (lambda: Scaled(identity(3), [1.0, 1.0]), "weights"),
        (lambda: Scaled(identity(2), [1.0, 0.0]), "weights"),
        (lambda: ColumnBanded([[1.0], [0.0]]), "coefficients"),
        (lambda: ColumnBanded([[1.0, 0.0]]), r"coefficients\[0, 1\]"),
        (lambda: ColumnBanded([[1.0, 1.0], [0.5, 0.5]]), "coefficients"),
        (lambda: column_banded(identity(3), 4), "bands"),
        (lambda: Dense([[1.0, 0.0]]), "C"),
        (lambda: Dense([[1.0, 0.5], [0.0, 1.0]]), r"C\[0, 1\]"),
        (lambda: Dense([[1.0, 0.0], [0.5, 0.0]]), r"C\[1, 1\]"),
        (lambda: Tree(0), "rounds"),
    ],
)
def test_bad_values_are_refused_by_name(build: Callable[[], Strategy], argument: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument} = "):
        build()


@pytest.mark.parametrize("build", [lambda n: Toeplitz(n, [1.0]), lambda n: Blt(n, [0.5], [0.5]), Tree])
def test_numpy_integers_are_as_good_as_python_ones(build: Callable[[Any], Strategy]) -> None:
    assert build(np.int64(4)).digest == build(4).digest


def test_strategies_do_not_share_memory_with_their_input() -> None:
    given_values = np.array([1.0, 0.5])
    strategy = Toeplitz(3, given_values)
    before = strategy.digest
    given_values[1] = 9.0
    assert strategy.digest == before
    for kind in ("toeplitz", "blt", "dense", "banded", "scaled blt"):
        for value in vars(KINDS[kind](5)[0]).values():
            if isinstance(value, np.ndarray):
                with pytest.raises(ValueError, match="read-only"):
                    value[...] = 0.0


# Names on the command line.


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("identity", identity(6)),
        ("sqrt", square_root(6)),
        ("sqrt:1", identity(6)),
        ("sqrt:6", square_root(6)),
        ("sqrt:3", square_root(6, 3)),
        ("tree", Tree(6)),
    ],
)
def test_spec_names_a_strategy(spec: str, expected: Strategy) -> None:
    assert parse_strategy(spec, 6).digest == expected.digest


@pytest.mark.parametrize(
    "spec", ["", "sqrt:", "sqrt:0", "sqrt:7", "sqrt:-1", "sqrt:2.0", "sqrt:²", "Identity", "tree:2"]
)
def test_spec_that_names_nothing_is_refused(spec: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^strategy = "):
        parse_strategy(spec, 6)


def test_spec_reads_files(tmp_path: Path) -> None:
    saved, column, dense = tmp_path / "s.json", tmp_path / "column.npy", tmp_path / "dense.npy"
    save_strategy(KINDS["scaled blt"](6)[0], saved)
    np.save(column, np.array([1.0, 0.5], np.float32))
    np.save(dense, dense_entries(6))
    assert parse_strategy(str(saved), 6).digest == KINDS["scaled blt"](6)[0].digest
    assert parse_strategy(str(column), 6).digest == Toeplitz(6, [1.0, 0.5]).digest
    assert parse_strategy(str(dense), 6).digest == Dense(dense_entries(6)).digest
    for path in (saved, dense):
        with pytest.raises(InvalidFile, match="for 6 rounds, not for the 7"):
            parse_strategy(str(path), 7)


def test_spec_of_a_negative_file_needs_consent(tmp_path: Path) -> None:
    saved, column = tmp_path / "s.json", tmp_path / "column.npy"
    strategy = Toeplitz(6, [1.0, -0.5], allow_negative=True)
    save_strategy(strategy, saved)
    np.save(column, strategy.coefficients)
    for path in (saved, column):
        with pytest.raises((InvalidFile, InvalidArgument), match="negative"):
            parse_strategy(str(path), 6)
        assert parse_strategy(str(path), 6, allow_negative=True).digest == strategy.digest


@pytest.mark.parametrize("content", [b"", b"text", b"\x93NUMPY\x01\x00v\x00{"])
def test_npy_file_without_numbers_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match=r"c\.npy"):
        parse_strategy(str(path), 6)


@pytest.mark.parametrize(
    "values", [np.array(["a"]), np.array([1j]), np.array([None]), np.ones((1, 1, 1)), np.array(1.0), np.array([True])]
)
def test_npy_file_of_anything_but_real_arrays_is_refused(values: np.ndarray[Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    np.save(path, values)
    with pytest.raises(InvalidFile, match=r"c\.npy"):
        parse_strategy(str(path), 1)


# Size.

LONG_RUN = """
import numpy as np
from galton.strategies import Blt, Scaled, square_root

n, bins = 10_000, 100
blt = Blt(n, [0.9999, 0.99, 0.5], [0.002, 0.05, 0.2])
for strategy in (square_root(n), blt):
    gram = strategy.gram(bins)
    assert gram.shape == (bins, bins)
    assert np.isclose(strategy.sensitivity(bins) ** 2, gram.diagonal().max())
    assert np.isfinite(strategy.rmse())
assert np.isfinite(Scaled(blt, np.linspace(1.8, 0.7, n)).rmse())
assert Scaled(blt, np.ones(n)).gram(bins).shape == (bins, bins)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory of a process from Linux")
@pytest.mark.slow
def test_ten_thousand_rounds_fit_in_500_megabytes() -> None:
    """VmHWM, not ru_maxrss: the latter starts a child at the peak of the process that forked it."""
    run = subprocess.run([sys.executable, "-c", LONG_RUN], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 500


def test_modes_keep_their_relative_precision_however_uneven_the_entries() -> None:
    """A transform would lose the small entries beside the large ones, and with them sensitivity."""
    big = 1e16
    strategy = Scaled(Toeplitz(8, [1.0, 0.5, 0, 0, 0, 0, 0, big]), [1 / big, 1, 1, 1, 1, 1, 1, 1])
    matrix = strategy.matrix()
    modes = np.stack([matrix[:, i::4].sum(axis=1) for i in range(4)], axis=1)
    assert strategy.modes(4) == pytest.approx(modes, rel=1e-15, abs=0)
    assert strategy.sensitivity(4) == pytest.approx(np.linalg.norm(modes, axis=0).max(), rel=1e-14)
