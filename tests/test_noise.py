"""The noise of a model: its generator, tails, covariance, and what a resumed run may and may not do."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import unittest.mock
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from galton.errors import FloatArray, InvalidArgument, InvalidFile
from galton.noise import (
    CorrelatedNoise,
    Journal,
    NoiseReused,
    NoiseRun,
    NoiseState,
    fresh_key,
    key_from_seed,
    load_state,
    save_state,
)
from galton.noise import layout as layout_module
from galton.noise.forms import Recomputed
from galton.noise.hashing import BLOCK, LARGE, content_hash, device_words
from galton.noise.keys import apart
from galton.noise.layout import Piece, layout_of
from galton.noise.normals import ERROR, from_words, standard_normals
from galton.noise.stream import MARGIN
from galton.noise.threefry import block
from galton.strategies import (
    BandedInverse,
    Blt,
    Dense,
    Scaled,
    Strategy,
    Toeplitz,
    Tree,
    column_banded,
    identity,
    square_root,
)
from tests.marks import SLOW

ROUNDS = 8
KINDS: dict[str, Strategy] = {
    "identity": identity(ROUNDS),
    "square root": square_root(ROUNDS),
    "3 bands": square_root(ROUNDS, 3),
    "banded inverse": BandedInverse(ROUNDS, [1.0, -0.5, -0.25]),
    "blt": Blt(ROUNDS, [0.9, 0.5], [0.2, 0.3]),
    "scaled blt": Scaled(Blt(ROUNDS, [0.9, 0.5], [0.2, 0.3]), np.linspace(0.5, 2, ROUNDS)),
    "scaled toeplitz": Scaled(Toeplitz(ROUNDS, [1.0, 0.6, 0.3]), np.linspace(2, 0.5, ROUNDS)),
    "banded": column_banded(square_root(ROUNDS), 3),
    "dense": Dense(np.tril(np.random.default_rng(0).uniform(0.1, 1, (ROUNDS, ROUNDS)) + np.eye(ROUNDS))),
    "tree": Tree(ROUNDS),
    "tree of 6": Tree(6),
}
SQUARE = [kind for kind in KINDS if not kind.startswith("tree")]
ALL = [(kind, "buffers") for kind in KINDS] + [(kind, "recompute") for kind in SQUARE]
QUICK = {(kind, "buffers") for kind in ("identity", "3 bands", "banded inverse", "blt", "dense", "tree of 6")}
QUICK |= {("blt", "recompute"), ("scaled toeplitz", "recompute")}
SOME_QUICK = [case if case in QUICK else pytest.param(*case, marks=SLOW) for case in ALL]
PARAMS = {"a": jnp.zeros((300, 500)), "b": jnp.zeros(()), "c": jnp.zeros(49_999)}
STDDEV = 1.7


@lru_cache
def places(*shape: int) -> jax.Array:
    """Row-major numbers of the elements of an array."""
    return jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)


def noise_of(kind: str, form: str = "buffers") -> CorrelatedNoise:
    """Compiled once for all tests, which share the parameters above."""
    return CorrelatedNoise(KINDS[kind], STDDEV, form)


@lru_cache
def whole_run(kind: str, form: str = "buffers") -> NDArray[np.float32]:
    """The noise of all rounds, flat, under the key of seed 7."""
    noise = noise_of(kind, form)
    drawn, state = run(noise, noise.init(PARAMS, key_from_seed(7)), noise.strategy.rounds)
    assert int(state.round) == noise.strategy.rounds
    return np.stack([flat(x) for x in drawn])


def numpy_normals(key: np.ndarray[Any, Any], turn: int, group: int, draw: int, size: int) -> np.ndarray[Any, Any]:
    """The same normals as a flat NumPy array, without JAX."""
    with np.errstate(over="ignore"):
        words = tuple(np.full((), part, np.uint32) for part in (group, turn, draw))
        high, low, _, _ = block(tuple(np.asarray(key, np.uint32)), (np.arange(size, dtype=np.uint32), *words))
    result: np.ndarray[Any, Any] = from_words(high, low, np)
    return result


def flat(tree: Any) -> NDArray[np.float32]:
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def run(noise: CorrelatedNoise, state: NoiseState, steps: int) -> tuple[list[Any], NoiseState]:
    drawn = []
    for _ in range(steps):
        x, state = noise.step(state)
        drawn.append(jax.tree.map(np.asarray, x))
    return drawn, state


# The generator.


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 " * 4, "00000000 " * 4, "9c6ca96a e17eae66 fc10ecd4 5256a7d8"),
        ("ffffffff " * 4, "ffffffff " * 4, "2a881696 57012287 f6c7446e a16a6732"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0 082efa98 ec4e6c89",
            "59cd1dbb b8879579 86b5d00c ac8b6d84",
        ),
    ],
)
def test_threefry_has_its_published_answers(counter: str, key: str, words: str) -> None:
    """Known answers for threefry4x32 with 20 rounds of Random123 1.09, file kat_vectors."""

    def parsed(text: str) -> list[NDArray[np.uint32]]:
        return [np.full(1, int(word, 16), np.uint32) for word in text.split()]

    for library in (np.asarray, jnp.asarray):
        encrypted = block([library(k) for k in parsed(key)], [library(c) for c in parsed(counter)])
        assert [f"{int(word[0]):08x}" for word in encrypted] == words.split()


def edge_words(size: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Words of positive normals on all scales: every magnitude of p, and of 1/2 - p."""
    rng = np.random.default_rng(1)
    head = rng.integers(0, 2**31, size, dtype=np.uint32) >> rng.integers(0, 31, size).astype(np.uint32)
    low = rng.integers(0, 2**32, 3 * size, dtype=np.uint64).astype(np.uint32)
    high = np.concatenate((head, np.uint32(2**31 - 1) - head, np.zeros(size, np.uint32)))
    low[2 * size :] >>= rng.integers(0, 32, size).astype(np.uint32)
    low[:4], high[:4] = [0, 2**32 - 1, 0, 2**32 - 1], [0, 0, 2**31 - 1, 2**31 - 1]
    return high, low


