"""Theorem 1 of the paper, on one node pair without sync: what it holds for, by trying all orders, and what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations_with_replacement

import pytest

from tests.oracle.orders import ROLLOUT, all_orders, utilization
from tests.rollmux_env.kernel.test_period import kernel_period

Jobs = Sequence[tuple[int, int]]  # (rollout, training) seconds of each

PAIRS: list[Jobs] = list(combinations_with_replacement([(r, t) for r in range(1, 5) for t in range(1, 5)], 2))
TRIPLES: list[Jobs] = list(
    combinations_with_replacement([(1, 1), (1, 2), (3, 1), (2, 3), (4, 4), (6, 5), (2, 7), (9, 9), (5, 12)], 3)
)


def is_unsaturated(jobs: Jobs) -> bool:
    return max(sum(r for r, _ in jobs), sum(t for _, t in jobs)) < max(r + t for r, t in jobs)


def of_round_robin(jobs: Jobs) -> float:
    """U_R + U_T at the compiled period."""
    return sum(r + t for r, t in jobs) / kernel_period([(r, t, 0, {0}) for r, t in jobs])


def best_of(jobs: Jobs, counts: list[int]) -> Fraction:
    return max(utilization(jobs, *order) for order in all_orders(counts))


@pytest.mark.parametrize("groups", [PAIRS, TRIPLES], ids=["pairs", "triples"])
def test_no_order_of_one_run_each_beats_round_robin(groups: list[Jobs]) -> None:
    tried = [jobs for jobs in groups if is_unsaturated(jobs)]
    assert len(tried) > 20
    for jobs in tried:
        assert of_round_robin(jobs) == pytest.approx(float(best_of(jobs, [1] * len(jobs))), rel=1e-12)


@pytest.mark.parametrize(("others", "longest"), [(1, 2), (2, 2), (2, 3)])
def test_none_does_where_no_member_runs_more_often_than_the_longest(others: int, longest: int) -> None:
    """It takes T_cycle a run, so every order of c runs takes c T_cycle at least."""
    for jobs in filter(is_unsaturated, PAIRS):
        counts = [others, others]
        counts[max(range(2), key=lambda k: sum(jobs[k]))] = longest
        assert best_of(jobs, counts) <= of_round_robin(jobs) * (1 + 1e-12)


def test_two_members_that_run_twice_a_round_beat_round_robin() -> None:
    """The theorem's limit: the longest job waits (a round of 23 s, not 19), the others gain more than it loses."""
    jobs = [(2, 1), (10, 9), (1, 2)]
    assert is_unsaturated(jobs)
    assert of_round_robin(jobs) == pytest.approx(25 / 19)
    assert utilization(jobs, ((0, 0, 2, 1, 2), (0, 1, 0, 2, 2)), (0, 1, 0)) == Fraction(31, 23)
    assert best_of(jobs, [1, 1, 1]) == Fraction(25, 19)


def test_starving_the_longest_member_beats_round_robin() -> None:
    jobs = [(10, 10), (5, 4), (4, 5)]
    assert is_unsaturated(jobs)
    assert of_round_robin(jobs) == pytest.approx(1.9)
    assert utilization(jobs, ((1, 2), (1, 2)), (ROLLOUT,) * 3) == 2
