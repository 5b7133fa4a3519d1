"""Service of the queue: the policy is asked about waiting jobs in order, and running jobs may be parked for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from time import perf_counter
from typing import NamedTuple

from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Arrived, Requeued, Warm
from rollmux_env.cluster.link import waits_for_link
from rollmux_env.cluster.plan import Park, Place, Plan, Policy, Wait
from rollmux_env.cluster.state import State
from rollmux_env.cluster.trial import may_fit_without, without_job
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.asking import ask, ask_for_moves
from rollmux_env.scheduler.confined import list_freed_nodes, plan_confined
from rollmux_env.scheduler.nodes import POOLS
from rollmux_env.scheduler.order import may_be_passed, rows_of
from rollmux_env.scheduler.parking import ParkingCandidates
from rollmux_env.scheduler.planner import Planner
from rollmux_env.scheduler.quotas import Quotas
from rollmux_env.scheduler.reasons import alone_because
from rollmux_env.scheduler.relocation import without
from rollmux_env.scheduler.room import may_fit


class _Pass(NamedTuple):
    """A pass over the waiting jobs, valid until one gets a placement.

    Attributes:
        state: State with the decisions so far.
        queue: Waiting jobs in order.
        positions: Positions in the queue of the jobs that may get a placement or end the pass, ascending.
        fits: Flags of all waiting jobs, in the order of the queue: whether one may fit at all.
        quotas: Quotas in the state.
        parkable: Running jobs that may be parked for the waiting ones, or None if they are found for each job.
    """

    state: State
    queue: list[str]
    positions: Sequence[int]
    fits: Sequence[bool]
    quotas: Quotas
    parkable: ParkingCandidates | None


class QueueServer:
    """The part of a scheduler that lets jobs arrive and gives waiting jobs their places.

    Args:
        planner: Owner of the state, which carries out the plans.

    Attributes:
        decision_s: Seconds that each call of the policy for a waiting job has taken.
        why: Reasons why jobs that got a new group joined no other one, by id; None if reasons are not recorded.
        settle: Function that assigns nodes to groups as the state says; the given job gets the nodes of `Planner.own_nodes`.
    """

    def __init__(self, planner: Planner) -> None:
        self.decision_s: list[float] = []
        self.why: dict[str, str] | None = None
        self.settle: Callable[[str], None] = _settle_nothing
        self._planner = planner
        self._rearranges = hasattr(planner.policy, "rearrange")
        self._head: str | None = None  # first job that waits for nodes, not for a quota
        self._head_is_known = not planner.state.waiting  # whether `_head` is up to date

    def admit(self, now_s: float, arriving: Iterable[facts.Queued], asks: bool) -> None:
        """Serve the queue from its head, then handle arrivals: the last part of an instant. With rules, arrivals come first.

        Args:
            now_s: Time of the instant, in seconds.
            arriving: Jobs that arrive.
            asks: Whether the policy may be asked now; otherwise it is asked later.
        """
        planner, rules = self._planner, self._planner.rules
        asks = asks and planner.reserved is None
        if rules is None:
            self._serve_and_join(now_s, arriving, asks)
        else:
            for arrival in arriving:
                self._join(now_s, arrival, asks)
            if asks:
                self._serve(now_s)
        planner.arriving_with_nodes.clear()
        if self._rearranges and asks and planner.reserved is None:
            planner.move(ask_for_moves(planner.policy, planner.shown))
        planner.find_next_s(now_s)

    def _serve_and_join(self, now_s: float, arriving: Iterable[facts.Queued], asks: bool) -> None:
        """Serve a first-come queue, and then let jobs arrive one after the other."""
        if asks and self._planner.queue_may_advance:
            self._serve(now_s)
        for arrival in arriving:
            self._join(now_s, arrival, asks)
            if asks and (position := self._first_to_ask(arrival.job.id)) is not None:
                self._serve(now_s, position)

    def _join(self, now_s: float, arrival: facts.Queued, asks: bool) -> None:
        """Let a job join the queue."""
        job, again, node_names = arrival
        self._planner.note((Requeued if again else Arrived)(now_s, job))
        if node_names:
            self._planner.arriving_with_nodes[job.id] = node_names
        if not asks:
            self._planner.queue_may_advance = True

    def _first_to_ask(self, job_id: str) -> int | None:
        """Return the position in the queue of the first job to ask about after a job's arrival.

        It is None if the new job waits behind one that waits for nodes.
        """
        waiting = self._planner.state.waiting
        if waiting[0] == job_id:
            return 0
        if not self._planner.state.cluster.quotas:
            return None
        if not self._head_is_known:
            return 0
        position = waiting.index(job_id)
        return position if self._head is None or self._head in waiting[position:] else None

    def _serve(self, now_s: float, position: int = 0) -> None:
        """Ask the policy about the waiting jobs in order, and begin again whenever one gets a placement.

        A job above its quota is passed over. Another one without a placement ends the pass, unless a running job can be parked for
        it, or the rules allow to pass it over.

        Args:
            now_s: Time of the instant, in seconds.
            position: Position to begin at: earlier jobs have been passed over, and nothing has changed since.
        """
        self._planner.queue_may_advance, self._head_is_known, self._head = False, True, None
        while self._pass_over(now_s, position):
            position = 0

    def _pass_over(self, now_s: float, position: int) -> bool:
        """Go through the queue until a job gets a placement, and return whether to begin again; arguments as in `_serve`."""
        planner, rules = self._planner, self._planner.rules
        one_pass = self._begin_pass(position)
        for at in one_pass.positions:
            event = Arrived(now_s, one_pass.state.job(one_pass.queue[at]))
            if placed := self._try_to_place(one_pass, at, event):
                return True
            if placed is None:
                continue
            if rules is not None and rules.park and self._park_for(one_pass, at, event, rules.factor):
                return event.job.id not in planner.restrictions.confined  # else jobs behind it might get its nodes
            if rules is None or not may_be_passed(one_pass.state, rules, event.job.id):
                self._head = event.job.id
                return False
        return False

    def _begin_pass(self, position: int) -> _Pass:
        """Return the waiting jobs in order, and those to ask about from a position on.

        With backfill and a policy that moves no other jobs, these are the jobs that may fit, that a running job may be parked for,
        or that have waited too long to be passed over.
        """
        planner, rules, state = self._planner, self._planner.rules, self._planner.planned
        queue = planner.ranker.rank_jobs(state)
        positions: Sequence[int] = range(position, len(queue))
        fits: Sequence[bool] = [True] * len(queue)
        parkable: ParkingCandidates | None = None
        if queue and rules is not None and rules.backfill and only_places(planner.policy):
            fits = may_fit(planner.visible(state), rows_of(state, queue)).tolist()
            parkable = ParkingCandidates(state, planner.ranker, rules.factor, queue, planner.declined) if rules.park else None
            has_candidates = [False] * len(queue) if parkable is None else parkable.has_candidates()
            asks = [fit and (job_id, "") not in planner.declined for job_id, fit in zip(queue, fits, strict=True)]
            positions = [at for at in positions if asks[at] or has_candidates[at] or not may_be_passed(state, rules, queue[at])]
        return _Pass(state, queue, positions, fits, Quotas(state), parkable)

    def _try_to_place(self, one_pass: _Pass, position: int, event: Arrived) -> bool | None:
        """Return whether a waiting job has a placement now, or None if it is passed over because of its user's quota."""
        if self._waits_for_link(one_pass.state, event.job.id):
            return False
        if one_pass.quotas.bars(event.job):
            return None
        return (
            one_pass.fits[position] and (event.job.id, "") not in self._planner.declined and self._admit(one_pass, position, event)
        )

    def _waits_for_link(self, state: State, job_id: str) -> bool:
        return self._planner.policy.keeps_slo and waits_for_link(state, job_id)

    def _admit(self, one_pass: _Pass, position: int, event: Arrived) -> bool | None:
        """Ask the policy about a waiting job; the result is that of `_try_to_place`."""
        planner, job, state = self._planner, event.job, one_pass.state
        is_confined = planner.nodes is not None and job.id in planner.restrictions.confined
        if is_confined and planner.reserved is not None:
            return False  # which nodes will be free is not known yet
        began_s = perf_counter()
        if planner.reserved is None:
            self._note_warm_start(event)
            if is_confined:
                self.settle(job.id)  # other jobs may have got places in this instant
        because = self._why_alone(job.id)
        plan = self._plan(state, event)
        self.decision_s.append(perf_counter() - began_s)
        if state.cluster.quotas and (above := one_pass.quotas.broken(plan, planner.policy, one_pass.queue)):
            return None if job.user in above else False
        planner.carry_out(plan, position, one_pass.queue)
        if planner.reserved is not None:
            return planner.planned.is_running(job.id)
        if is_confined or job.id in planner.arriving_with_nodes:
            self.settle(job.id)
        if not state.is_running(job.id):
            if all(isinstance(action, Wait) for action in plan):
                planner.decline(job.id)
            return False
        self._keep_reason(job.id, because)
        return True

    def _keep_reason(self, job_id: str, because: str) -> None:
        """Keep the reason why a job is alone in its group, if it is and reasons are kept."""
        if self.why is not None and len(self._planner.state.group_of(job_id).jobs) == 1:
            self.why[job_id] = because

    def _why_alone(self, job_id: str) -> str:
        """Return why a waiting job would be alone in its group now, or an empty string if no reasons are kept."""
        if self.why is None or not (shown := self._planner.shown).tables.order.size:
            return ""
        return alone_because(shown, candidates(shown, job_id), bool(getattr(self._planner.policy, "prune", False)))

    def _plan(self, state: State, event: Arrived, freed: Collection[str] = ()) -> Plan:
        """Return the policy's plan for a waiting job, or the only possible one for a job that may use only some nodes.

        Args:
            state: State of the cluster, in which running jobs may be parked.
            event: Arrival of the job.
            freed: Names of nodes that are free in this state and not in that of the planner.
        """
        planner, job_id = self._planner, event.job.id
        names = planner.restrictions.confined.get(job_id)
        groups = [group.id for group in state.group_list()] if job_id in planner.restrictions.alone else planner.restrictions.hidden
        shown = without(state, groups) if groups else state
        if names is None or planner.nodes is None:
            return ask(planner.policy, shown, event)
        return plan_confined(shown, planner.nodes, job_id, names, freed)

    def _park_for(self, one_pass: _Pass, position: int, event: Arrived, factor: float) -> bool:
        """Park the first running job without which the policy has a place for a waiting one, and give it that place.

        Args:
            one_pass: Current pass over the queue.
            position: Position of the waiting job.
            event: Arrival of the waiting job.
            factor: Ratio of a running job's key to that of the waiting job above which it may be parked.

        Returns:
            Whether there was such a job.
        """
        planner, state, job_id = self._planner, one_pass.state, event.job.id
        nodes, is_confined = planner.nodes, job_id in planner.restrictions.confined
        if is_confined and planner.reserved is not None:
            return False
        drained = set() if nodes is None else nodes.drained_groups()
        parkable = one_pass.parkable or ParkingCandidates(state, planner.ranker, factor, [job_id], planner.declined)
        for other in parkable.list_candidates(job_id):
            if drained and state.group_of(other).id in drained:
                continue
            if planner.reserved is not None and not planner.reserved.avoids((other,), ()):
                continue  # it has not begun
            if (plan := self._plan_without(other, one_pass, event)) is not None:
                planner.carry_out((Park(other, job_id), *plan), position, one_pass.queue)
                return True
        return False

    def _plan_without(self, other: str, one_pass: _Pass, event: Arrived) -> Plan | None:
        """Return the plan that places a waiting job if another one is parked, or None if there is none."""
        planner, job_id = self._planner, event.job.id
        group = one_pass.state.group_of(other).id if job_id in planner.restrictions.confined else None
        if only_places(planner.policy) and not may_fit_without(one_pass.state, job_id, other):
            planner.decline(job_id, other)
            return None
        with without_job(one_pass.state, other) as twin:
            if self._waits_for_link(twin, job_id):
                return None
            freed = () if planner.nodes is None or group is None else list_freed_nodes(planner.nodes, group, twin)
            plan = self._plan(twin, event, freed)
            if not any(isinstance(action, Place) and action.job_id == job_id for action in plan):
                planner.decline(job_id, other)
                return None
            return None if twin.cluster.quotas and Quotas(twin).broken(plan, planner.policy, one_pass.queue) else plan

    def _note_warm_start(self, event: Arrived) -> None:
        """Record the group, or the free nodes, where an arriving job could start without a cold start, if there are any."""
        planner = self._planner
        node_names, nodes = planner.arriving_with_nodes.get(event.job.id), planner.nodes
        if node_names is None or nodes is None:
            return
        self.settle(event.job.id)  # other jobs may have got places in this instant
        group = next((group for group, names in nodes.assigned_by_group().items() if node_names == {*names}), None)
        if group is not None and planner.state.tables.group_rows.get(group) is not None:
            planner.note(Warm(event.at_s, event.job.id, group, tuple(sorted(node_names))))
        elif node_names <= {node.name for pool in POOLS for node in nodes.free(pool)}:
            planner.note(Warm(event.at_s, event.job.id, None, tuple(sorted(node_names))))


def only_places(policy: Policy) -> bool:
    """Return whether a plan of a policy for a waiting job places this job alone, in a place that keeps every SLO."""
    return bool(getattr(policy, "only_places", False)) and policy.keeps_slo


def _settle_nothing(job_id: str) -> None:
    """Assign no nodes, where they have no names. A function of the module can be pickled."""
