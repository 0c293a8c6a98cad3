"""The JAX adapter: clipping, noise as an optax transformation, and a loop that resumes bit by bit."""

from __future__ import annotations

import io
import json
import math
import signal
import zipfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from galton.batching import group_by_user
from galton.errors import InvalidArgument, InvalidFile
from galton.noise import CorrelatedNoise, key_from_seed
from galton.noise.sealed import sealed_noise
from galton.noise.stream import MARGIN
from galton.plan import Plan, PlanNotTrusted, make_plan, save_plan
from galton.strategies import Blt, Tree
from galton.training import LostRounds, PlanViolated, check_record, release_run
from galton.training.clipping import ROUNDING, Clipping, normalized, per_group
from galton.training.diagnostics import Diagnostics
from galton.training.jax import (
    MappedFiles,
    Stream,
    clipped_sum,
    load_tree,
    parameter_names,
    private_updates,
    save_tree,
    train,
    user_loss,
)
from galton.training.jax_clipping import example_keys, with_key
from galton.training.jax_dense import Program
from galton.training.jax_rows import Rows
from tests.conftest import SIZES
from tests.forging import with_noise
from tests.marks import SLOW, slow_after

PARAMS = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32), "b": jnp.zeros(3)}


def loss(params: Any, example: Any) -> jax.Array:
    x, y = example
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["w"] + params["b"], y)


def data(size: int = 64, spread: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(size, 5)).astype(np.float32) * spread
    return x, (x[:, 0] > 0).astype(np.int32) + (x[:, 1] > 0)


def by_hand(x: np.ndarray, y: np.ndarray, mask: np.ndarray, clip_norm: float) -> dict[str, np.ndarray]:
    """The sum of clipped gradients, example by example, in float64."""
    w, b = np.asarray(PARAMS["w"], np.float64), np.asarray(PARAMS["b"], np.float64)
    total = {"w": np.zeros_like(w), "b": np.zeros_like(b)}
    for row, label, present in zip(x.astype(np.float64), y, mask, strict=True):
        logits = row @ w + b
        chance = np.exp(logits - logits.max())
        chance /= chance.sum()
        chance[label] -= 1
        gradient = {"w": np.outer(row, chance), "b": chance}
        norm = np.sqrt(sum(float((part**2).sum()) for part in gradient.values()))
        factor = present * min(1.0, clip_norm / norm)
        total = {name: total[name] + factor * gradient[name] for name in total}
    return total


@pytest.mark.parametrize("micro_batch_size", [None, 1, 7, 64])
@pytest.mark.parametrize("clip_norm", [0.3, 1.0, 100.0])
def test_clipped_sums_are_those_of_a_plain_loop(micro_batch_size: int | None, clip_norm: float) -> None:
    x, y = data()
    mask = np.random.default_rng(2).random(64) < 0.7
    total = jax.jit(clipped_sum(loss, clip_norm, micro_batch_size))(PARAMS, (x, y), mask)
    expected = by_hand(x, y, mask, clip_norm)
    for name in expected:
        np.testing.assert_allclose(total[name], expected[name], rtol=2 * ROUNDING, atol=1e-4 * clip_norm)


SHAPES = {"a.w": (6, 4), "a.b": (4,), "b.w": (3, 2, 2), "c.w": (3, 3), "c.t": (3, 3), "c.s": (3, 3), "c.g": ()}


