"""Whatever happens in whatever order, the scheduler breaks no invariant, and nobody is left waiting for what is free."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.dispatch import make_dispatch
from policies.placement.algorithm1 import Algorithm1
from rollmux_env.scheduler import commands, facts
from rollmux_env.scheduler.nodes import POOLS, PoolName
from tests.oracle.draw import examples
from tests.rollmux_env.replay.restless import Restless
from tests.rollmux_env.scheduler.driver import Driver, make_job

NAMES = tuple("abcdefgh")
RULES = ("round-robin", "round-robin,migrate=0.5", "fifo,migrate=0.5", "least-recently-served")


class Runs(RuleBasedStateMachine):
    """Jobs that come, run, fail, move and leave, on nodes that may be lost, are drained, and join."""

    @initialize(
        seed=st.integers(0, 2**16),
        rule=st.sampled_from(RULES),
        pairs=st.integers(1, 4),
        restless=st.booleans(),
        watched=st.booleans(),
    )
    def begin(self, seed: int, rule: str, pairs: int, restless: bool, watched: bool) -> None:
        policy = Restless(seed, keeps_slo=False) if restless else Algorithm1()
        self.rule, self.pairs = rule, pairs
        self.driver = Driver(policy, make_dispatch(rule), pairs, Algorithm1 if watched else None)

    @precondition(lambda self: len(self.driver.workers) < len(NAMES) and not self.driver.scheduler.members.stopped)
    @rule(profiled=st.booleans(), parts=st.booleans(), wide=st.booleans(), iterations=st.integers(1, 5))
    def submit(self, profiled: bool, parts: bool, wide: bool, iterations: int) -> None:
        nodes = self.driver.scheduler.nodes
        assert nodes is not None
        left = len(nodes.nodes("rollout")), len(nodes.nodes("training"))
        if min(left) == 0:
            return
        name = NAMES[len(self.driver.workers)]
        job = make_job(name, iterations, 2 if wide and left[0] > 1 else 1)
        self.driver.submit(job, profiled, parts)

    @rule(picks=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    def goes_on(self, picks: list[str]) -> None:
        told = [fact for name in picks if name in self.driver.workers for fact in self.driver.goes_on(name)]
        if told:
            self.driver.tell(*told)

    @rule(name=st.sampled_from(NAMES))
    def threshold(self, name: str) -> None:
        if self.driver.scheduler.members.migration is not None and name in self.driver.workers:
            self.driver.tell(*self.driver.threshold(name))

    @rule(name=st.sampled_from(NAMES))
    def shrink(self, name: str) -> None:
        if name in self.driver.workers:
            self.driver.tell(*self.driver.shrink(name))

    @rule(name=st.sampled_from(NAMES), again=st.booleans())
    def fail(self, name: str, again: bool) -> None:
        if name in self.driver.workers:
            self.driver.tell(*self.driver.fail(name, again and not self.driver.scheduler.members.stopped))

    @precondition(lambda self: self.pairs > 1 and self.driver.whole() == self.pairs)
    @rule(number=st.integers(0, 3))
    def lose(self, number: int) -> None:
        if any(worker.job.rollout.nodes > 1 or not worker.profiled for worker in self.driver.workers.values()):
            return  # such a one might wait for nodes that never come
        there = {node.name for pool in POOLS for node in self.driver.pool.nodes(pool)}
        names = frozenset(f"{pool}-{number % self.pairs}" for pool in POOLS) & there
        for worker in self.driver.workers.values():
            worker.again = not self.driver.scheduler.members.stopped
        self.driver.tell(facts.Lost(names))

    @rule(names=st.sets(st.sampled_from([f"{pool}-{k}" for pool in ("rollout", "training") for k in range(4)]), min_size=1))
    def drain(self, names: set[str]) -> None:
        self.driver.tell(facts.Drained(frozenset(names)))

    @rule(names=st.sets(st.sampled_from([f"{pool}-{k}" for pool in ("rollout", "training") for k in range(4)]), min_size=1))
    def undrain(self, names: set[str]) -> None:
        self.driver.tell(facts.Undrained(frozenset(names)))

    @precondition(lambda self: len(self.driver.nodes) < 12)
    @rule(pool=st.sampled_from(["rollout", "training"]))
    def join(self, pool: PoolName) -> None:
        self.driver.join(pool)

    @invariant()
    def grants_are_to_those_who_asked(self) -> None:
        """The driver asserts everything else with every command."""
        assert all(worker.gone or not (worker.phase and worker.holds) for worker in self.driver.workers.values())

    def teardown(self) -> None:
        """If what was granted ends, every member gets its next permit within a meta-iteration of its group, and every job ends."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        driver.tell(facts.Undrained(frozenset(driver.pool.drained)))
        seats = {name: seat for name, seat in driver.scheduler.members.seats.items() if not seat.failed}
        members, groups = {name: driver.workers[name].granted for name in seats}, {name: seat.group for name, seat in seats.items()}
        waits_for = {name: {other: members[other] for other in members if groups[other] is groups[name]} for name in members}

        def stays(name: str) -> bool:
            return driver.scheduler.members.seats.get(name) is seats[name] and seats[name].group is groups[name]

        for _ in range(400):
            told = [fact for name in [*driver.workers] for fact in [*driver.shrink(name), *driver.goes_on(name)]]
            if not told:
                break
            driver.tell(*told)
            for name in [*waits_for]:
                if driver.workers[name].granted != members[name] or not stays(name):
                    del waits_for[name]
                    continue
                others = {other: before for other, before in waits_for[name].items() if other != name and stays(other)}
                more = [driver.workers[other].granted - before for other, before in others.items()]
                most = 4 if self.rule.startswith("round-robin") else 2 * len(members) + 2
                assert max(more, default=0) <= most, (name, more, waits_for)
        scheduler = driver.scheduler
        assert not waits_for and not scheduler.members.seats and not scheduler.guests.waiting
        assert not scheduler.state.waiting, "nobody waits where everything is free"
        assert all(worker.gone for worker in driver.workers.values()) and not driver.owners
        grants = [command.job_id for command in driver.given(commands.Grant)]
        for name, worker in driver.workers.items():
            if worker.job.iterations == worker.done:
                assert grants.count(name) >= 2 * worker.done


Runs.TestCase.settings = settings(examples(120), stateful_step_count=60)
TestRuns = Runs.TestCase
