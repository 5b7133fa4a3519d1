"""The part of the coordinator that carries out what the policy decides: groups, their nodes, their members.

Nothing in here decides where a job goes: an event is applied, `policy.decide` answers, `carry_out` checks and applies the plan.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Resumed, Ticked, Withdrawn
from rollmux_env.cluster.plan import Plan, carry_out
from rollmux_env.cluster.state import apply
from rollmux_env.scheduler.dispatcher import Dispatcher
from runtime.execution.ground import Place
from runtime.execution.members import PROFILE, Gang, Runner
from runtime.execution.messages import Order
from runtime.execution.permits import Permits
from runtime.facts import LEASE, Failed, Pool, Restarted


class Placing(Permits):
    """Who is where."""

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
        pools: dict[Pool, Pool] = {"rollout": "training" if colocated else "rollout", "training": "training"}
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
