"""What-if questions about a service or a run, from its present state or its journal.

Both sides are the simulation behind expected times (`rollmux_env.scheduler.ahead`), so that without a change its placements are the
`eta_s` of the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from policies.named import SWITCHES, said_of
from policies.registry import make_runnable
from policies.whatif import Change
from rollmux_env.cluster.plan import Policy, plans_switches
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError, Unprocessable
from rollmux_env.keys.job import Job
from rollmux_env.replay.whatif import INSTANTS, Projection, StateChange, WhatIf, project
from rollmux_env.scheduler.order import half_life_h
from rollmux_env.scheduler.preview import copy_policy
from runtime.journal.write import read_earlier, read_run, state_of
from runtime.owners.http.holdups import stuck_jobs
from runtime.owners.http.ledger import Ledger
from runtime.service.figures import ends_of

_LONGEST_ID = 64
_LIVE_INSTANTS = 1000
_SHARE, _LONGEST_PAUSE_S = 4, 10.0  # a pause of 4 times what an answer took, 10 s at most


class Present(NamedTuple):
    """The present of a service or a run.

    Attributes:
        target: Name of the service or the run.
        policy_name: Name and options of its placement policy.
        policy: The policy.
        seed: Seed of random policies.
        state: State of its cluster.
        now_s: Present time, in seconds of its clock.
        stuck: Jobs whose departure is unknown.
        unprofiled: Jobs that the state does not know yet.
        state_under: Function that returns the state as it would be under a policy given by name.
        earlier: Function that returns the jobs before the last roll-over of the journal, at least those that arrived after a time.
    """

    target: str
    policy_name: str
    policy: Policy
    seed: int
    state: State
    now_s: float
    stuck: Collection[str]
    unprofiled: Collection[str]
    state_under: Callable[[str], State] | None
    earlier: Callable[[float], Sequence[Job]]


def answer(present: Present, change: Change, since_s: float | None = None, instants: int = INSTANTS) -> WhatIf:
    """Simulate the present, and the present with a change.

    Args:
        present: The present.
        change: The change.
        since_s: Length of a past whose arrivals repeat from now on, in seconds, or None: then no other job arrives.
        instants: Largest number of instants that are simulated.

    Raises:
        InputError: If the change is not possible, or there is nothing to simulate; one line.
        PlanError: If a policy breaks an invariant or cannot be copied.
    """
    state, cluster, spec = present.state, present.state.cluster_with_lent, change.policy_after(present.policy_name)
    if state.switches and said_of(spec, SWITCHES) is None:
        spec += f",{SWITCHES}true"
    policy, later = (present.policy, state) if spec == present.policy_name else _under(present, spec)
    repeated = [] if since_s is None else _repeated(present, since_s)
    changed = _changed(present, change, repeated, spec != present.policy_name)
    before = project(state, present.policy, StateChange(present.now_s, coming=repeated), instants, present.stuck)
    after = project(later, policy, changed, instants, present.stuck)
    assumed = ["phases take their worst case, with one iteration per period", _since_words(since_s, len(repeated))]
    if any(job.departed_s is None for job in (*before, *after)):
        assumed.append(f"unknown (?) is what comes {_end_words(present, instants)}")
    if present.unprofiled:
        assumed.append(f"left out, not profiled yet: {', '.join(present.unprofiled)}")
    words = change.words(cluster, present.policy_name, spec)
    return WhatIf(present.target, words, tuple(assumed), Projection(present.policy_name, before), Projection(spec, after))


def _changed(present: Present, change: Change, repeated: list[Job], replans: bool) -> StateChange:
    """Return the change of the present state.

    Args:
        present: The present.
        change: The change.
        repeated: Jobs that arrive whether something changes or not.
        replans: Whether the policy changes.

    Raises:
        InputError: If the change is not possible, or there is no job; one line.
    """
    state, cluster, now_s = present.state, present.state.cluster_with_lent, present.now_s
    here = [*(job_id for group in state.group_list() for job_id in group.jobs), *state.waiting]
    if not (here or repeated or change.arriving):
        raise InputError(f"{present.target}: no job is waiting or running; --since lets past jobs arrive again, as in --since 7d")
    change.check_jobs(here)
    if taken := [job.id for job in change.arriving if state.knows(job.id)]:
        raise InputError(f"--arrives: job {taken[0]}: there has been a job of that name")
    nodes = change.nodes_after(cluster)
    if nodes:
        nodes = {name: pool.max_nodes or 0 for name, pool in cluster.pools.items()} | nodes
    arriving = [job.model_copy(update={"arrival_s": now_s + job.arrival_s}) for job in change.arriving]
    coming = sorted([*repeated, *arriving], key=lambda job: job.arrival_s)
    return StateChange(now_s, nodes, change.without, coming, replans)


def _under(present: Present, spec: str) -> tuple[Policy, State]:
    """Return another policy, and the state as it would be under it.

    Raises:
        InputError: If there is no such policy, or a running service cannot tell its state under it; one line.
    """
    policy = make_runnable(spec, present.seed)
    if present.state_under is not None:
        return policy, present.state_under(spec)
    for name, value in (("switches", plans_switches), ("half_life_h", half_life_h)):
        if value(policy) != value(present.policy):
            raise InputError(f"--policy {spec}: has another `{name}` than the service's {present.policy_name}")
    return policy, present.state


def _repeated(present: Present, since_s: float) -> list[Job]:
    """Return the jobs that arrived in the past, to arrive again after the same times."""
    state, from_s = present.state, present.now_s - since_s
    past = [*present.earlier(from_s), *(state.job(job_id) for job_id in state.tables.job_rows)]
    recent = sorted((job for job in past if job.arrival_s > from_s), key=lambda job: job.arrival_s)
    taken, again = {*state.tables.job_rows}, list[Job]()
    for job in recent:
        taken.add(job_id := _new_id(job.id, taken))
        again.append(job.model_copy(update={"id": job_id, "arrival_s": job.arrival_s + since_s}))
    return again


def _new_id(job_id: str, taken: Collection[str]) -> str:
    """Return an id that no job has had for a job that arrives again."""
    number = 2
    while (again := f"{job_id[: _LONGEST_ID - 1 - len(str(number))]}.{number}") in taken:
        number += 1
    return again


def _since_words(since_s: float | None, repeated: int) -> str:
    if since_s is None:
        return "no other job arrives"
    span = f"{since_s / 86400:g} d" if since_s >= 2 * 86400 else f"{since_s / 3600:.4g} h"
    return f"the {repeated} jobs that arrived in the last {span} arrive again, after the same times"


def _end_words(present: Present, instants: int) -> str:
    late = f", or behind the planned end of {', '.join(sorted(present.stuck))}, late or lost" if present.stuck else ""
    return f"after {instants:,} instants{late}"


def of_journal(folder: Path, target: str) -> Present:
    """Return the present of a run or a service from its journal: the last time in it.

    Args:
        folder: Folder with the journal.
        target: Name of the run or the service.

    Raises:
        InputError: If there is no journal, or it cannot be read; one line.
    """
    record = read_run(folder)
    start, ends = record.started, ends_of(record)

    def state_under(spec: str) -> State:
        return state_of(replace(record, started=replace(start, policy=spec)))

    state = state_of(record)
    unknown = [fact.spec.id for fact in record.submitted if not state.knows(fact.spec.id) and fact.spec.id not in ends]
    policy = make_runnable(start.policy, start.seed)
    earlier = partial(_earlier_jobs, folder)
    return Present(target, start.policy, policy, start.seed, state, record.last_s, (), unknown, state_under, earlier)


def _earlier_jobs(folder: Path, from_s: float) -> list[Job]:
    return [job for record in read_earlier(folder, from_s) for job in record.jobs.values()]


class LiveAnswers:
    """Answers of a running service, computed on a copy of its state in a thread, one at a time.

    Args:
        ledger: Leases of the run. The end of a job with a lost lease is unknown.
        target: Name of the service.
    """

    def __init__(self, ledger: Ledger, target: str) -> None:
        self._ledger, self._run, self._target = ledger, ledger.run, target
        self._lock, self._next_s = asyncio.Lock(), 0.0

    async def answer(self, change: Change, since_s: float | None) -> WhatIf:
        """Answer a question. The next answer begins after a pause, so that permits do not wait for answers.

        Args:
            change: The change.
            since_s: Length of the past whose arrivals repeat, in seconds, or None.

        Raises:
            Unprocessable: If the change is not possible, or the policy cannot be asked; one line.
        """
        async with self._lock:
            await asyncio.sleep(max(0.0, self._next_s - monotonic()))
            began_s = monotonic()
            try:
                return await asyncio.to_thread(answer, self._present(), change, since_s, _LIVE_INSTANTS)
            except (InputError, PlanError) as error:
                raise Unprocessable(str(error)) from None
            finally:
                self._next_s = monotonic() + min(_LONGEST_PAUSE_S, _SHARE * (monotonic() - began_s))

    def _present(self) -> Present:
        run, planner = self._run, self._run.scheduler.planner
        state = planner.shown.copy()
        unprofiled = [handle.id for handle in run.handles.values() if not (handle.life.is_gone or state.knows(handle.id))]
        name, policy = run.plan.policy, copy_policy(planner.policy)
        earlier = partial(_earlier_jobs, Path(run.plan.folder))
        return Present(
            self._target, name, policy, run.plan.seed, state, run.log.now(), stuck_jobs(self._ledger), unprofiled, None, earlier
        )