@pytest.mark.parametrize("library", [jnp, np])
def test_normals_are_the_inverse_distribution_function_on_all_scales(library: Any) -> None:
    high, low = edge_words(400_000)
    fine = (low + 0.5) * 2.0**-32
    below, centre = (high + fine) * 2.0**-32, ((2.0**31 - high) - fine) * 2.0**-31
    truth = np.where(centre < 0.1, math.sqrt(2) * special.erfinv(centre), -special.ndtri(below))
    normals = np.asarray(from_words(library.asarray(high), library.asarray(low), library), np.float64)
    assert (np.abs(normals - truth) <= ERROR * truth + 2.0**-50).all()
    assert normals.max() > 9.1
    mirrored = np.asarray(from_words(library.asarray(high | np.uint32(1 << 31)), library.asarray(low), library))
    assert (mirrored == -normals).all()


def test_margin_outweighs_the_error_of_the_normals() -> None:
    assert MARGIN >= 1 + ERROR


def test_normals_are_normal() -> None:
    drawn = np.asarray(standard_normals(key_from_seed(1), jnp.int32(0), 0, 0, places(2000, 1000)), np.float64).ravel()
    size = drawn.size
    assert abs(drawn.mean()) < 5 / math.sqrt(size)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / size)
    assert abs((drawn**4).mean() - 3) < 5 * math.sqrt(96 / size)
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    for lag in (1, 1000, 1001):
        assert abs((drawn[lag:] * drawn[:-lag]).mean()) < 5 / math.sqrt(size)


def test_tails_go_beyond_where_single_precision_uniforms_end() -> None:
    """Of 2^26 normals 8.0 are expected beyond 5.3, 4.0 beyond 5.42; jax.random.normal has none beyond 5.42.

    Pooled over far more words by starting from those whose p is small: a word has p < 2^-20 if the 19 bits after its
    sign are zero, and then |z| > 4.76 always; among such words |z| > 5.42 has probability 2 Phi(-5.42) 2^19.
    """
    rng = np.random.default_rng(2)
    size = 200_000
    high = rng.integers(0, 2**12, size, dtype=np.uint32)
    low = rng.integers(0, 2**32, size, dtype=np.uint64).astype(np.uint32)
    drawn = np.asarray(from_words(jnp.asarray(high), jnp.asarray(low)), np.float64)
    assert drawn.min() > 4.75
    for limit in (5.0, 5.42, 6.0, 6.5):
        chance = stats.norm.sf(limit) * 2.0**20
        assert abs((drawn > limit).sum() - size * chance) < 5 * math.sqrt(size * chance) + 1


@pytest.mark.slow
def test_tails_of_a_long_run_reach_beyond_5_42() -> None:
    """2^29 normals: 32.0 beyond 5.42 in absolute value are expected, and Poisson."""
    key, over = key_from_seed(3), 0
    count = jax.jit(lambda turn: (jnp.abs(standard_normals(key, turn, 0, 0, places(1 << 24))) > 5.42).sum())
    for turn in range(32):
        over += int(count(jnp.int32(turn)))
    expected = 2**29 * 2 * stats.norm.sf(5.42)
    assert abs(over - expected) < 5 * math.sqrt(expected)


