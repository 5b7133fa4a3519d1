"""Verifiers that are built in: whether a response holds the right number, as data sets of mathematics ask for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

_MARK = "####"  # in front of the answer, in GSM8K's format
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([^{}]+?)\s*\}\s*\{\s*([^{}]+?)\s*\}")
_NUMBER = re.compile(r"(?:(?<![\w)])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+)?(?:/\d+(?:\.\d+)?)?%?")
_LONGEST = 100  # digits; a longer number is none
_MINUS = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u202f": " "})


def number(answer: str, response: str) -> float:
    """1 where the last number that a response gives is the answer's, else 0.

    A response gives its number as the first one behind the last `####`, in the last `\\boxed{}`, or as the last one of its text.
    Thousands' commas, signs of currencies, a full stop behind it and zeros at its end are of no matter; `1/2`, `\\frac{1}{2}` and
    `0.5` are equal, and so are `50%` and `50`.

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


VERIFIERS: dict[str, Callable[[str, str], float]] = {"number": number}
"""By name: (answer, response) -> reward."""
