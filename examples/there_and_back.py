"""A placement policy example: after a number of iterations a job goes to its next shape, and from the last one to the first."""

from policies.api import Arrived, Event, Move, Place, Placement, Plan, State, Ticked, Wait, isolated, may_move


class ThereAndBack:
    """Give each job its own nodes, and move it to its next shape after every `iterations`."""

    keeps_slo = False
    wakes_every_s = 0.2

    def __init__(self, iterations: int = 20) -> None:
        self.iterations = iterations
        self.came: dict[str, int] = {}  # iterations that a job had done when it came to its shape

    def decide(self, state: State, event: Event) -> Plan:
        if isinstance(event, Arrived):
            alone = isolated(event.job)
            return (Place(event.job.id, alone) if has_room(state, alone) else Wait(event.job.id),)
        if isinstance(event, Ticked):
            for group in state.group_list():
                (job_id,) = group.jobs
                done, place = state.iterations_done(job_id), next_place(state, job_id)
                due = done - self.came.get(job_id, 0) >= self.iterations
                if due and may_move(state, job_id) and not state.is_paused(job_id) and has_room(state, place):
                    self.came[job_id] = int(done)
                    return (Move(job_id, place),)  # the others at the next ticks, when its old nodes may be free
        return ()


def next_place(state: State, job_id: str) -> Placement:
    """Return a new group for a job, in its next shape."""
    job = state.job(job_id)
    shape = (state.shape(job_id) + 1) % (1 + len(job.shapes))
    rollout, training = job.phases(shape)
    return Placement(None, (), rollout.nodes, training.nodes, shape=shape)


def has_room(state: State, place: Placement) -> bool:
    """Whether there are nodes for a new group; a job that moves keeps its old ones until it is there."""
    most = {name: pool.max_nodes or 10**9 for name, pool in state.cluster.pools.items()}
    fits = state.rollout_nodes + place.new_rollout_nodes <= most["rollout"]
    return fits and state.training_nodes + place.training_nodes <= most["training"]
