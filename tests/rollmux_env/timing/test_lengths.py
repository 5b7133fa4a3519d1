from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.errors import InputError
from rollmux_env.timing.lengths import (
    PUBLISHED,
    LengthDistribution,
    Lognormal,
    Piecewise,
    mean,
    read_lengths,
    sample,
    typical,
)


@st.composite
def some_lengths(draw: st.DrawFn) -> LengthDistribution:
    cap = draw(st.integers(1, 40_000))
    if draw(st.booleans()):
        return Lognormal(cap, draw(st.floats(1e-3, 1e6)), draw(st.floats(0, 3)))
    count = draw(st.integers(1, 6))
    shares = sorted(draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)))
    tokens = sorted(draw(st.lists(st.floats(1, cap), min_size=count, max_size=count)))
    return Piecewise(cap, tuple(zip(shares, tokens, strict=True)))


@given(some_lengths(), st.integers(0, 2**32), st.integers(1, 300))
def test_every_length_is_whole_from_one_to_the_cap(lengths: LengthDistribution, seed: int, count: int) -> None:
    for found in (sample(lengths, np.random.default_rng(seed), count), typical(lengths, count)):
        assert found.shape == (count,) and found.dtype == np.int64
        assert found.min() >= 1 and found.max() <= lengths.cap
    assert 1 <= mean(lengths) <= lengths.cap
    assert (np.diff(typical(lengths, count)) >= 0).all()


@given(some_lengths(), st.integers(0, 2**32))
def test_the_same_seed_draws_the_same_lengths(lengths: LengthDistribution, seed: int) -> None:
    first, again = (sample(lengths, np.random.default_rng(seed), 50) for _ in range(2))
    assert (first == again).all()


def test_a_lognormal_far_below_its_cap_has_its_median_and_mean() -> None:
    lengths = Lognormal(10**7, 500.0, 0.8)
    assert lengths.quantile(np.array([0.5]))[0] == pytest.approx(500)
    assert mean(lengths) == pytest.approx(500 * np.exp(0.32), rel=2e-3)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_published_percentiles_come_back(kind: str) -> None:
    lengths = PUBLISHED[kind]
    shares, tokens = zip(*lengths.points, strict=True)
    assert lengths.quantile(np.array(shares)) == pytest.approx(np.array(tokens))
    drawn = sample(lengths, np.random.default_rng(0), 20_000)
    assert np.quantile(drawn, 0.5) == pytest.approx(dict(lengths.points)[0.5], rel=0.03)
    assert drawn.mean() == pytest.approx(mean(lengths), rel=0.03)


def test_lengths_of_a_file_have_its_distribution(tmp_path: Path) -> None:
    seen = np.random.default_rng(0).integers(1, 2000, 5000)
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(map(str, seen)) + "\n\n")
    lengths = read_lengths(path)
    assert lengths.cap == seen.max() and mean(lengths) == pytest.approx(seen.mean(), rel=0.01)
    shares = np.linspace(0.01, 0.99, 9)
    assert lengths.quantile(shares) == pytest.approx(np.quantile(seen, shares), rel=0.02, abs=2)
    assert read_lengths(path, 4096).cap == 4096


@pytest.mark.parametrize(
    "content, problem",
    [
        ("", "holds no lengths"),
        ("3\nx\n", "line 2: must be a number of tokens from 1 up"),
        ("0\n", "line 1"),
        ("nan\n", "line 1"),
        ("9000\n", "a length of 9000 tokens passes the cap of 4096"),
        (None, "No such file"),
    ],
)
def test_a_file_of_other_things_is_refused_in_one_line(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "lengths.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_lengths(path, 4096)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("points", [(), ((0.5, 9000.0),), ((0.5, 10.0), (0.4, 20.0)), ((0.5, 20.0), (0.6, 10.0)), ((0.5, 0.5),)])
def test_quantiles_that_do_not_rise_or_pass_the_cap_are_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(InputError):
        Piecewise(4096, points)
