"""Options shared by all rules with long-tail migration."""

from __future__ import annotations

from rollmux_env.kernel.dispatch.turns import is_bound
from rollmux_env.scheduler.view import GroupView, MemberView
from rollmux_env.timing.tail import SHARE, Migration


class Tails:
    """Decides which tails a rule may migrate.

    Args:
        at: the share of a rollout's responses after which the rest may leave its nodes; None never. share: what a tail keeps of
            them; None is the usual. careful: not where the job is its group's bound, and waits for nobody: a slower rollout of its
            own would slow down everybody.

    Attributes:
        migration: the two numbers, or None. careful: as given.

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
        self.careful = careful

    def movable(self, group: GroupView) -> list[MemberView]:
        """The members whose tails may migrate now."""
        if self.migration is None:
            return []
        return [member for member in group.movable if not (self.careful and is_bound(group.row, group.rows, member.row))]