def many_uses(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """Products by which a parameter may, and may not, be clipped by its factors."""
    first = jnp.tanh(x @ params["a.w"] + params["a.b"])
    second = jax.jit(lambda w, v: jnp.einsum("abc,bc->a", w, v))(params["b.w"], first.reshape(2, 2))
    third = params["c.w"] @ second
    twice = params["c.s"] @ jnp.sin(params["c.s"] @ third)
    return (jax.nn.relu(params["c.t"].T @ twice) * params["c.g"]).sum() + jnp.square(third).sum()


def clipped_by_hand(kind: Clipping, params: dict[str, Any], rows: Any, mask: Any) -> dict[str, Any]:
    """One gradient after the other, by `jax.grad`, clipped in float64."""
    total = {name: np.zeros(np.shape(part)) for name, part in params.items()}
    for row, present in zip(rows, mask, strict=True):
        gradient = {name: np.asarray(part, float) for name, part in jax.grad(many_uses)(params, row).items()}
        for names, norm in (kind.norms or {"": 1.0}).items():
            members = [name for name in gradient if name.startswith(names)]
            length = math.sqrt(sum(float(np.square(gradient[name]).sum()) for name in members))
            factor = min(1.0, norm / length) if kind.gamma is None else norm / (length + kind.gamma)
            for name in members:
                total[name] += present * factor * gradient[name]
    return total


@pytest.mark.parametrize(
    "kind", [Clipping(), per_group({"a.": 0.6, "b.": 0.64, "c.": 0.48}), normalized(0.05)], ids=lambda kind: kind.kind
)
def test_every_kind_of_clipping_is_that_of_a_plain_loop_for_any_use_of_a_parameter(kind: Clipping) -> None:
    generator = np.random.default_rng(3)
    params = {name: jnp.asarray(generator.normal(size=shape), jnp.float32) for name, shape in SHAPES.items()}
    rows = jnp.asarray(generator.normal(size=(11, 6)) * 2, jnp.float32)
    mask = np.arange(11) % 4 != 3
    names = parameter_names(params)
    program = Program(lambda params, x: (many_uses(params, x), {}), params, rows[0])
    assert [names[number] for number in sorted(program.dense)] == ["a.w", "b.w", "c.w"]
    expected = clipped_by_hand(kind, params, rows, mask)
    for size in (None, 3):
        total = jax.jit(clipped_sum(many_uses, 1.0, size, clipping=kind))(params, rows, mask)
        for name in expected:
            np.testing.assert_allclose(total[name], expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {"x": (9, 8, 3), "k": (3, 2, 3, 4)},
    "strided": {"x": (11, 12, 2), "k": (4, 3, 2, 5), "window_strides": (2, 3), "padding": ((3, 1), (0, 2))},
    "dilated": {"x": (11, 12, 2), "k": (3, 3, 2, 2), "window_strides": (1, 2), "rhs_dilation": (2, 3)},
    "cropped": {"x": (9, 9, 2), "k": (2, 2, 2, 3), "padding": ((-1, -2), (0, 1)), "window_strides": (2, 2)},
    "wider than long": {"x": (9, 9, 2), "k": (2, 2, 2, 3), "padding": ((4, 3), (2, 5)), "window_strides": (3, 2)},
    "channels first": {"x": (3, 9, 8), "k": (5, 3, 3, 2), "dimension_numbers": ("NCHW", "OIHW", "NCHW")},
    "mixed": {"x": (9, 3, 8), "k": (2, 5, 3, 3), "dimension_numbers": ("HNCW", "WOHI", "NWCH")},
    "signal": {"x": (20, 3), "k": (5, 3, 4), "dimension_numbers": ("NWC", "WIO", "NWC"), "window_strides": (3,)},
    "volume": {"x": (6, 5, 7, 2), "k": (2, 3, 2, 2, 3), "dimension_numbers": ("NDHWC", "DHWIO", "NDHWC")},
}


def convolving(which: str) -> tuple[Any, Any, Any]:
    """A loss with one convolution, parameters, and nine examples of two images each."""
    known = dict(CONVOLUTIONS[which])
    shape, kernel = known.pop("x"), known.pop("k")
    axes = len(kernel) - 2
    options: dict[str, Any] = {"window_strides": (1,) * axes, "padding": ((0, 0),) * axes}
    options |= {"dimension_numbers": ("NHWC", "HWIO", "NHWC")} | known
    place = options["dimension_numbers"][0].index("N")
    generator = np.random.default_rng(6)
    params = {"g": jnp.ones(()), "k": jnp.asarray(generator.normal(size=kernel), jnp.float32)}
    images = jnp.asarray(generator.normal(size=(9, *shape[:place], 2, *shape[place:])), jnp.float32)

    def loss(params: Any, image: jax.Array) -> jax.Array:
        return jnp.sin(jax.lax.conv_general_dilated(jnp.tanh(params["g"] * image), params["k"], **options)).sum()

    return loss, params, images


@pytest.mark.parametrize("which", CONVOLUTIONS)
def test_kernels_of_convolutions_are_clipped_as_by_a_plain_loop(which: str) -> None:
    """The gain before the convolution needs the gradient of its input."""
    loss, params, images = convolving(which)
    total: Any = jax.jit(clipped_sum(loss, 10.0, 4))(params, images, np.arange(9) != 3)
    expected = {name: np.zeros(np.shape(part)) for name, part in params.items()}
    clipped = []
    for image in [*images[:3], *images[4:]]:
        gradient = {name: np.asarray(part, float) for name, part in jax.grad(loss)(params, image).items()}
        norm = math.sqrt(sum(float(np.square(part).sum()) for part in gradient.values()))
        clipped.append(norm > 10)
        expected = {name: part + min(1.0, 10 / norm) * gradient[name] for name, part in expected.items()}
    assert any(clipped)
    for name, part in expected.items():
        np.testing.assert_allclose(total[name], part, rtol=1e-3, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("result", [jnp.bfloat16, jnp.float32])
def test_kernels_in_half_precision_have_gradients_in_float32(result: Any) -> None:
    _, params, images = convolving("plain")
    numbers = ("NHWC", "HWIO", "NHWC")

    def loss(params: Any, image: Any, dtype: Any = jnp.bfloat16, result: Any = result) -> jax.Array:
        image, kernel = (params["g"] * image).astype(dtype), params["k"].astype(dtype)
        options: Any = {"dimension_numbers": numbers, "preferred_element_type": result}
        return jnp.sin(jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID", **options)).sum()

    half = params | {"k": params["k"].astype(jnp.bfloat16)}
    total = clipped_sum(loss, 1e9)(half, images, np.ones(9, bool))
    assert total["k"].dtype == jnp.float32
    wide = {name: part.astype(jnp.float32) for name, part in half.items()}
    for name, part in jax.grad(lambda params: sum(loss(params, x, jnp.float32, None) for x in images))(wide).items():
        assert float(jnp.abs(total[name] - part).max()) < 0.05 * float(jnp.abs(part).max())


def of_conv(jaxpr: Any) -> list[Any]:
    """The axes of all convolutions of a program."""
    axes = [eqn.params["dimension_numbers"] for eqn in jaxpr.eqns if eqn.primitive.name == "conv_general_dilated"]
    for eqn in jaxpr.eqns:
        for part in jax.tree.leaves(list(eqn.params.values())):
            if hasattr(part, "jaxpr") or hasattr(part, "eqns"):
                axes += of_conv(getattr(part, "jaxpr", part))
    return axes


@pytest.mark.parametrize("which", ["strided", "channels first", "mixed"])
def test_convolutions_in_loops_have_the_form_that_is_fast_there(which: str) -> None:
    loss, params, images = convolving(which)
    axes = of_conv(jax.make_jaxpr(clipped_sum(loss, 1.0, 4))(params, images, np.ones(9, bool)).jaxpr)
    assert len(axes) >= 2  # there, and back
    assert {tuple(numbers) for numbers in axes} == {((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))}


@pytest.mark.parametrize("options", [{"feature_group_count": 2}, {"lhs_dilation": (2, 1)}], ids=str)
def test_other_convolutions_are_left_to_jax(options: Any) -> None:
    generator = np.random.default_rng(7)
    kernel = jnp.asarray(generator.normal(size=(2, 2, 4 // options.get("feature_group_count", 1), 6)), jnp.float32)
    images = jnp.asarray(generator.normal(size=(3, 5, 5, 4)), jnp.float32)
    numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), **options}

    def loss(kernel: jax.Array, image: jax.Array) -> jax.Array:
        return jnp.sin(jax.lax.conv_general_dilated(image[None], kernel, (1, 1), ((0, 0), (0, 0)), **numbers)).sum()

    total = clipped_sum(loss, 1e9)(kernel, images, np.ones(3, bool))
    np.testing.assert_allclose(total, jax.grad(lambda k: sum(loss(k, x) for x in images))(kernel), rtol=1e-4, atol=1e-4)


def test_dense_layers_have_no_gradient_of_a_single_example_in_memory() -> None:
    def wide(params: Any, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ params["w"]) @ params["v"]).sum()

    params = {"w": jnp.zeros((256, 512)), "v": jnp.zeros((512, 128))}
    total = jax.jit(clipped_sum(wide, 1.0)).lower(params, jnp.zeros((64, 256)), np.ones(64, bool)).compile()
    used: Any = total.memory_analysis()
    assert used.temp_size_in_bytes < 4 * 64 * (256 * 512 + 512 * 128) / 8


def test_training_keeps_to_the_kind_of_clipping_that_the_plan_says(tmp_path: Path) -> None:
    sizes: dict[str, Any] = SIZES | {"epochs": 2, "strategy": "identity", "batching": "poisson"}
    plan = make_plan(epsilon=4.0, delta=1e-3, **sizes, clipping="normalized")
    with pytest.raises(PlanViolated, match=r"^clipping = .*: the plan was made for normalized"):
        train(plan, tmp_path / "flat", loss, PARAMS, data(), optax.sgd(0.1))
    trained = train(plan, tmp_path / "run", loss, PARAMS, data(), optax.sgd(0.1), clipping=normalized(0.5), rounds=2)
    assert trained.record["clipping"] == {"kind": "normalized", "gamma": 0.5}


@SLOW
def test_padding_contributes_nothing_whatever_it_holds() -> None:
    x, y = data(8)
    step = clipped_sum(loss, 1.0)
    plain = step(PARAMS, (x, y), np.ones(8, bool))
    wide = np.full((12, 5), np.nan, np.float32)
    wide[:8] = x
    labels = np.concatenate((y, np.zeros(4, np.int32)))
    padded = step(PARAMS, (wide, labels), np.arange(12) < 8)
    for name in plain:
        np.testing.assert_allclose(padded[name], plain[name], rtol=1e-5, atol=1e-6)


def test_no_example_moves_the_sum_by_more_than_the_clip_norm() -> None:
    x, y = data(8, spread=1e3)
    y = np.asarray((x @ PARAMS["w"]).argmin(axis=1), np.int32)  # all wrong, so that all gradients are long
    x[3] = np.inf  # an example with a gradient that is not finite
    step = jax.jit(clipped_sum(loss, 0.5))
    for index in range(8):
        mask = np.arange(8) == index
        norm = np.sqrt(sum(float((part**2).sum()) for part in jax.tree.leaves(step(PARAMS, (x, y), mask))))
        assert norm <= 0.5
        assert index == 3 or norm >= 0.5 * (1 - 3 * ROUNDING)


def test_the_transformation_adds_the_noise_of_the_plan_and_divides(small_plan: Plan) -> None:
    key = key_from_seed(4)
    chain = optax.chain(private_updates(small_plan, key), optax.sgd(0.25))
    state = chain.init(PARAMS)
    update = jax.jit(chain.update)
    total = jax.tree.map(lambda part: jnp.full_like(part, 3.0), PARAMS)
    noise = small_plan.noise()
    drawn = noise.init(PARAMS, key)
    for _ in range(small_plan.rounds):
        updates, state = update(total, state, PARAMS)
        z, drawn = noise.step(drawn)
        for name in PARAMS:
            np.testing.assert_allclose(updates[name], -0.25 * (3.0 + z[name]) / 8.0, rtol=1e-5)
    updates, state = update(total, state, PARAMS)
    assert jnp.isnan(updates["w"]).all()  # a round that was not planned


@pytest.mark.parametrize("strategy", slow_after(1, ["blt", "tree"]))
@pytest.mark.parametrize("wide", slow_after(1, [False, True]))
def test_a_sealed_state_draws_the_same_noise_and_shows_nothing(strategy: str, wide: bool) -> None:
    noise = CorrelatedNoise({"blt": Blt(8, [0.9, 0.5], [0.3, 0.1]), "tree": Tree(8)}[strategy], 1.0)
    with jax.enable_x64(wide):
        params = {"w": np.zeros(5000, np.float64 if wide else np.float32), "b": np.zeros(3, np.float32)}
        sealed = sealed_noise(noise, key=key_from_seed(4))
        state, plain = sealed.init(params), noise.init(params, key_from_seed(4))
        seen, following = [], jax.jit(sealed.next)
        for _ in range(6):
            x, state = following(state)
            expected, plain = noise.step(plain)
            for name in params:
                np.testing.assert_allclose(x[name], expected[name], rtol=1e-5, atol=1e-5)  # compiled differently
            seen += [np.asarray(buffer) for buffer in state.buffers]
        assert state.buffers[0].dtype == np.uint32
        words = np.concatenate([buffer.reshape(-1) for buffer in seen])
        ones = np.unpackbits(words.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 5 / np.sqrt(4 * 32 * words.size)  # even where buffers are zero
        assert len(np.unique(words)) > words.size * (1 - 5e-4)


def test_states_of_the_transformation_have_no_key_and_go_on_with_the_folder(small_plan: Plan, tmp_path: Path) -> None:
    total = jax.tree.map(jnp.zeros_like, PARAMS)
    transform = private_updates(small_plan, folder=tmp_path / "secret")
    state = transform.init(PARAMS)
    first, state = transform.update(total, state)
    second, _ = transform.update(total, state)
    again, _ = private_updates(small_plan, folder=tmp_path / "secret").update(total, state)  # another process
    np.testing.assert_array_equal(second["w"], again["w"])
    path = tmp_path / "secret" / "noise.secret"
    assert path.stat().st_mode & 0o777 == 0o600
    saved = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state))
    assert path.read_bytes() not in saved
    drawn = np.concatenate([np.asarray(part).reshape(-1) for part in first.values()]) * small_plan.expected_batch_size
    assert not any(np.float32(value).tobytes() in saved for value in drawn)  # buffers of 8 bands are past noise
    other, _ = transform.update(total, transform.init(PARAMS))
    assert not np.isclose(first["w"], other["w"]).any()  # a new run
    for stranger in (private_updates(small_plan, folder=tmp_path / "else"), private_updates(small_plan)):
        lost, _ = stranger.update(total, state)
        assert jnp.isnan(lost["w"]).all()
    with pytest.raises(InvalidArgument, match="key"):
        private_updates(small_plan, key_from_seed(1), folder=tmp_path / "secret")
    path.write_bytes(b"short")
    with pytest.raises(InvalidFile, match=r"noise\.secret: is not a secret of 128 bits"):
        private_updates(small_plan, folder=tmp_path / "secret")


def test_what_breaks_the_guarantee_is_refused(small_plan: Plan) -> None:
    transform = private_updates(small_plan)
    with pytest.raises(InvalidArgument, match="key"):
        jax.jit(transform.init)(PARAMS)  # one key for all calls
    half = jax.tree.map(lambda part: part.astype(jnp.bfloat16), PARAMS)
    with pytest.raises(InvalidArgument, match="float32"):
        transform.update(half, transform.init(PARAMS))
    with pytest.raises(InvalidArgument, match="noise_multiplier"):
        private_updates(replace(small_plan, noise_multiplier=0.1))


def test_noise_has_the_deviation_of_the_plan(small_plan: Plan) -> None:
    """Round 0 of C^-1 z is z_0 / C[0, 0], for a model of 200,000 parameters."""
    model = {"w": jnp.zeros(200_000)}
    transform = private_updates(small_plan, key_from_seed(9))
    updates, _ = jax.jit(transform.update)(model, transform.init(model))
    deviation = small_plan.stddev / small_plan.strategy.matrix()[0, 0] / small_plan.expected_batch_size * MARGIN
    assert float(updates["w"].std()) == pytest.approx(deviation, rel=5 / np.sqrt(2 * 200_000))


@pytest.mark.parametrize("which", slow_after(1, ["small_plan", "redrawn_plan"]))
def test_training_resumes_after_a_kill_with_the_same_result(
    request: pytest.FixtureRequest, which: str, tmp_path: Path
) -> None:
    plan: Plan = request.getfixturevalue(which)

    def run(folder: str, **words: Any) -> Any:
        words |= {"seed": 5, "pinned": plan.digest}
        return train(plan, tmp_path / folder, loss, PARAMS, data(), optax.adam(0.1), **words)

    whole = run("whole")

    class Killed(Exception):
        pass

    def die(turn: int, params: Any) -> None:
        if turn == 18:
            raise Killed

    with pytest.raises(Killed):
        run("parts", save_every=7, watch=die)
    parts = run("parts", save_every=7)
    for name in PARAMS:
        np.testing.assert_array_equal(whole.params[name], parts.params[name])
    record = check_record(tmp_path / "parts")
    assert (record["rounds_done"], record["resumptions"], record["rounds_replayed"]) == (32, 1, 4)
    assert record["plan"] == plan.digest
    assert whole.record["resumptions"] == 0


@pytest.mark.parametrize("change", ["data", "rate", "start"])
def test_a_round_gets_its_noise_again_for_the_same_gradient_only(small_plan: Plan, tmp_path: Path, change: str) -> None:
    """Two results with the same noise and different gradients would show the difference without any noise."""

    class Killed(Exception):
        pass

    def die(turn: int, params: Any) -> None:
        if turn == 3:
            raise Killed

    x, y = data()
    with pytest.raises(Killed):
        train(small_plan, tmp_path / "run", loss, PARAMS, (x, y), optax.sgd(0.1), watch=die)
    rows = (x + (change == "data"), y)
    start = jax.tree.map(lambda part: part + (change == "start"), PARAMS)
    released: list[bytes] = []
    with pytest.warns(LostRounds, match="for another gradient; it is not given again"):
        trained = train(
            small_plan,
            tmp_path / "run",
            loss,
            start,
            rows,
            optax.sgd(0.2 if change == "rate" else 0.1),
            watch=lambda turn, params: released.append(np.asarray(params["w"]).tobytes()),
        )
    first = 1 if change == "rate" else 0
    assert trained.record["rounds_skipped"] == [[first, 2]]
    assert (trained.record["completed"], trained.record["rounds_replayed"]) == (True, first)
    assert len(released) == 32 - 3 + first


def test_the_model_alone_is_what_others_get(small_plan: Plan, tmp_path: Path) -> None:
    """Its file has the parameters under their names, and is the only one that is released."""
    trained = train(small_plan, tmp_path / "run", loss, PARAMS, data(), optax.adam(0.1), rounds=3)
    with np.load(tmp_path / "run" / "model.npz") as saved:
        assert sorted(saved.files) == ["b", "w"]
        for name in PARAMS:
            np.testing.assert_array_equal(saved[name], trained.params[name])
    record = release_run(tmp_path / "run", tmp_path / "release.zip")
    assert record["model"]["round"] == 3
    with zipfile.ZipFile(tmp_path / "release.zip") as archive:
        assert sorted(archive.namelist()) == ["model.npz", "record.json"]
        with np.load(io.BytesIO(archive.read("model.npz"))) as public:
            assert sorted(public.files) == ["b", "w"]


def test_a_run_is_saved_when_it_is_terminated(small_plan: Plan, tmp_path: Path) -> None:
    class Terminated(Exception):
        pass

    def end(number: int, frame: object) -> None:
        raise Terminated

    def terminate(turn: int, params: Any) -> None:
        if turn == 5:
            signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)  # instead of the end of the process
    try:
        with pytest.raises(Terminated):
            train(small_plan, tmp_path / "run", loss, PARAMS, data(), optax.sgd(0.1), watch=terminate)
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)
    record = train(small_plan, tmp_path / "run", loss, PARAMS, data(), optax.sgd(0.1)).record
    assert (record["rounds_done"], record["rounds_replayed"], record["rounds_skipped"]) == (32, 0, [])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("micro_batch_size", [None, 8])