def test_numpy_has_the_same_words_and_nearly_the_same_normals() -> None:
    key = key_from_seed(4)
    ours = np.asarray(standard_normals(key, jnp.int32(7), 2, 1, places(30, 40))).ravel()
    theirs = numpy_normals(np.asarray(key), 7, 2, 1, 1200)
    assert theirs.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, rtol=5e-7)


def test_normals_depend_on_all_they_are_numbered_by() -> None:
    base = {"key": key_from_seed(5), "turn": jnp.int32(3), "group": 1, "draw": 0}
    first = np.asarray(standard_normals(**base, places=places(100)))
    for name, value in (("key", key_from_seed(6)), ("turn", jnp.int32(4)), ("group", 2), ("draw", 1)):
        other = np.asarray(standard_normals(**{**base, name: value}, places=places(100)))
        assert (first != other).all()
    assert (np.asarray(standard_normals(**base, places=places(10, 10))).ravel() == first).all()
    assert np.asarray(standard_normals(**base, places=places())) == first[0]


def test_keys() -> None:
    assert (np.asarray(fresh_key()) != np.asarray(fresh_key())).any()
    assert (np.asarray(key_from_seed(1)) == np.asarray(key_from_seed(1))).all()
    for bad in (np.zeros(4), np.zeros(2, np.uint32), 7):
        with pytest.raises(InvalidArgument, match=r"^key = .*four uint32"):
            CorrelatedNoise(identity(2), 1.0).init(jnp.zeros(2), bad)  # type: ignore[arg-type]


# Covariance.


def exact_covariance(strategy: Strategy) -> FloatArray:
    inverse = strategy.inverse()
    return inverse @ inverse.T


@pytest.mark.parametrize(("kind", "form"), SOME_QUICK)
def test_covariance_is_that_of_the_inverse(kind: str, form: str) -> None:
    """Every entry of stddev^2 C^-1 C^-T, over 200,000 coordinates in three arrays, within 5 standard errors."""
    samples = whole_run(kind, form).astype(np.float64)
    size = samples.shape[1]
    truth = STDDEV**2 * exact_covariance(KINDS[kind])
    error = np.sqrt((np.outer(truth.diagonal(), truth.diagonal()) + truth**2) / size)
    assert (np.abs(samples @ samples.T / size - truth) < 5 * error).all()
    assert np.abs(samples.mean(axis=1)).max() < 5 * math.sqrt(truth.diagonal().max() / size)
    if kind != "identity":
        assert np.abs(truth - np.diag(truth.diagonal())).max() > 10 * error.max(), "or i.i.d. noise would pass"


@pytest.mark.parametrize(("kind", "form"), ALL)
def test_noise_is_the_inverse_times_the_fresh_normals(kind: str, form: str) -> None:
    """x = MARGIN * stddev * C^-1 z in float64, with z from the generator alone."""
    strategy, rows = KINDS[kind], [(t, 0) for t in range(KINDS[kind].rounds)]
    if isinstance(strategy, Tree):
        rows = [(t, d) for t in range(strategy.rounds) for d in range(strategy.height + 1) if (t + 1) % (1 << d) == 0]
    z = np.stack([numpy_normals(np.asarray(key_from_seed(7)), t, 0, d, 500) for t, d in rows]).astype(np.float64)
    truth = MARGIN * STDDEV * strategy.inverse() @ z
    np.testing.assert_allclose(whole_run(kind, form)[:, :500], truth, rtol=2e-5, atol=1e-5)


def test_memory_is_what_was_promised() -> None:
    wanted = {
        "identity": 0,
        "square root": 7,
        "3 bands": 2,
        "banded inverse": 2,
        "blt": 2,
        "scaled blt": 2,
        "banded": 2,
        "dense": 7,
        "tree": 4,
    }
    assert {kind: noise_of(kind).memory for kind in wanted} == wanted
    assert {noise_of(kind, "recompute").memory for kind in SQUARE} == {0}


