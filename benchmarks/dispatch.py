"""Dispatch policies on groups of every shape and skew: dollars per work-hour and SLOs, paired by seed with 95% intervals, and time.

    python benchmarks/dispatch.py                       all policies, held-out seeds 100 to 139
    python benchmarks/dispatch.py --seeds 10 --first 2000 learned:best.safetensors "fifo,migrate=0.8"
    python benchmarks/dispatch.py --stale               the same groups with stale members
    python benchmarks/dispatch.py --streams --seeds 3   whole streams of 100 jobs, placed by `rollmux`
    python benchmarks/dispatch.py --known --seeds 8     beside the best schedules that a search finds if it knows all durations

Every figure is from the event replay of a group under the policy that `--dispatch` would make. The first column of a policy is its
dollars per work-hour relative to strict round robin with migration at 80% on the same seeds. The second column is how much more of
the members meet their SLO, in percentage points. The last row is the mean CPU time of a call of `choose`. For whole streams, the
columns are means: dollars per work-hour, and observed attainment. With `--known` the last column is a lower bound: a linear program
that shares nodes without loss.
"""

from __future__ import annotations

import argparse
from time import process_time

import numpy as np
from rich.table import Table

from policies.dispatch import make_dispatch
from policies.registry import make_policy
from rollmux_env.bench.intervals import mean_interval
from rollmux_env.bench.leaderboard.bounds import group_usd_per_work_hour
from rollmux_env.bench.leaderboard.clairvoyant import Clairvoyant
from rollmux_env.bench.streams import sampled
from rollmux_env.envs.dispatch.generator import SHAPES, SKEWS, RandomGroups
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.replay.event import replay_events
from rollmux_env.replay.metrics import metrics
from rollmux_env.report.tables import show
from rollmux_env.scheduler.view import DispatchPolicy, GroupView, MemberView, WaitingPhase
from rollmux_env.timing.tail import migration_of

BASE = "round-robin,migrate=0.8"
POLICIES = ("round-robin", "fifo,migrate=0.8", "learned:default")
Found = dict[str, np.ndarray]


class TimedDispatch:
    """A dispatch policy that measures its time.

    Args:
        policy: The policy.

    Attributes:
        policy: The policy.
        migration: Migration that the policy asks for.
        seconds: CPU time of all calls, in seconds.
        calls: Number of calls.
    """

    def __init__(self, policy: DispatchPolicy) -> None:
        self.policy = policy
        self.migration = migration_of(policy)
        self.seconds = 0.0
        self.calls = 0

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """Return the policy's choice."""
        began = process_time()
        chosen = self.policy.choose(group)
        self.seconds += process_time() - began
        self.calls += 1
        return chosen


