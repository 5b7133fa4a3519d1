"""Part 4: what a policy costs over weeks: the fluid replay.

Between two events nothing changes, so rounds need not be simulated: each member of a group progresses at 1 / period iterations per
second, and each group costs the price of its nodes. Events are arrivals and departures. At an **instant** (times within a
microsecond count as one) all departures come first, then the queue is served, then jobs arrive. Jobs wait in the queue if a pool
has no nodes left for them. With an order, such as `area`, arrivals join the queue first, which is then sorted and served once.

`Replay.play` is a generator: it stops at every decision, yields the candidates, and is sent the chosen one. In `replay` a policy
answers it, and in the environment (part 6) an agent does, so that both pay the same dollars.
"""

from collections.abc import Callable, Generator
from contextlib import suppress
from math import inf
from typing import Any

from examples.mini.model import Job, Scenario
from examples.mini.planner import Candidate, Policy, State, candidates

INSTANT_S = 1e-6


def area(job: Job) -> float:
    """Return the node-seconds of a job's work alone. As an order, it places short and narrow jobs first."""
    return max(60.0, (job.iterations or 0) * job.solo_s or job.duration_s or 0.0) * (job.rollout.nodes + job.training.nodes)


class Replay:
    """A scenario from its first arrival to its last departure, with its measurements."""

    def __init__(self, scenario: Scenario, order: Callable[[Job], float] | None = None) -> None:
        self.order = order  # key by which waiting jobs are served, None for first come, first served
        self.jobs = scenario.jobs
        self.state = State(scenario.cluster)
        self.now_s = scenario.jobs[0].arrival_s
        self.queue: list[Job] = []
        self.done: dict[str, float] = {}  # iterations including fractions, by job
        self.admitted_s: dict[str, float] = {}
        self.departed_s: dict[str, float] = {}
        self.cost_usd = 0.0
        self.admissions = {"direct_packing": 0, "rollout_scaling": 0, "isolated": 0}
        self.peak_gpus = {"rollout": 0, "training": 0}
        self.provisioned_s = {"rollout": 0.0, "training": 0.0}  # node-seconds of all groups
        self.busy_s = {"rollout": 0.0, "training": 0.0}  # node-seconds of running phases

    def play(self) -> Generator[list[Candidate], Candidate | None, None]:
        """Run the scenario. Yield the candidates of a job if one is feasible; the job waits if None is sent."""
        to_come = list(self.jobs)
        while to_come or self.state.groups:
            departures = self.departures()
            self.pass_time(max(self.now_s, min([*departures.values(), to_come[0].arrival_s if to_come else inf])))
            leaving = [job for job in self.jobs if departures.get(job.id, inf) <= self.now_s + INSTANT_S]
            for job in leaving:
                self.state.remove(job)
                self.departed_s[job.id] = self.now_s
            if leaving and self.order is None:
                yield from self.serve()
            while to_come and to_come[0].arrival_s <= self.now_s + INSTANT_S:
                self.queue.append(to_come.pop(0))
                if len(self.queue) == 1 and self.order is None:
                    yield from self.serve()
            if self.order is not None:
                self.queue.sort(key=self.order)
                yield from self.serve()
            for side, pool in (("rollout", self.state.cluster.rollout), ("training", self.state.cluster.training)):
                self.peak_gpus[side] = max(self.peak_gpus[side], self.state.nodes(side) * pool.gpus_per_node)

    def departures(self) -> dict[str, float]:
        """Return the time at which each running job leaves if no other event comes before."""
        times = {}
        for group in self.state.groups:
            for job in group.jobs:
                if job.iterations is None:
                    times[job.id] = self.admitted_s[job.id] + (job.duration_s or 0.0)
                else:
                    times[job.id] = self.now_s + (job.iterations - self.done[job.id]) * group.period_s
        return times

    def pass_time(self, until_s: float) -> None:
        """Advance all groups to a time before which no event comes."""
        seconds = until_s - self.now_s
        for group in self.state.groups:
            self.cost_usd += group.usd_per_hour(self.state.cluster) * seconds / 3600
            self.provisioned_s["rollout"] += len(group.rollout_nodes) * seconds
            self.provisioned_s["training"] += group.training_nodes * seconds
            rounds = seconds / group.period_s
            for job in group.jobs:
                self.done[job.id] += rounds
                self.busy_s["rollout"] += rounds * job.rollout.nodes * job.rollout.worst_case_s
                self.busy_s["training"] += rounds * group.training_nodes * group.training_s(job)
        self.now_s = until_s

    def serve(self) -> Generator[list[Candidate], Candidate | None, None]:
        """Ask for placements of the waiting jobs, from the head of the queue until one finds none."""
        while self.queue:
            entries = candidates(self.state, self.queue[0])
            choice = (yield entries) if any(entry.feasible for entry in entries) else None
            if choice is None:
                return
            job = self.queue.pop(0)
            self.state.place(choice)
            self.admissions[choice.strategy] += 1
            self.admitted_s[job.id], self.done[job.id] = self.now_s, 0.0

    def metrics(self) -> dict[str, Any]:
        """Return the figures of `rollmux bench --format json`, after the last departure (docs/reference/metrics.md)."""
        hours = (self.now_s - self.jobs[0].arrival_s) / 3600
        work_h = sum(self.done[job.id] * job.solo_s for job in self.jobs) / 3600
        mean_s = {job.id: (self.departed_s[job.id] - self.admitted_s[job.id]) / self.done[job.id] for job in self.jobs}
        slowdown = {job.id: mean_s[job.id] / job.solo_s for job in self.jobs}
        return {
            "cost_usd": self.cost_usd,
            "hours": hours,
            "usd_per_hour": self.cost_usd / hours,
            "work_h": work_h,
            "usd_per_work_hour": self.cost_usd / work_h,
            "slo_attainment": sum(slowdown[job.id] <= job.slo * (1 + 1e-6) for job in self.jobs) / len(self.jobs),
            "slowdown": slowdown,
            "wait_s": {job.id: wait for job in self.jobs if (wait := self.admitted_s[job.id] - job.arrival_s) > 0},
            "peak_gpus": self.peak_gpus,
            "admissions": self.admissions,
            "utilization": {side: self.busy_s[side] / self.provisioned_s[side] for side in self.busy_s},
        }


def replay(scenario: Scenario, policy: Policy, order: Callable[[Job], float] | None = None) -> dict[str, Any]:
    """Return the metrics of a scenario under a policy, and an order of the queue."""
    run, choice = Replay(scenario, order), None
    play = run.play()
    with suppress(StopIteration):
        while True:
            choice = policy(play.send(choice))
    return run.metrics()