def test_half_precision_models_have_their_gradients_summed_in_single_precision(
    dtype: Any, micro_batch_size: int | None
) -> None:
    x = np.random.default_rng(3).normal(size=(256, 512)).astype(np.float32)
    params = {"w": jnp.zeros(512, dtype)}
    step = jax.jit(clipped_sum(lambda p, row: (p["w"] * row.astype(dtype)).sum(), 1.0, micro_batch_size))
    mask = np.ones(256, bool)
    whole, rest = step(params, x, mask)["w"], step(params, x, np.arange(256) > 0)["w"]
    assert whole.dtype == jnp.float32
    assert 0.999 < float(jnp.linalg.norm(whole - rest)) <= 1.0 + 1e-5


def test_trees_of_all_types_are_read_as_they_were_written(tmp_path: Path) -> None:
    tree = {
        "half": jnp.asarray([1.5, -2.25], jnp.bfloat16),
        "small": jnp.asarray(0.1, jnp.float8_e4m3fn),
        "single": jnp.float32(0.1),
        "count": jnp.int32(7),
        "flag": jnp.asarray([True, False]),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 3),
        "old": jax.random.PRNGKey(5),
        "none": jnp.zeros((0, 4), jnp.bfloat16),
        "python": 0.5,
    }
    save_tree(tmp_path / "tree", tree)
    loaded = load_tree(tmp_path / "tree", tree)
    for name, leaf in tree.items():
        array = jnp.asarray(leaf) if name == "python" else leaf
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        if not name.startswith("key"):
            np.testing.assert_array_equal(np.asarray(loaded[name]), np.asarray(leaf))
    assert float(jax.random.normal(loaded["key"])) == float(jax.random.normal(tree["key"]))
    for name, other in (("half", jnp.zeros(2, jnp.float16)), ("key", jax.random.key(3, impl="rbg"))):
        with pytest.raises(InvalidFile, match="another model"):
            load_tree(tmp_path / "tree", tree | {name: other})
    np.savez(tmp_path / "first.npz", np.float32(3.0), np.arange(3, dtype=np.int32))  # as galton 0.1 wrote it
    assert float(load_tree(tmp_path / "first.npz", [jnp.float32(0), jnp.zeros(3, jnp.int32)])[0]) == 3.0