@pytest.mark.parametrize(
    ("strategy", "reach"),
    [
        (BandedInverse(500, [1.0, -0.5, -0.25]), 3),
        (Scaled(BandedInverse(500, [2.0, -0.5]), np.linspace(1, 2, 500)), 2),
        (square_root(500), 500),  # its inverse falls like k^-1.5
        (column_banded(square_root(500), 3), 500),
        (
            Toeplitz(500, [1.0, 0.5]),
            34,
        ),  # c sums to 3/2, |r| from K on to 2^(1-K): 3/2 2^-32 is too much, 3/2 2^-33 is not
        (Toeplitz(20, [1.0, 0.5]), 20),
        (identity(4), 1),
    ],
    ids=str,
)
def test_only_draws_that_are_not_lost_in_rounding_are_repeated(strategy: Strategy, reach: int) -> None:
    assert Recomputed(strategy).reach() == reach


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_left_out_moves_every_mode_by_less_than_rounding(dtype: type[np.floating[Any]]) -> None:
    """docs/math.md, section 7: the matrix whose inverse ends early, against the strategy's own."""
    strategy = square_root(300, 3)
    reach = Recomputed(strategy).reach(dtype)
    assert reach < 100
    cut = Toeplitz(300, np.where(np.arange(300) < reach, strategy.inverse_series, 0.0), allow_negative=True)
    moved = np.linalg.norm(cut.inverse() - strategy.matrix(), 2) / np.linalg.norm(strategy.matrix(), 2)
    assert moved < (2.0**-31 if dtype is np.float32 else 1e-14)  # float64 rounds the inverse itself


def test_noise_drawn_again_is_that_of_buffers_after_the_reach() -> None:
    strategy, key, params = square_root(200, 3), key_from_seed(4), jnp.zeros(1000)
    forms = [CorrelatedNoise(strategy, 1.0, form) for form in ("buffers", "recompute")]
    states = [noise.init(params, key) for noise in forms]
    for _ in range(80):
        steps = [noise.step(state) for noise, state in zip(forms, states, strict=True)]
        states = [state for _, state in steps]
    np.testing.assert_allclose(steps[0][0], steps[1][0], atol=1e-5)


def test_long_runs_in_single_precision_stay_exact() -> None:
    """1,000 rounds of a slowly forgetting BLT and of 64 bands: no drift against float64."""
    for strategy in (Blt(1000, [0.999, 0.9], [0.05, 0.2]), square_root(1000, 64)):
        key, noise = key_from_seed(10), CorrelatedNoise(strategy, 1.0)

        def body(state: NoiseState, _: None, noise: CorrelatedNoise = noise) -> tuple[NoiseState, jax.Array]:
            x, after = noise.next(state)
            return after, x

        _, drawn = jax.jit(lambda s: jax.lax.scan(body, s, None, 1000))(noise.init(jnp.zeros(20), key))
        z = np.stack([numpy_normals(np.asarray(key), t, 0, 0, 20) for t in range(1000)]).astype(np.float64)
        np.testing.assert_allclose(drawn, MARGIN * strategy.inverse() @ z, atol=3e-5)


# The stream as a value.


def test_next_is_pure_and_the_step_agrees() -> None:
    noise = CorrelatedNoise(KINDS["blt"], 1.0)
    state = noise.init({"w": jnp.zeros((4, 4)), "b": jnp.zeros(4)}, key_from_seed(11))
    eager, after = noise.next(state)
    compiled, _ = jax.jit(noise.next)(state)
    stepwise, stepped = noise.step(state)
    for name in ("w", "b"):
        np.testing.assert_allclose(eager[name], compiled[name], rtol=1e-6)
        assert (np.asarray(compiled[name]) == np.asarray(stepwise[name])).all()
    assert int(after.round) == int(stepped.round) == 1


@pytest.mark.parametrize(("kind", "form"), [("blt", "buffers"), ("tree", "buffers"), ("dense", "recompute")])
def test_noise_after_the_last_round_is_refused_or_nan(kind: str, form: str) -> None:
    noise = CorrelatedNoise(KINDS[kind], 1.0, form)
    drawn, state = run(noise, noise.init(jnp.zeros(3), key_from_seed(12)), ROUNDS)
    assert np.isfinite(drawn).all()
    beyond, _ = jax.jit(noise.next)(state)
    assert np.isnan(beyond).all()
    with pytest.raises(InvalidArgument, match=r"^round = 8: the strategy has rounds 0 to 7 only"):
        noise.step(state)


