"""A policy has one colour in every figure; yardsticks are dashed; seeds are a band; axes fit what they show."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

import rollmux
from policies.registry import PLACEMENT
from rollmux_env.bench.comparison import ComparisonRow
from rollmux_env.bench.intervals import Mean
from rollmux_env.errors import InputError
from rollmux_env.report.figures import INTERVAL, positions, set_positions
from rollmux_env.report.look import Look, drawn_as, parse_labels
from rollmux_env.report.plots import saving_figure
from rollmux_env.report.styles import YARDSTICKS, draw, picture, style_of

OTHERS = ("learned:default", "learned:default,moves=false", "rollmux,prune=false", "my_module:Mine", "my_module:Mine,alpha=2")


def test_policies_of_one_figure_look_different() -> None:
    named = [style_of(policy) for policy in (*PLACEMENT, *OTHERS)]
    assert len({style.colour for style in named}) == len(named)


def test_the_policies_of_a_fleet_are_told_apart() -> None:
    rows = ("solo", "rollmux,prune=false", "fleet", "fleet,moves=false")
    named = [style_of(f"{row}{options}") for row in rows for options in ("", ",order=area")]
    named.append(style_of("fleet,order=area,park=true"))
    for one, other in combinations(named, 2):
        apart = max(abs(a - b) for a, b in zip(to_rgb(one.colour), to_rgb(other.colour), strict=True))
        assert apart > 0.15 or one.line != other.line


def test_a_style_is_the_same_in_every_process() -> None:
    code = f"from rollmux_env.report.styles import style_of; print(*(style_of(policy).colour for policy in {OTHERS!r}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert other == [style_of(policy).colour for policy in OTHERS]


def test_options_make_a_policys_colour_lighter_or_darker() -> None:
    plain = to_rgb(style_of("gavel").colour)
    for options in ("a=1", "b=2", "c=3", "d=4"):
        mixed = to_rgb(style_of(f"gavel,{options}").colour)
        assert max(abs(one - other) for one, other in zip(plain, mixed, strict=True)) > 0.05
        assert all(a <= b for a, b in zip(plain, mixed, strict=True)) or all(a >= b for a, b in zip(plain, mixed, strict=True))


def test_yardsticks_are_dashed_and_nothing_else() -> None:
    dashed = {policy for policy in (*PLACEMENT, *OTHERS, "plain") if style_of(policy).line == "--"}
    assert dashed == YARDSTICKS


@pytest.mark.parametrize("seeds", [1, 3])
def test_seeds_are_the_mean_and_a_band(seeds: int) -> None:
    axis = Figure().subplots()
    x, y = np.arange(4, dtype=np.float64), np.arange(4 * seeds, dtype=np.float64).reshape(seeds, 4)
    draw(axis, x, y, "gavel")
    (line,) = axis.get_lines()
    assert np.asarray(line.get_ydata()).tolist() == (np.arange(4.0) + 2.0 * (seeds - 1)).tolist()
    assert line.get_color() == style_of("gavel").colour
    assert len(axis.collections) == (seeds > 1)
    if seeds > 1:
        corners = axis.collections[0].get_paths()[0].vertices
        assert np.ptp(np.asarray(corners)[np.asarray(corners)[:, 0] == 0, 1]) == pytest.approx(
            8.0
        )  # twice the deviation of 0, 4, 8


@pytest.mark.parametrize("savings", [(1.0, 1.5, 1.9), (1.0, 0.6, 0.8), (1.0, 30.0, 4.0)])
def test_the_plot_of_savings_is_full(savings: tuple[float, ...]) -> None:
    some = Mean(1.0, None)
    rows = [
        ComparisonRow(
            f"p{saving}",
            some,
            some,
            Mean(saving, 0.05),
            Mean(saving, 0.05),
            some,
            None,
            some,
            None,
            some,
            some,
            dict.fromkeys(("rollout", "training"), 8.0),
            0.5,
        )
        for saving in savings
    ]
    for axis in saving_figure(rows, "p1.0").axes:
        low, high = axis.get_xlim()
        ends = [saving + spread for saving in savings for spread in (-0.05, 0.05)]
        assert low <= min(ends) and max(ends) <= high
        assert max(ends) - min(ends) > 0.8 * (high - low)


def drawn(policies: int, seeds: int = 2) -> rollmux.BenchResult:
    """A bench of some policies on very short streams."""
    names = ["solo", "rollmux", "rollmux,prune=false", "consolidate", "first-fit", "random"][:policies]
    return rollmux.bench("mixed", names, seeds, settings={"jobs": 3})


def test_a_figure_has_the_width_of_a_column_and_says_what_its_bands_and_whiskers_are() -> None:
    found = drawn(2)
    with drawn_as(Look(3.3)):
        pdf = picture(found.plot("cost_over_time", width_in=3.3), "pdf")
    box = re.search(rb"/MediaBox \[ ?0 0 ([0-9.]+)", pdf)
    assert box is not None and float(box[1]) == pytest.approx(72 * 3.3, abs=0.1) and b"/Type3" not in pdf
    figure = found.plot("cost_over_time", width_in=3.3, labels={"rollmux": "Algorithm 1"})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["solo", "Algorithm 1"]
    assert legend.get_title().get_text() == "mean of 2 seeds, band: ± 1 standard deviation"
    assert figure.axes[0].get_title() == "" and found.plot("cost_over_time").axes[0].get_title() == "Cost over time"
    assert found.plot("saving").axes[0].get_xlabel() == INTERVAL and drawn(2, 1).plot("saving").axes[0].get_xlabel() == ""
    with pytest.raises(InputError, match=r"--width 99: must be from 1\.5 to 40 inches"):
        found.plot("saving", width_in=99)


def test_many_policies_have_small_panels_of_one_scale() -> None:
    figure = drawn(6).plot("cost_over_time")
    assert [axis.get_title() for axis in figure.axes] == [
        "solo", "rollmux", "rollmux,prune=false", "consolidate", "first-fit", "random"
    ]  # fmt: skip
    assert len({axis.get_ylim() for axis in figure.axes}) == 1 and all(len(axis.get_lines()) == 6 for axis in figure.axes)
    assert "grey: the other policies" in figure.get_suptitle()


def test_numbers_are_on_an_axis_of_numbers() -> None:
    assert positions(["1.2", "1.5", "2"]) == ([1.2, 1.5, 2.0], True)
    assert positions(["load=1", "load=1.6"]) == ([1.0, 1.6], True)
    assert positions(["12+10", "16+14"]) == ([0.0, 1.0], False) and positions(["[1, 2]", "3"])[1] is False
    axis = Figure().subplots()
    set_positions(axis, ["1.1", "1.12", "2"])
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1.1", "", "2"], "there is no room for 1.12"


def test_labels_are_read_from_their_last_equals_sign() -> None:
    assert parse_labels(["rollmux,prune=false=All groups", "solo=Solo"]) == {"rollmux,prune=false": "All groups", "solo": "Solo"}
    with pytest.raises(InputError, match="--label: 'solo' is not of the form POLICY=TEXT"):
        parse_labels(["solo"])