@pytest.mark.parametrize("moments", [jnp.bfloat16, None], ids=str)
def test_half_precision_and_random_keys_survive_a_kill(small_plan: Plan, tmp_path: Path, moments: Any) -> None:
    """Moments begin in the precision of parameters, and by default have that of gradients after the first update."""
    half = jax.tree.map(lambda part: part.astype(jnp.bfloat16), PARAMS)
    optimizer = optax.chain(
        optax.add_noise(0.01, 0.5, jax.random.key(3)),
        optax.adamw(optax.cosine_decay_schedule(0.1, 6), mu_dtype=moments),
    )

    def run(folder: str, **words: Any) -> Any:
        return train(small_plan, tmp_path / folder, loss, half, data(), optimizer, seed=5, **words)

    run("parts", rounds=3)
    whole, parts = run("whole", rounds=6), run("parts", rounds=6)
    for name in PARAMS:
        assert parts.params[name].dtype == jnp.bfloat16
        np.testing.assert_array_equal(whole.params[name], parts.params[name])
    with np.load(tmp_path / "parts" / "model.npz") as saved:
        assert saved["w"].dtype == np.float32


@pytest.mark.parametrize("constant_time", [False, True])
def test_micro_batches_of_padding_are_computed_only_for_constant_time(constant_time: bool) -> None:
    computed: list[int] = []

    def watched(params: Any, example: Any) -> jax.Array:
        jax.debug.callback(lambda row: computed.append(1), example[0])
        return loss(params, example)

    x, y = data(32)
    total = jax.jit(clipped_sum(watched, 1.0, 4, constant_time))
    np.asarray(total(PARAMS, (x, y), np.arange(32) < 9)["w"])
    jax.effects_barrier()  # type: ignore[no-untyped-call]
    assert len(computed) == (32 if constant_time else 12)


