"""The compiled period is the growth rate of strict round robin, whatever the pinning, sync and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.kernel.period import exact_period, period_bound
from rollmux_env.kernel.tables import Floats, Ints
from tests.oracle.draw import Member as Drawn
from tests.oracle.draw import examples, group_members, seconds
from tests.oracle.period import Member, period, period_of_cycles

Columns = tuple[Floats, Ints, int, int]


def arrays(members: Sequence[Member]) -> Columns:
    phases = np.array([(*member[:3], sum(member[4:])) for member in members], dtype=float).T.copy()
    n_nodes = 1 + max(node for m in members for node in m[3])
    pinned = np.zeros((len(members), n_nodes), np.int64)
    for i, member in enumerate(members):
        pinned[i, list(member[3])] = 1
    return phases, pinned, len(members), n_nodes


def kernel_period(members: Sequence[Member]) -> float:
    columns = arrays(members)
    return exact_period(*columns, period_bound(*columns))


def test_rollouts_over_several_nodes_exceed_the_closed_form() -> None:
    members = [(20, 11, 0, {1}), (13, 3, 0, {0, 1, 2}), (20, 15, 0, {0})]
    assert period_bound(*arrays(members)) == 35
    assert kernel_period(members) == period(members) == 39.5


def test_sync_exceeds_the_closed_form() -> None:
    members = [(5, 5, 0, {0}), (5, 5, 10, {0}), (10, 10, 0, {0})]
    assert period_bound(*arrays(members)) == 20
    assert kernel_period(members) == period(members) == 22.5


def test_sync_of_a_stale_job_binds_although_each_phase_is_shorter() -> None:
    alone = [(59.44, 57.31, 5, {0}, 1)]
    assert kernel_period(alone) == pytest.approx(60.875, rel=1e-12) and period(alone) == period_of_cycles(alone)
    assert alone_s(59.44, 57.31, 5, 1) == kernel_period(alone)


def test_two_stale_members_with_sync_exceed_the_closed_form() -> None:
    """From the first one's rollout by its training, the second's training and sync to that one's rollout: three meta-iterations."""
    members = [(5, 5, 0, {0}, 1), (0.5, 0.5, 8, {0}, 1)]
    assert period_bound(*arrays(members)) == 5.5
    assert kernel_period(members) == pytest.approx(19 / 3, rel=1e-12)
    assert float(period(members)) == pytest.approx(19 / 3, rel=1e-12)


@examples(150)
@given(seconds(True), seconds(True), st.just(0.0) | seconds(True), st.integers(0, 64))
def test_the_closed_form_of_a_job_alone(rollout: float, training: float, sync: float, staleness: int) -> None:
    solo_s = alone_s(rollout, training, sync, staleness)
    assert kernel_period([(rollout, training, sync, {0}, staleness)]) == solo_s
    assert solo_s == pytest.approx(float(period_of_cycles([(rollout, training, sync, {0}, staleness)])), rel=1e-12)


@examples(150)
@given(group_members(fine=True))
def test_the_two_plain_definitions_agree(members: list[Drawn]) -> None:
    assert period(members) == period_of_cycles(members)


@examples(500)
@given(group_members(fine=False, max_members=6, max_nodes=5))
def test_period_of_whole_numbers(members: list[Drawn]) -> None:
    assert kernel_period(members) == pytest.approx(float(period(members)), rel=1e-12)


@examples(500)
@given(group_members(fine=True, max_members=6, max_nodes=5))
def test_period_of_fractions(members: list[Drawn]) -> None:
    assert kernel_period(members) == pytest.approx(float(period(members)), rel=1e-12)


@examples(200)
@given(group_members(max_members=5, max_nodes=3), st.data())
def test_period_of_extreme_durations(members: list[Drawn], data: st.DataObject) -> None:
    scales = st.sampled_from([1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9])
    scaled = [(r * data.draw(scales), t * data.draw(scales), s * data.draw(scales), nodes, e) for r, t, s, nodes, e in members]
    assert kernel_period(scaled) == pytest.approx(float(period_of_cycles(scaled)), rel=1e-9)


@examples(200)
@given(st.lists(st.tuples(seconds(True), seconds(True), st.sampled_from([0, 0, 1, 3])), min_size=1, max_size=6), st.data())
def test_closed_form_where_every_member_is_on_one_node_without_sync(
    phases: list[tuple[float, float, int]], data: st.DataObject
) -> None:
    """The contract's known fact: exactly max(T_cycle, T_load), with any number of rollout nodes in the group; so it is where
    members are stale."""
    members = [(r, t, 0.0, [data.draw(st.integers(0, 2))], e) for r, t, e in phases]
    loads = [sum(r for r, _, _, nodes, _ in members if node in nodes) for node in range(3)]
    closed = max(*(alone_s(r, t, 0.0, e) for r, t, e in phases), sum(t for _, t, _ in phases), *loads)
    assert kernel_period(members) == pytest.approx(closed, rel=1e-12)
    assert float(period(members)) == pytest.approx(closed, rel=1e-12)


@examples(200)
@given(group_members(fine=True), st.data())
def test_period_never_falls_when_a_phase_gets_longer(members: list[Drawn], data: st.DataObject) -> None:
    k, phase = data.draw(st.integers(0, len(members) - 1)), data.draw(st.integers(0, 2))
    extra = [0.0, 0.0, 0.0]
    extra[phase] = data.draw(seconds(True))
    r, t, s, nodes, e = members[k]
    longer = [*members[:k], (r + extra[0], t + extra[1], s + extra[2], nodes, e), *members[k + 1 :]]
    assert kernel_period(longer) >= kernel_period(members) * (1 - 1e-12)


@examples(200)
@given(group_members(fine=True, max_members=6), st.data())
def test_more_staleness_never_lengthens_a_period(members: list[Drawn], data: st.DataObject) -> None:
    k, more = data.draw(st.integers(0, len(members) - 1)), data.draw(st.integers(1, 4))
    r, t, s, nodes, e = members[k]
    staler = [*members[:k], (r, t, s, nodes, e + more), *members[k + 1 :]]
    assert kernel_period(staler) <= kernel_period(members) * (1 + 1e-12)


@examples(200)
@given(group_members(fine=True, max_members=6), st.data())
def test_period_never_falls_when_a_member_comes_in(members: list[Drawn], data: st.DataObject) -> None:
    assume(len(members) > 1)
    k = data.draw(st.integers(0, len(members) - 1))
    assert kernel_period(members) >= kernel_period(members[:k] + members[k + 1 :]) * (1 - 1e-12)


@examples(100)
@given(group_members(fine=True), st.integers(0, 5))
def test_period_does_not_depend_on_which_member_the_round_begins_with(members: list[Drawn], shift: int) -> None:
    """Admission order matters only up to rotation: round robin has no first member in steady state."""
    k = shift % len(members)
    assert kernel_period(members[k:] + members[:k]) == pytest.approx(kernel_period(members), rel=1e-12)
