"""What jobs are charged: the nodes and dollars of a group evenly to its members, and those that a move leaves to who moved.

So at any time the shares of all jobs add up to what is provisioned, and their dollars to what it has cost.
"""

from __future__ import annotations

from math import inf, nan
from typing import NamedTuple

from rollmux_env.keys.job import Job


class Share(NamedTuple):
    """What somebody holds of the cluster.

    Attributes:
        nodes: of all pools, with fractions. usd_per_hour: their price, $/h.
    """

    nodes: float
    usd_per_hour: float


NOTHING = Share(0.0, 0.0)


class _Account(NamedTuple):
    """Of one job: what it had been charged at `since_s`, and what it holds from then on, in its group and for a move."""

    usd: float
    since_s: float
    group: Share
    pause: Share
    admitted_s: float  # for the first time


class Charges:
    """The accounts of all jobs that have arrived, by row of the job table.

    A job that arrives again, under the same name, goes on with what it had been charged, and with the time of its first admission.
    """

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}
        self._jobs: dict[int, Job] = {}
        self._running: dict[str, dict[int, None]] = {}  # rows by user, in order of admission
        self._ends_s: dict[int, float] = {}  # of running jobs with a budget: when it is spent as things are

    def copy(self) -> Charges:
        """Accounts of their own."""
        twin = Charges()
        twin._accounts, twin._jobs, twin._ends_s = self._accounts.copy(), self._jobs.copy(), self._ends_s.copy()
        twin._running = {user: rows.copy() for user, rows in self._running.items()}
        return twin

    def usd(self, row: int, now_s: float) -> float:
        """What a job has been charged by now, $."""
        account = self._accounts[row]
        return account.usd + _usd_per_hour(account) * (now_s - account.since_s) / 3600

    def share(self, row: int) -> Share:
        """What a job holds now."""
        account = self._accounts[row]
        return Share(account.group.nodes + account.pause.nodes, _usd_per_hour(account))

    def user_share(self, user: str) -> Share:
        """What the jobs of a user hold now."""
        shares = [self.share(row) for row in self._running.get(user, ())]
        return Share(sum(share.nodes for share in shares), sum(share.usd_per_hour for share in shares))

    def running(self, user: str) -> tuple[int, ...]:
        """Rows of the jobs of a user that have a place."""
        return tuple(self._running.get(user, ()))

    def next_end_s(self) -> float:
        """When the next budget of a running job is spent, if nothing changes before; infinite where none will be."""
        return min(self._ends_s.values(), default=inf)

    def is_spent(self, row: int, until_s: float) -> bool:
        """Whether the budget of a running job is spent by then."""
        return self._ends_s.get(row, inf) <= until_s

    def spent(self, until_s: float) -> list[str]:
        """Ids of the running jobs whose budget is spent by then, in order of arrival."""
        return [self._jobs[row].id for row in sorted(self._ends_s) if self._ends_s[row] <= until_s]

    # What follows is for `apply` alone.

    def add(self, row: int, job: Job, before: int | None) -> None:
        """A job arrives.

        Args:
            before: its row in a life before this one.
        """
        self._accounts[row] = _Account(0.0, 0.0, NOTHING, NOTHING, nan) if before is None else self._accounts[before]
        self._jobs[row] = job

    def admit(self, row: int, now_s: float) -> None:
        """A job gets a place."""
        account = self._accounts[row]
        if account.admitted_s != account.admitted_s:
            self._accounts[row] = account._replace(admitted_s=now_s)
        user = self._jobs[row].user
        self._running.setdefault(user, {})[row] = None

    def depart(self, row: int) -> None:
        """A job has lost its place for ever."""
        del self._running[self._jobs[row].user][row]
        self._ends_s.pop(row, None)

    def hold(self, row: int, now_s: float, share: Share) -> None:
        """A job has such a share of its group from now on."""
        account = self._accounts[row]
        self._settle(row, now_s, share, account.pause)

    def pause(self, row: int, now_s: float, share: Share) -> None:
        """A job pays for such nodes that it has left."""
        account = self._accounts[row]
        self._settle(row, now_s, account.group, share)

    def _settle(self, row: int, now_s: float, group: Share, pause: Share) -> None:
        before = self._accounts[row]
        usd = before.usd + _usd_per_hour(before) * (now_s - before.since_s) / 3600
        self._accounts[row] = account = _Account(usd, now_s, group, pause, before.admitted_s)
        budget = self._jobs[row].budget
        if budget is None or row not in self._running[self._jobs[row].user]:  # what a job held that left in a move is given back
            return
        end_s = inf if budget.hours is None else account.admitted_s + 3600 * budget.hours
        rate = _usd_per_hour(account)
        if budget.usd is not None and rate > 0:
            end_s = min(end_s, now_s + max(0.0, budget.usd - usd) / rate * 3600)
        self._ends_s[row] = end_s


def _usd_per_hour(account: _Account) -> float:
    return account.group.usd_per_hour + account.pause.usd_per_hour
