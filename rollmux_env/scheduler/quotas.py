"""Enforcement of quotas (`cluster.quotas`): a decision may not leave a user of its jobs above the quota.

Only decisions are checked against quotas, since there is no preemption: when another user's job leaves a group, its share falls to
the remaining members, which may raise them above their quota. They get no other place until they are below it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf

import numpy as np

from rollmux_env.cluster.charges import Share
from rollmux_env.cluster.demand import demand_of, usd_per_hour
from rollmux_env.cluster.events import Placement
from rollmux_env.cluster.plan import Park, Place, Plan, Policy, Wait, carry_out
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import TOLERANCE
from rollmux_env.keys.job import Job
from rollmux_env.scheduler.nodes import PoolName


def held_words(state: State, job: Job) -> str:
    """Return in words how much of the quota a waiting job's user holds, or that the month is used up."""
    user = job.user
    if Quotas(state).bars_for_month(job):
        return describe_usage(state, user)
    return _share_words(state, user)


def _share_words(state: State, user: str) -> str:
    """Return in words how much of the quota a user holds."""
    quota, share = state.cluster.quota_of(user), state.charges.user_share(user)
    assert quota is not None
    parts = []
    if quota.nodes is not None:
        parts.append(f"{share.nodes:.4g} of {quota.nodes} nodes")
    if quota.usd_per_hour is not None:
        parts.append(f"{share.usd_per_hour:,.2f} of {quota.usd_per_hour:,.2f} $/h")
    return f"{_name_user(user)} holds {' and '.join(parts)}"


def describe_usage(state: State, user: str, at_s: float | None = None) -> str:
    """Return in words how much of the month a user has used. Arguments are those of `is_used_up`."""
    quota = state.cluster.quota_of(user)
    assert quota is not None
    used_h = state.charges.month_h(user, state.now_s if at_s is None else at_s)
    return f"{_name_user(user)} has used {used_h:.4g} of {quota.node_hours:.4g} node-hours of this month"


def _name_user(user: str) -> str:
    return f"user {user}" if user else "the user without a name"


def is_used_up(state: State, user: str, at_s: float | None = None) -> bool:
    """Return whether a user's jobs have been charged all node-hours that they may have in this month.

    Args:
        state: State of the cluster.
        user: Name of the user.
        at_s: Time of the question, near that of the state, in seconds, or None for that of the state.
    """
    quota = state.cluster.quota_of(user)
    if quota is None or quota.node_hours is None:
        return False
    return state.charges.month_h(user, state.now_s if at_s is None else at_s) >= quota.node_hours * (1 - TOLERANCE)


def is_above(state: State, user: str, share: Share) -> bool:
    """Return whether a share is above a user's quota."""
    return _is_more(share, _quota(state, user))


def _quota(state: State, user: str) -> Share:
    """Return the largest share that a user may hold, infinite without a limit."""
    quota = state.cluster.quota_of(user)
    nodes, usd = (None, None) if quota is None else (quota.nodes, quota.usd_per_hour)
    return Share(inf if nodes is None else nodes, inf if usd is None else usd)


def lending_quota_reason(state: State, user: str, nodes: Mapping[PoolName, int]) -> str:
    """Return why a user's quota allows no more nodes for a job that is profiled, in words, or an empty text.

    Args:
        state: State of the cluster.
        user: Name of the job's user.
        nodes: Number of nodes that it asks for, by pool.
    """
    if state.cluster.quota_of(user) is None:
        return ""
    if is_used_up(state, user):
        return describe_usage(state, user)
    pools, share = state.cluster.pools, state.charges.user_share(user)
    usd = sum(count * pools[name].usd_per_node_hour for name, count in nodes.items() if name in pools)
    lent = Share(share.nodes + sum(nodes.values()), share.usd_per_hour + usd)
    return _share_words(state, user) if is_above(state, user, lent) else ""


def exceeded(before: State, after: State, users: Iterable[str]) -> set[str]:
    """Return the users who hold more than their quota in a state, and more than in the state before it."""
    shares = {user: (before.charges.user_share(user), after.charges.user_share(user)) for user in users}
    return {user for user, (old, new) in shares.items() if _breaks(before, user, old, new)}


