"""The part of the coordinator that carries out what the policy decides: groups, their nodes, their members, their permits.

Nothing in here decides where a job goes: an event is applied, `policy.decide` answers, `carry_out` checks and applies the plan.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from time import monotonic, time
from typing import Any

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Progress, Progressed, Resumed, Ticked, Withdrawn
from rollmux_env.cluster.plan import Plan, Policy, carry_out
from rollmux_env.cluster.state import State, apply
from rollmux_env.dispatcher import Dispatcher, PhaseName, migrates_at
from rollmux_env.errors import InputError
from rollmux_env.replay.fluid import replay
from rollmux_env.scenario import Cluster, Job, Phase, Pool, Scenario, Training
from runtime.execution.ground import Ground, Place
from runtime.execution.members import PROFILE, Gang, Hold, Runner, RunPlan
from runtime.execution.messages import Order
from runtime.execution.profiles import versions
from runtime.execution.tails import Tails
from runtime.facts import LEASE, Fact, Failed, Restarted, Started, Submitted
from runtime.facts import Pool as PoolName
from runtime.journal import JOURNAL, Journal

CHECKPOINTS = "checkpoints"  # folder of the run's, with one of each job
_DYING_S = 30.0  # how long the last writer of a journal that goes on may still take to end


class Placing:
    """Who is where, and who holds what.

    Args:
        plan: what is to be done.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._state = State(plan.cluster, observed=True)
        self._ground = Ground(plan.nodes)
        self._tails = Tails(self._ground)
        self._delayed: dict[str, bool] = {}  # rollouts whose permits wait for a tail: id, and whether another permit was given then
        self._gangs: dict[int, Gang] = {}
        self._lease: Gang | None = None
        self._lease_need: dict[str, int] = {}
        self._deferred: list[Event] = []
        self._runners = {spec.id: Runner(spec) for spec in plan.specs}
        self._changed: dict[str, None] = {}  # jobs of which the state does not know all that they have done
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._news: list[str] = []
        self._zero_s = monotonic()

    def _open(self) -> None:
        """Make what may fail, and start the clock."""
        plan = self._plan
        _rehearse(make_runnable(plan.policy, plan.seed))
        self._policy = make_runnable(plan.policy, plan.seed)
        self._dispatch = make_dispatch(plan.dispatch)
        self._migrates_at = migrates_at(self._dispatch)
        self._journal = Journal(Path(plan.folder) / JOURNAL, plan.resume, wait_s=_DYING_S if plan.resume else 0.0)
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._freed = asyncio.Event()  # nodes have become free
        if plan.resume:
            return
        self._zero_s = monotonic()
        started = Started(0.0, time(), plan.policy, plan.dispatch, plan.cluster, plan.nodes, versions(), plan.seed)
        self._write(started, *(Submitted(0.0, spec) for spec in plan.specs))

    def _arrive(self, runner: Runner) -> None:
        """Hand a job that is known to the policy, with the iterations that it has left."""
        assert runner.job is not None
        left = {"arrival_s": self._now(), "iterations": runner.spec.iterations - runner.begins}
        job = runner.job.model_copy(update=left)
        event = Arrived(self._now(), job)
        self._note(event)
        if len(self._state.waiting) == 1:
            self._answer(event)
        if job.id in self._state.waiting:
            self._say(f"{job.id}: waits for nodes")

    def _answer(self, event: Event) -> None:
        """Ask the policy about an event that has been applied, and carry out what it says; after a departure, serve the queue."""
        if self._lease is not None:  # its nodes are free to the policy, but not in truth
            self._deferred.append(event)
            return
        waiting = isinstance(event, Arrived)
        if not waiting or (isinstance(event, Arrived) and event.job.id in self._state.waiting[:1]):
            self._carry_out(event)
        if not waiting:
            self._serve_queue()

    def _catch_up(self) -> None:
        """Answer what could not be answered while nodes were lent for profiles."""
        if self._lease is None:
            deferred, self._deferred = self._deferred, []
            for event in deferred:
                self._answer(event)

    def _serve_queue(self) -> None:
        while self._state.waiting:
            first = self._state.waiting[0]
            self._carry_out(Arrived(self._now(), self._state.job(first)))
            if first in self._state.waiting[:1]:
                break

    def _carry_out(self, event: Event) -> None:
        self._note_progress()
        self._state.now_s = self._now()
        self._enact(self._policy.decide(self._state, event))

    def _enact(self, plan: Plan) -> None:
        """Check a plan and act on it."""
        events = carry_out(self._state, plan, self._policy.keeps_slo)
        self._write(*events)
        self._settle()
        for done in events:
            if isinstance(done, Admitted | Moved):
                self._place(done)

    def _place(self, event: Admitted | Moved) -> None:
        """A job has a place, or another one."""
        runner, state = self._runners[event.job_id], self._state
        row = state.row(event.job_id)
        group_row = int(state.jobs.group[row])
        number = int(state.groups.id[group_row])
        gang = self._gangs.setdefault(number, Gang(number, Dispatcher(self._dispatch)))
        self._say(f"{event.job_id}: {event.placement.strategy.replace('_', ' ')}, group {number}")
        if isinstance(event, Moved):
            runner.moves_to = gang
            return
        self._join(runner, gang)
        runner.iteration = runner.begins
        self._tell(runner, self._order(runner))

    def _join(self, runner: Runner, gang: Gang) -> None:
        """Make a job a member of the group that the state says."""
        state, job_id = self._state, runner.spec.id
        row = state.row(job_id)
        training = tuple(range(int(state.groups.training_nodes[state.jobs.group[row]])))
        numbers = {"rollout": state.pins(job_id) or training, "training": training}
        table = state.jobs
        seconds = float(table.placed_rollout_s[row]), float(table.placed_training_s[row]), float(table.placed_sync_s[row])
        self._enter(runner, gang, numbers, *seconds, colocated=not state.pins(job_id))

    def _enter(
        self,
        runner: Runner,
        gang: Gang,
        numbers: dict[str, tuple[int, ...]],
        rollout_s: float,
        training_s: float,
        sync_s: float,
        colocated: bool = False,
    ) -> None:
        ground, number = self._ground, gang.number
        runner.gang, runner.numbers = gang, numbers
        pools: dict[PoolName, PoolName] = {"rollout": "training" if colocated else "rollout", "training": "training"}
        runner.nodes = {pool: tuple(ground.node(number, kind, k) for k in numbers[pool]) for pool, kind in pools.items()}
        gang.dispatcher.now_s = self._now()
        pins = () if colocated else numbers["rollout"]
        gang.dispatcher.joined(runner.spec.id, pins, rollout_s, training_s, sync_s, runner.spec.slo)

    def _depart(self, runner: Runner) -> None:
        """A job that has a place leaves it, for ever."""
        event = self._vacate(runner)
        self._settle()
        if not self._stopping:
            self._answer(event)
        self._freed.set()

    def _withdraw(self, runner: Runner) -> None:
        """A job that waits for a place wants none any more."""
        runner.gone = True
        self._note(Withdrawn(self._now(), runner.spec.id))
        if not self._stopping and self._lease is None:
            self._serve_queue()

    def _vacate(self, runner: Runner, *why: Restarted | Failed) -> Departed:
        """Take a job out of its place; why, if there is more to say, is in the journal with it or not at all."""
        runner.gone = True
        if runner.moves_to is not None:
            runner.moves_to = None
            self._note(Resumed(self._now(), runner.spec.id))
        self._note_progress()
        event = Departed(self._now(), runner.spec.id)
        apply(self._state, event)
        self._write(event, *(replace(fact, at_s=event.at_s) for fact in why))
        return event

    def _settle(self) -> None:
        """Let the nodes of groups be those that the state says."""
        places: set[Place] = set()
        for group in self._state.group_list():
            places |= {(group.id, "rollout", number) for number in group.rollout_nodes}
            places |= {(group.id, "training", number) for number in range(group.training_nodes)}
        if self._lease is not None:
            for pool in ("rollout", "training"):
                places |= {(LEASE, pool, number) for number in range(self._lease_need[pool])}
        used = {node.name for runner in self._runners.values() if runner.gang for nodes in runner.nodes.values() for node in nodes}
        facts = self._ground.settle(places, used, self._now())
        if facts:
            self._write(*facts)

    async def _tick(self, every_s: float) -> None:
        """Wake a policy that asks for it."""
        while True:
            await asyncio.sleep(every_s)
            if self._state.order.size:
                event = Ticked(self._now())
                self._note(event)
                self._answer(event)

    def _pump(self, gang: Gang) -> None:
        """Give the permits that are due."""
        if self._stopping:
            return
        gang.dispatcher.now_s = self._now()
        try:
            permits = gang.dispatcher.permits()
            for job_id in gang.dispatcher.migrations:
                wanted = [self._runners[permit.job_id].nodes["rollout"] for permit in permits if permit.phase == "rollout"]
                self._tails.migrate(job_id, {node.name for nodes in wanted for node in nodes})
                self._stir(self._runners[job_id])
            for permit in permits:
                self._grant(self._runners[permit.job_id], permit.phase, len(permits) > 1)
        except Exception as error:
            self._break(error)

    def _grant(self, runner: Runner, phase: PhaseName, paired: bool) -> None:
        job_id, nodes, now_s = runner.spec.id, runner.nodes[phase], self._now()
        switched = self._tails.begin(job_id, nodes, runner.parts, now_s) if phase == "rollout" else self._ground.take(job_id, nodes)
        if switched is None:
            self._delayed[job_id] = paired
            return
        runner.hold = Hold(phase, runner.asked_s, now_s, switched, paired)
        runner.progress, runner.past_threshold = {}, False
        assert runner.wanted is not None
        runner.wanted.set_result(None)
        runner.since_s = self._now()

    def _give(self, runner: Runner) -> None:
        """What a job holds is free."""
        assert runner.hold is not None
        job_id, phase = runner.spec.id, runner.hold.pool
        runner.hold = None
        if phase == "training":
            self._ground.give(job_id, runner.nodes[phase])
            return
        self._tails.end(job_id)
        self._stir(runner)
        self._make_room()

    def _make_room(self) -> None:
        """A tail has left nodes: rollouts beside it get more of theirs, and those that have waited for it begin."""
        for job_id in self._tails.grow(self._now()):
            self._stir(self._runners[job_id])
        delayed, self._delayed = self._delayed, {}
        for job_id, paired in delayed.items() if not self._stopping else ():
            self._grant(self._runners[job_id], "rollout", paired)

    @staticmethod
    def _stir(runner: Runner) -> None:
        """Let those who watch a job's rollout know that the parts of it have changed, or that it is over."""
        runner.stirred.set()
        runner.stirred = asyncio.Event()

    def _quit(self, runner: Runner) -> None:
        """A job leaves the dispatcher that it is a member of; what it holds is free."""
        gang, job_id = runner.gang, runner.spec.id
        if gang is None:
            return
        self._delayed.pop(job_id, None)
        if runner.hold is not None:
            self._give(runner)
        gang.dispatcher.gone(job_id)
        runner.gang = None
        if not gang.dispatcher.members:
            self._gangs.pop(gang.number, None)
        self._pump(gang)

    @staticmethod
    def _pool_of(runner: Runner, phase: PoolName) -> PoolName:
        """Whose nodes a phase holds: a co-located job's rollouts hold training nodes."""
        return runner.nodes[phase][0].pool

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def _tell(self, runner: Runner, order: Order | None) -> None:
        if runner.next is None or runner.next.done():
            runner.next = asyncio.get_running_loop().create_future()
        runner.next.set_result(order)
        runner.since_s = self._now()

    def _order(self, runner: Runner) -> Order:
        """The iteration that a job is to do next."""
        return Order(
            runner.iteration, runner.iteration == PROFILE, runner.nodes, str(self._checkpoints(runner.spec.id)), runner.checkpoint
        )

    def _checkpoints(self, job_id: str) -> Path:
        return Path(self._plan.folder) / CHECKPOINTS / job_id

    def _note(self, event: Event) -> None:
        apply(self._state, event)
        self._write(event)

    def _note_progress(self) -> None:
        """Let the state know what jobs have done."""
        known = [job_id for job_id in self._changed if self._state.is_running(job_id)]
        if known:
            parts = tuple(self._progress_of(job_id) for job_id in known)
            self._note(Progressed(self._now(), parts))
        self._changed.clear()

    def _progress_of(self, job_id: str) -> Progress:
        """What a job has done since it arrived, which may have been with some iterations behind it."""
        runner, left = self._runners[job_id], self._state.job(job_id).iterations
        before = runner.spec.iterations - (left or 0)
        return Progress(job_id, max(0, runner.iteration - before), runner.busy_s["rollout"], runner.busy_s["training"])

    def _write(self, *facts: Fact) -> None:
        try:
            self._journal.write(*facts)
        except InputError as error:
            self._break(error)
            raise

    def _say(self, line: str) -> None:
        self._news.append(f"{self._now():8.1f} s  {line}")

    def _now(self) -> float:
        return monotonic() - self._zero_s


def _rehearse(policy: Policy) -> None:
    """Let a policy of the same kind decide about a few jobs, so that nobody waits for its code to be compiled later.

    Raises:
        PlanError: it breaks an invariant.
    """
    pool = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0)
    phase, training = Phase(worst_case_s=1.0), Training(worst_case_s=1.0)
    jobs = tuple(Job(id=f"job{k}", arrival_s=float(k), iterations=4, slo=3.0, rollout=phase, training=training) for k in range(3))
    replay(Scenario(version=1, cluster=Cluster(rollout=pool, training=pool, migration_s=1.0), jobs=jobs), policy)
