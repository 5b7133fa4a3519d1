"""The accounts of jobs: the nodes and dollars that each job is charged for.

The nodes of a group are charged to its members in equal shares. The nodes that a moved job left are charged to that job until its
pause ends. Nodes that are lent to jobs for their profiles are charged to these jobs in equal shares. So the shares of all jobs
always add up to what is provisioned, and their dollars to its total cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import expm1, inf, log, nan
from typing import NamedTuple

from rollmux_env.keys.job import Job


class Share(NamedTuple):
    """A share of the cluster.

    Attributes:
        nodes: Nodes of all pools together, possibly fractional.
        usd_per_hour: Price of these nodes, $/h.
    """

    nodes: float
    usd_per_hour: float


NOTHING = Share(0.0, 0.0)


class EarlierWork(NamedTuple):
    """Work of a job before it had to wait for other nodes. Its row in the job table begins at 0 then.

    Attributes:
        alone_usd: Dollars that its phases and syncs would have cost on separate nodes.
        iterations: Number of iterations.
    """

    alone_usd: float
    iterations: float


NO_WORK = EarlierWork(0.0, 0.0)


class _Account(NamedTuple):
    """Account of one job.

    Attributes:
        usd: Dollars charged until `changed_s`.
        changed_s: Time of the last change, seconds.
        group: Share of the job's group since then.
        pause: Share for nodes that a move left, since then.
        admitted_s: Time of the job's first admission, later by the time that it has had no place since, in seconds; nan before.
        node_s: Node-seconds charged until `changed_s`.
        earlier: Work of the job before it arrived again.
    """

    usd: float
    changed_s: float
    group: Share
    pause: Share
    admitted_s: float
    node_s: float = 0.0
    earlier: EarlierWork = NO_WORK


class LentCharges(NamedTuple):
    """Charges of a job for lent nodes. The time in which it has them counts as time alone: nothing is saved.

    Attributes:
        user: User of the job.
        usd: Dollars.
        node_s: Node-seconds.
    """

    user: str
    usd: float = 0.0
    node_s: float = 0.0


class _Usage(NamedTuple):
    """Usage of a user's jobs up to a time, without what their accounts have not been settled for.

    Attributes:
        node_s: Integral of the nodes charged, halved every half-life, in node-seconds.
        at_s: The time, seconds.
        month_s: Integral of the nodes charged since the month began, not halved, in node-seconds.
    """

    node_s: float
    at_s: float
    month_s: float = 0.0


class Charges:
    """The accounts of all jobs that have arrived, by row of the job table, and the usage of their users.

    A job that arrives again under the same name continues its account. Time without a place does not count for its budget.

    Args:
        half_life_s: Time after which usage counts half, seconds.

    Attributes:
        lent_to: Users of the jobs that have lent nodes now, by job id.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._month_s = 0.0  # beginning of the calendar month
        self._usage: dict[str, _Usage] = {}
        self._accounts: dict[int, _Account] = {}
        self._jobs: dict[int, Job] = {}
        self._running: dict[str, dict[int, None]] = {}  # rows of each user's running jobs, in order of admission
        self._lent: dict[str, LentCharges] = {}  # of jobs that have been profiled, until they arrive
        self.lent_to: Mapping[str, str] = {}
        self._lent_share, self._lent_s = NOTHING, 0.0  # share of each of them, and since when
        self._ends_s: dict[int, float] = {}  # for running jobs with a budget, the time at which it will be exhausted

    def copy(self) -> Charges:
        """Return independent accounts."""
        twin = Charges(self._half_life_s)
        twin._usage, twin._month_s = self._usage.copy(), self._month_s
        twin._accounts, twin._jobs, twin._ends_s = self._accounts.copy(), self._jobs.copy(), self._ends_s.copy()
        twin._running = {user: rows.copy() for user, rows in self._running.items()}
        twin._lent, twin.lent_to = self._lent.copy(), self.lent_to
        twin._lent_share, twin._lent_s = self._lent_share, self._lent_s
        return twin

    def usd(self, row: int, now_s: float) -> float:
        """Return the dollars that a job has been charged until now."""
        account = self._accounts[row]
        return account.usd + _usd_per_hour(account) * (now_s - account.changed_s) / 3600

    def node_hours(self, row: int, now_s: float) -> float:
        """Return the node-hours that a job has been charged until now."""
        account = self._accounts[row]
        return (account.node_s + _nodes(account) * (now_s - account.changed_s)) / 3600

    def earlier_work(self, row: int) -> EarlierWork:
        """Return the work of a job in its earlier rows."""
        return self._accounts[row].earlier

    def earlier_iterations(self, rows: Sequence[int]) -> list[float]:
        """Return the number of iterations that each job has done in its earlier rows."""
        return [self._accounts[row].earlier.iterations for row in rows]

    def has_begun(self, row: int) -> bool:
        """Return whether a job has ever been admitted, in this row or an earlier one."""
        admitted_s = self._accounts[row].admitted_s
        return admitted_s == admitted_s

    def share(self, row: int) -> Share:
        """Return the current share of a job."""
        account = self._accounts[row]
        return Share(account.group.nodes + account.pause.nodes, _usd_per_hour(account))

    def user_share(self, user: str) -> Share:
        """Return the current share of a user's jobs together."""
        shares = [self.share(row) for row in self._running.get(user, ())] + [self._lent_share] * self._borrowers(user)
        return Share(sum(share.nodes for share in shares), sum(share.usd_per_hour for share in shares))

    def usage_h(self, user: str, now_s: float) -> float:
        """Return the integral of the nodes that a user's jobs have been charged, halved every half-life, in node-hours."""
        node_s = self._usage_at(user, now_s)
        for row in self._running.get(user, ()):
            account = self._accounts[row]
            node_s += _nodes(account) * self._integrate_weight_s(now_s - account.changed_s)
        return (node_s + self._borrowers(user) * self._lent_share.nodes * self._integrate_weight_s(now_s - self._lent_s)) / 3600

    def month_h(self, user: str, now_s: float) -> float:
        """Return the node-hours that a user's jobs have been charged since the calendar month began."""
        before = self._usage.get(user)
        node_s = 0.0 if before is None else before.month_s
        for row in self._running.get(user, ()):
            account = self._accounts[row]
            node_s += _nodes(account) * (now_s - max(account.changed_s, self._month_s))
        lent_s = now_s - max(self._lent_s, self._month_s)
        return (node_s + self._borrowers(user) * self._lent_share.nodes * lent_s) / 3600

    def lent_job_ids(self) -> set[str]:
        """Return the ids of jobs that have been charged for lent nodes and have not arrived since then."""
        return self._lent.keys() | self.lent_to.keys()

    def lent_charges(self, job_id: str, now_s: float) -> LentCharges | None:
        """Return what a job has been charged for lent nodes, or None if it has had none or has arrived since then."""
        return self._lent_charges(job_id, now_s) if job_id in self.lent_to else self._lent.get(job_id)

    def _lent_charges(self, job_id: str, now_s: float) -> LentCharges:
        user, seconds, share = self.lent_to[job_id], now_s - self._lent_s, self._lent_share
        before = self._lent.get(job_id, LentCharges(user))
        return LentCharges(user, before.usd + share.usd_per_hour * seconds / 3600, before.node_s + share.nodes * seconds)

    def _borrowers(self, user: str) -> int:
        """Return the number of a user's jobs that have lent nodes."""
        return sum(one == user for one in self.lent_to.values())

    def _usage_at(self, user: str, now_s: float) -> float:
        """Return the settled usage of a user as it counts now, in node-seconds."""
        before = self._usage.get(user)
        return 0.0 if before is None else before.node_s * 0.5 ** ((now_s - before.at_s) / self._half_life_s)

    def _integrate_weight_s(self, seconds: float) -> float:
        """Return the integral of a weight that is 1 now and was half a half-life ago, over the last seconds."""
        # 1 - 0.5 ** x would lose its digits where the half-life is long.
        return -expm1(-(seconds / self._half_life_s) * log(2)) * self._half_life_s / log(2)

    def settled(self, now_s: float) -> dict[str, tuple[float, float]]:
        """Return the settled usage of each user as it counts now, and that of this month, both in node-seconds."""
        return {user: (self._usage_at(user, now_s), usage.month_s) for user, usage in self._usage.items()}

    def users(self) -> frozenset[str]:
        """Return the users whose jobs have been charged something, or run."""
        return frozenset((*self._usage, *self._running, *self.lent_to.values()))

    def running(self, user: str) -> tuple[int, ...]:
        """Return the rows of a user's running jobs."""
        return tuple(self._running.get(user, ()))

    def next_end_s(self) -> float:
        """Return the time at which the next budget is exhausted if nothing changes before, or infinity."""
        return min(self._ends_s.values(), default=inf)

    def is_spent(self, row: int, until_s: float) -> bool:
        """Return whether the budget of a running job is exhausted by then."""
        return self._ends_s.get(row, inf) <= until_s

    def spent(self, until_s: float) -> list[str]:
        """Return the ids of the running jobs whose budget is exhausted by then, in order of arrival."""
        return [self._jobs[row].id for row in sorted(self._ends_s) if self._ends_s[row] <= until_s]

    # The following methods are for `apply` only.

    def begin_month(self, now_s: float) -> None:
        """Begin a calendar month: what was charged before does not count for `month_h`."""
        self._month_s = now_s
        self._usage = {user: usage._replace(month_s=0.0) for user, usage in self._usage.items()}

    def carry(self, user: str, now_s: float, node_s: float, month_s: float) -> None:
        """Set the settled usage of a user; see `rollmux_env.cluster.events.CarriedUsage`."""
        self._usage[user] = _Usage(node_s, now_s, month_s)

    def add(self, row: int, job: Job, before: int | None, earlier: EarlierWork = NO_WORK) -> None:
        """Open an account for a job that arrives.

        Args:
            row: Row of the job.
            job: The job.
            before: Row under which the job arrived earlier, or None.
            earlier: Work of the job in its earlier rows.
        """
        account = _Account(0.0, 0.0, NOTHING, NOTHING, nan) if before is None else self._accounts[before]._replace(earlier=earlier)
        if (lent := self._lent.pop(job.id, None)) is not None:
            earlier = account.earlier._replace(alone_usd=account.earlier.alone_usd + lent.usd)
            account = account._replace(usd=account.usd + lent.usd, node_s=account.node_s + lent.node_s, earlier=earlier)
        self._accounts[row] = account
        self._jobs[row] = job

    def admit(self, row: int, now_s: float) -> None:
        """Record that a job has been admitted."""
        account = self._accounts[row]
        # The last change of the account was when the job left its last place.
        first_s = now_s if account.admitted_s != account.admitted_s else account.admitted_s + (now_s - account.changed_s)
        self._accounts[row] = account._replace(admitted_s=first_s)
        user = self._jobs[row].user
        self._running.setdefault(user, {})[row] = None

    def depart(self, row: int) -> None:
        """Record that a job has departed or been parked."""
        del self._running[self._jobs[row].user][row]
        self._ends_s.pop(row, None)

    def lend(self, now_s: float, users: Mapping[str, str], share: Share) -> None:
        """Charge jobs for lent nodes from now on, and no others.

        Args:
            now_s: Time, seconds.
            users: User of each job, by id.
            share: Share of the cluster that is lent to all of them.
        """
        for job_id, user in self.lent_to.items():
            self._lent[job_id] = self._lent_charges(job_id, now_s)
            self._use(user, self._lent_share.nodes, self._lent_s, now_s)
        each = 1 / max(1, len(users))
        self.lent_to, self._lent_s = dict(users), now_s
        self._lent_share = Share(share.nodes * each, share.usd_per_hour * each)

    def hold(self, row: int, now_s: float, share: Share) -> None:
        """Set the share of a job in its group from now on."""
        account = self._accounts[row]
        self._settle(row, now_s, share, account.pause)

    def pause(self, row: int, now_s: float, share: Share) -> None:
        """Set the share of a job for nodes that its move left, from now on."""
        account = self._accounts[row]
        self._settle(row, now_s, account.group, share)

    def _settle(self, row: int, now_s: float, group: Share, pause: Share) -> None:
        before = self._accounts[row]
        usd = before.usd + _usd_per_hour(before) * (now_s - before.changed_s) / 3600
        nodes = _nodes(before)
        node_s = before.node_s + nodes * (now_s - before.changed_s)
        self._accounts[row] = account = _Account(usd, now_s, group, pause, before.admitted_s, node_s, before.earlier)
        self._use(self._jobs[row].user, nodes, before.changed_s, now_s)
        budget = self._jobs[row].budget
        if budget is None or row not in self._running[self._jobs[row].user]:  # a departed job gives back the nodes of its pause
            return
        end_s = inf if budget.hours is None else account.admitted_s + 3600 * budget.hours
        rate = _usd_per_hour(account)
        if budget.usd is not None and rate > 0:
            end_s = min(end_s, now_s + max(0.0, budget.usd - usd) / rate * 3600)
        self._ends_s[row] = end_s

    def _use(self, user: str, nodes: float, from_s: float, now_s: float) -> None:
        """Add nodes that a user's job has been charged to the user's usage."""
        if not nodes or now_s <= from_s:
            return
        used_s = self._usage_at(user, now_s) + nodes * self._integrate_weight_s(now_s - from_s)
        month_s = nodes * (now_s - max(from_s, self._month_s))
        self._usage[user] = _Usage(used_s, now_s, month_s + (self._usage[user].month_s if user in self._usage else 0.0))


def _nodes(account: _Account) -> float:
    return account.group.nodes + account.pause.nodes


def _usd_per_hour(account: _Account) -> float:
    return account.group.usd_per_hour + account.pause.usd_per_hour