@pytest.mark.parametrize(("examples", "batch_size", "bins"), [(50_000, 500, 100), (5_000, 100, 50), (64, 8, 8)])
def test_rows_computed_exceed_the_batch_size_by_less_than_5_percent(examples: int, batch_size: int, bins: int) -> None:
    """With the micro-batches that `train` takes by default; the sizes of batches are binomial."""
    sizes = np.random.default_rng(0).binomial(examples, 1 / bins, 20_000)
    rows = max(1, int(batch_size / 10))
    assert (rows * np.ceil(sizes / rows)).mean() < 1.05 * batch_size


def test_training_can_stop_early_and_go_on(small_plan: Plan, tmp_path: Path) -> None:
    first = train(small_plan, tmp_path / "run", loss, PARAMS, data(), optax.sgd(0.1), rounds=10)
    assert not first.record["completed"]
    last = train(small_plan, tmp_path / "run", loss, PARAMS, data(), optax.sgd(0.1), micro_batch_size=5)
    assert last.record["rounds_done"] == 32
    with pytest.raises(InvalidFile, match="another model"):
        train(small_plan, tmp_path / "run", loss, PARAMS, data(), optax.adam(0.1))


def test_training_learns(small_plan: Plan, tmp_path: Path) -> None:
    """With noise for epsilon 4 on 64 examples little can be learned; with the noise off, most of it."""
    x, y = data()

    def accuracy(params: Any) -> float:
        return float(((x @ params["w"] + params["b"]).argmax(axis=1) == y).mean())

    quiet = with_noise(small_plan, 1e-6)  # which no verification would let pass
    learned = train(quiet, tmp_path / "run", loss, PARAMS, (x, y), optax.sgd(2.0), pinned=quiet.digest).params
    assert accuracy(learned) > accuracy(PARAMS) + 0.25


