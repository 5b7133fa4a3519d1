"""Tables are copied as a whole: the same rows as column by column, and nothing is shared."""

from __future__ import annotations

import numpy as np
import pytest

from rollmux_env.kernel.tables import Records, begin_with, copied, group_table, job_table, joined


def table(rows: int, first: int = 0) -> Records:
    """Jobs with other numbers in every row and column."""
    jobs = job_table(rows, 4, 2)
    for k, name in enumerate(jobs.dtype.names):
        jobs[name] = (1000 * k + first + np.arange(rows)).reshape(-1, *[1] * (jobs[name].ndim - 1))
    return jobs


def test_a_copy_has_the_same_rows_and_is_not_written_with_the_table() -> None:
    jobs = table(5)
    twin = copied(jobs)
    assert twin.dtype == jobs.dtype and twin.tobytes() == jobs.tobytes()
    jobs["done"] = -1.0
    assert (twin["done"] >= 0.0).all()


def test_tables_are_joined_one_behind_the_other() -> None:
    both = joined(table(2), table(3, 10))
    assert both.tobytes() == table(2).tobytes() + table(3, 10).tobytes()


@pytest.mark.parametrize("members", [6, 12])
def test_rows_are_written_first_into_a_table_that_may_be_wider(members: int) -> None:
    groups, wider = group_table(2, 6, 24), group_table(5, members, 24)
    groups["members"], groups["period_s"], wider["period_s"] = np.arange(6), [7.0, 8.0], 1.0
    begin_with(wider, groups)
    assert wider["period_s"].tolist() == [7.0, 8.0, 1.0, 1.0, 1.0]
    assert wider["members"][:2, :6].tolist() == [[*range(6)]] * 2
    assert not wider["members"][2:].any()
