"""Isolated provisioning: `solo` (standard disaggregation) and `colocated` (veRL's way)."""

from __future__ import annotations

from rollmux_env.cluster.events import Arrived, Event, Placement, isolated
from rollmux_env.cluster.plan import Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError


class Solo:
    """Every job on its own rollout and training nodes."""

    keeps_slo = True

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival with a new group, or let the job wait for nodes."""
        if not isinstance(event, Arrived):
            return ()
        return _place(state, event.job.id, isolated(event.job, state.cluster))


class Colocated:
    """Every job on its own training nodes, with both phases in turn.

    The nodes and phases are those of the job's `colocated` block; without one, `training.nodes` and the phases' own lengths.
    Rollouts on training nodes may be slower than on rollout nodes, so SLOs can be broken.
    """

    keeps_slo = False

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival with training nodes of the job's own, or let it wait for them.

        Raises:
            InputError: the job's `colocated.nodes` are more than the pool can ever have, or it is stale: on the same nodes its
                phases take turns.
        """
        if not isinstance(event, Arrived):
            return ()
        job = event.job
        if job.staleness:
            raise InputError(f"job {job.id}: staleness: does not go with --policy colocated, where phases take turns on one pool")
        nodes = job.colocated.nodes if job.colocated else job.training.nodes
        pool = state.cluster.pools[job.training.pool]
        if pool.max_nodes is not None and nodes > pool.max_nodes:
            raise InputError(f"job {job.id}: colocated.nodes: {nodes} nodes; the {job.training.pool} pool has {pool.max_nodes}")
        return _place(state, job.id, Placement(None, training_nodes=nodes, colocated=True))


def _place(state: State, job_id: str, placement: Placement) -> Plan:
    if state.has_room({job_id: placement}):
        return (Place(job_id, placement),)
    return (Wait(job_id),)
