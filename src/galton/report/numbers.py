"""Numbers in the form that people write them."""

from __future__ import annotations

import math
import re

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}"
DIGITS = 5
"""Of noise and errors, as on the command line."""
_SMALL = re.compile(r"(?<![\w.])(?:\d+(?:\.\d+)?e[-+]\d+|0\.000\d+)(?!\w)")
_LETTER = re.compile(r"\b([εδ]) ([=≤]) ")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(exponent: int) -> str:
    """Returns a power of ten; 1 is 1.

    >>> power(-5), power(0)
    ('10⁻⁵', '1')
    """
    return "10" + str(exponent).translate(_SUPERSCRIPT) if exponent else "1"


def short(value: float, digits: int = 4) -> str:
    r"""Returns a number with few digits, powers of ten as such.

    >>> short(1e-5), short(1.5e-08), short(0.25), short(20000), short(float("inf"))
    ('10⁻⁵', '1.5\xa0×\xa010⁻⁸', '0.25', '20,000', '∞')
    """
    if math.isinf(value):
        return "∞" if value > 0 else MINUS + "∞"
    text = f"{value:.{digits}g}"
    if 1e-3 <= abs(value) < 1e6 or value == 0:
        number = float(text)
        return (f"{number:,.0f}" if number.is_integer() else f"{number:.{digits}g}").replace("-", MINUS)
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    ten = power(int(exponent))
    return (ten if mantissa == "1" else f"{mantissa}\N{NO-BREAK SPACE}{TIMES}{ten}").replace("-", MINUS)


def written(text: str) -> str:
    r"""Returns a text with its powers of ten as people write them, and with equations that stay on one line.

    >>> written("(2, 1e-05)-DP or (4, 0.0001)-DP, except with probability 1.5e-08; δ = 0.02")
    '(2, 10⁻⁵)-DP or (4, 10⁻⁴)-DP, except with probability 1.5\xa0×\xa010⁻⁸; δ\xa0=\xa00.02'
    """
    joined = _LETTER.sub("\\1\N{NO-BREAK SPACE}\\2\N{NO-BREAK SPACE}", text)
    return _SMALL.sub(lambda number: short(float(number[0]), 6), joined)


def percent_at_most(share: float) -> str:
    """Returns a share as a percentage that is not below it.

    >>> percent_at_most(0.59871), percent_at_most(1.0), percent_at_most(0.00123)
    ('59.9%', '100%', '0.13%')
    """
    digits = 1 if share >= 0.01 else 2
    scale = 10**digits
    value = min(100.0, math.ceil(share * 100 * scale - 1e-9) / scale)
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") + "%"


def at_most(value: float, digits: int = 4) -> str:
    """Returns a number above 0 with few digits, rounded up.

    >>> at_most(1.72201), at_most(2.0)
    ('1.723', '2')
    """
    if value == 0 or math.isinf(value):
        return short(value, digits)
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return short(math.ceil(value * scale - 1e-9) / scale, digits)