def test_a_forged_plan_does_not_train(small_plan: Plan, tmp_path: Path) -> None:
    """A tenth of the noise, hashes and certificate made to fit; refused again while attempts are counted."""
    forged = save_plan(with_noise(small_plan, 0.1 * small_plan.noise_multiplier), tmp_path / "plan")
    with pytest.raises(PlanNotTrusted, match="could not be proved"):
        train(forged, tmp_path / "run", loss, PARAMS, data(), optax.sgd(0.1))
    with pytest.raises(PlanNotTrusted, match="could not be proved"):
        private_updates(forged)
    with pytest.raises(PlanNotTrusted, match="not the pinned one"):
        train(forged, tmp_path / "run", loss, PARAMS, data(), optax.sgd(0.1), pinned=small_plan.digest)
    assert not (tmp_path / "run").exists()


def test_another_data_set_is_refused(small_plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanViolated, match="examples"):
        train(small_plan, tmp_path / "run", loss, PARAMS, data(65), optax.sgd(0.1))


@SLOW
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_clipping_of_jax_privacy_fits(small_plan: Plan) -> None:
    """Its sum of clipped gradients has the sensitivity that the plan's noise is for; a zero row is no gradient."""
    clipping = pytest.importorskip("jax_privacy.clipping")
    x, y = data(16)
    mask = np.arange(16) < 11

    def weighted(params: Any, x: jax.Array, y: jax.Array, present: jax.Array) -> jax.Array:
        return present * loss(params, (x, y))

    theirs = clipping.clipped_grad(
        lambda params, x, y, present: weighted(params, x, y, present),
        l2_clip_norm=1.0,
        batch_argnums=(1, 2, 3),
        keep_batch_dim=False,
    )
    assert theirs.sensitivity() == 1.0
    total = theirs(PARAMS, jnp.asarray(x), jnp.asarray(y), jnp.asarray(mask, jnp.float32))
    ours = clipped_sum(loss, 1.0)(PARAMS, (x, y), mask)
    for name in ours:
        np.testing.assert_allclose(total[name], ours[name], rtol=1e-4, atol=1e-4)
    transform = private_updates(small_plan, key_from_seed(1))
    updates, _ = transform.update(total, transform.init(PARAMS))
    assert all(jnp.isfinite(updates[name]).all() for name in PARAMS)


def dropout_loss(params: Any, example: Any, key: jax.Array) -> jax.Array:
    x, y = example
    return loss(params, (jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0.0), y))


class Killed(Exception):
    pass


def killed_at(last: int) -> Any:
    def die(turn: int, params: Any) -> None:
        if turn == last:
            raise Killed

    return die


def test_each_example_of_a_user_has_a_key_of_its_own() -> None:
    x, y = data(2)
    keys = example_keys(7, np.arange(2))
    value, _ = user_loss(with_key(dropout_loss))(PARAMS, (((x, y), keys), np.array([True, True])))
    alone = [
        dropout_loss(PARAMS, (x[row], y[row]), jax.random.wrap_key_data(keys[row], impl="threefry2x32"))
        for row in range(2)
    ]
    np.testing.assert_allclose(value, alone[0] + alone[1], rtol=1e-6)
    assert not np.array_equal(keys[0], keys[1])
    assert not np.array_equal(keys, example_keys(8, np.arange(2)))


