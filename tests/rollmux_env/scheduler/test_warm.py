"""A job whose processes are alive enters the place whose nodes they are on without a cold start, at the instant when it arrives."""

from __future__ import annotations

from policies.dispatch import make_dispatch
from policies.placement.algorithm1 import Algorithm1
from rollmux_env.cluster.events import Admitted, Warm
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Switch
from rollmux_env.scheduler import commands, facts
from rollmux_env.scheduler.core import Scheduler, Step
from rollmux_env.scheduler.nodes import Assigned, NodePool
from tests.rollmux_env.scheduler.driver import make_cluster, make_job, make_nodes

FIRST, SECOND = (frozenset({f"rollout-{k}", f"training-{k}"}) for k in (0, 1))


def scheduler(pairs: int = 2) -> Scheduler:
    state = State(make_cluster(pairs), observed=True, switches=True)
    return Scheduler(state, Algorithm1(), make_dispatch("round-robin"), NodePool(make_nodes(pairs)))


def of(name: str, slo: float = 1000.0, iterations: int = 4) -> Job:
    """A job of 10 s a phase, whose cold starts take as long as two of its iterations."""
    job = make_job(name, iterations, slo=slo, seconds=10.0)
    switch = {"switch": Switch(cold_s=20.0)}
    rollout, training = (phase.model_copy(update=switch) for phase in (job.rollout, job.training))
    return job.model_copy(update={"rollout": rollout, "training": training})


def warm(step: Step) -> list[Warm]:
    return [entry for entry in step.entries if isinstance(entry, Warm)]


def admitted_warm(one: Scheduler, job_id: str) -> bool:
    return bool(one.state.tables.jobs.admitted_warm[one.state.row(job_id)])


def test_a_group_of_its_own_gets_the_nodes_that_it_is_on() -> None:
    one = scheduler()
    step = one.step(1.0, [facts.Queued(of("a"), node_names_with_processes=SECOND)])
    assert warm(step) == [Warm(1.0, "a", None, ("rollout-1", "training-1"))]
    assert {entry.node for entry in step.entries if isinstance(entry, Assigned)} == SECOND
    assert admitted_warm(one, "a") and one.state.tables.groups.coming_cold_s[0] == 0


def test_two_on_the_same_nodes_both_enter_warm_in_one_instant() -> None:
    """Cold the second may not: 40 + 40 + (4 + 2) x 20 s are above 1.6 x (4 x 20 + 40) s; warm 6 x 20 s are below 1.6 x 80 s."""
    both = [facts.Queued(of(name, 1.6), node_names_with_processes=FIRST) for name in "ab"]
    one = scheduler(pairs=1)
    step = one.step(1.0, both)
    assert [entry.group for entry in warm(step)] == [None, 0]
    assert [entry.placement.group for entry in step.entries if isinstance(entry, Admitted)] == [None, 0]
    cold = scheduler(pairs=1)
    assert cold.step(1.0, [facts.Queued(fact.job) for fact in both]).commands[-1] == commands.KeepWaiting("b")


def test_on_nodes_of_which_one_is_somebody_elses_it_is_cold() -> None:
    one = scheduler()
    one.step(1.0, [facts.Queued(of("a", slo=1.0))])
    step = one.step(2.0, [facts.Queued(of("b", slo=1.0), node_names_with_processes=frozenset({"rollout-0", "training-1"}))])
    assert warm(step) == [] and not admitted_warm(one, "b")


def test_who_had_to_wait_is_cold() -> None:
    one = scheduler(pairs=1)
    one.step(1.0, [facts.Queued(of("a", slo=1.0))])
    step = one.step(2.0, [facts.Queued(of("b", slo=1.0), node_names_with_processes=FIRST)])
    assert [entry.group for entry in warm(step)] == [0] and step.commands[-1] == commands.KeepWaiting("b")
    step = one.step(3.0, [facts.Failed("a"), facts.Cleared("a")])
    assert isinstance(step.entries[-1], Admitted | Assigned) and one.state.is_running("b") and not admitted_warm(one, "b")