def test_dtypes() -> None:
    noise = CorrelatedNoise(KINDS["3 bands"], 1.0)
    x, state = noise.step(noise.init([jnp.zeros(3, jnp.bfloat16), jnp.zeros(3, jnp.float32)]))
    assert [leaf.dtype for leaf in x] == [jnp.float32, jnp.float32]
    with jax.enable_x64(True):
        x, state = noise.step(noise.init([jnp.zeros(3, jnp.float64), jnp.zeros(3, jnp.float32)], key_from_seed(1)))
        assert [leaf.dtype for leaf in x] == [jnp.float64, jnp.float32]
        assert [buffer.dtype for buffer in state.buffers] == [jnp.float64, jnp.float32]
    for bad in (jnp.zeros(3, jnp.int32), jnp.zeros(3, jnp.complex64)):
        with pytest.raises(InvalidArgument, match=r"^params = .*floating"):
            noise.init(bad)


def test_what_cannot_be_streamed_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^decoder = 'full'"):
        CorrelatedNoise(Tree(8, "full"), 1.0)
    with pytest.raises(InvalidArgument, match=r"^form = 'recompute': needs a square strategy"):
        CorrelatedNoise(Tree(8), 1.0, "recompute")
    with pytest.raises(InvalidArgument, match=r"^form = 'other'"):
        CorrelatedNoise(identity(8), 1.0, "other")
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidArgument, match=r"^stddev"):
            CorrelatedNoise(identity(8), bad)
    state = CorrelatedNoise(KINDS["blt"], 1.0).init(jnp.zeros(3))
    with pytest.raises(InvalidArgument, match=r"^state = 2: must hold 0 buffers"):
        CorrelatedNoise(identity(ROUNDS), 1.0).next(state)


def test_arrays_share_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours up to GROUP elements; the noise of every vector has a number of its own."""
    assert len(layout_of(PARAMS).groups) == 1
    assert layout_of({}).groups == []
    monkeypatch.setattr(layout_module, "GROUP", 10)
    layout = layout_of([np.zeros(4), np.zeros(6), np.zeros(20), np.zeros((2, 3)), np.zeros(5)])
    assert [size for size, _ in layout.groups] == [10, 20, 6, 5]
    noise = CorrelatedNoise(KINDS["3 bands"], 1.0)
    x, _ = noise.next(noise.init([jnp.zeros(20), jnp.zeros(20)], key_from_seed(1)))
    assert (x[0] != x[1]).all()
    np.testing.assert_allclose(x[1], MARGIN * numpy_normals(np.asarray(key_from_seed(1)), 0, 1, 0, 20), rtol=1e-6)


def test_pieces_have_the_noise_of_the_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of processes that each have some rows of every array, or none; saved together, they go on cut in another way."""
    monkeypatch.setattr(layout_module, "GROUP", 20)  # `c` is alone in its vector, of which the last has nothing
    shapes = {"w": (5, 3), "b": (5,), "c": (1, 20)}

    def pieces(rank: int, rows: int) -> dict[str, Piece]:
        cuts = {name: (min(rank * rows, shape[0]), min((rank + 1) * rows, shape[0])) for name, shape in shapes.items()}
        return {
            name: Piece(
                shape, np.float32, (cuts[name][0], *(0,) * len(shape[1:])), (-np.subtract(*cuts[name]), *shape[1:])
            )
            for name, shape in shapes.items()
        }

    noise, key = CorrelatedNoise(KINDS["blt"], 1.0), key_from_seed(5)
    whole = noise.init({name: jnp.zeros(shape) for name, shape in shapes.items()}, key)
    parts = [noise.init(pieces(rank, rows=2), key) for rank in range(3)]
    for turn in range(5):
        expected, whole = noise.step(whole)
        drawn = [noise.step(state) for state in parts]
        parts = [state for _, state in drawn]
        for name in shapes:
            assert np.array_equal(np.concatenate([values[name] for values, _ in drawn]), expected[name]), (turn, name)
        if turn == 2:
            wholes = [np.zeros(buffer.shape, np.float32) for buffer in whole.buffers]
            for state in parts:
                state.layout.put(wholes, [np.asarray(buffer) for buffer in state.buffers])
            for saved, buffer in zip(wholes, whole.buffers, strict=True):
                assert np.array_equal(saved, buffer)
            with pytest.raises(InvalidArgument, match=r"^buffers = .*must be those of all processes"):
                save_state(tmp_path / "noise.npz", noise, parts[0])
            save_state(tmp_path / "noise.npz", noise, replace(parts[0], buffers=list(map(jnp.asarray, wholes))))
            parts = [load_state(tmp_path / "noise.npz", noise, pieces(rank, rows=3)) for rank in range(2)]


def test_an_array_that_has_no_counters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "LARGEST", 8)
    with pytest.raises(InvalidArgument, match=r"^params = .*at most 8 elements"):
        layout_of([np.zeros((3, 3))])