def test_dropout_is_the_same_when_a_round_is_computed_again(tmp_path: Path, small_plan: Plan) -> None:
    """Its keys come from the run: nothing is skipped, and another round, run or example has other ones."""
    seen: list[np.ndarray] = []

    def watched(params: Any, example: Any, key: jax.Array) -> jax.Array:
        jax.debug.callback(lambda words: seen.append(np.asarray(words)), jax.random.key_data(key))
        return dropout_loss(params, example, key)

    words: dict[str, Any] = {"keyed": True, "rounds": 4, "save_every": 3, "seed": 5, "constant_time": True}
    with pytest.raises(Killed):
        train(small_plan, tmp_path / "run", watched, PARAMS, data(), optax.sgd(0.1), watch=killed_at(2), **words)
    jax.effects_barrier()  # type: ignore[no-untyped-call]
    rounds = np.asarray(seen).reshape(-1, 2)
    first = {tuple(key) for key in rounds}
    seen.clear()
    trained = train(small_plan, tmp_path / "run", watched, PARAMS, data(), optax.sgd(0.1), **words)
    jax.effects_barrier()  # type: ignore[no-untyped-call]
    again = {tuple(key) for key in np.asarray(seen).reshape(-1, 2)}
    assert (trained.record["rounds_replayed"], trained.record["rounds_skipped"]) == (2, [])
    assert first < again  # two rounds again, and two more
    examples = sum(len(np.unique(part.indices)) for part in islice(small_plan.batches(seed=5), 4))
    assert len(again) == examples  # none in two rounds, none for two examples; padding shares one


def test_diagnostics_are_what_a_plain_loop_finds_and_are_never_released(small_plan: Plan, tmp_path: Path) -> None:
    def with_accuracy(params: Any, example: Any) -> Any:
        x, y = example
        return loss(params, example), {"right": (x @ params["w"] + params["b"]).argmax() == y}

    folder = tmp_path / "run"
    words: dict[str, Any] = {"rounds": 3, "seed": 5}
    plain = train(small_plan, tmp_path / "plain", loss, PARAMS, data(), optax.sgd(0.0), **words)
    trained = train(small_plan, folder, with_accuracy, PARAMS, data(), optax.sgd(0.0), diagnostics=True, **words)
    for name in PARAMS:
        np.testing.assert_array_equal(plain.params[name], trained.params[name])
    path = folder / "NOT-PRIVATE-diagnostics.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    x, y = data()
    w, b = np.asarray(PARAMS["w"], np.float64), np.asarray(PARAMS["b"], np.float64)
    for line, batch in zip(lines, small_plan.batches(seed=5), strict=False):
        logits = x[batch.examples] @ w + b
        labels = y[batch.examples]
        chance = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        chosen = chance[np.arange(len(labels)), labels]
        gap = chance - np.eye(3)[labels]
        norms = np.sqrt((gap**2).sum(axis=1) * ((x[batch.examples] ** 2).sum(axis=1) + 1))
        assert line["private"] is False
        assert line["examples"] == len(labels)
        assert line["mean_loss"] == pytest.approx(-np.log(chosen).mean(), rel=1e-4)
        assert line["mean_norm"] == pytest.approx(norms.mean(), rel=1e-4)
        assert line["clipped_fraction"] == pytest.approx((norms > 1).mean())
        assert line["aux"]["right"] == pytest.approx((logits.argmax(axis=1) == labels).mean())
    release_run(folder, tmp_path / "release.zip")
    with zipfile.ZipFile(tmp_path / "release.zip") as archive:
        assert sorted(archive.namelist()) == ["model.npz", "record.json"]
    received: list[Diagnostics] = []
    train(small_plan, tmp_path / "other", loss, PARAMS, data(), optax.sgd(0.0), diagnostics=received.append, **words)
    assert [seen.round for seen in received] == [0, 1, 2]
    assert not (tmp_path / "other" / "NOT-PRIVATE-diagnostics.jsonl").exists()
    assert "mean_loss" not in json.dumps(trained.record)
    options: list[dict[str, Any]] = [{"keyed": True}, {"diagnostics": True}]
    for option in options:
        own = clipped_sum(loss, 1.0)
        with pytest.raises(InvalidArgument, match=next(iter(option))):
            train(small_plan, tmp_path / "own", None, PARAMS, data(), optax.sgd(0.1), clipped=own, **option)


def test_a_hook_ends_a_run_after_saving(small_plan: Plan, tmp_path: Path) -> None:
    seen: list[int] = []

    def enough(turn: int, params: Any) -> bool:
        seen.append(turn)
        return turn == 5

    first = train(small_plan, tmp_path / "run", loss, PARAMS, data(), optax.sgd(0.1), on_round=enough)
    assert seen == [1, 2, 3, 4, 5]
    assert (first.record["rounds_done"], first.record["model"]["round"], first.record["completed"]) == (5, 5, False)
    last = train(small_plan, tmp_path / "run", loss, PARAMS, data(), optax.sgd(0.1), rounds=7)
    assert (last.record["rounds_done"], last.record["rounds_replayed"]) == (7, 0)


