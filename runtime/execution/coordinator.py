"""The coordinator of a run: it asks the policy where jobs go and each group's dispatcher which phase is next, and tells the jobs.

An asynchronous Ray actor. Everything that decides happens between two `await`s, so that what it knows is never half changed.
Nothing in here decides where a job goes: an event is applied, `policy.decide` answers, `carry_out` checks and applies the plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Any

import ray

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Progress, Progressed, Resumed, Ticked
from rollmux_env.cluster.plan import carry_out
from rollmux_env.cluster.state import State, apply
from rollmux_env.dispatcher import Dispatcher, PhaseName
from rollmux_env.errors import PlanError
from rollmux_env.replay.run import waits_for_ever
from rollmux_env.scenario import Cluster, Job
from runtime.execution.controller import Controller, boot_id
from runtime.execution.ground import Ground, Place
from runtime.execution.lockstep import Lockstep, Timings
from runtime.execution.messages import End, Nodes, Order, Report, Stopped
from runtime.execution.profiles import Measured, Profile, load_profile, profile_key, save_profile, versions
from runtime.jobs.spec import JobSpec
from runtime.journal import JOURNAL, Journal
from runtime.record import LEASE, Ended, Fact, Failed, Iteration, Node, PhaseSlice, Pool, Profiled, Started, SyncSlice

PROFILE = -1  # in place of an iteration's number
_ALONE, _PAIRED = 2, 4  # worst-case iterations that a bound is measured with; of the paired ones the first rollout is alone


@dataclass(frozen=True)
class RunPlan:
    """What a run is asked to do.

    Attributes:
        specs: the jobs. cluster: pools, prices and limits that the policy sees. nodes: all nodes.
        policy, dispatch: by name. seed: of policies that take one.
        folder: where the journal and checkpoints go.
        cached: profiles that were measured before may be used.
        only_profile: stop when all jobs are profiled.
        bounds: measure what taking turns could gain, with the first two jobs that arrive together.
    """

    specs: tuple[JobSpec, ...]
    cluster: Cluster
    nodes: tuple[Node, ...]
    policy: str
    dispatch: str
    seed: int
    folder: str
    cached: bool = True
    only_profile: bool = False
    bounds: bool = False


class _Gang:
    """The members of a group, or jobs that are being profiled: those who share a dispatcher."""

    def __init__(self, number: int, dispatcher: Dispatcher) -> None:
        self.number = number
        self.dispatcher = dispatcher


@dataclass
class _Hold:
    """A permit in a job's hands."""

    pool: Pool
    asked_s: float
    start_s: float
    switched: bool
    paired: bool  # another one was given at the same time


@dataclass(eq=False)
class _Runner:
    """A job, as the coordinator knows it."""

    spec: JobSpec
    controller: Any = None
    gang: _Gang | None = None
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: Nodes = field(default_factory=dict)
    iteration: int = 0  # the one in hand, or the next
    began_s: float | None = None  # when its rollout was ready
    job: Job | None = None  # as the policy sees it; None until it is profiled
    passes: int = 0  # of the profiler, that it still has to make
    passed: asyncio.Future[None] | None = None  # they are over, or it has ended
    next: asyncio.Future[Order | None] | None = None  # what it waits to be told between iterations
    wanted: asyncio.Future[None] | None = None  # the permit that it waits for
    asked_s: float = 0.0
    hold: _Hold | None = None
    moves_to: _Gang | None = None
    movable: bool = False  # as it said in the iteration in hand
    measured: dict[str, Measured] = field(default_factory=dict)
    sync_s: float = 0.0
    busy_s: dict[str, float] = field(default_factory=lambda: {"rollout": 0.0, "training": 0.0})
    workers: list[Any] = field(default_factory=list)
    progress: tuple[int, int, int] = (0, 0, 0)
    gone: bool = False