# Checkpoints.

SMALL = {"w": jnp.zeros((6, 5)), "b": jnp.zeros(5)}


@pytest.mark.parametrize(
    ("kind", "form", "stop"),
    [
        *(case if case[:2] in QUICK else pytest.param(*case, marks=SLOW) for case in ((*kind, 3) for kind in ALL)),
        ("blt", "buffers", 0),
        ("tree", "buffers", 7),
    ],
)
def test_a_saved_state_resumes_bit_by_bit(kind: str, form: str, stop: int, tmp_path: Path) -> None:
    noise = noise_of(kind, form)
    head, state = run(noise, noise.init(PARAMS, key_from_seed(7)), stop)
    save_state(tmp_path / "state.npz", noise, state)
    again = CorrelatedNoise(KINDS[kind], STDDEV, form)
    loaded = load_state(tmp_path / "state.npz", again, PARAMS)
    tail, _ = run(noise, loaded, noise.strategy.rounds - stop)
    assert np.stack([flat(x) for x in head + tail]).tobytes() == whole_run(kind, form).tobytes()


def test_a_state_is_secret_and_loads_only_where_it_belongs(tmp_path: Path) -> None:
    path, noise = tmp_path / "state.npz", CorrelatedNoise(KINDS["blt"], 1.0)
    save_state(path, noise, noise.init(SMALL))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for other in (CorrelatedNoise(KINDS["blt"], 1.1), CorrelatedNoise(KINDS["banded"], 1.0)):
        with pytest.raises(InvalidFile, match="belongs to other noise"):
            load_state(path, other, SMALL)
    with pytest.raises(InvalidFile, match="other shapes"):
        load_state(path, noise, {"w": jnp.zeros((5, 6)), "b": jnp.zeros(5)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.npz"]


def test_a_changed_state_is_noticed(tmp_path: Path) -> None:
    path, noise = tmp_path / "state.npz", CorrelatedNoise(KINDS["blt"], 1.0)
    _, state = run(noise, noise.init(SMALL), 2)
    save_state(path, noise, state)
    with np.load(path) as archive:
        arrays = dict(archive)
    for name in ("key", "round", "buffers_000000"):
        edited = arrays[name].copy()
        edited.reshape(-1)[-1:] += np.ones(1, edited.dtype)
        np.savez(path, **{**arrays, name: edited})
        with pytest.raises(InvalidFile, match="does not match its hash"):
            load_state(path, noise, SMALL)
    for content in (b"", b"PK", path.read_bytes()[:200]):
        path.write_bytes(content)
        with pytest.raises(InvalidFile):
            load_state(path, noise, SMALL)
    with pytest.raises(InvalidFile, match="cannot be read"):
        load_state(tmp_path / "missing.npz", noise, SMALL)


# Journals and runs.

BATCH = [np.array([t, t + 100]) for t in range(ROUNDS)]


def test_rounds_are_released_in_order_and_replayed_for_the_same_batch_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log", key_from_seed(1), "plan")
    for turn in range(5):
        journal.release(turn, BATCH[turn])
    with pytest.raises(NoiseReused, match="round 6 comes after 5"):
        journal.release(6, BATCH[6])
    journal.release(3, BATCH[3][::-1])
    assert journal.replays == 1
    with pytest.raises(NoiseReused, match="round 4 has had its noise for another batch"):
        journal.release(4, BATCH[3])
    journal.checkpoint(4)
    with pytest.raises(NoiseReused, match="round 3 has had its noise and cannot get it again"):
        journal.release(3, BATCH[3])
    for turn in (3, 6):
        with pytest.raises(NoiseReused, match="checkpoint"):
            journal.checkpoint(turn)
    journal.close()
    again = Journal(tmp_path / "log", key_from_seed(1), "plan")
    assert (again.released, again.saved, again.replays) == (5, 4, 1)
    again.close()


def test_the_name_of_a_journal_is_on_the_disk_before_any_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    Journal(tmp_path / "log", key_from_seed(1), "plan").close()
    assert synced == [str(tmp_path / "log"), str(tmp_path)]


def test_a_journal_belongs_to_one_run_and_one_process(tmp_path: Path) -> None:
    path = tmp_path / "log"
    journal = Journal(path, key_from_seed(1), "plan")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InvalidFile, match="held by another process"):
        Journal(path, key_from_seed(1), "plan")
    journal.release(0, BATCH[0])
    journal.close()
    for key, plan, word in ((2, "plan", "key"), (1, "other", "plan")):
        with pytest.raises(InvalidFile, match=f"another run .{word} differ"):
            Journal(path, key_from_seed(key), plan)
    text = path.read_text()
    assert "".join(f"{int(word):08x}" for word in key_from_seed(1)) not in text
    path.write_text(text + '{"batch": "torn')
    torn = Journal(path, key_from_seed(1), "plan")
    assert torn.released == 1
    torn.close()
    path.write_text(text + "nonsense\n")
    with pytest.raises(InvalidFile, match="damaged"):
        Journal(path, key_from_seed(1), "plan")


def opened(folder: Path, **more: Any) -> NoiseRun:
    return NoiseRun(folder, CorrelatedNoise(KINDS["3 bands"], 1.0), SMALL, "plan", **more)


def test_a_run_that_crashed_goes_on_with_the_same_noise(tmp_path: Path) -> None:
    noise = CorrelatedNoise(KINDS["3 bands"], 1.0)
    with opened(tmp_path, key=key_from_seed(2)) as first:
        assert not first.resumed
        drawn = [first.next(BATCH[turn]) for turn in range(3)]
        first.save()
        drawn += [first.next(BATCH[turn]) for turn in (3, 4)]
    with opened(tmp_path, renew=False) as second:  # two rounds were computed after the checkpoint
        assert second.resumed
        assert second.round == 3
        replayed = [second.next(BATCH[turn]) for turn in range(3, ROUNDS)]
        assert second.journal.replays == 2
        with pytest.raises(InvalidArgument, match=r"^round = 8"):
            second.noise.step(second.state)
    whole, _ = run(noise, noise.init(SMALL, key_from_seed(2)), ROUNDS)
    for released, uninterrupted in zip([*drawn[:3], *replayed], whole, strict=True):
        assert np.asarray(released["w"]).tobytes() == uninterrupted["w"].tobytes()
    for released, uninterrupted in zip(drawn[3:], whole[3:5], strict=True):
        assert np.asarray(released["w"]).tobytes() == uninterrupted["w"].tobytes()


def test_a_run_does_not_repeat_noise_for_another_gradient(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        first.next(BATCH[0])
        old = (tmp_path / "noise.npz").read_bytes()
        first.save()
        first.next(BATCH[1])
    with opened(tmp_path) as second, pytest.raises(NoiseReused, match="another batch"):
        second.next(BATCH[5])
    with opened(tmp_path, strict=True) as second, pytest.raises(NoiseReused, match="cannot get it again"):
        second.next(BATCH[1])
    (tmp_path / "noise.npz").write_bytes(old)  # an older checkpoint put back
    with opened(tmp_path) as third, pytest.raises(NoiseReused, match="round 0 has had its noise"):
        third.next(BATCH[0])


def test_a_run_keeps_its_key_and_its_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        with pytest.raises(InvalidFile, match="held by another process"):
            opened(tmp_path)
        first.next(BATCH[0])
    with pytest.raises(InvalidArgument, match=r"^key = 'given': must be left out"):
        opened(tmp_path, key=key_from_seed(1))
    with pytest.raises(InvalidFile, match="belongs to other noise"):
        NoiseRun(tmp_path, CorrelatedNoise(KINDS["3 bands"], 2.0), SMALL, "plan")
    with pytest.raises(InvalidFile, match=r"another run .plan differ"):
        NoiseRun(tmp_path, CorrelatedNoise(KINDS["3 bands"], 1.0), SMALL, "other plan")
    (tmp_path / "noise.npz").unlink()  # the key is lost: another one must not go on under the same journal
    with pytest.raises(InvalidFile, match=r"another run .key differ"):
        opened(tmp_path)
    lines = (tmp_path / "noise.journal").read_text().splitlines()
    assert json.loads(lines[0])["format"] == "galton-noise-journal"


def hashed(tree: Any) -> bytes:
    return content_hash(tree, key_from_seed(3))


def hashed_by_devices(tree: Any) -> bytes:
    """As arrays on accelerators are, which this machine has none of."""
    with unittest.mock.patch("galton.noise.hashing.in_memory", lambda array: not isinstance(array, jax.Array)):
        return hashed(jax.tree.map(jnp.asarray, tree))


@pytest.mark.parametrize("by", [hashed, hashed_by_devices])
def test_a_hash_is_of_values_and_shapes_not_of_where_they_are(by: Callable[[Any], bytes]) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = by({"a": values})
    for same in (jnp.asarray(values), np.asfortranarray(values), np.stack([values, values])[1], values[::-1][::-1]):
        assert by({"a": same}) == expected
    off = values.copy()
    off[2, 3] = np.nextafter(off[2, 3], np.float32(99))
    for other in (values.T, values.reshape(4, 3), values.astype(np.float16), off, values[:2], -values, values[::-1]):
        assert by({"a": other}) != expected
    for scalar in (jnp.float32(1.5), jnp.bfloat16(1.5), np.float64(1.5)):
        assert by(scalar) == by(scalar) != by(-scalar)
    assert by([values, off]) != by([off, values])


def test_every_bit_of_a_large_array_counts_wherever_it_lies() -> None:
    generator = np.random.default_rng(4)
    values = generator.normal(size=3 * BLOCK + LARGE // 4 + 5).astype(np.float32)
    off = np.empty(len(values) + 1, np.float32)[1:]  # not where XLA wants arrays
    off[:] = values
    assert content_hash(values, key_from_seed(3)) == content_hash(off, key_from_seed(3))
    assert content_hash(values, key_from_seed(3)) != content_hash(values, key_from_seed(4))
    seen = {content_hash(values, key_from_seed(3))}
    words = values.view(np.uint32)
    for place in (0, BLOCK // 2 - 1, BLOCK // 2, BLOCK - 1, BLOCK, *generator.integers(len(words), size=20), -6, -1):
        for bit in (0, 31):
            words[place] ^= np.uint32(1 << bit)
            seen.add(content_hash(values, key_from_seed(3)))
            words[place] ^= np.uint32(1 << bit)
    assert len(seen) == 1 + 2 * 27


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_digests_of_blocks_are_sums_of_products_of_words(dtype: Any) -> None:
    """By Python's integers, for the four keys that Threefry makes of the run's."""
    size = LARGE // np.dtype(dtype).itemsize + 7
    values = np.random.default_rng(5).normal(size=size).astype(dtype)
    secret = [np.asarray(word)[None] for word in apart(key_from_seed(3), 4)]
    counter = [np.arange(4 * BLOCK, dtype=np.uint32), *[np.zeros(1, np.uint32)] * 3]
    keys = [int(word) for word in block(secret, counter)[0]]
    content = values.tobytes()
    blocks = len(content) // (4 * BLOCK)
    words = [int(word) for word in np.frombuffer(content[: 4 * blocks * BLOCK], np.uint32)]
    digests = []
    for time in range(4):
        own, half = keys[time * BLOCK : (time + 1) * BLOCK], BLOCK // 2
        for start in range(0, len(words), BLOCK):
            lifted = [(word + key) % 2**32 for word, key in zip(words[start : start + BLOCK], own, strict=True)]
            digests.append(sum(a * b for a, b in zip(lifted[:half], lifted[half:], strict=True)) % 2**64)
    header = f"{values.dtype} {values.shape} ".encode()
    expected = hashlib.sha256(header + content[4 * blocks * BLOCK :] + np.array(digests, "<u8").tobytes())
    assert content_hash([values], key_from_seed(3)) == expected.digest()


def test_words_of_devices_are_sums_of_threefry_blocks() -> None:
    """By NumPy: one block for the place and the bits of every element, two for one of 64 bits."""
    key = key_from_seed(3)
    secret = np.asarray(apart(key, 3))
    with jax.enable_x64(True):
        for dtype in (np.float32, np.float64, np.float16):
            values: NDArray[Any] = np.array([[1.5, -2.0], [0.1, 3e3]], dtype)
            bits = values.reshape(-1).view(np.uint16 if values.itemsize == 2 else np.uint32).astype(np.uint32)
            each, expected = max(1, values.itemsize // 4), np.zeros(4, np.uint32)
            for number, word in enumerate(bits):
                counter = [np.array([part], np.uint32) for part in (number // each, word, 5, number % each)]
                expected += np.concatenate(block([word[None] for word in secret], counter))
            np.testing.assert_array_equal(device_words(jnp.asarray(values), key, 5), expected)


def test_a_journal_that_cannot_be_written_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the round counts as not released: its noise may be asked for again."""
    journal = Journal(tmp_path / "noise.journal", key_from_seed(1), plan="x")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(InvalidFile, match=r"noise\.journal: cannot be written \(No space left on device\)"):
            journal.release(0, np.array([1]))
    assert journal.released == 0
    journal.release(0, np.array([2]))
    journal.close()
    with closing(Journal(tmp_path / "noise.journal", key_from_seed(1), plan="x")) as again:
        assert again.released == 1
        assert again.objection(0, np.array([2])) == ""
        assert again.objection(0, np.array([1]))
