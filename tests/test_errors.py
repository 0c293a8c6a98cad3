"""Messages that name argument, value and remedy; JSON that says what it means."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galton import errors, files
from galton.errors import GaltonError, InvalidArgument, InvalidFile

HUGE = 10**400


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: errors.positive("x", 2), 2.0),
        (lambda: errors.positive("x", 5e-324), 5e-324),
        (lambda: errors.non_negative("x", 0), 0.0),
        (lambda: errors.probability("x", np.float64(0.5)), 0.5),
        (lambda: errors.real("x", -3), -3.0),
        (lambda: errors.count("x", 1), 1),
        (lambda: errors.count("x", np.int64(7), at_least=7, at_most=7), 7),  # type: ignore[arg-type]
        (lambda: errors.count("x", 0, at_least=0), 0),
        (lambda: errors.choice("x", "a", ("a", "b")), "a"),
    ],
)
def test_good_values_pass_as_plain_python(call: Callable[[], object], expected: object) -> None:
    value = call()
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: errors.positive("x", 0), "x = 0: must be greater than 0"),
        (lambda: errors.positive("x", -0.0), "x = -0.0: must be greater than 0"),
        (lambda: errors.positive("x", math.nan), "x = nan: must be finite"),
        (lambda: errors.non_negative("x", -1e-300), "x = -1e-300: must be at least 0"),
        (lambda: errors.non_negative("x", math.inf), "x = inf: must be finite"),
        (lambda: errors.probability("x", 0), "x = 0: must lie strictly between 0 and 1"),
        (lambda: errors.probability("x", np.float64(1.0)), "x = 1.0: must lie strictly between 0 and 1"),
        (lambda: errors.real("x", None), "x = None: must be a number"),  # type: ignore[arg-type]
        (lambda: errors.real("x", "one"), "x = 'one': must be a number"),  # type: ignore[arg-type]
        (lambda: errors.real("x", HUGE), f"x = {str(HUGE)[:77]}...: must be a number"),
        (lambda: errors.count("x", 0), "x = 0: must be at least 1"),
        (lambda: errors.count("x", 5, at_most=4), "x = 5: must be at most 4"),
        (lambda: errors.count("x", 2.0), "x = 2.0: must be a whole number"),  # type: ignore[arg-type]
        (lambda: errors.count("x", True), "x = True: must be a whole number"),
        (lambda: errors.count("x", "3"), "x = '3': must be a whole number"),  # type: ignore[arg-type]
        (lambda: errors.choice("x", "c", ("a", "b")), "x = 'c': must be one of a, b"),
        (lambda: errors.array("x", 1.0, 1), "x = (): must have one axis (this is its shape)"),
        (lambda: errors.array("x", [[1.0]], 1), "x = (1, 1): must have one axis (this is its shape)"),
        (lambda: errors.array("x", [], 1), "x = (0,): must not be empty (this is its shape)"),
        (lambda: errors.array("x", [1.0, math.nan], 1), "x[1] = nan: must be finite"),
        (lambda: errors.array("x", [[1.0, 2.0], [-math.inf, 0.0]], 2), "x[1, 0] = -inf: must be finite"),
        (
            lambda: errors.array("x", [[1.0], [1.0, 2.0]], 2),
            "x = [[1.0], [1.0, 2.0]]: must be an array of real numbers",
        ),
        (lambda: errors.array("x", ["a"], 1), "x = ['a']: must be an array of real numbers"),
        (lambda: errors.array("x", [1j], 1), "x = [1j]: must be an array of real numbers"),
        (lambda: errors.array("x", [None], 1), "x = [None]: must be an array of real numbers"),  # type: ignore[arg-type]
    ],
)
def test_bad_values_are_refused_in_one_line_with_value_and_remedy(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize("kind", [InvalidArgument, InvalidFile])
def test_errors_are_caught_as_galton_and_as_value_errors(kind: type[Exception]) -> None:
    assert issubclass(kind, GaltonError)
    assert issubclass(kind, ValueError)


def test_error_carries_its_parts_and_stays_on_one_short_line() -> None:
    value = np.arange(1000.0).reshape(10, 100)
    error = InvalidArgument("x", value, "must be small")
    assert (error.argument, error.remedy) == ("x", "must be small")
    assert error.value is value
    assert "\n" not in str(error)
    assert len(str(error)) < 110


def test_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(InvalidArgument("x", 3, "must be 4")))
    assert (str(error), error.argument, error.value, error.remedy) == ("x = 3: must be 4", "x", 3, "must be 4")


@pytest.mark.parametrize(
    "call",
    [lambda: errors.array("x", np.array([1 + 2j]), 1), lambda: errors.real("x", np.complex128(1 + 2j))],  # type: ignore[arg-type]
)
def test_complex_numbers_of_numpy_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument):
        call()


def test_array_is_a_read_only_copy_in_double_precision() -> None:
    source = np.array([1, 2], np.int32)
    result = errors.array("x", source, 1)
    source[0] = 9
    assert result.dtype == np.float64
    assert result.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        result[0] = 3.0


def test_sign_allowed_names_the_first_negative_entry() -> None:
    values = np.array([[1.0, 0.0], [0.5, -0.25]])
    errors.sign_allowed("C", values, True)
    errors.sign_allowed("C", np.abs(values), False)
    with pytest.raises(InvalidArgument, match=r"^C\[1, 1\] = -0\.25: must not be negative; allow_negative"):
        errors.sign_allowed("C", values, False)


# Files.


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80)
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_canonical_text_is_one_exact_ascii_line_for_any_order_of_keys(value: dict[str, Any]) -> None:
    text = files.canonical(value)
    backwards = dict(reversed(list(value.items())))
    assert json.loads(text) == value
    assert files.canonical(backwards) == text
    assert files.digest(backwards) == files.digest(value)
    assert text.isascii()
    assert "\n" not in text


def test_canonical_text_and_digest_of_a_known_value() -> None:
    """The hash was made with sha256sum."""
    value = {"b": [1, 0.1, None], "a": "é"}
    assert files.canonical(value) == '{"a":"\\u00e9","b":[1,0.1,null]}'
    assert files.digest({}) == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_canonical_refuses_what_json_cannot_say(bad: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        files.canonical({"a": [bad]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": NaN}', "NaN is not allowed"),
        (b'{"a": [Infinity]}', "Infinity is not allowed"),
        (b'{"a": -Infinity}', "-Infinity is not allowed"),
        pytest.param(b'{"a": 1e999}', "not valid JSON"),
        (b"", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[1]", "must hold a JSON object, not a list"),
        (b"3", "must hold a JSON object, not a int"),
        (b"null", "must hold a JSON object, not a NoneType"),
    ],
)
def test_file_that_is_no_json_object_is_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InvalidFile) as caught:
        files.read_json(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, reason in [(tmp_path / "none.json", "No such file or directory"), (tmp_path, "Is a directory")]:
        with pytest.raises(InvalidFile) as caught:
            files.read_json(path)
        assert str(caught.value) == f"{path}: cannot be read ({reason})"
