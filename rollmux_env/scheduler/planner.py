"""What happens to placements at one instant: the policy is asked, and what it says is checked and applied."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from math import floor, inf
from time import perf_counter

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import (
    Arrived,
    Departed,
    Event,
    OverBudget,
    Progress,
    Progressed,
    Requeued,
    Resized,
    Resumed,
    Ticked,
    Warm,
    Withdrawn,
)
from rollmux_env.cluster.link import waits_for_link
from rollmux_env.cluster.plan import Plan, Policy, carry_out
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.asking import ask
from rollmux_env.scheduler.confined import confined_plan
from rollmux_env.scheduler.nodes import POOLS, NodePool
from rollmux_env.scheduler.quotas import Quotas
from rollmux_env.scheduler.reasons import alone_because
from rollmux_env.scheduler.relocation import without

INSTANT_S = 1e-6  # times this close are one instant


@dataclass
class News:
    """What has happened to jobs since the last instant.

    Attributes:
        progress: what they have done, by job. resumed: ids of those whose pause is over. departed: of those that go, and whether
            since their budget is spent. withdrawn: of those that wait no longer. arriving: those that come.
    """

    progress: dict[str, Progress] = field(default_factory=dict)
    resumed: list[str] = field(default_factory=list)
    departed: dict[str, bool] = field(default_factory=dict)
    withdrawn: list[str] = field(default_factory=list)
    arriving: list[facts.Arrived] = field(default_factory=list)


class Ticks:
    """When a policy that asks for it is woken: at whole multiples of its `wakes_every_s` after the first arrival, while jobs run.

    Attributes:
        every_s: the policy's, or None.
        next_s: the next time; infinite where no job runs, or the policy does not ask.
    """

    def __init__(self, policy: Policy) -> None:
        every_s = getattr(policy, "wakes_every_s", None)
        if every_s is not None and not (isinstance(every_s, int | float) and INSTANT_S < every_s < inf):
            raise InputError(f"wakes_every_s: must be a number of seconds above {INSTANT_S:g}, not {every_s}")
        self.every_s: float | None = every_s
        self.next_s = inf

    def after(self, now_s: float, first_s: float, running: bool) -> None:
        """Find the first tick after an instant.

        Args:
            first_s: when the first job arrived. running: whether jobs run.
        """
        self.next_s = inf
        if running and self.every_s is not None:
            passed = floor((now_s + INSTANT_S - first_s) / self.every_s)
            self.next_s = first_s + (passed + 1) * self.every_s


class Planner:
    """Owns the state, with the queue in it, and the policy.

    Args:
        state: as it is when the planner takes over.
        policy: asked at arrivals, departures and ticks.

    Attributes:
        ticks: when the policy wants to be woken.
        events: what has been applied, until somebody takes it.
        decision_s: seconds of computing of each call of the policy for a waiting job.
        hidden: groups that the policy is not to see.
        confined: jobs that may have some nodes alone, and the names of these. alone: jobs that nobody may share a group with.
        alive: jobs that arrive at this instant, and the names of the nodes on which their processes are.
        why: of jobs that have got a group of their own, why they share none; None: nobody wants to know.
        nodes: where nodes have names. settle: gives the places of groups nodes, those of a job that is to have its own these.
    """

    def __init__(self, state: State, policy: Policy) -> None:
        self.state = state
        self.policy = policy
        self.ticks = Ticks(policy)
        self.events: list[Event] = []
        self._reported = 0  # so many of them are no news
        self.decision_s: list[float] = []
        self.hidden: Collection[int] = ()
        self.confined: dict[str, frozenset[str]] = {}
        self.alone: set[str] = set()
        self.alive: dict[str, frozenset[str]] = {}
        self.why: dict[str, str] | None = None
        self.nodes: NodePool | None = None
        self.settle: Callable[[str], None] = lambda _: None
        self._departed: Departed | None = None  # the last one that the policy has not been asked about
        self._ticked: Ticked | None = None  # likewise
        self._serves = False  # there may be a place for who waits
        self._head: str | None = None  # the first who waits for nodes, and not for a quota
        self._knows_head = not state.waiting

    @property
    def owes(self) -> bool:
        """Whether the policy has not been asked about everything yet."""
        return self._serves or self._departed is not None or self._ticked is not None

    @property
    def shown(self) -> State:
        """The state as the policy is to see it."""
        return without(self.state, self.hidden) if self.hidden else self.state

    def wake(self) -> None:
        """There may be a place for who waits."""
        self._serves = True

    def note(self, event: Event) -> None:
        """Apply an event and keep it."""
        apply(self.state, event)
        self.events.append(event)

    def take_events(self) -> list[Event]:
        """Hand over what has been applied since this was last asked."""
        events, self.events = self.events, []
        self._reported = 0
        return events

    def news(self) -> list[Event]:
        """What has been applied since this was last asked, and since the events were taken."""
        news = self.events[self._reported :]
        self._reported = len(self.events)
        return news

    def leave(self, now_s: float, news: News) -> None:
        """The first half of an instant: what jobs have done, pauses that end, and who goes."""
        self.state.now_s = now_s
        if news.progress:
            self.note(Progressed(now_s, tuple(news.progress.values())))
        for job_id in news.resumed:
            self.note(Resumed(now_s, job_id))
        for job_id in sorted(news.departed, key=self.state.row) if len(news.departed) > 1 else news.departed:
            self._departed = OverBudget(now_s, job_id) if news.departed[job_id] else Departed(now_s, job_id)
            self.note(self._departed)
        for job_id in news.withdrawn:
            self.note(Withdrawn(now_s, job_id))
        if news.resumed or news.departed or news.withdrawn:
            self._serves = True

    def resize(self, now_s: float, rollout_nodes: int, training_nodes: int) -> None:
        """The pools have so many nodes from now on."""
        self.note(Resized(now_s, rollout_nodes, training_nodes))
        self._serves = True

    def answer(self, now_s: float, asks: bool) -> None:
        """The second half begins: the policy is asked once about those who left, then about a tick, if one is due.

        Args:
            asks: whether the policy may be asked now; else it will be.
        """
        state, policy = self.state, self.policy
        if asks and self._departed is not None:
            departed, self._departed = self._departed, None
            self.move(ask(policy, self.shown, departed))
        if self.ticks.next_s <= now_s + INSTANT_S and state.tables.order.size:
            self._ticked, self._serves = Ticked(now_s), True
            self.note(self._ticked)
        if asks and self._ticked is not None:
            ticked, self._ticked = self._ticked, None
            self.move(ask(policy, self.shown, ticked))

    def admit(self, now_s: float, arriving: Iterable[facts.Arrived], asks: bool) -> None:
        """The second half ends: the queue is served from its head, then come those who arrive.

        Args:
            asks: as of `answer`.
        """
        state = self.state
        if asks and self._serves:
            self._serve(now_s)
        for job, again, alive in arriving:
            self.note((Requeued if again else Arrived)(now_s, job))
            if alive:
                self.alive[job.id] = alive
            if not asks:
                self._serves = True
            elif (place := self._turn(job.id)) is not None:
                self._serve(now_s, place)
        self.alive.clear()
        if self.ticks.every_s is not None:
            first_s = state.job(state.tables.job_id(0)).arrival_s if state.arrived else inf
            self.ticks.after(now_s, first_s, state.tables.order.size > 0)

    def move(self, plan: Plan) -> bool:
        """Check a plan that only moves jobs, and apply it unless quotas forbid it; whether it has been.

        Raises:
            PlanError: it breaks an invariant.
        """
        if self.state.cluster.quotas and Quotas(self.state).broken(plan, self.policy):
            return False
        self.events += carry_out(self.state, plan, self.policy.keeps_slo)
        return True

    def _turn(self, job_id: str) -> int | None:
        """From which place of the queue on to serve it when a job has come; None: it waits behind one that waits for nodes."""
        waiting = self.state.waiting
        if waiting[0] == job_id:
            return 0
        if not self.state.cluster.quotas:
            return None
        if not self._knows_head:
            return 0
        place = waiting.index(job_id)
        return place if self._head is None or self._head in waiting[place:] else None

    def _serve(self, now_s: float, place: int = 0) -> None:
        """Ask about the jobs of the queue in their order, until one does not fit; quotas pass jobs over.

        Args:
            place: where to begin: those before have been passed over, and nothing has changed since.
        """
        state = self.state
        self._serves, self._knows_head, self._head = False, True, None
        if not state.waiting:
            return
        quotas = Quotas(state)
        while place < len(state.waiting):
            job = state.job(state.waiting[place])
            if self.policy.keeps_slo and waits_for_link(state, job.id):
                self._head = job.id
                return
            admitted = None if quotas.bars(job) else self._admit(Arrived(now_s, job), place, quotas)
            if admitted is False:
                self._head = job.id
                return
            if admitted:
                quotas = Quotas(state)
            place = 0 if admitted else place + 1

    def _admit(self, event: Arrived, passed: int, quotas: Quotas) -> bool | None:
        """Ask the policy about a waiting job; whether it has a place now, or None: it is passed over, for its user's quota.

        Args:
            passed: so many before it in the queue are. quotas: of the state as it is.
        """
        state = self.state
        began_s = perf_counter()
        self._warm(event)
        names, shown = self.confined.get(event.job.id), self.shown
        because = ""
        if self.why is not None and shown.tables.order.size:
            because = alone_because(shown, candidates(shown, event.job.id), bool(getattr(self.policy, "prune", False)))
        if event.job.id in self.alone:
            shown = without(state, [group.id for group in state.group_list()])
        if names is None or self.nodes is None:
            plan = ask(self.policy, shown, event)
        else:
            self.settle(event.job.id)  # others may have got places in this instant
            plan = confined_plan(shown, self.nodes, event.job.id, names)
        self.decision_s.append(perf_counter() - began_s)
        if state.cluster.quotas and (above := quotas.broken(plan, self.policy)):
            return None if event.job.user in above else False
        self.events += carry_out(state, plan, self.policy.keeps_slo, passed)
        if self.why is not None and state.is_running(event.job.id) and len(state.group_of(event.job.id).jobs) == 1:
            self.why[event.job.id] = because
        if names is not None or event.job.id in self.alive:
            self.settle(event.job.id)
        return state.is_running(event.job.id)

    def own_nodes(self, job_id: str) -> frozenset[str] | None:
        """Names of the nodes that the places of a job which has just been admitted are to have; None: any."""
        if job_id in self.confined:
            return self.confined[job_id]
        enters_warm = job_id in self.alive and self.state.tables.jobs.entered_warm[self.state.row(job_id)]
        return self.alive[job_id] if enters_warm else None

    def _warm(self, event: Arrived) -> None:
        """Say where a job could enter warm, if it could."""
        alive, nodes = self.alive.get(event.job.id), self.nodes
        if alive is None or nodes is None:
            return
        self.settle(event.job.id)  # others may have got places in this instant
        group = next((group for group, names in nodes.assigned_by_group().items() if alive == {*names}), None)
        if group is not None and self.state.tables.group_rows.get(group) is not None:
            self.note(Warm(event.at_s, event.job.id, group, tuple(sorted(alive))))
        elif alive <= {node.name for pool in POOLS for node in nodes.free(pool)}:
            self.note(Warm(event.at_s, event.job.id, None, tuple(sorted(alive))))
