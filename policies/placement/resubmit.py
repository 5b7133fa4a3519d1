"""The policy `resubmit`: after durations have drifted, the newest member of a group is placed again (RollMux, section 6.6)."""

from __future__ import annotations

from policies.api import Move, Plan, State, cheapest
from policies.placement.planned import running_rows
from policies.placement.regroup import Regroup, can_move
from rollmux_env.kernel.tables import TOLERANCE


class Resubmit(Regroup):
    """Placement policy that admits jobs by Algorithm 1, and moves a member of a group whose observed load reaches its cycle.

    A group counts as drifted if it is saturated (T_load >= T_cycle) by observed durations but not by planned ones, or if observed
    durations break an SLO. Its newest movable member then goes where Algorithm 1 places it by observed durations, and pays for the
    move. Durations are observed as in `Regroup`. A fluid replay observes none, so no job moves there.

    Args:
        every_s: Time between checks, seconds. At each check one job may move.
        prune: Whether Algorithm 1 skips saturated groups.
    """

    def __init__(self, every_s: float = 900.0, prune: bool = True) -> None:
        super().__init__(every_s, prune)

    def _regroup(self, state: State) -> Plan:
        rows = running_rows(state)
        view = self._view(state, rows) if rows else state
        if view is state:
            return ()
        planned, observed = state.tables.groups, view.tables.groups
        full = [groups.load_s >= groups.cycle_s * (1 - TOLERANCE) for groups in (planned, observed)]
        late = (full[1] & ~full[0]) | (observed.period_s > observed.limit_s * (1 + TOLERANCE))
        for group in view.tables.order.tolist():
            members = observed.members[group, : observed.n_members[group]].tolist()
            if not late[group] or len(members) < 2 or observed.exclusive[group]:
                continue
            for job_id in (view.tables.job_id(row) for row in reversed(members)):
                placement = cheapest(view, job_id, self.prune) if can_move(state, job_id) else None
                if placement is not None and state.has_room({job_id: placement}):
                    return (Move(job_id, placement),)
        return ()
