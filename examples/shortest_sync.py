"""A dispatch policy example: of the phases that could begin, the one of the job with the shortest sync goes first."""

from policies.api import GroupView, MemberView, WaitingPhase


class ShortestSync:
    """Order by sync, but let a phase that was overtaken `patience` times go first, so that no job starves."""

    def __init__(self, patience: int = 4) -> None:
        self.patience = patience

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        late = [phase for phase in group.waiting if phase.overtaken >= self.patience]
        if late:
            return None if late[0].nodes & group.busy else late[0]
        free = [phase for phase in group.waiting if not phase.nodes & group.busy]
        return min(free, key=lambda phase: phase.member.sync_s, default=None)