class Quotas:
    """Checks of plans and of waiting jobs against quotas. An object is valid while the state does not change."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._least: dict[tuple[str, str, str, int], bool] = {}
        self._shares: dict[str, Share] = {}
        self._used_up: dict[str, bool] = {}

    def broken(self, plan: Plan, policy: Policy, queue: Sequence[str] | None = None) -> set[str]:
        """Return the users whose quota a plan breaks.

        They are users of jobs that it places or moves, who would hold more than their quota and more than now.

        Args:
            plan: Plan to check.
            policy: Policy that made it.
            queue: Waiting jobs in order, or None for that of the state.

        Raises:
            PlanError: If the plan breaks an invariant.
        """
        state = self._state
        jobs = [state.job(action.job_id) for action in plan if not isinstance(action, Wait | Park) and state.knows(action.job_id)]
        named = {job.user for job in jobs if state.cluster.quota_of(job.user) is not None}
        if not named:
            return set()
        if (
            len(plan) == 1
            and isinstance(plan[0], Place)
            and (share := self._compute_share_with(jobs[0], plan[0].placement)) is not None
        ):
            return {jobs[0].user} if _breaks(state, jobs[0].user, self._user_share(jobs[0].user), share) else set()
        twin = state.copy()
        carry_out(twin, plan, policy.keeps_slo, len(twin.waiting), queue)
        return exceeded(state, twin, named)

    def _compute_share_with(self, job: Job, placement: Placement) -> Share | None:
        """Return the share of a job's user with the job in a place, or None if there is no such place."""
        state, user, share = self._state, job.user, self._user_share(job.user)
        demand = demand_of(job, state.cluster, placement.shape)
        new_usd = usd_per_hour(demand, state.cluster, placement.new_rollout_nodes, placement.training_nodes)
        new = Share(placement.new_rollout_nodes + placement.training_nodes, new_usd)
        if placement.group is None:
            return Share(share.nodes + new.nodes, share.usd_per_hour + new.usd_per_hour)
        row = state.tables.group_rows.get(placement.group)
        if row is None:
            return None
        group = state.view.groups[row]
        members = group["members"][: group["n_members"]].tolist()
        own, among = sum(state.job(state.tables.job_id(member)).user == user for member in members), len(members)
        nodes = int(group["n_nodes"] + group["training_nodes"])
        # The group has nodes of the job's pools.
        usd = usd_per_hour(demand, state.cluster, int(group["n_nodes"]), int(group["training_nodes"]))
        mine, ours = own / among, (own + 1) / (among + 1)  # the user's part of the group, before and with the job
        return Share(
            share.nodes - mine * nodes + ours * (nodes + new.nodes),
            share.usd_per_hour - mine * usd + ours * (usd + new.usd_per_hour),
        )

    def bars_for_month(self, job: Job) -> bool:
        """Return whether a waiting job gets no place in this month. A job that has had one continues."""
        if job.user not in self._used_up:
            self._used_up[job.user] = is_used_up(self._state, job.user)
        return self._used_up[job.user] and not self._state.charges.has_begun(self._state.row(job.id))

    def bars(self, job: Job) -> bool:
        """Return whether a job is barred for this month, or would take its user above the quota in every shape.

        The latter is checked for a group with no other member and for every group with room.
        """
        state, user = self._state, job.user
        if state.cluster.quota_of(user) is None:
            return False
        return self.bars_for_month(job) or all(self._bars(job, shape) for shape in range(1 + len(job.shapes)))

    def _bars(self, job: Job, shape: int) -> bool:
        state, user = self._state, job.user
        demand = demand_of(job, state.cluster, shape)
        rollout_nodes, training_nodes = demand.rollout_nodes, demand.training_nodes
        if job.colocated is not None and job.colocated.nodes < rollout_nodes + training_nodes:
            rollout_nodes, training_nodes = 0, min(training_nodes, job.colocated.nodes)
        share, own_usd = self._user_share(user), usd_per_hour(demand, state.cluster, rollout_nodes, training_nodes)
        alone = Share(share.nodes + rollout_nodes + training_nodes, share.usd_per_hour + own_usd)
        if not is_above(state, user, alone):
            return False
        key = user, demand.rollout_pool, demand.training_pool, demand.training_nodes
        if key not in self._least:
            self._least[key] = not self._joins(*key)
        return self._least[key]

    def _user_share(self, user: str) -> Share:
        if user not in self._shares:
            self._shares[user] = self._state.charges.user_share(user)
        return self._shares[user]

    def _joins(self, user: str, rollout_pool: str, training_pool: str, training_nodes: int) -> bool:
        """Return whether a job of the user could join a group without new nodes."""
        state, limits, order = self._state, self._state.limits, self._state.tables.order
        if not order.size:
            return False
        groups = state.tables.group_records
        members, numbers, usd_of = groups["n_members"][order], [*state.cluster.pools], limits.pools["usd"]
        room = (
            (members < limits.group_size_max)
            & (groups["rollout_pool"][order] == numbers.index(rollout_pool))
            & (groups["training_pool"][order] == numbers.index(training_pool))
            & (groups["training_nodes"][order] >= training_nodes)
            & (groups["exclusive"][order] == 0)
        )
        if not room.any():
            return False
        nodes = (groups["n_nodes"][order] + groups["training_nodes"][order]).astype(float)
        usd = groups["n_nodes"][order] * usd_of[groups["rollout_pool"][order]]
        usd = usd + groups["training_nodes"][order] * usd_of[groups["training_pool"][order]]
        mine = Counter(int(state.tables.job_records["group"][row]) for row in state.charges.running(user))
        own = np.array([mine.get(int(row), 0) for row in order])
        more = (own + 1) / (members + 1) - own / members  # smallest increase of the user's part of each group
        share, most = self._user_share(user), _quota(state, user)
        fits = share.nodes + more * nodes <= most.nodes * (1 + TOLERANCE)
        fits &= share.usd_per_hour + more * usd <= most.usd_per_hour * (1 + TOLERANCE)
        return bool((room & (fits | (more <= TOLERANCE))).any())


def _breaks(state: State, user: str, before: Share, after: Share) -> bool:
    """Return whether a user's share grows beyond the quota."""
    return _is_more(after, before) and is_above(state, user, after)


def _is_more(share: Share, than: Share) -> bool:
    nodes, usd = share.nodes > than.nodes * (1 + TOLERANCE), share.usd_per_hour > than.usd_per_hour * (1 + TOLERANCE)
    return nodes or usd
