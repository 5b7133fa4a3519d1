"""Distributions of response lengths, in tokens, up to a cap.

There are two kinds: lognormal, and piecewise, which interpolates linearly between quantiles. Papers print quantiles, and a list of
observed lengths is reduced to quantiles.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rollmux_env.errors import InputError
from rollmux_env.fields import Checked, Count, NonNegative
from rollmux_env.files import text_lines
from rollmux_env.kernel.tables import Floats
from rollmux_env.portable import exp
from rollmux_env.progress import say_read
from rollmux_env.published import source
from rollmux_env.validation_errors import describe, one_line

Tokens = NDArray[np.int64]
_GRID = 4096  # number of quantiles averaged for a mean
_KEPT = 201  # number of quantiles kept of a file of lengths


class LengthDistribution(Protocol):
    """A distribution of response lengths."""

    @property
    def cap(self) -> int:
        """Largest number of tokens of a response."""
        ...

    def quantile(self, shares: Floats) -> Floats:
        """Return quantiles of the length in tokens, between 1 and the cap, shape (n,)."""
        ...


@dataclass(frozen=True)
class Lognormal(Checked):
    """Lognormal distribution, cut at the cap.

    Attributes:
        cap: Largest number of tokens of a response.
        median: Median before the cut, in tokens.
        sigma: Standard deviation of the logarithm.
    """

    cap: Count
    median: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    sigma: NonNegative

    def quantile(self, shares: Floats) -> Floats:
        """Return quantiles of the length in tokens, between 1 and the cap, shape (n,)."""
        from scipy.special import ndtri

        with np.errstate(over="ignore", invalid="ignore"):
            spread = np.where(self.sigma > 0, self.sigma * ndtri(shares), 0.0)
            return np.asarray(np.clip(self.median * exp(spread), 1.0, self.cap))


@dataclass(frozen=True)
class Piecewise(Checked):
    """Quantiles with linear interpolation, from 1 token before the first to the cap after the last.

    Attributes:
        cap: Largest number of tokens of a response.
        points: Pairs of a share of the responses, between 0 and 1, and the number of tokens that this share does not exceed. Both
            rise.
    """

    cap: Count
    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        shares, tokens = zip((0.0, 1.0), *self.points, (1.0, self.cap), strict=True)
        if not self.points or any(a > b for rising in (shares, tokens) for a, b in pairwise(rising)):
            raise InputError("quantiles must rise with their shares, from 1 token at 0 to the cap at 1")

    def quantile(self, shares: Floats) -> Floats:
        """Return quantiles of the length in tokens, between 1 and the cap, shape (n,)."""
        first = () if self.points[0][0] <= 0 else ((0.0, 1.0),)
        last = ((1.0, float(self.cap)),) if self.points[-1][0] < 1 else ()
        at, tokens = zip(*first, *self.points, *last, strict=True)
        return np.asarray(np.interp(shares, at, tokens))


def sample(lengths: LengthDistribution, generator: np.random.Generator, count: int) -> Tokens:
    """Draw lengths in whole tokens, shape (count,)."""
    return whole(lengths.quantile(generator.random(count)))


def typical(lengths: LengthDistribution, count: int) -> Tokens:
    """Return a representative batch: the quantiles at the midpoints of equal shares, ascending, shape (count,)."""
    return whole(lengths.quantile((np.arange(count) + 0.5) / count))


def mean(lengths: LengthDistribution) -> float:
    """Return the mean length in tokens, to about 0.1%."""
    return float(np.mean(lengths.quantile((np.arange(_GRID) + 0.5) / _GRID)))


def lognormal_of_mean(cap: int, tokens: float, sigma: float) -> Lognormal:
    """Return the lognormal distribution whose mean is `tokens` after the cut at the cap.

    Args:
        cap: Largest number of tokens of a response.
        tokens: Mean length after the cut, in tokens.
        sigma: Standard deviation of the logarithm.

    Raises:
        InputError: If the mean is not between 1 and the cap.
    """
    from scipy.optimize import brentq

    if not 1 < tokens < cap:
        raise InputError(f"mean: must be between 1 and the cap of {cap}, not {tokens}")
    logarithm = brentq(lambda x: mean(Lognormal(cap, float(exp(x)), sigma)) - tokens, -10.0, 40.0, xtol=1e-9)
    return Lognormal(cap, float(exp(logarithm)), sigma)


def whole(tokens: Floats) -> Tokens:
    """Round lengths up to whole tokens, at least one."""
    return np.asarray(np.maximum(np.ceil(tokens), 1), dtype=np.int64)


_QUANTILES = source("rollmux").value("lengths", dict[str, tuple[tuple[float, float], ...]])
PUBLISHED = {kind: Piecewise(4096 if kind.endswith("4k") else 8192, points) for kind, points in _QUANTILES.items()}
"""Published distributions, by the paper's job type."""


def read_lengths(path: Path, cap: int | None = None) -> Piecewise:
    """Read a file of observed lengths. The distribution is kept as 201 quantiles.

    Args:
        path: Text file with one number of tokens per line; empty lines are skipped.
        cap: Largest number of tokens of a response, or None for the longest observed length.

    Raises:
        InputError: If the file cannot be read or has no lengths, or a line is no number from 1 to the cap.
    """
    name = one_line(str(path), 4096)
    observed = array("d")
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        try:
            tokens = float(line)
        except ValueError:
            tokens = 0.0
        if not 1 <= tokens < 1e15:
            raise InputError(f"{name}: line {number}: must be a number of tokens from 1 up, not {describe(line.strip())}")
        observed.append(tokens)
    if not observed:
        raise InputError(f"{name}: holds no lengths")
    most = max(observed)
    if cap is not None and most > cap:
        raise InputError(f"{name}: a length of {most:.10g} tokens passes the cap of {cap}")
    if len(observed) > _KEPT:
        say_read(path, f"{len(observed):,} lengths are kept as {_KEPT} quantiles")
    return quantiles_of(observed, int(cap if cap is not None else np.ceil(most)))


def quantiles_of(observed: Sequence[float], cap: int) -> Piecewise:
    """Return the distribution of observed lengths as 201 quantiles.

    Args:
        observed: Observed lengths, in tokens; at least one, and none above `cap`.
        cap: Largest number of tokens of a response.
    """
    shares = np.linspace(0, 1, _KEPT)
    quantiles = np.quantile(np.array(observed), shares)
    points = tuple((round(float(share), 6), float(tokens)) for share, tokens in zip(shares, quantiles, strict=True))
    return Piecewise(cap, points)
