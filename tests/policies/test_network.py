"""Network policies on drawn forecasts: the oracle against all that could be chosen, `rfabric` against `static`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.network import Oracle, RFabric, Static, make_network
from rollmux_env.errors import InputError
from rollmux_env.fabric.play import Forecast, Hour, draw_hour, play
from rollmux_env.fabric.steps import GRADIENTS, PIPELINE, WEIGHTS, FabricStep
from rollmux_env.kernel.tables import Ints
from tests.oracle.draw import examples

SHORT = st.integers(0, 12).map(float)


@st.composite
def hours(draw: st.DrawFn, updates: int = 1, iterations: int = 2, exact: bool = False) -> Hour:
    """Two topologies or three; what happens is what was expected where `exact`, else anything."""
    steps = tuple(FabricStep(kind, draw(SHORT), draw(SHORT)) for kind in [*[PIPELINE, GRADIENTS] * updates, WEIGHTS])
    width = draw(st.integers(2, 3))
    seconds = np.array(draw(st.lists(st.lists(SHORT, min_size=width, max_size=width), min_size=3, max_size=3)))
    forecast = Forecast(steps, draw(SHORT), seconds, draw(SHORT))
    shape = iterations, len(steps)
    if exact:
        before_s, beside_s = (np.tile([step[k] for step in steps], (iterations, 1)) for k in (1, 2))
        return Hour(forecast, before_s, beside_s, np.zeros(iterations))
    drawn = st.lists(SHORT, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    before_s, beside_s = (np.array(draw(drawn)).reshape(shape) for _ in range(2))
    return Hour(forecast, before_s, beside_s, np.array(draw(st.lists(SHORT.map(lambda s: 3 * s), min_size=2, max_size=2))))


class Fixed:
    """What it is told."""

    def __init__(self, topologies: Ints) -> None:
        self._topologies = topologies

    def choose_all(self, hour: Hour) -> Ints:
        return self._topologies


@examples(25)
@given(hours())
def test_the_oracle_is_the_best_of_all_choices(hour: Hour) -> None:
    width, shape = hour.forecast.seconds.shape[1], hour.before_s.shape
    every = (np.array(one).reshape(shape) for one in itertools.product(range(width), repeat=shape[0] * shape[1]))
    best_s = min(play(hour, Fixed(one)).seconds for one in every)
    assert play(hour, Oracle()).seconds == pytest.approx(best_s, abs=1e-9)


@examples(100)
@given(hours(updates=3))
def test_rfabric_is_later_than_static_by_what_it_could_not_know_at_most(hour: Hour) -> None:
    """Switches that found less slack than was expected, and computing beside traffic that took another time."""
    static, rfabric, oracle = (play(hour, policy) for policy in (Static(), RFabric(), Oracle()))
    expected_s = np.array([step.beside_s for step in hour.forecast.steps])
    assert rfabric.seconds <= static.seconds + rfabric.late_s + np.abs(hour.beside_s - expected_s).sum() + 1e-9
    assert rfabric.late_s <= rfabric.switches * hour.forecast.reconfigure_s + 1e-9
    assert oracle.seconds <= min(static.seconds, rfabric.seconds) + 1e-9
    assert (static.switches, static.late_s) == (0, 0.0)


@examples(100)
@given(hours(updates=3, exact=True))
def test_where_forecasts_hold_rfabric_is_never_late_and_never_behind_static(hour: Hour) -> None:
    forecast = Forecast(hour.forecast.steps, 0.0, hour.forecast.seconds, hour.forecast.reconfigure_s)
    hour = Hour(forecast, hour.before_s, hour.beside_s, hour.generation_s)
    static, rfabric = play(hour, Static()), play(hour, RFabric())
    assert rfabric.late_s == 0.0 and rfabric.seconds <= static.seconds + 1e-9
    careful = play(hour, make_network("rfabric,margin=1e9"))
    assert forecast.reconfigure_s == 0.0 or careful.topologies.tolist() == static.topologies.tolist()


def test_by_hand() -> None:
    """Topology 0 is for the pipeline, 1 for gradients. There is slack for a switch of 2 s before gradients, and not before the
    pipeline: so a switch there holds for both, and pays only if both together are shorter."""
    steps = (FabricStep(PIPELINE, 1.0, 0.0), FabricStep(GRADIENTS, 3.0, 0.0), FabricStep(WEIGHTS, 0.0, 0.0))
    forecast = Forecast(steps, 0.0, np.array([[2.0, 4.0], [9.0, 3.0], [1.0, 1.0]]), 2.0)
    hour = Hour(forecast, np.array([[1.0, 3.0, 0.0]]), np.zeros((1, 3)), np.array([0.0]))
    assert Static().first(forecast) == 1 and play(hour, Static()).seconds == 12
    assert play(hour, RFabric()).topologies.tolist() == [[1, 1, 1]]
    assert play(hour, Oracle()).topologies[0].tolist()[:2] == [0, 1] and play(hour, Oracle()).seconds == 10
    assert play(hour, Fixed(np.array([[1, 0, 1]]))).late_s == 2.0  # before the weights there is no slack


def test_the_same_seed_draws_the_same_hour() -> None:
    forecast = Forecast((FabricStep(PIPELINE, 1.0, 2.0), FabricStep(WEIGHTS, 0.5, 0.0)), 3.0, np.ones((3, 2)), 0.1)
    one, other, third = (draw_hour(forecast, 9.0, 5, 0.1, seed) for seed in (4, 4, 5))
    assert play(one, RFabric()).seconds == play(other, RFabric()).seconds != play(third, RFabric()).seconds
    assert draw_hour(forecast, 9.0, 5, 0.0, 4).before_s.tolist() == [[1.0, 0.5]] * 5
    assert not any(shown.flags.writeable for shown in (one.before_s, one.beside_s, one.generation_s))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("optical", "network policy: must be one of static, rfabric, oracle, or module:Class of your own, not 'optical'"),
        ("rfabric,margin=0", "network policy 'rfabric,margin=0': margin must be above 0, not 0"),
        ("static,margin=1", "network policy 'static,margin=1': static has no option 'margin'"),
    ],
)
def test_bad_names_are_one_line(spec: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        make_network(spec)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)
