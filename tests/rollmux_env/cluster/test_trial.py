"""A trial of a park: the block sees the state with the job parked, and afterwards nothing has changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from policies.registry import make_runnable
from rollmux_env.bench.streams import owned
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import fits
from rollmux_env.cluster.events import Parked
from rollmux_env.cluster.state import State
from rollmux_env.cluster.trial import may_fit_without, without_job
from rollmux_env.replay.fluid import replay
from rollmux_env.scheduler import serving


def contents(state: State) -> list[Any]:
    """Everything that events change."""
    tables, charges = state.tables, state.charges
    rows = range(len(tables.models))
    return [
        tables.job_records.tobytes(),
        tables.group_records.tobytes(),
        tables.departs_s[tables.order].tolist(),
        [*tables.group_rows.items()],
        [*state.waiting],
        state.nodes.tolist(),
        [(charges.usd(row, state.now_s), charges.share(row)) for row in rows],
        [charges.usage_h(user, state.now_s) for user in sorted({tables.models[row].user for row in rows})],
        [*state.stays.placed_at_s.items()],
        [*state.stays.parked.items()],
    ]


@pytest.mark.parametrize("options", ["", ",switches=true"])
def test_a_trial_is_the_park_and_leaves_no_trace(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trials, fit = 0, list[bool]()

    def is_right(state: State, job_id: str, other: str) -> bool:
        before, twin, may_fit = contents(state), state.copy(), may_fit_without(state, job_id, other)
        apply(twin, Parked(state.now_s, other))
        assert may_fit or not fits(twin.view, twin.row(job_id))
        assert contents(state) == before
        fit.append(may_fit)
        return may_fit

    @contextmanager
    def checked(state: State, job_id: str) -> Iterator[State]:
        nonlocal trials
        before, twin = contents(state), state.copy()
        apply(twin, Parked(state.now_s, job_id))
        with without_job(state, job_id) as trial:
            assert contents(trial) == contents(twin)
            yield trial
        assert contents(state) == before
        trials += 1

    monkeypatch.setattr(serving, "without_job", checked)
    monkeypatch.setattr(serving, "may_fit_without", is_right)
    replay(owned("mixed", 2.2, 1, jobs=20), make_runnable(f"rollmux,prune=false,order=area,park=true{options}"))
    assert trials > 5
    assert options or 5 < sum(fit) == trials < len(fit)