def main() -> None:
    """Play the policies, and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("policies", nargs="*", default=POLICIES)
    options.add_argument("--first", type=int, default=100)
    options.add_argument("--seeds", type=int, default=40)
    compared = options.add_mutually_exclusive_group()
    for name in ("--streams", "--stale", "--known"):
        compared.add_argument(name, action="store_true")
    arguments = options.parse_args()
    names = [BASE, *arguments.policies]
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.streams:
        show(_streams(names, seeds))
        return
    if arguments.known:
        show(_known(names, seeds))
        return
    table = Table("shape", "skew", f"SLO of {BASE}", *(title for name in arguments.policies for title in (name, "SLO points")))
    every: dict[str, list[Found]] = {name: [] for name in names}
    policies = {name: TimedDispatch(make_dispatch(name)) for name in names}
    for policy in policies.values():  # the first call compiles the kernel and does not count
        _play(policy, RandomGroups(SHAPES[0], SKEWS[0]), range(1))
        policy.seconds, policy.calls = 0.0, 0
    for shape in SHAPES:
        for skew in SKEWS:
            generator = RandomGroups(shape, skew, stale=float(arguments.stale))
            outcomes = {name: _play(policies[name], generator, seeds) for name in names}
            table.add_row(shape, f"{skew:g}", *_row(outcomes, arguments.policies))
            for name in names:
                every[name].append(outcomes[name])
    pooled = {name: {key: np.mean([outcome[key] for outcome in own], axis=0) for key in own[0]} for name, own in every.items()}
    table.add_section()
    table.add_row("all", "", *_row(pooled, arguments.policies))
    times = {name: f"{1e6 * policy.seconds / policy.calls:.0f} µs" for name, policy in policies.items()}
    table.add_row("a decision", "", times[BASE], *(cell for name in arguments.policies for cell in (times[name], "")))
    show(table)


def _play(dispatch: DispatchPolicy, generator: RandomGroups, seeds: range) -> Found:
    """Return the figures of a policy by name, each with one value for each seed."""
    outcomes = []
    for seed in seeds:
        group = generator.group(seed)
        outcomes.append(figures(group, replay_group(group, dispatch)))
    return {key: np.array([entry[key] for entry in outcomes]) for key in ("usd_per_work_hour", "slo_attainment")}


def _streams(names: list[str], seeds: range) -> Table:
    """Return the table for streams whose phases take 0.6 of their worst case on average, with a coefficient of variation of 0.5."""
    table = Table("workload", "dispatch", "$ per work-hour", "observed SLO attainment")
    for workload in ("production", "mixed"):
        for name in names:
            outcomes = []
            for seed in seeds:
                scenario = sampled(workload, seed, cv=0.5, jobs=100)
                run = metrics(replay_events(scenario, make_policy("rollmux"), make_dispatch(name), seed))
                outcomes.append((run.cost_usd / run.work_h, run.slo_attainment_observed))
            usd, attainment = np.mean(outcomes, axis=0)
            table.add_row(workload, name, f"{usd:.2f}", f"{attainment:.3f}")
    return table


def _known(names: list[str], seeds: range) -> Table:
    """Return the table of groups with drawn skews: dollars over those of the base of each policy, the search, and the bound."""
    columns = [*names[1:], "clairvoyant"]
    table = Table("shape", *columns, "SLO of clairvoyant", "no order is below")
    every: list[list[list[float]]] = []
    for shape in SHAPES:
        ratios: list[list[float]] = []
        for group in map(RandomGroups(shape).group, seeds):
            orders = [*map(make_dispatch, names), Clairvoyant(group)]
            base, *others = (figures(group, replay_group(group, order)) for order in orders)
            usd = [*(one["usd_per_work_hour"] for one in others), group_usd_per_work_hour(group)]
            ratios.append([*(value / base["usd_per_work_hour"] for value in usd), others[-1]["slo_attainment"]])
        every.append(ratios)
        table.add_row(shape, *_cells(ratios))
    table.add_section()
    table.add_row("all", *_cells([row for ratios in every for row in ratios]))
    return table


def _cells(ratios: list[list[float]]) -> list[str]:
    """Return the cells of a row: ratios with intervals, the share of SLOs, and the ratio of the bound."""
    *ordered, bound, slos = (list(column) for column in zip(*ratios, strict=True))
    return [*(mean_interval(column).text(3) for column in ordered), f"{np.mean(slos):.3f}", f"{np.mean(bound):.3f}"]


def _row(outcomes: dict[str, Found], policies: list[str]) -> list[str]:
    """Return the cells of a row: the reference's SLO attainment, then two cells for each policy."""
    base = outcomes[BASE]
    cells = [f"{base['slo_attainment'].mean():.3f}"]
    for name in policies:
        ratio = mean_interval((outcomes[name]["usd_per_work_hour"] / base["usd_per_work_hour"]).tolist())
        points = mean_interval((100 * (outcomes[name]["slo_attainment"] - base["slo_attainment"])).tolist())
        cells += [ratio.text(3), points.text(1)]
    return cells


if __name__ == "__main__":
    main()
