"""Options shared by all rules with long-tail migration."""

from __future__ import annotations

from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.members import Member
from rollmux_env.timing.alone import alone_s
from rollmux_env.timing.migration import SHARE, Migration

_MARGIN = 1.2


class Tails:
    """Decides which tails a rule may migrate.

    Args:
        at: the share of a rollout's responses after which the rest may leave its nodes; None never. share: what a tail keeps of
            them; None is the usual. careful: not where the job is its group's bound, and waits for nobody: a slower rollout of its
            own would slow down everybody.

    Attributes:
        migration: the two numbers, or None.

    Raises:
        ValueError: `at` or `share` are neither None nor numbers between 0 and 1, or `careful` is no boolean, or they are given
            without `at`; one line.
    """

    def __init__(self, at: float | None, share: float | None, careful: bool) -> None:
        if at is not None and not (isinstance(at, float) and 0 < at < 1):
            raise ValueError(f"migrate must be a number between 0 and 1, not {at}")
        if share is not None and at is None:
            raise ValueError("share goes with migrate")
        if not isinstance(careful, bool) or (careful and at is None):
            raise ValueError("careful must be true or false, and goes with migrate")
        self.migration = None if at is None else Migration(at, SHARE if share is None else share)
        self._careful = careful

    def movable(self, group: Dispatcher) -> list[Member]:
        """The members whose tails may migrate now."""
        if self.migration is None:
            return []
        return [member for member in group.movable if not (self._careful and is_bound(group, member))]


def is_bound(group: Dispatcher, member: Member) -> bool:
    """Whether the group is as slow as this member is alone: its cycle is clearly longer than any other's, and so long that its
    rollout nodes have little more to do in it. Seconds are those expected of phases by what was observed."""
    own_s = cycle_s(member)
    others_s = max((cycle_s(other) for other in group.members if other is not member), default=0.0)
    nodes = member.nodes["rollout"]
    load_s = sum(other.expected_s("rollout") for other in group.members if other.nodes["rollout"] & nodes)
    return own_s > _MARGIN * others_s and _MARGIN * own_s > load_s


def cycle_s(member: Member) -> float:
    """Seconds of an iteration that waits for nobody."""
    return alone_s(member.expected_s("rollout"), member.expected_s("training"), member.sync_s, member.staleness)