class Coordinator:
    """One run. A Ray actor whose methods are asynchronous.

    Args:
        plan: what is to be done.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._state = State(plan.cluster, observed=True)
        self._ground = Ground(plan.nodes)
        self._gangs: dict[int, _Gang] = {}
        self._lease: _Gang | None = None
        self._timings: Timings | None = None
        self._deferred: list[Event] = []
        self._runners = {spec.id: _Runner(spec) for spec in plan.specs}
        self._changed: dict[str, None] = {}  # jobs of which the state does not know all that they have done
        self._coming = 0
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._news: list[str] = []
        self._zero_s = monotonic()

    # What the driver asks.

    async def run(self) -> str:
        """Run all jobs to their end.

        Returns:
            `done` or `stopped`.

        Raises:
            InputError: a policy or the folder cannot be used; one line.
            PlanError, InvariantError: the run cannot go on.
        """
        plan = self._plan
        self._policy = make_runnable(plan.policy, plan.seed)
        self._dispatch = make_dispatch(plan.dispatch)
        self._journal = Journal(Path(plan.folder) / JOURNAL)
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._freed = asyncio.Event()
        self._me = ray.get_runtime_context().current_actor
        self._zero_s = monotonic()
        self._write(Started(0.0, time(), plan.policy, plan.dispatch, plan.cluster, plan.nodes, versions()))
        self._coming = len(plan.specs)
        self._spawn(self._bring_all())
        if getattr(self._policy, "wakes_every_s", None):
            self._spawn(self._tick(float(self._policy.wakes_every_s)))  # type: ignore[attr-defined]
        try:
            outcome = await self._over
            self._write(Ended(self._now(), "stopped" if outcome == "stopped" else "done"))
            return outcome
        finally:
            for task in self._tasks:
                task.cancel()
            self._journal.close()

    async def stop(self) -> None:
        """Give no more permits: every job ends at its next phase boundary."""
        if not self._stopping:
            self._stopping = True
            for runner in self._runners.values():
                self._interrupt(runner)
            self._freed.set()
            self._check_over()

    async def news(self, behind: int) -> list[str]:
        """Lines about what has happened, those after the first `behind`."""
        return self._news[behind:]

    async def status(self) -> dict[str, dict[str, Any]]:
        """What every job does."""
        return {
            job_id: {
                "group": runner.gang.number if runner.gang else None,
                "iteration": runner.iteration,
                "holds": runner.hold.pool if runner.hold else None,
                "waits": runner.wanted is not None and not runner.wanted.done(),
                "progress": runner.progress,
                "gone": runner.gone,
            }
            for job_id, runner in self._runners.items()
        }

    # What jobs ask and tell.

    async def clock(self, job_id: str) -> tuple[str, float]:
        """Which machine's clock this is, and its reading at time 0."""
        return boot_id(), self._zero_s

    async def now(self, job_id: str) -> float:
        """The time, seconds."""
        return self._now()

    async def order(self, job_id: str, metrics: dict[str, float]) -> Order | None:
        """The last order has been carried out; answer with the next one, or None: the job is done."""
        runner = self._runners[job_id]
        if runner.began_s is not None:
            self._completed(runner, metrics)
        if self._stopping:
            raise Stopped
        if runner.next is None:
            runner.next = asyncio.get_running_loop().create_future()
        order = await runner.next
        runner.next = None
        return order

    async def acquire(self, job_id: str, pool: Pool) -> bool:
        """Wait for the permit of a phase.

        Returns:
            Whether the job is to be moved after this iteration.

        Raises:
            Stopped: the run stops.
        """
        runner = self._runners[job_id]
        if self._stopping:
            raise Stopped
        assert runner.gang is not None and runner.hold is None
        runner.asked_s = self._now()
        if pool == "rollout":
            runner.began_s = runner.asked_s
        runner.wanted = asyncio.get_running_loop().create_future()
        runner.gang.dispatcher.ready(job_id, pool)
        self._pump(runner.gang)
        await runner.wanted
        return runner.moves_to is not None

    async def release(self, job_id: str, report: Report) -> None:
        """A phase is over."""
        runner = self._runners[job_id]
        hold, gang = runner.hold, runner.gang
        if hold is None or gang is None:
            return  # the job has failed meanwhile
        now_s = self._now()
        runner.movable = report.movable
        self._write(self._slice(runner, hold, report, now_s))
        if report.keeps:
            hold.start_s = hold.asked_s = now_s
            return
        if runner.iteration == PROFILE and self._timings is not None:
            if hold.paired == (self._lockstep.mode == "paired"):
                self._timings.add(self._lockstep.mode, job_id, hold.pool, report.done_s - report.run_s)
        elif runner.iteration == PROFILE:
            cold_s = report.run_s - report.begun_s
            runner.measured[hold.pool] = Measured(
                seconds=report.done_s - report.run_s, warm_s=report.warm_s, cold_s=cold_s, host_gb=report.host_gb
            )
        pool = self._pool_of(runner, hold.pool)
        if runner.iteration != PROFILE:
            runner.busy_s[pool] += (report.done_s - report.run_s) * len(runner.nodes[hold.pool])
        self._ground.give(job_id, runner.nodes[hold.pool])
        runner.hold = None
        gang.dispatcher.finished(job_id, hold.pool, report.done_s - report.run_s)
        self._pump(gang)

    async def synced(self, job_id: str, start_s: float, end_s: float) -> None:
        """A sync is over."""
        runner = self._runners[job_id]
        nodes = runner.nodes["rollout"]
        profile = runner.iteration == PROFILE
        if profile and runner.job is None:
            runner.sync_s = end_s - start_s
        names = tuple(node.name for node in nodes)
        beside = tuple(holder for holder in self._ground.holders(nodes) if holder != job_id)
        self._write(SyncSlice(job_id, profile, runner.iteration, names, start_s, end_s, beside))

    async def progress(self, job_id: str, done: int, total: int, tokens: int) -> None:
        """How far the phase in hand is."""
        self._runners[job_id].progress = (done, total, tokens)

    async def started_worker(self, job_id: str, worker: Any) -> None:
        """A job has one more process."""
        self._runners[job_id].workers.append(worker)

    # Arrivals and profiles.

    async def _bring_all(self) -> None:
        """Let jobs arrive, those of one time together."""
        times = sorted({spec.arrival_s for spec in self._plan.specs})
        for at_s in times:
            await asyncio.sleep(max(0.0, at_s - self._now()))
            await self._bring([runner for runner in self._runners.values() if runner.spec.arrival_s == at_s])

    async def _bring(self, runners: Sequence[_Runner]) -> None:
        """Start jobs' controllers, profile those that nobody knows, and hand them to the policy in order."""
        keys = {runner.spec.id: profile_key(runner.spec, self._node_types()) for runner in runners}
        for runner in runners:
            profile = load_profile(keys[runner.spec.id]) if self._plan.cached else None
            if profile is not None:
                self._learn(runner, profile, True)
        unknown = [runner for runner in runners if runner.job is None]
        for runner in unknown if self._plan.only_profile else runners:
            self._start(runner)
        if unknown:
            await self._profile(unknown, keys)
        for runner in runners:
            self._coming -= 1
            if self._plan.only_profile:
                self._tell(runner, None)
            elif runner.job is not None and not runner.gone and not self._stopping:
                if problem := self._too_large(runner.job):
                    self._refuse(runner, problem)
                else:
                    self._arrive(runner.job)
        self._check_over()

    def _too_large(self, job: Job) -> str | None:
        """Why no node can hold a job, if none can."""
        for pool in ("rollout", "training"):
            need_gb, limit_gb = getattr(job, pool).host_memory_gb, getattr(self._plan.cluster, pool).node_memory_gb
            if limit_gb is not None and need_gb > limit_gb:
                return f"it keeps {need_gb:.2f} GB of host memory on a {pool} node, which has {limit_gb:.2f} GB for jobs"
        return None

    def _refuse(self, runner: _Runner, problem: str) -> None:
        """A job cannot be placed at all."""
        self._write(Failed(self._now(), runner.spec.id, "placement", problem))
        self._say(f"{runner.spec.id}: FAILED in placement: {problem}")
        runner.gone = True
        self._tell(runner, None)

    def _start(self, runner: _Runner) -> None:
        actor = ray.remote(Controller).options(num_cpus=0, max_concurrency=2)
        runner.controller = actor.remote(runner.spec, self._me)
        self._spawn(self._watch(runner))

    def _learn(self, runner: _Runner, profile: Profile, cached: bool) -> None:
        job = runner.job = profile.job(runner.spec, self._now())
        self._write(Profiled(self._now(), job, cached))
        how = "profile from the cache" if cached else "profiled"
        self._say(
            f"{job.id}: {how}: rollout {job.rollout.worst_case_s:.2f} s, training {job.training.worst_case_s:.2f} s, "
            f"sync {job.sync_s:.3f} s, {job.rollout.host_memory_gb:.2f} and {job.training.host_memory_gb:.2f} GB"
        )

    async def _profile(self, runners: Sequence[_Runner], keys: dict[str, str]) -> None:
        """Let jobs run a worst-case iteration each: on free nodes, where there are enough, else as guests of a group."""
        need = {pool: max(getattr(runner.spec, pool).nodes for runner in runners) for pool in ("rollout", "training")}
        while (gang := self._slot(need)) is None and not self._stopping:
            self._freed.clear()
            await self._freed.wait()
        if gang is None:
            return
        await self._pass_all(runners, gang, 1)
        for runner in runners:
            if not runner.gone and runner.measured.keys() == {"rollout", "training"}:
                parts = runner.measured
                profile = Profile(rollout=parts["rollout"], training=parts["training"], sync_s=runner.sync_s)
                save_profile(keys[runner.spec.id], profile)
                self._learn(runner, profile, False)
        pair = [runner for runner in runners if runner.job is not None and not runner.gone][:2]
        if self._plan.bounds and gang is self._lease and len(pair) == 2 and not self._timings:
            await self._measure_bounds(pair, gang)
        if gang is self._lease:
            self._lease = None
            self._settle()
            deferred, self._deferred = self._deferred, []
            for event in deferred:
                self._answer(event)

    async def _pass_all(self, runners: Sequence[_Runner], gang: _Gang, passes: int) -> None:
        """Let jobs run worst-case iterations under a dispatcher, and wait until all have."""
        present = [runner for runner in runners if not runner.gone]
        for runner in present:
            runner.passed = asyncio.get_running_loop().create_future()
            runner.iteration, runner.passes = PROFILE, passes
            self._enter(runner, gang, self._numbers(gang, runner.spec), 1.0, 1.0, 0.0)
            self._tell(runner, Order(PROFILE, True, runner.nodes, self._checkpoint(runner)))
        for runner in present:
            assert runner.passed is not None
            await runner.passed

    async def _measure_bounds(self, pair: Sequence[_Runner], gang: _Gang) -> None:
        """Run the phases of two jobs one at a time, then in pairs."""
        lockstep = self._lockstep = Lockstep()
        self._timings = Timings()
        gang.dispatcher = Dispatcher(lockstep)
        for lockstep.mode, passes in (("alone", _ALONE), ("paired", _PAIRED)):
            await self._pass_all(pair, gang, passes)
        bounds = self._timings.bounds([runner.spec.id for runner in pair])
        self._write(*bounds)
        for bound in bounds:
            self._say(f"{bound.phases[0]} beside {bound.phases[1]}: {bound.gain:.2f} times as fast as one after the other")

    def _slot(self, need: dict[str, int]) -> _Gang | None:
        """Whose dispatcher grants a profile its permits: one of free nodes, or that of the oldest group with nodes enough."""
        pools: tuple[Pool, Pool] = ("rollout", "training")
        if all(len(self._ground.free(pool)) >= need[pool] for pool in pools):
            self._lease = _Gang(LEASE, Dispatcher(self._dispatch))
            self._lease_need = need
            self._settle()
            return self._lease
        for group in self._state.group_list():
            if len(group.rollout_nodes) >= need["rollout"] and group.training_nodes >= need["training"]:
                return self._gangs[group.id]
        return None

    def _numbers(self, gang: _Gang, spec: JobSpec) -> dict[str, tuple[int, ...]]:
        """The first nodes of a slot, as many as a job asks for."""
        rollout = tuple(range(spec.rollout.nodes))
        if gang.number != LEASE:
            group = next(group for group in self._state.group_list() if group.id == gang.number)
            rollout = group.rollout_nodes[: spec.rollout.nodes]
        return {"rollout": rollout, "training": tuple(range(spec.training.nodes))}

    # Placement.

    def _arrive(self, job: Job) -> None:
        job = job.model_copy(update={"arrival_s": self._now()})
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
            while self._state.waiting:
                first = self._state.waiting[0]
                self._carry_out(Arrived(self._now(), self._state.job(first)))
                if first in self._state.waiting[:1]:
                    break

    def _carry_out(self, event: Event) -> None:
        self._note_progress()
        self._state.now_s = self._now()
        plan = self._policy.decide(self._state, event)
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
        gang = self._gangs.setdefault(number, _Gang(number, Dispatcher(self._dispatch)))
        self._say(f"{event.job_id}: {event.placement.strategy.replace('_', ' ')}, group {number}")
        if isinstance(event, Moved):
            runner.moves_to = gang
            return
        self._join(runner, gang)
        runner.iteration = 0
        self._tell(runner, Order(0, False, runner.nodes, self._checkpoint(runner)))
        if runner.gone:  # it failed while it waited
            self._quit(runner)
            self._depart(runner)

    def _join(self, runner: _Runner, gang: _Gang) -> None:
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
        runner: _Runner,
        gang: _Gang,
        numbers: dict[str, tuple[int, ...]],
        rollout_s: float,
        training_s: float,
        sync_s: float,
        colocated: bool = False,
    ) -> None:
        ground, number = self._ground, gang.number
        runner.gang, runner.numbers = gang, numbers
        pools: dict[Pool, Pool] = {"rollout": "training" if colocated else "rollout", "training": "training"}
        runner.nodes = {pool: tuple(ground.node(number, kind, k) for k in numbers[pool]) for pool, kind in pools.items()}
        gang.dispatcher.now_s = self._now()
        pins = () if colocated else numbers["rollout"]
        gang.dispatcher.joined(runner.spec.id, pins, rollout_s, training_s, sync_s, runner.spec.slo)

    def _depart(self, runner: _Runner) -> None:
        """A job that has a place leaves it."""
        runner.gone = True
        if runner.moves_to is not None:
            runner.moves_to = None
            self._note(Resumed(self._now(), runner.spec.id))
        self._note_progress()
        event = Departed(self._now(), runner.spec.id)
        self._note(event)
        self._settle()
        self._answer(event)
        self._freed.set()

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

    # Phases and iterations.

    def _pump(self, gang: _Gang) -> None:
        """Give the permits that are due."""
        if self._stopping:
            return
        gang.dispatcher.now_s = self._now()
        try:
            permits = gang.dispatcher.permits()
            for permit in permits:
                self._grant(self._runners[permit.job_id], permit.phase, len(permits) > 1)
        except Exception as error:
            self._break(error)

    def _grant(self, runner: _Runner, phase: PhaseName, paired: bool) -> None:
        switched = self._ground.take(runner.spec.id, runner.nodes[phase])
        runner.hold = _Hold(phase, runner.asked_s, self._now(), switched, paired)
        assert runner.wanted is not None
        runner.wanted.set_result(None)

    def _slice(self, runner: _Runner, hold: _Hold, report: Report, now_s: float) -> PhaseSlice:
        assert runner.gang is not None
        pool = self._pool_of(runner, hold.pool)
        return PhaseSlice(
            job_id=runner.spec.id,
            phase=report.phase,  # type: ignore[arg-type]
            profile=runner.iteration == PROFILE,
            iteration=runner.iteration,
            group=runner.gang.number,
            pool=pool,
            numbers=runner.numbers[hold.pool],
            nodes=tuple(node.name for node in runner.nodes[hold.pool]),
            asked_s=hold.asked_s,
            start_s=hold.start_s,
            end_s=now_s,
            run_s=report.run_s,
            done_s=report.done_s,
            permit_s=report.begun_s - hold.start_s,
            load_s=report.load_s,
            offload_s=report.offload_s,
            cold=report.cold,
            switched=hold.switched,
            stages=report.stages,
            host_gb=report.host_gb,
        )

    @staticmethod
    def _pool_of(runner: _Runner, phase: Pool) -> Pool:
        """Whose nodes a phase holds: a co-located job's rollouts hold training nodes."""
        return runner.nodes[phase][0].pool

    def _completed(self, runner: _Runner, metrics: dict[str, float]) -> None:
        """A job has carried out its order."""
        job_id, gang = runner.spec.id, runner.gang
        assert gang is not None
        if runner.iteration == PROFILE:
            runner.began_s = None
            runner.passes -= 1
            if runner.passes:
                self._tell(runner, Order(PROFILE, True, runner.nodes, self._checkpoint(runner)))
                return
            self._quit(runner)
            self._pass(runner)
            return
        number, now_s = runner.iteration, self._now()
        began_s = runner.began_s if runner.began_s is not None else now_s
        runner.began_s = None
        self._write(Iteration(job_id, number, began_s, now_s, metrics))
        shown = "".join(f", {name} {metrics[name]:.4g}" for name in ("reward", "loss") if name in metrics)
        self._say(f"{job_id}: iteration {number + 1} of {runner.spec.iterations}, {now_s - began_s:.2f} s{shown}")
        runner.iteration = number + 1
        self._changed[job_id] = None
        if runner.iteration == runner.spec.iterations:
            self._quit(runner)
            self._depart(runner)
            self._tell(runner, None)
            return
        if runner.moves_to is not None and runner.movable:
            target, runner.moves_to = runner.moves_to, None
            self._quit(runner)
            self._join(runner, target)
            self._note(Resumed(now_s, job_id))
            self._settle()
            self._freed.set()
        self._tell(runner, Order(runner.iteration, False, runner.nodes, self._checkpoint(runner)))

    def _quit(self, runner: _Runner) -> None:
        """A job leaves the dispatcher that it is a member of; what it holds is free."""
        gang, job_id = runner.gang, runner.spec.id
        if gang is None:
            return
        if runner.hold is not None:
            self._ground.give(job_id, runner.nodes[runner.hold.pool])
            runner.hold = None
        gang.dispatcher.gone(job_id)
        runner.gang = None
        if not gang.dispatcher.members:
            self._gangs.pop(gang.number, None)
        self._pump(gang)

    # Ends.

    async def _watch(self, runner: _Runner) -> None:
        """Wait for a controller's end, whatever it is."""
        try:
            end: End = await runner.controller.run.remote()
        except ray.exceptions.RayError as error:
            end = End("failed", "step", "its controller has died", str(error))
        try:
            if end.outcome == "failed":
                await self._fail(runner, end)
            elif not runner.gone:
                self._quit(runner)
                runner.gone = True
                self._pass(runner)
            if runner.controller is not None:
                ray.kill(runner.controller)
            self._check_over()
        except Exception as error:
            self._break(error)

    async def _fail(self, runner: _Runner, end: End) -> None:
        """A job has failed: end its processes, then give its nodes to the others."""
        for worker in runner.workers:
            ray.kill(worker)
        for worker in runner.workers:
            try:
                await worker.identity.remote()
            except ray.exceptions.RayError:
                continue
        job_id = runner.spec.id
        if runner.hold is not None:
            now_s, start_s = self._now(), runner.hold.start_s
            cut = Report(runner.hold.pool, False, start_s, start_s, now_s)
            part = self._slice(runner, runner.hold, cut, now_s)
            self._write(PhaseSlice(**{**part.__dict__, "ok": False}))
        self._write(Failed(self._now(), job_id, end.where, end.problem, end.details))
        self._say(f"{job_id}: FAILED in {end.where}: {end.problem}")
        runner.gone = True
        self._quit(runner)
        self._pass(runner)
        if self._state.knows(job_id) and self._state.is_running(job_id):
            self._depart(runner)

    @staticmethod
    def _pass(runner: _Runner) -> None:
        """Nobody is to wait for a job's profile any more."""
        if runner.passed is not None and not runner.passed.done():
            runner.passed.set_result(None)

    def _interrupt(self, runner: _Runner) -> None:
        """Wake a job that waits, to tell it that the run stops."""
        for waits in (runner.wanted, runner.next):
            if waits is not None and not waits.done():
                waits.set_exception(Stopped())

    def _check_over(self) -> None:
        """End the run when nobody is left, or when those who are left wait for ever."""
        left = [runner for runner in self._runners.values() if not runner.gone and runner.controller is not None]
        if self._over.done():
            return
        if self._stopping and not left:
            self._over.set_result("stopped")
        elif not self._coming and not left:
            self._over.set_result("done")
        elif not self._coming and self._state.waiting and not self._state.order.size and not self._lease and not self._stopping:
            self._break(PlanError(waits_for_ever(self._state)))

    def _break(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    # Small things.

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    def _tell(self, runner: _Runner, order: Order | None) -> None:
        if runner.next is None or runner.next.done():
            runner.next = asyncio.get_running_loop().create_future()
        runner.next.set_result(order)

    def _checkpoint(self, runner: _Runner) -> str:
        return str(Path(self._plan.folder) / "checkpoints" / runner.spec.id)

    def _node_types(self) -> list[Node]:
        return [next(node for node in self._plan.nodes if node.pool == pool) for pool in ("rollout", "training")]

    def _note(self, event: Event) -> None:
        apply(self._state, event)
        self._write(event)

    def _note_progress(self) -> None:
        """Let the state know what jobs have done."""
        known = [job_id for job_id in self._changed if self._state.is_running(job_id)]
        if known:
            parts = tuple(self._progress_of(self._runners[job_id]) for job_id in known)
            self._note(Progressed(self._now(), parts))
        self._changed.clear()

    @staticmethod
    def _progress_of(runner: _Runner) -> Progress:
        return Progress(runner.spec.id, max(0, runner.iteration), runner.busy_s["rollout"], runner.busy_s["training"])

    def _write(self, *facts: Fact) -> None:
        self._journal.write(*facts)

    def _say(self, line: str) -> None:
        self._news.append(f"{self._now():8.1f} s  {line}")

    def _now(self) -> float:
        return monotonic() - self._zero_s
