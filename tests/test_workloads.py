"""Workloads against the matrix A[t, s] = sum_{s <= u <= t} rate_u beta^(u-s), written out (docs/math.md, section 7)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galton.errors import FloatArray, InvalidArgument, InvalidFile
from galton.workloads import MatrixWorkload, Training, Workload, cooldown, momentum, parse_workload, prefix_sums


def plain(n: int, beta: float, rates: FloatArray) -> FloatArray:
    return np.array([[sum(rates[u] * beta ** (u - s) for u in range(s, t + 1)) for s in range(n)] for t in range(n)])


@settings(max_examples=40)
@given(st.integers(1, 12), st.sampled_from([0.0, 0.5, 0.9, 0.99]), st.integers(0, 2**32 - 1))
def test_training_is_the_matrix_of_its_iterates(n: int, beta: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rates, values = generator.uniform(0.0, 2.0, n), generator.normal(size=(n, 3))
    for workload, expected in [
        (momentum(n, beta), plain(n, beta, np.ones(n))),
        (momentum(n, beta, rates), plain(n, beta, rates)),
    ]:
        np.testing.assert_allclose(workload.matrix(), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(workload.apply(values), expected @ values, rtol=1e-12, atol=1e-11)


def test_training_matrix_runs_sgd() -> None:
    """v <- beta v + g; x <- x + rate v: the iterates after each round, for one stream of gradients."""
    gradients, rates = np.random.default_rng(0).normal(size=9), cooldown(9)
    velocity, position, path = 0.0, 0.0, []
    for gradient, rate in zip(gradients, rates, strict=True):
        velocity = 0.8 * velocity + gradient
        position += rate * velocity
        path.append(position)
    np.testing.assert_allclose(momentum(9, 0.8, rates).apply(gradients[:, None])[:, 0], path, rtol=1e-12)


def test_prefix_sums_are_ones_below_the_diagonal() -> None:
    assert np.array_equal(prefix_sums(5).matrix(), np.tril(np.ones((5, 5))))


def test_matrix_workload_is_its_entries_and_keeps_them() -> None:
    entries = np.tril(np.random.default_rng(1).normal(size=(4, 4)))
    workload = MatrixWorkload(entries)
    expected = entries.copy()
    entries[0, 0] = 99.0
    assert workload.rounds == 4
    assert np.array_equal(workload.matrix(), expected)


@pytest.mark.parametrize(
    ("workload", "claim"),
    [
        (prefix_sums(6), True),
        (momentum(6, 0.9), True),
        (momentum(6, 0.9, cooldown(6)), False),
        (MatrixWorkload(np.diag(np.arange(1.0, 7.0))), False),
    ],
)
def test_is_toeplitz_says_whether_diagonals_are_constant(workload: Workload, claim: bool) -> None:
    matrix = workload.matrix()
    assert workload.is_toeplitz is claim
    assert np.allclose(matrix[1:, 1:], matrix[:-1, :-1]) is claim


def test_cooldown_of_the_paper() -> None:
    """CIFAR-10: 2000 rounds, rate 1 up to round 500, then a straight line to a twentieth in the last round."""
    rates = cooldown(2000)
    assert np.array_equal(rates[:501], np.ones(501))
    np.testing.assert_allclose(np.diff(rates[500:]), -0.95 / 1499, rtol=1e-9)
    assert rates[-1] == pytest.approx(0.05, rel=1e-12)


@pytest.mark.parametrize(("n", "start", "final"), [(100, 0.0, 0.5), (100, 0.5, 0.01), (7, 0.25, 2.0)])
def test_cooldown_starts_at_one_and_ends_at_final(n: int, start: float, final: float) -> None:
    rates = cooldown(n, start, final)
    assert rates.shape == (n,)
    assert rates[0] == 1.0
    assert rates[-1] == pytest.approx(final, rel=1e-12)
    assert (np.diff(rates) * np.sign(final - 1.0) >= 0).all()


@pytest.mark.parametrize(("n", "start"), [(2, 0.25), (20, 0.93), (20, 0.95)])
def test_cooldown_of_less_than_a_round_still_ends_at_final(n: int, start: float) -> None:
    assert cooldown(n, start, 0.05)[-1] == pytest.approx(0.05)


def test_parse_workload_reads_names_and_files(tmp_path: Path) -> None:
    entries = np.tril(np.random.default_rng(2).normal(size=(6, 6)))
    np.save(tmp_path / "a.npy", entries)
    expected = {
        "prefix": plain(6, 0.0, np.ones(6)),
        "momentum:0": plain(6, 0.0, np.ones(6)),
        "momentum:0.95": plain(6, 0.95, np.ones(6)),
        "momentum:0.95+cooldown": plain(6, 0.95, cooldown(6)),
        str(tmp_path / "a.npy"): entries,
    }
    for text, matrix in expected.items():
        np.testing.assert_allclose(parse_workload(text, 6).matrix(), matrix, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "text", ["", "prefix:1", "Prefix", "momentum", "momentum:", "momentum:x", "momentum:0.9+", "momentum:0.9+warmup"]
)
def test_parse_workload_refuses_other_texts_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_workload(text, 6)
    assert (caught.value.argument, caught.value.value) == ("workload", text)


def test_parse_workload_refuses_files_that_hold_no_matrix(tmp_path: Path) -> None:
    np.save(tmp_path / "vector.npy", np.ones(6))
    (tmp_path / "text.npy").write_text("prefix")
    for name in ("vector.npy", "text.npy", "missing.npy"):
        with pytest.raises(InvalidFile, match=name):
            parse_workload(str(tmp_path / name), 6)
    np.save(tmp_path / "matrix.npy", np.eye(7))
    with pytest.raises(InvalidArgument, match=r"^workload = .*is for 7 rounds, not for the 6 of this run"):
        parse_workload(str(tmp_path / "matrix.npy"), 6)


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda: prefix_sums(0), "rounds"),
        (lambda: Training(2.5), "rounds"),  # type: ignore[arg-type]
        (lambda: momentum(3, 1.0), "momentum"),
        (lambda: momentum(3, -0.1), "momentum"),
        (lambda: momentum(3, float("nan")), "momentum"),
        (lambda: momentum(3, 0.9, [1.0, 1.0]), "learning_rates"),
        (lambda: momentum(3, 0.9, [1.0, 1.0, -1.0]), "learning_rates"),
        (lambda: momentum(3, 0.9, [0.0, 0.0, 0.0]), "learning_rates"),
        (lambda: momentum(3, 0.9, [1.0, 1.0, float("inf")]), r"learning_rates\[2\]"),
        (lambda: parse_workload("momentum:nan", 3), "workload"),
        (lambda: parse_workload("momentum:1", 3), "workload"),
        (lambda: MatrixWorkload(np.ones((2, 2))), "workload"),
        (lambda: MatrixWorkload(np.zeros((2, 2))), "workload"),
        (lambda: MatrixWorkload(np.ones((2, 1))), "workload"),
        (lambda: MatrixWorkload(np.ones(2)), "workload"),
        (lambda: MatrixWorkload(np.array([[np.nan]])), r"workload\[0, 0\]"),
        (lambda: cooldown(0), "rounds"),
        (lambda: cooldown(5, start=1.0), "start"),
        (lambda: cooldown(5, start=-0.1), "start"),
        (lambda: cooldown(5, final=0.0), "final"),
    ],
)
def test_bad_values_are_refused_by_name(build: Callable[[], object], argument: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument} = "):
        build()
