"""A right number is recognised however it is written, and a wrong one never."""

from __future__ import annotations

from fractions import Fraction
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.errors import InputError
from runtime.jobs.verifiers import CHEAP, VERIFIERS, check_installed, final_number, number

GSM8K = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nShe sold 48+24 = <<48+24=72>>72 clips altogether.\n#### 72"


@pytest.mark.parametrize(
    "response",
    [
        "72",
        "The answer is 72.",
        "She sold 72 clips",
        "... so 24 + 48 = 72\n#### 72",
        "#### 72\n",
        "#### 72 clips\n\nLet me know if 5 more examples help!",
        "\\boxed{72}",
        "So $\\boxed{ 72 }$, as 3 friends know.",
        "**72**",
        "$72",
        "$72.00",
        "72.0 dollars",
        "\u221272 is wrong, it is 72",
        "72%",
        "144/2",
        "\\frac{144}{2}",
        "+72",
        "first 71, then 72!",
        "#### $72.",
        "7.2e1",
        "7.2 \\times 10^{1}",
        "$7.2 \\cdot 10^1$",
        "720 \u00d7 10^-1",
        "#### 72 km/h",
        "an area of 72 m^2",
        "\\boxed{72\\text{ cm}^{2}}",
        "\\boxed{\\text{72 dollars}}",
        "3 of 4 and 5 of 6 are no answer: #### 72",
    ],
)
def test_a_right_answer_is_right_in_any_form(response: str) -> None:
    assert number(GSM8K, response) == 1.0


@pytest.mark.parametrize(
    "response",
    [
        "",
        "seventy-two",
        "-72",
        "7 2",
        "720",
        "0.72",
        "72 or 73",
        "#### 73 (not 72)",
        "\\boxed{}72?",
        "1/72",
        "72/0",
        "72" * 80,
        "7.2e2",
        "7.2 \\times 10^2",
        "72^2",
        "it is 72, of 100",
    ],
)
def test_a_wrong_answer_is_wrong(response: str) -> None:
    assert number(GSM8K, response) == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("#### 1,234,567", Fraction(1234567)),
        ("12,34", Fraction(34)),  # no thousands
        ("It costs $1,000.50 in all.", Fraction("1000.5")),
        ("-$5", Fraction(-5)),
        ("- $ 5", Fraction(-5)),
        ("x = -0.5", Fraction(-1, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("\\boxed{\\frac{3}{4}}", Fraction(3, 4)),
        ("\\boxed{\\dfrac{-3}{4}}", Fraction(-3, 4)),
        ("\\boxed{1,\\!000}", Fraction(1000)),
        ("\\boxed{12\\%}", Fraction(12)),
        ("between 10 and 20", Fraction(20)),
        ("20-30", Fraction(30)),
        ("no number", None),
        ("#### none, though 5", Fraction(5)),
        ("#### 1,000", Fraction(1000)),
        ("#### -1,000.50 dollars", Fraction("-1000.5")),
        ("3e8 m/s", Fraction(3 * 10**8)),
        ("1.6 \\times 10^{-3}", Fraction("0.0016")),
        ("2e99999", Fraction(99999)),  # no such exponent
        ("-3/4", Fraction(-3, 4)),
        ("\\frac{-1,000}{8}", Fraction(-125)),
        ("1\u202f000", Fraction(0)),  # spaces between thousands are not read
        ("x^2 = 49, so x = 7", Fraction(7)),
        ("5 ####", None),
    ],
)
def test_the_number_that_a_text_gives(text: str, value: Fraction | None) -> None:
    assert final_number(text) == value


@given(st.decimals(min_value=-(10**9), max_value=10**9, places=3), st.text(alphabet="abc .,$", max_size=20))
def test_a_number_is_found_behind_any_words(value: object, words: str) -> None:
    assert final_number(f"{words} #### {value:,}") == Fraction(str(value))


@pytest.mark.skipif(find_spec("math_verify") is not None, reason="math-verify is installed")
def test_a_verifier_without_its_package_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"^reward: math: needs math_verify; not installed here: pip install 'rollmux\[math\]'$"):
        check_installed("math")
    for name in CHEAP:
        assert name in VERIFIERS
        check_installed(name)


@given(st.text(max_size=300))
def test_no_text_is_too_odd(text: str) -> None:
    assert number("#### 3", text) in (0.0, 1.0)


@pytest.mark.parametrize("before", ["", "\\frac{", "\\boxed", "#### ", "\\boxed{3} "])
def test_a_response_of_blanks_alone_takes_no_longer_than_another(before: str) -> None:
    """Its reward is computed beside the engine, and without a limit. The time of a search may not grow with their square."""
    assert number("#### 3", before + " \n" * 500_000) == float("3" in before)
