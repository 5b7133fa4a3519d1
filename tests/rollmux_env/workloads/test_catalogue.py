"""The paper's numbers are what the paper prints."""

from __future__ import annotations

import pytest

from rollmux_env.errors import InputError
from rollmux_env.workloads.catalogue import PHASES_S, make_job, memory_gb, paper_cluster, switches


def test_prices_of_a_node() -> None:
    cluster = paper_cluster()
    assert cluster.pools["rollout"].usd_per_node_hour == pytest.approx(8 * 1.85)
    assert cluster.pools["training"].usd_per_node_hour == pytest.approx(8 * 5.28)
    assert cluster.max_group_size == 5


def test_a_type_becomes_a_job_with_its_figures() -> None:
    job = make_job("7B-8k", "math", slo=1.2, iterations=7)
    assert (job.rollout.worst_case_s, job.training.worst_case_s) == (133.8, 112.8)
    assert (job.rollout.host_memory_gb, job.training.host_memory_gb) == (275.7, 240.0)
    assert job.colocated is not None
    assert (job.colocated.rollout_s, job.colocated.training_s) == (159.6, 98.2)
    assert job.solo_s == pytest.approx(246.6)
    assert job.rollout.switch.cold_s == 0


def test_32b_takes_two_nodes_of_each_pool() -> None:
    for kind in PHASES_S:
        job = make_job(kind, "j", iterations=1)
        expected = 2 if kind.startswith("32B") else 1
        assert (job.rollout.nodes, job.training.nodes) == (expected, expected)
        assert job.colocated is not None and job.colocated.nodes == expected


def test_sizes_without_a_column_lie_between_their_neighbours() -> None:
    assert memory_gb(4) == pytest.approx((113.4 + (275.7 - 113.4) / 4, 156.2 + (240.0 - 156.2) / 4), abs=0.06)
    assert memory_gb(8) == pytest.approx((275.7 + (445.4 - 275.7) / 7, 240.0 + (456.1 - 240.0) / 7), abs=0.06)
    rollout, training = switches(4)
    assert 25.3 < rollout.cold_s < 38.8
    assert 1.9 < training.warm_s < 4.1


def test_switches_are_printed_figures_on_request() -> None:
    job = make_job("14B-4k", "j", duration_s=1.0, with_switches=True)
    assert (job.rollout.switch.cold_s, job.rollout.switch.warm_s) == (60.4, 1.8)
    assert (job.training.switch.cold_s, job.training.switch.warm_s) == (59.0, 4.7)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(InputError, match=r"^type: must be one of 3B-4k, .*, not '5B-4k'; did you mean 8B-4k\?$"):
        make_job("5B-4k", "j", iterations=1)
