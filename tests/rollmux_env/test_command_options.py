"""Options of the form key=value."""

from __future__ import annotations

import pytest

from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError


def test_pairs_are_split_at_their_first_equals_sign() -> None:
    assert parse_pairs("--set", ["ppo.n_steps=64", "jobs=a=b"]) == [("ppo.n_steps", "64"), ("jobs", "a=b")]


def test_a_key_that_is_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"^--set jobs: is given twice$"):
        parse_pairs("--set", ["jobs=2", "ppo.n_steps=64", "jobs=3"])


@pytest.mark.parametrize("pair", ["jobs", "=3", "ppo.=3", ""])
def test_what_is_no_pair_is_said(pair: str) -> None:
    with pytest.raises(InputError, match=r"--set: '.*' is not of the form key=value"):
        parse_pairs("--set", [pair])


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("[1, 2.5]", [1, 2.5]), ("true", True), ("fixed", "fixed"), ("null", None)])
def test_a_value_is_that_of_json_or_text(text: str, value: object) -> None:
    assert parse_value(text) == value
