"""Built-in verifiers: whether a response contains the right number or expression, as data sets of mathematics require."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from rollmux_env.errors import require

_MARK = "####"  # mark before the answer in GSM8K's format
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([^{}]+?)\s*\}\s*\{\s*([^{}]+?)\s*\}")
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+)?(?:(?<=\d)[eE][-+]?\d{1,3}(?!\d))?(?:/\d+(?:\.\d+)?)?%?"
)
_POWER_OF_TEN = re.compile(r"\s*(?:\\times|\\cdot|[x\u00d7*\u00b7])\s*10\s*\^\s*(?:\{\s*([-+]?\d{1,3})\s*\}|([-+]?\d{1,3})(?!\d))")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z}])\^\s*(?:\{\s*[-+]?\d+\s*\}|[-+]?\d+)")  # m^2
_LONGEST = 100  # digits; a longer text is not taken for a number
_MINUS = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u202f": " "})


def number(answer: str, response: str) -> float:
    r"""Return 1 if the final number of a response equals that of the answer, else 0.

    The final number of a text is the first one after the last `####`, the one in the last `\boxed{}`, or the last one of the text.
    Thousands' commas, currency signs, units, a final full stop and trailing zeros are ignored; `1/2`, `\frac{1}{2}`, `5e-1`, `5
    \times 10^{-1}` and `0.5` are equal, and so are `50%` and `50`.

    Args:
        answer: Right answer, in one of these forms. The whole field `answer` of GSM8K works.
        response: The response.
    """
    expected, actual = final_number(answer), final_number(response)
    return float(expected is not None and expected == actual)


def final_number(text: str) -> Fraction | None:
    """Return the final number of a text (the first one after `####`, that of the last box, or the last one), or None."""
    text = text.translate(_MINUS)
    marked = _MARK in text
    if marked:
        text = text.rpartition(_MARK)[2].strip().partition("\n")[0]
    elif boxed := _BOXED.findall(text):
        text = boxed[-1]
    text = " ".join(text.split())  # a search for optional blanks would begin again at each blank of a long row
    text = _FRACTION.sub(r" \1/\2 ", text).replace("\\$", "").replace("\\%", "%").replace("\\!", "")
    text = _UNIT_POWER.sub(" ", _POWER_OF_TEN.sub(r"e\1\2", text))
    text = re.sub(r"(?<=[-+])\s*[$€£¥]\s*(?=[\d.])", "", text)  # -$5
    numbers = [match.group() for match in _NUMBER.finditer(text) if any(c.isdigit() for c in match.group())]
    return _value(numbers[0 if marked else -1]) if numbers else None


def _value(text: str) -> Fraction | None:
    top, _, bottom = text.rstrip("%").replace(",", "").partition("/")
    if len(text) > _LONGEST or not top.lstrip("+-"):
        return None
    try:
        return Fraction(top) / Fraction(bottom or 1)
    except (ValueError, ZeroDivisionError):
        return None


def math(answer: str, response: str) -> float:
    """Return 1 if the last expression of a response equals the answer's by the package math-verify, else 0.

    Args:
        answer: Right answer, as LaTeX with or without dollar signs, or a text that contains it so.
        response: The response.

    Raises:
        ValueError: If the answer contains no expression.
    """
    from math_verify import parse, verify  # type: ignore[import-not-found]

    expected = parse(answer if "$" in answer or "\\boxed" in answer else f"${answer}$")
    if not expected:
        raise ValueError(f"math-verify finds no expression in the answer {answer!r}")
    return float(verify(expected, parse(response)))


def check_installed(name: str) -> None:
    """Check that the package that a verifier needs is installed.

    Args:
        name: Name of the verifier.

    Raises:
        InputError: If it is not installed; one line with what to install.
    """
    if name == "math":
        require("math", "reward: math")


VERIFIERS: dict[str, Callable[[str, str], float]] = {"number": number, "math": math}
"""Verifiers by name: functions (answer, response) -> reward."""
CHEAP = frozenset({"number"})
"""Names of verifiers that take microseconds."""