def test_data_may_be_mapped_from_files(small_plan: Plan, tmp_path: Path) -> None:
    """And is never read as a whole: rows of a batch are taken from the file."""
    x, y = data()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = Rows((mapped, y), small_plan, None, keyed=False)
    assert isinstance(jax.tree.leaves(source._data)[0], np.memmap)
    words: dict[str, Any] = {"rounds": 2, "seed": 5}
    here = train(small_plan, tmp_path / "a", loss, PARAMS, (x, y), optax.sgd(0.1), **words)
    there = train(small_plan, tmp_path / "b", loss, PARAMS, (mapped, y), optax.sgd(0.1), **words)
    np.testing.assert_array_equal(here.params["w"], there.params["w"])
    for name, part in (("first", x[:10]), ("second", x[10:11]), ("third", x[11:])):
        np.save(tmp_path / f"{name}.npy", part)
    several = MappedFiles([tmp_path / f"{name}.npy" for name in ("first", "second", "third")])
    numbers = np.random.default_rng(0).permutation(64)
    np.testing.assert_array_equal(several[numbers], x[numbers])
    batch = next(small_plan.batches(seed=5))
    rows, _ = Rows((several, y), small_plan, None, keyed=False).of(batch, None, None)
    np.testing.assert_array_equal(rows[0], batch.take(x))
    np.save(tmp_path / "other.npy", y)
    with pytest.raises(InvalidArgument, match="one type and shape"):
        MappedFiles([tmp_path / "first.npy", tmp_path / "other.npy"])
    with pytest.raises(InvalidFile, match="can be mapped"):
        MappedFiles([tmp_path / "missing.npy"])


@pytest.mark.parametrize("reshuffled", [False, pytest.param(True, marks=SLOW)])
def test_streams_are_read_once_an_epoch_and_taken_up_in_the_middle(tmp_path: Path, reshuffled: bool) -> None:
    kind = "balls-in-bins-redrawn-streaming" if reshuffled else "balls-in-bins-streaming"
    sizes = SIZES | {"epochs": 2, "strategy": "identity", "batching": kind}
    plan = make_plan(epsilon=4.0, delta=1e-3, **sizes)
    confirmed = {"reshuffled": True} if reshuffled else {"shuffled": True}
    x, y = data()
    opened: list[int] = []
    read: list[int] = []

    def lines(epoch: int) -> Any:
        opened.append(epoch)
        for index in np.random.default_rng(epoch).permutation(64) if reshuffled else range(64):
            read.append(index)
            yield x[index], y[index]

    def once(folder: str, source: Any, rounds: int) -> np.ndarray:
        words: dict[str, Any] = {"rounds": rounds, "seed": 4, **confirmed}
        return np.asarray(train(plan, tmp_path / folder, loss, PARAMS, source, optax.sgd(0.1), **words).params["w"])

    straight = once("straight", Stream(lines), 16)
    assert opened == [0, 1]
    truncated = sum(plan.batches(4).at(turn).truncated for turn in range(16))
    assert 128 - 2 * truncated - 2 <= len(read) <= 128
    if not reshuffled:
        np.testing.assert_array_equal(straight, once("at hand", (x, y), 16))
    once("broken", Stream(lines), 11)
    np.testing.assert_array_equal(straight, once("broken", Stream(lines), 16))
    mesh = jax.make_mesh((1,), ("data",))
    spec = jax.sharding.PartitionSpec("data")  # type: ignore[no-untyped-call]
    rows = jax.sharding.NamedSharding(mesh, spec)
    batch = plan.batches(4).at(3)
    whole, _ = Rows(Stream(lines), plan, None, keyed=False).of(batch, None, None)
    parts, mask = Rows(Stream(lines), plan, None, keyed=False).of(batch, None, rows)
    for mine, theirs in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(np.asarray(mine)[np.asarray(mask)], theirs[batch.mask])
    with pytest.raises(PlanViolated, match=r"say (re)?shuffled=True"):
        train(plan, tmp_path / "other", loss, PARAMS, Stream(lines), optax.sgd(0.1))


def test_streams_that_do_not_fit_are_refused(small_plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="data = 'Stream': can only be read in order"):
        train(small_plan, tmp_path, loss, PARAMS, Stream(lambda epoch: []), optax.sgd(0.1))
    plan = make_plan(
        epsilon=4.0, delta=1e-3, **SIZES | {"epochs": 1}, strategy="identity", batching="balls-in-bins-streaming"
    )
    batch = plan.batches(4).at(0)
    assert len(batch.examples) > 1
    other = Rows(Stream(lambda epoch: [np.zeros(2), *[np.zeros(3)] * 63]), plan, None, keyed=False)
    with pytest.raises(PlanViolated, match=r"has examples of float64\[3\] and of float64\[2\]"):
        other.of(batch, None, None)
    with pytest.raises(InvalidArgument, match="must have random access where the unit is a user"):
        Rows(Stream(lambda epoch: []), plan, group_by_user(np.arange(64), per_user=1), keyed=False)
    short = Rows(Stream(lambda epoch: [np.zeros(2)]), plan, None, keyed=False)
    with pytest.raises(PlanViolated, match="ends before example 1"):
        short.of(batch, None, None)


@SLOW
def test_equinox_modules_train_by_their_arrays(small_plan: Plan, tmp_path: Path) -> None:
    """As docs/training-jax.md says: the arrays of a module are the parameters, the rest is put back in the loss."""
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(5, 3, 8, 1, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def module_loss(params: Any, example: Any) -> jax.Array:
        x, y = example
        return optax.softmax_cross_entropy_with_integer_labels(eqx.combine(params, static)(x), y)

    trained = train(small_plan, tmp_path / "run", module_loss, params, data(), optax.adam(0.1), rounds=3)
    whole = eqx.combine(trained.params, static)
    assert whole(jnp.ones(5)).shape == (3,)
    assert not jnp.array_equal(whole.layers[0].weight, model.layers[0].weight)
