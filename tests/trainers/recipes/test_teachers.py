"""Teachers: what they would do is recorded at every choice, and the optimum's groups are those of the jobs that are there."""

import pytest

from policies.placement.algorithm1 import Algorithm1
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Arrived
from rollmux_env.cluster.plan import Place, carry_out
from rollmux_env.cluster.state import State
from rollmux_env.envs.placement.generator import Toy, Workload
from trainers.recipes.teachers import TEACHERS, collect_examples, optimum_teacher


@pytest.mark.parametrize("name", list(TEACHERS))
def test_a_teacher_is_heard_wherever_there_is_a_choice(name: str) -> None:
    scenario = Workload("mixed", jobs=15).scenario(3)
    everything = collect_examples(scenario, TEACHERS[name](), None, 1000)
    few = collect_examples(scenario, TEACHERS[name](), None, 3)
    assert len(everything) == len(few) > 5
    for (seen, told), (some, again) in zip(everything, few, strict=True):
        assert 1 < len(some.candidates) <= 3 and len(some.candidates) <= len(seen.candidates)
        assert (seen.candidates[told] == some.candidates[again]).all() and (seen.candidates[0] == some.candidates[0]).all()


def test_a_job_that_the_optimum_groups_with_nobody_gets_a_group_of_its_own() -> None:
    """Of the toy's jobs the first and the third belong together; the second would fit beside the first at no cost."""
    generator = Toy(rounds=1)
    first, second, third, _ = generator.scenario(0).jobs
    state = State(generator.cluster)
    for job in (first, third):
        event = Arrived(0.0, job)
        apply(state, event)
        table = candidates(state, job.id)
        carry_out(state, (Place(job.id, table.placement(len(table) - 1)),), keeps_slo=True)
    event = Arrived(0.0, second)
    apply(state, event)
    table = candidates(state, second.id)
    row = optimum_teacher()(state, event, table)
    assert row is not None and table.group[row] == -1
    (place,) = Algorithm1().decide(state, event)
    assert isinstance(place, Place) and place.placement.group is not None
