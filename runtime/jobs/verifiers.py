"""Verifiers that are built in: whether a response holds the right number or expression, as data sets of mathematics ask for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from rollmux_env.errors import require

_MARK = "####"  # in front of the answer, in GSM8K's format
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([^{}]+?)\s*\}\s*\{\s*([^{}]+?)\s*\}")
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+)?(?:(?<=\d)[eE][-+]?\d{1,3}(?!\d))?(?:/\d+(?:\.\d+)?)?%?"
)
_POWER_OF_TEN = re.compile(r"\s*(?:\\times|\\cdot|[x\u00d7*\u00b7])\s*10\s*\^\s*(?:\{\s*([-+]?\d{1,3})\s*\}|([-+]?\d{1,3})(?!\d))")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z}])\^\s*(?:\{\s*[-+]?\d+\s*\}|[-+]?\d+)")  # m^2
_LONGEST = 100  # digits; a longer number is none
_MINUS = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u202f": " "})


def number(answer: str, response: str) -> float:
    """1 where the last number that a response gives is the answer's, else 0.

    A response gives its number as the first one behind the last `####`, in the last `\\boxed{}`, or as the last one of its text.
    Thousands' commas, signs of currencies, units, a full stop behind it and zeros at its end are of no matter; `1/2`,
    `\\frac{1}{2}`, `5e-1`, `5 \\times 10^{-1}` and `0.5` are equal, and so are `50%` and `50`.

    Args:
        answer: what is right, in one of these forms; all of GSM8K's `answer` will do.
    """
    expected, actual = final_number(answer), final_number(response)
    return float(expected is not None and expected == actual)


def final_number(text: str) -> Fraction | None:
    """The number that a text gives: the first one behind `####`, else the last one; None where there is none."""
    text = text.translate(_MINUS)
    marked = _MARK in text
    if marked:
        text = text.rpartition(_MARK)[2].strip().partition("\n")[0]
    elif boxed := _BOXED.findall(text):
        text = boxed[-1]
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
    """1 where a response's last expression equals the answer's, as the package math-verify parses and compares them, else 0.

    Args:
        answer: what is right: LaTeX with or without its dollar signs, or a text that holds it so.

    Raises:
        ValueError: the answer holds no expression.
    """
    from math_verify import parse, verify  # type: ignore[import-not-found]

    expected = parse(answer if "$" in answer or "\\boxed" in answer else f"${answer}$")
    if not expected:
        raise ValueError(f"math-verify finds no expression in the answer {answer!r}")
    return float(verify(expected, parse(response)))


def check_installed(name: str) -> None:
    """Make sure that a verifier has the package that it needs.

    Raises:
        InputError: it is not installed; one line with what to install.
    """
    if name == "math":
        require("math", "reward: math")


VERIFIERS: dict[str, Callable[[str, str], float]] = {"number": number, "math": math}
"""By name: (answer, response) -> reward."""
CHEAP = frozenset({"number"})
"""Those that take microseconds."""
