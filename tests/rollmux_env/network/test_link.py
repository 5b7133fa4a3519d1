"""Flows on one link, against the definition of max-min fairness in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.network.link import SharedLink, fair_level, slowed_s
from tests.oracle.draw import examples

RATES = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def filled(rates: list[int], capacity: int) -> list[Fraction]:
    """Max-min fair rates by their definition: all grow together until their own rate, or the link, holds them up."""
    got = [Fraction(0)] * len(rates)
    while growing := [k for k, rate in enumerate(rates) if got[k] < rate]:
        more: Fraction = min(min(rates[k] - got[k] for k in growing), (capacity - sum(got, Fraction(0))) / len(growing))
        if not more:
            break
        for k in growing:
            got[k] += more
    return got


def ends(flows: list[tuple[int, int, int]], capacity: int) -> list[Fraction]:
    """When flows (begins, seconds, rate) end, by the same definition."""
    left = [Fraction(seconds * rate) for _, seconds, rate in flows]
    ended: dict[int, Fraction] = {}
    now = Fraction(0)
    while len(ended) < len(flows):
        there = [k for k, (begins, _, _) in enumerate(flows) if begins <= now and k not in ended]
        rates = filled([flows[k][2] for k in there], capacity)
        coming = [Fraction(begins) for begins, _, _ in flows if begins > now]
        until = min([now + left[k] / rate for k, rate in zip(there, rates, strict=True)] + coming)
        for k, rate in zip(there, rates, strict=True):
            left[k] -= (until - now) * rate
            if not left[k]:
                ended[k] = until
        now = until
    return [ended[k] for k in range(len(flows))]


@examples(300)
@given(RATES, st.integers(1, 30))
def test_the_level_gives_max_min_fair_rates(rates: list[int], capacity: int) -> None:
    level = fair_level(rates, capacity)
    assert [min(rate, level) for rate in rates] == pytest.approx([float(rate) for rate in filled(rates, capacity)], rel=1e-12)
    assert (level == inf) == (sum(rates) <= capacity)


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10), st.integers(1, 12)), min_size=1, max_size=6), st.integers(12, 20))
def test_flows_end_when_they_do_by_definition(flows: list[tuple[int, int, int]], capacity: int) -> None:
    link: SharedLink[int] = SharedLink(capacity)
    found: dict[int, float] = {}
    for k in sorted(range(len(flows)), key=lambda k: flows[k][0]):
        while (ended := link.finish(flows[k][0])) is not None:
            found[ended[0]] = ended[1]
        link.add(k, flows[k][1], flows[k][2], flows[k][0])
    while (ended := link.finish(inf)) is not None:
        found[ended[0]] = ended[1]
    assert [found[k] for k in range(len(flows))] == pytest.approx([float(end) for end in ends(flows, capacity)], rel=1e-9)
    slowest = fair_level([rate for _, _, rate in flows], capacity)
    for k, (begins_s, seconds, rate) in enumerate(flows):
        assert seconds - 1e-9 <= found[k] - begins_s <= slowed_s(seconds, rate, slowest) * (1 + 1e-9)


def test_a_flow_that_meets_nobody_ends_to_the_bit_as_if_it_had_the_link_for_itself() -> None:
    link: SharedLink[str] = SharedLink(10.0)
    link.add("a", 0.1 + 0.2, 4.0, 0.7)
    link.add("b", 5.0, 6.0, 0.8)
    assert link.finish(2.0) == ("a", 0.7 + (0.1 + 0.2)) and link.finish(5.0) is None and link.finish(6.0) == ("b", 5.8)
    assert link.next_s == inf


def test_a_flow_that_is_cut_off_leaves_its_share_to_the_others() -> None:
    link: SharedLink[str] = SharedLink(1.0)
    link.add("a", 4.0, 1.0, 0.0)
    link.add("b", 4.0, 1.0, 0.0)
    link.drop("b", 2.0)
    assert "b" not in link and link.finish(inf) == ("a", 5.0)
